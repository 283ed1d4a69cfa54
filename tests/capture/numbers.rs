//! Numbers at the ends of their ranges, and layouts that are believed at a first look: each a typed error, or right.

use crate::support::{Rig, assert_same, driver, for_each_driver, for_each_seed};
use breakable_cuda_graph::driver::{DeviceBuffer, LaunchConfig, MemoryPool, MemoryPoolOptions, PinnedBuffer};
use breakable_cuda_graph::memory::{PoolPlan, Trace, planner::PlanError, planner::PlanOptions};
use breakable_cuda_graph::pool::Backing;
use breakable_cuda_graph::tensor::Layout;
use breakable_cuda_graph::{
    BreakOptions, BreakableCapture, CapturePool, DType, Error, Misuse, Outputs, PoolOptions, Result, StaticInput,
    TailRule, Tensor, TensorError, eager, scrub_padding_tail, slice_to_real_tokens,
};
use std::sync::Arc;

const FAR: [usize; 6] = [usize::MAX, usize::MAX - 1, usize::MAX / 2, 1 << 62, isize::MAX as usize / 16, 1 << 59];

/// What a recording or a break made of an error.
fn cause(error: Error) -> Error {
    match error {
        Error::Capture(error) => cause(*error.source),
        Error::Break { source, .. } => cause(*source),
        other => other,
    }
}

fn of_buffer(rig: &Rig, elements: usize, layout: Layout) -> Tensor {
    let buffer = DeviceBuffer::new(&rig.context, elements * 4).expect("memory");
    Tensor::from_buffer(buffer, DType::F32, layout).expect("a tensor")
}

#[test]
fn sizes_that_no_memory_has_are_typed_errors() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let memory = MemoryPool::new(&rig.context).expect("a pool");
        for bytes in FAR {
            let refused = DeviceBuffer::new(&rig.context, bytes);
            assert!(matches!(refused, Err(Error::DeviceOutOfMemory { .. } | Error::Call(_))), "{bytes}");
            assert!(matches!(PinnedBuffer::new(&rig.context, bytes), Err(Error::Call(_))), "{bytes}");
            assert!(memory.allocate(bytes, &rig.stream).is_err(), "{bytes}");
            for dtype in [DType::U8, DType::F64] {
                assert!(Tensor::allocate(&rig.context, dtype, &[bytes]).is_err(), "{bytes}");
                assert!(Tensor::zeros(&rig.stream, dtype, &[1, bytes]).is_err(), "{bytes}");
                assert!(rig.pool.persistent(dtype, &[bytes]).is_err(), "{bytes}");
                let inside =
                    |shape: &[usize]| eager(&rig.pool, &rig.stream, |scope| scope.empty(dtype, shape).map(drop));
                assert!(inside(&[bytes]).is_err() && inside(&[bytes, 2, 3]).is_err(), "{bytes}");
                let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
                let recorded = capture.record(&rig.stream, |scope| scope.empty(dtype, &[bytes]));
                assert!(recorded.is_err(), "{bytes}");
                assert!(rig.pool.lend(&rig.stream).expect("a loan").empty(dtype, &[bytes]).is_err(), "{bytes}");
            }
            assert!(StaticInput::<f32>::new(&rig.context, "ids", &[bytes, 2], TailRule::Zero).is_err(), "{bytes}");
            assert!(matches!(Tensor::host::<u8>(&[1], &[bytes]), Err(Error::Tensor(_))), "{bytes}");
            assert_eq!(LaunchConfig::for_elements(bytes).grid[1..], [1, 1]);
            memory.trim(bytes).expect("nothing is unused");
        }
        // It all works on.
        assert_same(&rig.read(&rig.ones(&[4])), &[1.0; 4]);
    });
}

