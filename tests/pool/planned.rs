//! Captures whose blocks lie where a plan puts them.

use crate::stack::Stack;
use crate::support::{Rig, assert_same, driver, for_each_driver};
use breakable_cuda_graph::driver::Stream;
use breakable_cuda_graph::memory::planner::PlanOptions;
use breakable_cuda_graph::memory::{DivergenceKind, PoolPlan};
use breakable_cuda_graph::pool::Backing;
use breakable_cuda_graph::{
    BreakableCapture, CaptureOptions, CapturePool, DType, Error, Misuse, PoolOptions, Result, Scope, Tensor, eager,
    empty, trace,
};

const MIB: usize = 1 << 20;

/// The plan of these buckets.
fn plan(rig: &Rig, stack: &Stack, buckets: &[usize]) -> PoolPlan {
    let traces = buckets
        .iter()
        .map(|&rows| trace(&rig.pool, &rig.stream, |scope| stack.forward(rig, scope, rows)).expect("a trace").0);
    PoolPlan::new(traces.collect::<Vec<_>>(), &PlanOptions::default()).expect("a plan")
}

/// Records a forward whose last operation copies the output to memory that is not the pool's, so that no block is out afterwards.
fn record_into(rig: &Rig, stack: &Stack, capture: &mut BreakableCapture<'_>, rows: usize, out: &Tensor) {
    let copied = capture.record(&rig.stream, |scope| {
        let result = stack.forward(rig, scope, rows)?;
        let stream = scope.stream()?;
        // SAFETY: two live tensors of one size, which the segment keeps or the pool holds.
        unsafe { stream.copy_device_to_device(out.address(), result.address(), out.extent_bytes()) }
    });
    copied.expect("a recording");
    // The segment does not know of a raw copy's target.
    capture.keep_alive(std::sync::Arc::new(out.clone()));
}

/// The pool holds the most bytes that are live at once in any bucket and nothing more, whatever the order of the buckets, and later captures add nothing.
#[test]
fn the_pool_is_the_largest_peak_in_any_order() {
    let driver = driver();
    for backing in [Backing::MemoryPool, Backing::ReservedAddresses] {
        let rig = Rig::with_pool(&driver, PoolOptions::default().backing(backing));
        let stack = Stack::new(&rig, 8192);
        let orders = [[8192, 4096, 2048, 1024, 4096], [1024, 2048, 4096, 4096, 8192], [4096, 1024, 8192, 4096, 2048]];
        for buckets in orders {
            let plan = plan(&rig, &stack, &buckets);
            let peak = stack.peak(8192);
            assert_eq!(plan.lower_bound(), peak);
            assert_eq!(plan.bytes(), peak, "a chain is planned at the bound");
            rig.pool.take_plan(&plan).expect("the range");
            let mut captures = Vec::new();
            for (rows, trace) in buckets.into_iter().zip(plan.traces()) {
                let options = CaptureOptions::default().bucket(rows).plan(trace);
                let mut capture = BreakableCapture::with_options(&rig.pool, options).expect("a capture");
                let out = rig.zeros(&[rows, stack.width]);
                record_into(&rig, &stack, &mut capture, rows, &out);
                let usage = rig.pool.usage().expect("usage");
                assert_eq!((usage.reserved, usage.divergences), (peak.next_multiple_of(2 * MIB), 0));
                captures.push((rows, capture, out));
            }
            for (rows, capture, out) in &mut captures {
                let _ = capture.replay(&rig.stream).expect("a replay");
                let expected = eager(&rig.pool, &rig.stream, |scope| stack.forward(&rig, scope, *rows)).expect("eager");
                assert_same(&rig.read(out), &rig.read(&expected));
            }
            drop(captures);
            rig.pool.trim().expect("nothing is in use");
            assert_eq!(rig.pool.usage().expect("usage").reserved, 0);
        }
    }
}

/// A chain of products, with something that differs between runs.
fn chain(rig: &Rig, scope: &Scope<'_, '_>, x: &Tensor, how: How) -> Result<Tensor> {
    let mut h = rig.ops.scale(x, 2.0)?;
    if how == How::Extra {
        let extra = rig.ops.scale(&h, 3.0)?;
        h = rig.ops.add(&h, &extra)?;
    }
    let side = if how == How::Swapped {
        let small = empty(DType::F32, &[8])?;
        (rig.ops.scale(&h, 0.5)?, small)
    } else {
        let side = rig.ops.scale(&h, 0.5)?;
        (side, empty(DType::F32, &[8])?)
    };
    let ops = rig.ops.clone();
    let h = scope.break_point("double", [&h], move |b| ops.scale(b.input(0)?, 2.0))?;
    if how == How::Fewer {
        return rig.ops.add(&h, &side.0);
    }
    let sum = rig.ops.add(&h, &side.0)?;
    drop((h, side));
    rig.ops.relu(&sum)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Same,
    Extra,
    Swapped,
    Fewer,
    KeepsAll,
}

