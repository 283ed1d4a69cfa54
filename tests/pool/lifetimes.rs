//! What a capture holds goes after its last replay, and results know theirs (rules 58 to 63). Owners are dropped by the test while the work is in flight.

use crate::support::{Rig, assert_same, driver, for_each_seed};
use breakable_cuda_graph::driver::{DeviceBuffer, MemoryPool, Stream};
use breakable_cuda_graph::sys::intercept::Fault;
use breakable_cuda_graph::sys::{CUresult, Call};
use breakable_cuda_graph::tensor::Layout;
use breakable_cuda_graph::{
    BreakOptions, BreakableCapture, CaptureExecution, CaptureOptions, CapturePool, DType, Error, Misuse, PoolOptions,
    ReplayOptions, Tensor, active_forward, pool::Backing, weak_ref,
};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

const ELEMENTS: usize = 64;

/// Comes back within the time; its thread is left behind otherwise.
fn comes_back(run: impl FnOnce() + Send + 'static) {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        run();
        let _ = tell.send(());
    });
    told.recv_timeout(Duration::from_secs(60)).expect("it comes back");
}

/// Memory that returns in the order of a stream of its own, which knows nothing of replays.
struct Ordered {
    memory: MemoryPool,
    own: Stream,
}

impl Ordered {
    fn new(rig: &Rig) -> Ordered {
        Ordered {
            memory: MemoryPool::new(&rig.context).expect("a pool"),
            own: Stream::new(&rig.context).expect("a stream"),
        }
    }

    fn ones(&self) -> Tensor {
        let buffer = self.memory.allocate(ELEMENTS * 4, &self.own).expect("memory");
        let layout = Layout::contiguous(&[ELEMENTS]).expect("a layout");
        let tensor = Tensor::from_buffer(buffer, DType::F32, layout).expect("a tensor");
        tensor.write(&self.own, &[1.0_f32; ELEMENTS]).expect("written");
        tensor
    }
}

fn misuse<T>(result: breakable_cuda_graph::Result<T>) -> Misuse {
    match result.map(drop).expect_err("it is refused") {
        Error::Misuse(misuse) => misuse,
        Error::Break { source, .. } => match *source {
            Error::Misuse(misuse) => misuse,
            other => panic!("another cause: {other}"),
        },
        other => panic!("another error: {other}"),
    }
}

#[test]
fn what_segments_breaks_and_operations_use_outlives_the_last_replay() {
    for panics in [false, true] {
        for_each_seed(|rig| {
            struct Loud(bool);
            impl Drop for Loud {
                fn drop(&mut self) {
                    assert!(!self.0 || std::thread::panicking(), "a drop");
                }
            }
            let ordered = Ordered::new(&rig);
            let (segment, input, operand) = (ordered.ones(), ordered.ones(), ordered.ones());
            let (loud, ops) = (Loud(panics), rig.ops.clone());
            let out = rig.zeros(&[ELEMENTS]);
            rig.stream.synchronize().expect("done");
            let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
            capture
                .record(&rig.stream, |scope| {
                    let h = rig.ops.scale(&segment, 2.0)?;
                    let h = scope.break_point("adds", [Some(&h), Some(&input)], move |b| {
                        let _ = &loud;
                        ops.add(&ops.add(b.input(0)?, b.input(1)?)?, &operand)
                    })?;
                    rig.ops.scale_into(&scope.stream()?, &h, 1.0, &out)
                })
                .expect("a recording");
            let _ = capture.replay(&rig.stream).expect("a replay");
            drop((segment, input));
            let dropped = catch_unwind(AssertUnwindSafe(|| drop(capture)));
            assert_eq!(dropped.is_err(), panics);
            // They take the memory, were it free.
            let _others = (ordered.ones(), ordered.ones(), ordered.ones());
            assert_same(&rig.read(&out), &[4.0; ELEMENTS]);
        });
    }
}