#[test]
fn limits_and_counts_of_any_number_do_not_panic() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        for bytes in [0, 1, usize::MAX / 2, usize::MAX] {
            for backing in [Backing::MemoryPool, Backing::ReservedAddresses] {
                let options = PoolOptions::default().max_bytes(bytes).backing(backing);
                let Ok(pool) = CapturePool::with_options(&rig.context, options) else { continue };
                let mut capture = BreakableCapture::new(&pool).expect("a capture");
                let recorded = capture.record(&rig.stream, |scope| scope.empty(DType::U8, &[1 << 23]).map(drop));
                assert_eq!(recorded.is_ok(), bytes > 1, "{bytes} {backing:?}");
            }
            let options = MemoryPoolOptions::default().max_bytes(bytes).keep_bytes(u64::MAX);
            let _ = MemoryPool::with_options(&rig.context, options).map(|pool| pool.allocate(1, &rig.stream).is_ok());
        }
        let input = StaticInput::<f32>::new(&rig.context, "ids", &[4, 2], TailRule::Zero).expect("an input");
        for rows in FAR {
            assert!(matches!(input.fill(&rig.stream, &[1.0; 2], rows), Err(Error::Tensor(_))), "{rows}");
            assert_eq!(input.bucket(rows).rows(), 4);
            assert_eq!(slice_to_real_tokens(rows, [input.tensor()])[0].as_ref().expect("it is there").rows(), 4);
            scrub_padding_tail(&rig.stream, rows, [input.tensor()]).expect("no padded row");
        }
        let pinned = Arc::new(PinnedBuffer::new(&rig.context, 16).expect("memory"));
        #[expect(clippy::reversed_empty_ranges, reason = "the fault that is looked for")]
        for range in [0..17, 17..17, 8..4, usize::MAX..usize::MAX, usize::MAX..0, 1..usize::MAX] {
            // SAFETY: nothing is copied.
            let copied = unsafe { rig.stream.copy_pinned_to_device(input.tensor().address(), &pinned, range.clone()) };
            assert!(matches!(copied, Err(Error::Tensor(TensorError::OutOfRange { .. }))), "{range:?}: {copied:?}");
        }
    });
}

#[test]
fn inputs_and_dimensions_that_are_not_there_are_typed_errors() {
    let rig = Rig::new(&driver());
    let x = rig.ones(&[4, 4]);
    for index in [1, usize::MAX] {
        let asked = eager(&rig.pool, &rig.stream, |scope| {
            scope.break_point("input", [&x], |b| {
                assert!(matches!(b.input(index), Err(Error::Tensor(TensorError::OutOfRange { .. }))));
                assert!(matches!(b.optional_input(index), Err(Error::Tensor(TensorError::OutOfRange { .. }))));
                assert!(b.valid_input(index).is_err() && b.output(index).is_none());
                b.input(0).cloned()
            })
        });
        asked.expect("an eager run");
    }
    let absent =
        eager(&rig.pool, &rig.stream, |scope| scope.break_point("none", [None::<&Tensor>], |b| b.input(0).cloned()));
    let named = Misuse::AbsentInput { break_name: "none".into(), index: 0 };
    assert!(matches!(absent.map_err(cause), Err(Error::Misuse(misuse)) if misuse == named));
    assert!(
        x.narrow(usize::MAX, 0, 1).is_err() && x.transpose(0, usize::MAX).is_err() && x.reshape(&[usize::MAX]).is_err()
    );
    assert!(x.narrow(0, 1, usize::MAX).is_err() && x.narrow(0, usize::MAX, usize::MAX).is_err());
}

/// A buffer of one byte under a layout whose 2^64 elements wrap to none: a view of it reached past the buffer.
#[test]
fn a_broadcast_does_not_reach_past_its_buffer() {
    let rig = Rig::new(&driver());
    let wraps = Layout::strided(&[1 << 44, 1 << 20], &[0, 1]);
    assert!(matches!(wraps, Err(Error::Tensor(TensorError::Layout { .. }))), "{wraps:?}");
    let long = Layout::strided(&[1 << 40, 4], &[0, 1]).expect("2^42 elements");
    let tensor = of_buffer(&rig, 4, long);
    assert_eq!((tensor.elements(), tensor.extent_bytes()), (1 << 42, 16));
    let read = tensor.read::<f32>(&rig.stream);
    assert!(
        matches!(read, Err(Error::Tensor(TensorError::HostMemory { elements, .. })) if elements == 1 << 42),
        "{read:?}"
    );
    tensor.leading_rows(3).read::<f32>(&rig.stream).expect("part of it can be read");
    let past = DeviceBuffer::new(&rig.context, 15).expect("memory");
    let short = Tensor::from_buffer(past, DType::F32, long);
    assert!(matches!(short, Err(Error::Tensor(TensorError::OutOfRange { end: 16, length: 15, .. }))), "{short:?}");
}