/// A recording that is not the traced one is captured and right all the same; that is counted and said.
#[test]
fn a_recording_that_differs_is_right_and_counted() {
    for_each_driver(|driver| {
        for how in [How::Same, How::Extra, How::Swapped, How::Fewer, How::KeepsAll] {
            let rig = Rig::new(driver);
            let x = rig.random(1, &[16, 40]);
            let (traced, _) =
                trace(&rig.pool, &rig.stream, |scope| chain(&rig, scope, &x, How::Same)).expect("a trace");
            let plan = PoolPlan::new([traced], &PlanOptions::default()).expect("a plan");
            rig.pool.take_plan(&plan).expect("the range");
            let mut capture =
                BreakableCapture::with_options(&rig.pool, CaptureOptions::default().plan(&plan.traces()[0]))
                    .expect("a capture");
            let mut kept = Vec::new();
            let out = capture
                .record(&rig.stream, |scope| {
                    if how == How::KeepsAll {
                        // Tensors that the trace released are kept: nothing may be placed over them.
                        let h = rig.ops.scale(&x, 2.0)?;
                        kept.push(h.clone());
                        let side = rig.ops.scale(&h, 0.5)?;
                        kept.push(side.clone());
                        kept.push(empty(DType::F32, &[8])?);
                        let ops = rig.ops.clone();
                        let h = scope.break_point("double", [&h], move |b| ops.scale(b.input(0)?, 2.0))?;
                        kept.push(h.clone());
                        let sum = rig.ops.add(&h, &side)?;
                        kept.push(sum.clone());
                        return rig.ops.relu(&sum);
                    }
                    chain(&rig, scope, &x, how)
                })
                .expect("a recording");
            for _ in 0..2 {
                let _ = capture.replay(&rig.stream).expect("a replay");
                let expected = eager(&rig.pool, &rig.stream, |scope| chain(&rig, scope, &x, how)).expect("eager");
                assert_same(&rig.read(&out), &rig.read(&expected));
            }
            let usage = rig.pool.usage().expect("usage");
            let divergence = rig.pool.last_divergence().map(|divergence| divergence.kind);
            match how {
                How::Same => assert_eq!((usage.divergences, divergence), (0, None)),
                How::Extra | How::Swapped => {
                    assert_eq!(usage.divergences, 1, "{how:?}");
                    assert!(matches!(divergence, Some(DivergenceKind::Size { .. })), "{how:?} {divergence:?}");
                    assert!(usage.reserved > usage.planned, "the growth is visible");
                }
                How::Fewer => {
                    assert_eq!(usage.divergences, 1);
                    assert!(matches!(divergence, Some(DivergenceKind::Fewer { .. })), "{divergence:?}");
                }
                How::KeepsAll => {
                    assert_eq!(usage.divergences, 1);
                    assert!(matches!(divergence, Some(DivergenceKind::Occupied { .. })), "{divergence:?}");
                }
            }
        }
    });
}

/// An output that its owner keeps is in nobody's way: the next recording's plan steps aside.
#[test]
fn a_kept_output_is_not_overwritten_by_a_later_planned_recording() {
    let rig = Rig::new(&driver());
    let stack = Stack::new(&rig, 256);
    let plan = plan(&rig, &stack, &[256]);
    rig.pool.take_plan(&plan).expect("the range");
    let record = || {
        let options = CaptureOptions::default().plan(&plan.traces()[0]);
        let mut capture = BreakableCapture::with_options(&rig.pool, options).expect("a capture");
        let out = capture.record(&rig.stream, |scope| stack.forward(&rig, scope, 256)).expect("a recording");
        (capture, out)
    };
    let (mut first, kept) = record();
    let (mut second, out) = record();
    for capture in [&mut second, &mut first] {
        let _ = capture.replay(&rig.stream).expect("a replay");
    }
    assert_same(&rig.read(&kept), &rig.read(&out));
    assert_ne!(kept.address(), out.address());
}