unsafe extern "C" fn count(ran: *mut std::ffi::c_void) {
    // SAFETY: the counter outlives the stream's work.
    unsafe { &*ran.cast::<AtomicUsize>() }.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn owners_go_after_the_last_replay_has_run() {
    struct Owner(Arc<AtomicUsize>, Arc<AtomicUsize>);
    impl Drop for Owner {
        fn drop(&mut self) {
            self.1.store(self.0.load(Ordering::SeqCst), Ordering::SeqCst);
        }
    }
    for_each_seed(|rig| {
        let (ran, when_dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(99)));
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        capture.keep_alive(Arc::new(Owner(ran.clone(), when_dropped.clone())));
        capture
            .record(&rig.stream, |scope| {
                let data = Arc::as_ptr(&ran).cast_mut().cast();
                // SAFETY: the counter outlives the replays.
                unsafe { rig.context.driver().cuLaunchHostFunc(scope.stream()?.as_raw(), Some(count), data)? };
                Ok(())
            })
            .expect("a recording");
        let _ = capture.replay(&rig.stream).expect("a replay");
        drop(capture);
        assert_eq!(when_dropped.load(Ordering::SeqCst), 1);
    });
    // The owner of memory that a patched body of an earlier replay read.
    for_each_seed(|rig| {
        let (ordered, out) = (Ordered::new(&rig), rig.zeros(&[ELEMENTS]));
        let borrowed = || {
            let owner = Arc::new(ordered.ones());
            // SAFETY: the owner keeps the memory.
            let view =
                unsafe { DeviceBuffer::borrow_raw(&rig.context, owner.address(), ELEMENTS * 4, Some(owner.clone())) };
            Tensor::from_buffer(view, DType::F32, *owner.layout()).expect("a tensor")
        };
        struct Now(Tensor, f32);
        let (ops, into) = (rig.ops.clone(), out.clone());
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        rig.stream.synchronize().expect("done");
        active_forward(&Now(borrowed(), 0.0), || {
            capture.record(&rig.stream, |scope| {
                scope.break_point(BreakOptions::new("reads").patched(), [None::<&Tensor>], move |b| {
                    let Now(x, factor) = b.forward_ctx::<Now>()?;
                    ops.scale_into(b.stream(), x, *factor, &into)
                })
            })
        })
        .expect("a recording");
        for factor in [2.0, 3.0, 4.0] {
            active_forward(&Now(borrowed(), factor), || capture.replay(&rig.stream).map(drop)).expect("a replay");
        }
        assert_same(&rig.read(&out), &[4.0; ELEMENTS]);
    });
}

#[test]
fn a_recording_that_ran_and_failed_waits_for_what_has_run() {
    for_each_seed(|rig| {
        let (ordered, result) = (Ordered::new(&rig), rig.zeros(&[ELEMENTS]));
        let mut input = Some(ordered.ones());
        rig.stream.synchronize().expect("done");
        let options = CaptureOptions::default().execution(CaptureExecution::RunThrough);
        let mut capture = BreakableCapture::with_options(&rig.pool, options).expect("a capture");
        let failed = capture.record(&rig.stream, |scope| {
            rig.ops.scale_into(&scope.stream()?, &input.take().expect("once"), 1.0, &result)?;
            scope.break_point("fails", [&result], |_| Err::<Tensor, _>(Error::user("no")))
        });
        assert!(failed.is_err());
        let _others = (ordered.ones(), ordered.ones());
        assert_same(&result.read::<f32>(rig.pool.capture_stream()).expect("a read"), &[1.0; ELEMENTS]);
    });
}

#[test]
fn results_are_read_after_their_replay_and_not_after_one_that_failed() {
    for_each_seed(|rig| {
        let (x, other) = (rig.ones(&[ELEMENTS]), Stream::new(&rig.context).expect("a stream"));
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = capture.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("a recording");
        let replayed = capture.replay(&rig.stream).expect("a replay");
        assert_same(&replayed.read::<f32>(&out, &other).expect("a read"), &[2.0; ELEMENTS]);
        let _ = replayed;
        let mut second = BreakableCapture::new(&rig.pool).expect("a capture");
        second.record(&rig.stream, |_| rig.ops.scale(&x, 3.0)).expect("a recording");
        let replayed = capture.replay(&rig.stream).expect("a replay");
        let _ = second.replay(&other).expect("a replay");
        assert_eq!(misuse(replayed.read::<f32>(&out, &other)), Misuse::OutputsOverwritten);
    });
    let rig = Rig::new(&driver().intercepted());
    let x = rig.ones(&[ELEMENTS]);
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let out = capture.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("a recording");
    let _ = capture.replay(&rig.stream).expect("a replay");
    let code = CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    rig.driver.intercept().expect("one").fail(Fault { call: Some(Call::cuGraphLaunch), after: 0, code });
    assert!(capture.replay(&rig.stream).is_err());
    assert_eq!(misuse(out.read::<f32>(&rig.stream)), Misuse::ReplayFailed);
    let _ = capture.replay(&rig.stream).expect("it can be replayed again");
    assert_same(&rig.read(&out), &[2.0; ELEMENTS]);
}