/// A broadcast can be read, and which of a row's values would be left in it is nobody's to say.
#[test]
fn a_broadcast_is_not_written() {
    for_each_seed(|rig| {
        let values = rig.random(1, &[4, 8]);
        let before = rig.random(2, &[32]);
        let shared = [&[0, 1][..], &[1, 1], &[8, 0], &[2, 2]];
        for strides in shared {
            let layout = Layout::strided(&[4, 8], strides).expect("a layout");
            let target = of_buffer(&rig, 32, layout);
            let whole = target.narrow(0, 0, 1).and_then(|row| row.narrow(1, 0, 1)).expect("an element");
            whole
                .copy_from(&rig.stream, &before.narrow(0, 0, 1).and_then(|one| one.reshape(&[1, 1])).expect("one"))
                .expect("a copy");
            let refused = |result: Result<()>| match result.map_err(cause) {
                Err(Error::Tensor(error @ TensorError::SharedElements { .. })) => {
                    assert_eq!(Error::from(error).code(), 610)
                }
                other => panic!("{strides:?}: {other:?}"),
            };
            refused(target.copy_from(&rig.stream, &values));
            refused(scrub_padding_tail(&rig.stream, 1, [&target]));
            let here = |options: BreakOptions| {
                let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
                capture.record(&rig.stream, |scope| {
                    scope.break_here(options, target.clone(), [&values], |b| b.input(0).cloned()).map(drop)
                })
            };
            refused(here(BreakOptions::new("live")));
            refused(here(BreakOptions::new("patched").patched()));
            refused(here(BreakOptions::new("inline").inline()));
            refused(eager(&rig.pool, &rig.stream, |scope| {
                scope.break_here("eager", target.clone(), [&values], |b| b.input(0).cloned()).map(drop)
            }));
            assert!(target.write(&rig.stream, &[0.0_f32; 32]).is_err() && target.fill_bytes(&rig.stream, 0).is_err());
        }
        let bias = Layout::strided(&[4, 8], &[0, 1]).expect("a layout");
        let source = of_buffer(&rig, 8, bias);
        source
            .leading_rows(1)
            .copy_from(&rig.stream, &before.narrow(0, 0, 8).and_then(|row| row.reshape(&[1, 8])).expect("a row"))
            .expect("a copy");
        let target = rig.zeros(&[4, 8]);
        target.copy_from(&rig.stream, &source).expect("a broadcast is read");
        assert_same(&rig.read(&target), &rig.read(&before)[..8].repeat(4));
    });
}

#[test]
fn a_buffer_that_begins_inside_an_element_is_refused() {
    let rig = Rig::new(&driver());
    let whole = Arc::new(DeviceBuffer::new(&rig.context, 64).expect("memory"));
    for (offset, dtype, fits) in [
        (1, DType::U8, true),
        (1, DType::F16, false),
        (2, DType::F16, true),
        (2, DType::F32, false),
        (4, DType::F64, false),
    ] {
        let address = whole.address() + offset;
        // SAFETY: inside the buffer, which is kept.
        let part = unsafe { DeviceBuffer::borrow_raw(&rig.context, address, 8, Some(whole.clone())) };
        let tensor = Tensor::from_buffer(part, dtype, Layout::contiguous(&[1]).expect("a layout"));
        match tensor {
            Ok(_) => assert!(fits, "{offset} {dtype}"),
            Err(Error::Tensor(TensorError::Misaligned { address: at, .. })) => {
                assert!(!fits && at == address, "{offset} {dtype}")
            }
            Err(other) => panic!("{other}"),
        }
    }
}