/// A plan for which the pool has no range, or too small a one, is left aside; a larger one is refused while the range is in use.
#[test]
fn a_plan_without_its_range_is_counted_and_a_range_in_use_stays() {
    let rig = Rig::new(&driver());
    let stack = Stack::new(&rig, 32768);
    let (small, large) = (plan(&rig, &stack, &[8]), plan(&rig, &stack, &[32768]));
    let record = |plan: &PoolPlan, rows| {
        let options = CaptureOptions::default().plan(&plan.traces()[0]);
        let mut capture = BreakableCapture::with_options(&rig.pool, options).expect("a capture");
        let out = capture.record(&rig.stream, |scope| stack.forward(&rig, scope, rows)).expect("a recording");
        let _ = capture.replay(&rig.stream).expect("a replay");
        let expected = eager(&rig.pool, &rig.stream, |scope| stack.forward(&rig, scope, rows)).expect("eager");
        assert_same(&rig.read(&out), &rig.read(&expected));
        (capture, out)
    };
    let first = record(&small, 8);
    assert!(matches!(rig.pool.last_divergence().expect("no range").kind, DivergenceKind::Range { range: 0, .. }));
    rig.pool.take_plan(&small).expect("a range");
    assert!(large.bytes() > 2 * MIB);
    assert!(
        matches!(rig.pool.take_plan(&large), Err(Error::Misuse(Misuse::PoolInUse { .. }))),
        "captures refer to the pool"
    );
    rig.pool.take_plan(&small).expect("it is there");
    let second = record(&small, 8);
    assert_eq!(rig.pool.usage().expect("usage").divergences, 1);
    drop((first, second));
    rig.pool.take_plan(&large).expect("a larger range in the place of the smaller");
    drop(record(&large, 32768));
    let usage = rig.pool.usage().expect("usage");
    assert_eq!((usage.planned, usage.divergences), (large.bytes().next_multiple_of(2 * MIB), 1));
}

/// The pool's limit holds for planned ranges too.
#[test]
fn a_range_above_the_limit_is_out_of_memory() {
    let driver = driver();
    for backing in [Backing::MemoryPool, Backing::ReservedAddresses] {
        let rig = Rig::with_pool(&driver, PoolOptions::default().max_bytes(2 * MIB).backing(backing));
        let mut trace = breakable_cuda_graph::memory::Trace::new();
        trace.allocate(2 * MIB + 1);
        let plan = PoolPlan::new([trace], &PlanOptions::default()).expect("a plan");
        let Err(Error::OutOfMemory(error)) = rig.pool.take_plan(&plan) else { panic!("above the limit") };
        assert_eq!((error.requested, error.limit), (4 * MIB, Some(2 * MIB)));
        assert_eq!(rig.pool.usage().expect("usage").reserved, 0);
    }
}

/// A recording on another stream than the pool's has its blocks at the planned places too: recordings and replays of a pool are ordered.
#[test]
fn a_planned_recording_on_another_stream() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let other = Stream::new(&rig.context).expect("a stream");
        let stack = Stack::new(&rig, 64);
        let plan = plan(&rig, &stack, &[64, 64]);
        rig.pool.take_plan(&plan).expect("the range");
        let mut captures = Vec::new();
        for (stream, trace) in [Some(&other), None].into_iter().zip(plan.traces()) {
            let mut options = CaptureOptions::default().plan(trace);
            options.stream = stream.cloned();
            let mut capture = BreakableCapture::with_options(&rig.pool, options).expect("a capture");
            let out = rig.zeros(&[64, stack.width]);
            record_into(&rig, &stack, &mut capture, 64, &out);
            captures.push((capture, out));
        }
        assert_eq!(rig.pool.usage().expect("usage").divergences, 0);
        let expected = eager(&rig.pool, &rig.stream, |scope| stack.forward(&rig, scope, 64)).expect("eager");
        let expected = rig.read(&expected);
        for (turn, (capture, out)) in captures.iter_mut().enumerate() {
            let stream = if turn == 0 { &other } else { &rig.stream };
            let _ = capture.replay(stream).expect("a replay");
            stream.synchronize().expect("the replay");
            assert_same(&rig.read(out), &expected);
        }
    });
}

/// The pool of another context can't be planned by accident: a plan is sizes alone, and fits any pool.
#[test]
fn a_plan_serves_any_pool() {
    let rig = Rig::new(&driver());
    let stack = Stack::new(&rig, 32);
    let plan = plan(&rig, &stack, &[32]);
    let other = CapturePool::new(&rig.context).expect("a pool");
    other.take_plan(&plan).expect("the range");
    let options = CaptureOptions::default().plan(&plan.traces()[0]);
    let mut capture = BreakableCapture::with_options(&other, options).expect("a capture");
    let out = capture.record(&rig.stream, |scope| stack.forward(&rig, scope, 32)).expect("a recording");
    let _ = capture.replay(&rig.stream).expect("a replay");
    let expected = eager(&rig.pool, &rig.stream, |scope| stack.forward(&rig, scope, 32)).expect("eager");
    assert_same(&rig.read(&out), &rig.read(&expected));
    assert_eq!(other.usage().expect("usage").divergences, 0);
}