#[test]
fn persistent_tensors_lie_where_no_recording_writes() {
    let rig = Rig::new(&driver());
    let x = rig.ones(&[256]);
    let record = || {
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let chain = |_: &breakable_cuda_graph::Scope<'_, '_>| rig.ops.scale(&rig.ops.scale(&x, 2.0)?, 2.0).map(drop);
        capture.record(&rig.stream, chain).map(|()| capture).expect("a recording")
    };
    let mut first = record();
    let table = rig.pool.persistent(DType::F32, &[256]).expect("a tensor");
    table.write(&rig.stream, &[42.0_f32; 256]).expect("written");
    let mut second = record();
    for capture in [&mut first, &mut second] {
        let _ = capture.replay(&rig.stream).expect("a replay");
    }
    assert_same(&rig.read(&table), &[42.0; 256]);
}

/// A library that takes its workspace in a replay and keeps it, in a patched break.
#[test]
fn scratch_that_is_held_is_not_given_out_again() {
    let rig = Rig::new(&driver());
    let x = rig.ones(&[ELEMENTS]);
    let kept: Arc<Mutex<Option<Tensor>>> = Arc::default();
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let (ops, own, workspace) = (rig.ops.clone(), x.clone(), kept.clone());
    let out = capture
        .record(&rig.stream, |scope| {
            let h = rig.ops.scale(&x, 2.0)?;
            let h = scope.break_point(BreakOptions::new("library").patched(), [&h], move |b| {
                let mut workspace = workspace.lock().expect("the workspace");
                let temporary = b.empty(DType::F32, &[ELEMENTS])?;
                if workspace.is_none() && b.valid_rows()?.is_some() {
                    *workspace = Some(temporary.clone());
                }
                let other = match &*workspace {
                    Some(workspace) if !workspace.same_place(&temporary) => workspace.clone(),
                    _ => own.clone(),
                };
                if !other.same_place(&own) {
                    ops.scale_into(b.stream(), b.input(0)?, 2.0, &other)?;
                }
                ops.scale_into(b.stream(), b.input(0)?, 1.5, &temporary)?;
                let result = b.empty(DType::F32, &[ELEMENTS])?;
                ops.scale_into(b.stream(), &temporary, 2.0, &result)?;
                Ok(result)
            })?;
            rig.ops.scale(&h, 1.0)
        })
        .expect("a recording");
    for value in [1.0_f32, 10.0, 100.0] {
        x.write(&rig.stream, &[value; ELEMENTS]).expect("written");
        let options = ReplayOptions::default().valid_rows(ELEMENTS);
        let _ = capture.replay_with(&rig.stream, options).expect("a replay");
        assert_same(&rig.read(&out), &[6.0 * value; ELEMENTS]);
    }
    let held = kept.lock().expect("the workspace").take().expect("kept");
    assert_eq!(misuse(held.read::<f32>(&rig.stream)), Misuse::ScratchOutsideItsBreak);
}

#[test]
fn tensors_of_a_released_pool_answer_and_are_not_read() {
    let rig = Rig::with_pool(&driver(), PoolOptions::default().backing(Backing::ReservedAddresses));
    let x = rig.ones(&[ELEMENTS]);
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let out = capture.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("a recording");
    let _ = capture.replay(&rig.stream).expect("a replay");
    // In flight on a stream that the pool's replays know nothing of.
    let (other, copy) = (Stream::new(&rig.context).expect("a stream"), rig.zeros(&[ELEMENTS]));
    rig.stream.synchronize().expect("done");
    copy.copy_from(&other, &out).expect("a copy");
    rig.pool.release().expect("released");
    assert_same(&copy.read::<f32>(&other).expect("the release has waited"), &[2.0; ELEMENTS]);
    for refused in [
        out.read::<f32>(&rig.stream).map(drop),
        out.fill_bytes(&rig.stream, 0),
        rig.ops.scale_into(&rig.stream, &out, 1.0, &copy),
        copy.copy_from(&rig.stream, &out),
        out.record_stream(&other),
    ] {
        assert_eq!(misuse(refused), Misuse::PoolReleased);
    }
    rig.context.synchronize().expect("the context is whole");
    rig.pool.restore().expect("restored");
    let _ = capture.replay(&rig.stream).expect("a replay");
    assert_same(&rig.read(&out), &[2.0; ELEMENTS]);
}

#[test]
fn weak_references_that_a_break_makes_go_stale() {
    let rig = Rig::new(&driver());
    let (x, stashed) = (rig.ones(&[ELEMENTS]), Arc::new(Mutex::new(None)));
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let stash = stashed.clone();
    capture
        .record(&rig.stream, |scope| {
            let h = rig.ops.scale(&x, 2.0)?;
            scope.break_point("stash", [&h], move |b| {
                *stash.lock().expect("the place") = weak_ref(b.input(0)?);
                Ok(())
            })
        })
        .expect("a recording");
    let _ = capture.replay(&rig.stream).expect("a replay");
    let weak = stashed.lock().expect("the place").take().expect("stashed");
    assert_eq!(misuse(weak.upgrade()), Misuse::StaleReference);
}

