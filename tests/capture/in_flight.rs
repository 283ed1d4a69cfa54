//! What shows only while work is in flight, or when what the caller had is gone: the tests look before they wait, and nothing of theirs keeps what a
//! capture has to keep.

use crate::support::demo::Ops;
use crate::support::{Rig, assert_same, driver, for_each_seed, reference};
use breakable_cuda_graph::driver::{DeviceBuffer, MemoryPool, PinnedBuffer, Stream};
use breakable_cuda_graph::sys::CUresult;
use breakable_cuda_graph::tensor::Layout;
use breakable_cuda_graph::{
    BreakKind, BreakOptions, BreakableCapture, CaptureExecution, CaptureMode, CaptureOptions, DType, Error,
    GraphOptions, Result, Tensor, active_forward,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

const ELEMENTS: usize = 64;

/// Rule 10, with segments that run: they come after what the caller's stream has yet to do.
#[test]
fn a_recording_that_runs_through_comes_after_the_callers_work() {
    for_each_seed(|rig| {
        let x = rig.zeros(&[ELEMENTS]);
        rig.stream.synchronize().expect("done");
        rig.ops.fill(&rig.stream, &x, 3.0).expect("a fill");
        let options = CaptureOptions::default().execution(CaptureExecution::RunThrough);
        let mut capture = BreakableCapture::with_options(&rig.pool, options).expect("a capture");
        let out = capture.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("a recording");
        assert_same(&rig.read(&out), &[6.0; ELEMENTS]);
    });
}

/// Rule 24: what another recording made is no memory that this one's segments write anew.
#[test]
fn a_break_keeps_what_another_recording_made() {
    let rig = Rig::new(&driver());
    let x = rig.random(1, &[ELEMENTS]);
    let mut first = BreakableCapture::new(&rig.pool).expect("a capture");
    let made = first.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("a recording");
    let _ = first.replay(&rig.stream).expect("a replay");
    let (expected, address) = (rig.read(&made), made.address());
    let mut second = BreakableCapture::new(&rig.pool).expect("a capture");
    let out = second
        .record(&rig.stream, |scope| scope.break_point("reads", [&made], |b| b.input(0).cloned()))
        .expect("a recording");
    drop((made, first));
    let mut third = BreakableCapture::new(&rig.pool).expect("a capture");
    let many =
        |_: &breakable_cuda_graph::Scope<'_, '_>| (0..8).map(|_| rig.ops.scale(&x, 0.0)).collect::<Result<Vec<_>>>();
    let others = third.record(&rig.stream, many).expect("a recording");
    assert!(others.iter().all(|other| other.address() != address), "the block is the second capture's");
    for capture in [&mut third, &mut second] {
        let _ = capture.replay(&rig.stream).expect("a replay");
    }
    assert_same(&rig.read(&out), &expected);
}

#[test]
fn a_segment_keeps_the_modules_of_its_kernels() {
    let rig = Rig::new(&driver());
    let (x, result) = (rig.ones(&[ELEMENTS]), rig.zeros(&[ELEMENTS]));
    let own = Ops::load(&rig.context).expect("a module");
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    capture.record(&rig.stream, |scope| own.scale_into(&scope.stream()?, &x, 2.0, &result)).expect("a recording");
    drop(own);
    let _ = capture.replay(&rig.stream).expect("a replay");
    assert_same(&rig.read(&result), &[2.0; ELEMENTS]);
}

/// D3: of each replay, and not of the last alone.
#[test]
fn what_each_patched_body_reads_goes_after_its_replay() {
    struct Now(Tensor, Tensor);
    for_each_seed(|rig| {
        let memory = MemoryPool::new(&rig.context).expect("a pool");
        let own = Stream::new(&rig.context).expect("a stream");
        let results: Vec<Tensor> = (0..4).map(|_| rig.zeros(&[ELEMENTS])).collect();
        rig.stream.synchronize().expect("done");
        let now = |turn: usize| {
            let buffer = memory.allocate(ELEMENTS * 4, &own).expect("memory");
            let layout = Layout::contiguous(&[ELEMENTS]).expect("a layout");
            let tensor = Tensor::from_buffer(buffer, DType::F32, layout).expect("a tensor");
            tensor.write(&own, &[turn as f32; ELEMENTS]).expect("written");
            own.synchronize().expect("done");
            Now(tensor, results[turn].clone())
        };
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let (first, ops) = (now(0), rig.ops.clone());
        active_forward(&first, || {
            capture.record(&rig.stream, |scope| {
                scope.break_point(BreakOptions::new("reads").patched(), [None::<&Tensor>], move |b| {
                    let Now(from, to) = b.forward_ctx::<Now>()?;
                    ops.scale_into(b.stream(), from, 1.0, to)
                })
            })
        })
        .expect("a recording");
        drop(first);
        for turn in 1..results.len() {
            // It is gone when the next takes its memory.
            active_forward(&now(turn), || capture.replay(&rig.stream).map(drop)).expect("a replay");
        }
        for (turn, result) in results.iter().enumerate().skip(1) {
            assert_same(&rig.read(result), &[turn as f32; ELEMENTS]);
        }
    });
}

/// A panic leaves the capture as it was, with an exec of its own and with a shared one.
#[test]
fn a_capture_replays_after_a_panic_in_a_break() {
    for (kind, share) in [(BreakKind::Live, false), (BreakKind::Patched, false), (BreakKind::Patched, true)] {
        for_each_seed(|rig| {
            let (x, ops) = (rig.ones(&[ELEMENTS]), rig.ops.clone());
            let options = CaptureOptions::default().graph(GraphOptions::default().share_execs(share));
            let mut capture = BreakableCapture::with_options(&rig.pool, options).expect("a capture");
            // The first panics before it has done anything, and the second afterwards.
            let record = |scope: &breakable_cuda_graph::Scope<'_, '_>| {
                let mut h = rig.ops.scale(&x, 1.0)?;
                for at in 0..2 {
                    let ops = ops.clone();
                    h = scope.break_point(BreakOptions::new(format!("break {at}")).kind(kind), [&h], move |b| {
                        let (factor, panics) = *b.forward_ctx::<(f32, Option<usize>)>()?;
                        assert!(panics != Some(at) || at > 0, "as asked");
                        let scaled = ops.scale(b.input(0)?, factor)?;
                        assert!(panics != Some(at), "as asked");
                        Ok(scaled)
                    })?;
                }
                rig.ops.scale(&h, 1.0)
            };
            let out = active_forward(&(1.0_f32, None::<usize>), || capture.record(&rig.stream, record));
            let out = out.expect("a recording");
            for (factor, panics) in [(2.0_f32, None), (3.0, Some(0_usize)), (3.0, None), (4.0, Some(1)), (5.0, None)] {
                let replay = || active_forward(&(factor, panics), || capture.replay(&rig.stream).map(drop));
                let ran = catch_unwind(AssertUnwindSafe(replay));
                assert_eq!(ran.is_err(), panics.is_some());
                if let Ok(ran) = ran {
                    ran.expect("a replay");
                    assert_same(&rig.read(&out), &[factor * factor; ELEMENTS]);
                }
            }
        });
    }
}

/// Rule 62: the wait for a copy from pinned memory can't fail for want of a capture mode, so the caller has its memory back when nothing reads it any more.
#[test]
fn a_write_from_pinned_memory_is_over_when_it_returns() {
    for_each_seed(|rig| {
        let mut pinned = PinnedBuffer::new(&rig.context, ELEMENTS).expect("memory");
        pinned.as_mut_slice().fill(1);
        let (x, stream) = (rig.ones(&[ELEMENTS]), Stream::new(&rig.context).expect("a stream"));
        let target = Tensor::zeros(&stream, DType::U8, &[ELEMENTS]).expect("a tensor");
        stream.synchronize().expect("done");
        let options = CaptureOptions::default().graph(GraphOptions::default().mode(CaptureMode::Global));
        let mut capture = BreakableCapture::with_options(&rig.pool, options).expect("a capture");
        let recorded = capture.record(&rig.stream, |_| {
            // Of another thread, where a capture in this mode forbids every wait but a relaxed one.
            std::thread::scope(|threads| {
                threads.spawn(|| target.write::<u8>(&stream, pinned.as_slice())).join().expect("no panic")
            })?;
            rig.ops.scale(&x, 2.0)
        });
        pinned.as_mut_slice().fill(9);
        recorded.expect("a recording");
        assert_eq!(target.read::<u8>(&stream).expect("a read"), [1; ELEMENTS]);
    });
}

/// After a fault of the device everything says so, nothing hangs, and drops go through. Of the reference driver alone: a device has to be reset afterwards.
#[test]
fn after_an_illegal_address_everything_says_so_and_goes() {
    let rig = Rig::new(&reference(1));
    let x = rig.ones(&[ELEMENTS]);
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let out = capture
        .record(&rig.stream, |scope| {
            let h = rig.ops.scale(&x, 2.0)?;
            scope.break_point("live", [&h], |b| b.input(0).cloned())
        })
        .expect("a recording");
    let _ = capture.replay(&rig.stream).expect("a replay");
    rig.stream.synchronize().expect("done");
    let gone = DeviceBuffer::new(&rig.context, ELEMENTS * 4).expect("memory");
    // SAFETY: that it is freed too early is what is tested; the reference driver does not touch it then.
    let alias = unsafe { DeviceBuffer::borrow_raw(&rig.context, gone.address(), gone.bytes(), None) };
    let alias = Tensor::from_buffer(alias, DType::F32, *x.layout()).expect("a tensor");
    drop(gone);
    rig.ops.scale_into(&rig.stream, &alias, 2.0, &x).expect("it is enqueued");
    let code = |result: Result<()>| match result.expect_err("it says so") {
        Error::Capture(error) => error.first_call.expect("a call").code(),
        error => error.driver_call().unwrap_or_else(|| panic!("{error}")).code(),
    };
    let illegal = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
    assert_eq!(code(rig.stream.synchronize()), illegal);
    assert_eq!(code(capture.replay(&rig.stream).map(drop)), illegal);
    assert_eq!(code(x.read::<f32>(&rig.stream).map(drop)), illegal);
    assert!(out.read::<f32>(&rig.stream).is_err(), "its last replay has failed");
    assert_eq!(code(rig.pool.persistent(DType::F32, &[ELEMENTS]).map(drop)), illegal);
    assert_eq!(code(Tensor::allocate(&rig.context, DType::F32, &[ELEMENTS]).map(drop)), illegal);
    let mut other = BreakableCapture::new(&rig.pool).expect("a capture");
    assert_eq!(code(other.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).map(drop)), illegal);
    drop((capture, other, out, rig));
}