/// A pool's tensors are aligned for every element type, so its plans are.
#[test]
fn a_pools_plan_of_a_finer_alignment_is_refused() {
    let trace = || {
        let mut trace = Trace::new();
        trace.allocate(3);
        trace.allocate(4);
        trace
    };
    for alignment in [1, 4, 256] {
        let plan = PoolPlan::new([trace()], &PlanOptions::default().alignment(alignment)).map(drop);
        assert_eq!(plan, Err(PlanError::PoolAlignment(alignment)));
    }
    let rig = Rig::new(&driver());
    for alignment in [512, 4096] {
        let plan = PoolPlan::new([trace()], &PlanOptions::default().alignment(alignment)).expect("a plan");
        rig.pool.take_plan(&plan).expect("the range");
        let options = breakable_cuda_graph::CaptureOptions::default().plan(&plan.traces()[0]);
        let mut capture = BreakableCapture::with_options(&rig.pool, options).expect("a capture");
        let (a, b) = capture
            .record(&rig.stream, |scope| {
                let planned = (scope.empty(DType::U8, &[3])?, scope.empty(DType::F32, &[1])?);
                rig.ops.fill(&scope.stream()?, &planned.1, 0.0)?;
                Ok(planned)
            })
            .expect("a recording");
        assert_eq!((a.address() % 512, b.address() % 512), (0, 0));
        assert_eq!(rig.pool.usage().expect("usage").divergences, 0);
    }
}

/// Results of an engine's own type, which counts as it is told.
struct Counted {
    tensor: Tensor,
    visits: Vec<usize>,
    told: usize,
    taken: usize,
}

impl Outputs for Counted {
    fn visit(self, visit: &mut dyn FnMut(usize, Tensor) -> Result<()>) -> Result<usize> {
        self.visits.iter().try_for_each(|&index| visit(index, self.tensor.clone()))?;
        TAKEN.set(self.taken);
        Ok(self.told)
    }

    fn gather(next: &mut dyn FnMut() -> Option<Tensor>) -> Option<Counted> {
        let tensor = next()?;
        for _ in 1..TAKEN.get() {
            next()?;
        }
        Some(Counted { tensor, visits: Vec::new(), told: 0, taken: 0 })
    }
}

thread_local! {
    static TAKEN: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[test]
fn results_that_count_badly_are_refused_when_they_are_recorded() {
    let rig = Rig::new(&driver());
    let x = rig.ones(&[4]);
    let padded = breakable_cuda_graph::EagerOptions::default().valid_rows(2).bucket(4);
    for (visits, told, taken, fits) in [
        (vec![0, 1], 2, 2, true),
        (vec![0, 0], 2, 2, false),
        (vec![1], 1, 1, false),
        (vec![usize::MAX], 1, 1, false),
        (vec![0, 2], 2, 2, false),
        (vec![0, 1], 7, 2, false),
        (vec![0, 1], 1, 2, false),
        (vec![0, 1], usize::MAX, 2, false),
        (vec![0, 1], 2, 1, false),
        (vec![0, 1], 2, 3, false),
        (vec![0], 1, 2, false),
    ] {
        let options = [BreakOptions::new("live"), BreakOptions::new("patched").patched()];
        for options in options {
            let operation =
                |tensor: &Tensor| Ok(Counted { tensor: tensor.clone(), visits: visits.clone(), told, taken });
            let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
            let recorded = capture.record(&rig.stream, |scope| {
                scope.break_point(options.clone(), [&x], |b| operation(b.input(0)?)).map(drop)
            });
            let eagerly = breakable_cuda_graph::eager_with(&rig.pool, &rig.stream, padded, |scope| {
                scope.break_point(options.clone(), [&x], |b| operation(b.input(0)?)).map(drop)
            });
            for ran in [recorded, eagerly] {
                match ran.map_err(cause) {
                    Ok(()) => assert!(fits, "{visits:?} {told} {taken}"),
                    Err(Error::Misuse(error @ Misuse::OutputsMiscounted { .. })) => {
                        assert!(!fits && error.code() == 568, "{visits:?} {told} {taken}: {error}");
                    }
                    Err(other) => panic!("{visits:?} {told} {taken}: {other}"),
                }
            }
            if fits {
                let _ = capture.replay(&rig.stream).expect("a replay");
            }
        }
    }
}