#[test]
fn a_capture_may_be_kept_in_a_thread_local() {
    thread_local!(static KEPT: RefCell<Vec<Box<dyn std::any::Any>>> = const { RefCell::new(Vec::new()) });
    for early in [false, true] {
        let keep = move || {
            if early {
                // Registered before what the crate keeps for the thread, and so taken down after it.
                KEPT.with_borrow_mut(|kept| kept.push(Box::new(())));
            }
            let rig = Rig::new(&driver());
            let x = rig.ones(&[ELEMENTS]);
            let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
            let out = capture.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("a recording");
            let _ = capture.replay(&rig.stream).expect("a replay");
            KEPT.with_borrow_mut(|kept| kept.push(Box::new((capture, out, rig))));
        };
        std::thread::spawn(keep).join().expect("no panic");
    }
}

#[test]
fn a_drop_does_not_wait_for_another_threads_break() {
    comes_back(|| {
        let rig = Rig::new(&driver());
        let x = rig.ones(&[ELEMENTS]);
        let mut dropped = BreakableCapture::new(&rig.pool).expect("a capture");
        dropped.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("a recording");
        let ((tell, told), (begun, has_begun)) = (mpsc::channel::<()>(), mpsc::channel::<()>());
        let (mut first, mut capture) = (true, BreakableCapture::new(&rig.pool).expect("a capture"));
        capture
            .record(&rig.stream, |scope| {
                scope.break_point("waits", [&x], move |b| {
                    if !std::mem::take(&mut first) {
                        begun.send(()).expect("the other thread");
                        told.recv().expect("the other thread");
                    }
                    b.input(0).cloned()
                })
            })
            .expect("a recording");
        std::thread::scope(|threads| {
            threads.spawn(|| capture.replay(&rig.stream).map(drop).expect("a replay"));
            has_begun.recv().expect("the break");
            drop(dropped);
            tell.send(()).expect("the break");
        });
    });
}

#[test]
fn pools_that_replay_each_others_captures_are_refused_and_not_locked_up() {
    comes_back(|| {
        let rig = Rig::new(&driver());
        let (other, x) = (CapturePool::new(&rig.context).expect("a pool"), rig.ones(&[ELEMENTS]));
        let met = Arc::new(std::sync::Barrier::new(2));
        let make = |outer: &CapturePool, inner: &CapturePool| {
            let mut nested = BreakableCapture::new(inner).expect("a capture");
            nested.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("a recording");
            let (stream, met) = (Stream::new(&rig.context).expect("a stream"), met.clone());
            let (mut first, mut capture) = (true, BreakableCapture::new(outer).expect("a capture"));
            capture
                .record(&rig.stream, |scope| {
                    scope.break_point("other pool", [&x], move |_| {
                        if !std::mem::take(&mut first) {
                            met.wait();
                            let _ = nested.replay(&stream)?;
                        }
                        Ok(())
                    })
                })
                .expect("a recording");
            capture
        };
        let (mut one, mut two) = (make(&rig.pool, &other), make(&other, &rig.pool));
        let ends = std::thread::scope(|threads| {
            let one = threads.spawn(|| one.replay(&rig.stream).map(drop));
            let two = threads.spawn(|| two.replay(&rig.stream).map(drop));
            [one.join().expect("no panic"), two.join().expect("no panic")]
        });
        let refused: Vec<Misuse> = ends.into_iter().filter(Result::is_err).map(misuse).collect();
        assert_eq!(refused, [Misuse::PoolsInterlocked], "one is refused, and the other goes on");
    });
}

#[test]
fn a_hook_may_panic_and_look_at_the_pool() {
    let rig = Rig::new(&driver().intercepted());
    let (pool, told) = (rig.pool.clone(), Arc::new(AtomicUsize::new(0)));
    let tell = told.clone();
    rig.context.on_drop_error(Some(Arc::new(move |error| {
        let _ = pool.usage();
        tell.fetch_add(1, Ordering::SeqCst);
        panic!("hook: {error}")
    })));
    let fault = Fault { call: Some(Call::cuMemFree_v2), after: 0, code: CUresult::CUDA_ERROR_UNKNOWN };
    rig.driver.intercept().expect("one").fail(fault);
    drop(rig.ones(&[ELEMENTS]));
    assert_eq!(told.load(Ordering::SeqCst), 1);
    rig.context.on_drop_error(None);
}
