//! An engine's own streams, threads and contexts around a recording (rules 44 to 49 and 52).

use crate::support::{Rig, assert_same, driver, for_each_seed};
use breakable_cuda_graph::driver::{Device, DeviceBuffer, Event, EventFlags, MemoryPool, Stream};
use breakable_cuda_graph::sys::{CUstreamCaptureMode, Call};
use breakable_cuda_graph::{
    BreakOptions, BreakableCapture, CaptureMode, CaptureOptions, CapturePool, DType, Error, GraphOptions, Misuse,
    Result, Tensor, eager, outside_capture, trace,
};
use std::sync::{Arc, Mutex};

const MODES: [CaptureMode; 3] = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];

/// The cause of a failed recording or replay.
#[track_caller]
fn cause<T: std::fmt::Debug>(result: Result<T>) -> Misuse {
    fn of(error: Error) -> Misuse {
        match error {
            Error::Capture(error) => of(*error.source),
            Error::Break { source, .. } | Error::NotPatchable { source, .. } => of(*source),
            Error::Misuse(misuse) => misuse,
            other => panic!("another error: {other}"),
        }
    }
    of(result.expect_err("it fails"))
}

fn in_mode(rig: &Rig, mode: CaptureMode) -> BreakableCapture<'static> {
    let options = CaptureOptions::default().graph(GraphOptions::default().mode(mode));
    BreakableCapture::with_options(&rig.pool, options).expect("a capture")
}

fn on_a_thread<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|threads| threads.spawn(work).join().expect("no panic"))
}

/// Rule 44: from another thread, in every mode, with what it refers to dropped before the replay.
#[test]
fn work_of_another_thread_on_the_capturing_stream_is_the_segments() {
    for mode in MODES {
        let rig = Rig::new(&driver());
        let result = rig.zeros(&[64]);
        let operand = rig.random(1, &[64]);
        let expected: Vec<f32> = rig.read(&operand).iter().map(|value| value * 3.0).collect();
        let mut capture = in_mode(&rig, mode);
        let mut operand = Some(operand);
        capture
            .record(&rig.stream, |scope| {
                let stream = scope.stream()?;
                let operand = operand.take().expect("once");
                on_a_thread(|| rig.ops.scale_into(&stream, &operand, 3.0, &result))
            })
            .expect("a recording");
        assert_eq!(capture.report().nodes.kernels, 1);
        // Takes the operand's place, if it were free.
        let _others: Vec<Tensor> = (0..4).map(|_| rig.zeros(&[64])).collect();
        let _ = capture.replay(&rig.stream).expect("a replay");
        assert_same(&rig.read(&result), &expected);
    }
}

/// Rule 44: of what the crate hasn't seen being drawn in it asks the driver.
#[test]
fn a_stream_that_a_library_drew_in_belongs_to_the_segment() {
    let rig = Rig::new(&driver());
    let (side, result) = (Stream::new(&rig.context).expect("a stream"), rig.zeros(&[64]));
    let (fork, join) = (Event::new(&rig.context).expect("an event"), Event::new(&rig.context).expect("an event"));
    let mut operand = Some(rig.ones(&[64]));
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    capture
        .record(&rig.stream, |scope| {
            let (main, raw) = (scope.stream()?, rig.context.driver());
            // SAFETY: live handles of one context.
            unsafe {
                raw.cuEventRecord(fork.as_raw(), main.as_raw())?;
                raw.cuStreamWaitEvent(side.as_raw(), fork.as_raw(), 0)?;
            }
            rig.ops.scale_into(&side, &operand.take().expect("once"), 5.0, &result)?;
            // SAFETY: as above.
            unsafe {
                raw.cuEventRecord(join.as_raw(), side.as_raw())?;
                raw.cuStreamWaitEvent(main.as_raw(), join.as_raw(), 0)?;
            }
            Ok(())
        })
        .expect("a recording");
    let _others: Vec<Tensor> = (0..4).map(|_| rig.zeros(&[64])).collect();
    let _ = capture.replay(&rig.stream).expect("a replay");
    assert_same(&rig.read(&result), &[5.0; 64]);
}

/// Rule 45: each kind of operation, before the driver sees it; the recording's thread only.
#[test]
fn work_beside_the_open_segment_is_refused_on_the_thread_that_records() {
    let rig = Rig::new(&driver().intercepted());
    let (own, x, y) = (Stream::new(&rig.context).expect("a stream"), rig.ones(&[64]), rig.zeros(&[64]));
    let (event, earlier) = (Event::new(&rig.context).expect("an event"), Event::new(&rig.context).expect("an event"));
    earlier.record(&rig.stream).expect("recorded");
    let log = rig.driver.intercept().expect("an intercepted driver");
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    capture
        .record(&rig.stream, |scope| {
            let h = rig.ops.scale(&x, 2.0)?;
            log.start_log();
            let kernel = rig.ops.relu_into(&own, &x, &y);
            let refused = [
                ("relu", kernel),
                ("memset", y.fill_bytes(&own, 0)),
                ("a copy of a tensor", y.copy_from(&own, &x)),
                ("record", event.record(&own)),
                ("wait", own.wait(&earlier)),
            ];
            let calls = log.take_log();
            for (what, refused) in refused {
                let error = refused.expect_err(what);
                let text = error.to_string();
                let Error::Misuse(Misuse::OutsideTheCapture { operation, stream, segment }) = error else {
                    panic!("{what}: {error}")
                };
                assert_eq!((stream, segment), (own.as_raw() as usize, 0), "{what}");
                assert!(operation.contains(what), "{what}: {operation}");
                assert!(text.contains("outside_capture"), "{text}");
            }
            let made = [Call::cuLaunchKernel, Call::cuMemsetD8Async, Call::cuEventRecord, Call::cuStreamWaitEvent];
            assert!(!calls.iter().any(|call| made.contains(call)), "{calls:?}");
            // Other threads' own streams are theirs, and so is what is meant.
            on_a_thread(|| rig.ops.scale_into(&own, &x, 7.0, &y))?;
            outside_capture(|| rig.ops.scale_into(&own, &x, 7.0, &y))?;
            scope.break_point("live", [&h], |b| b.input(0).cloned())
        })
        .expect("a recording goes on after what was refused");
    own.synchronize().expect("done");
    assert_same(&y.read::<f32>(&own).expect("a read"), &[7.0; 64]);
}

/// Rule 45 in the body of a patched break: it would run at capture and never again.
#[test]
fn a_patched_body_that_launches_beside_its_stream_is_refused() {
    let rig = Rig::new(&driver());
    let (own, x, y) = (Stream::new(&rig.context).expect("a stream"), rig.ones(&[64]), rig.zeros(&[64]));
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let (ops, mut first) = (rig.ops.clone(), true);
    let recorded = capture.record(&rig.stream, |scope| {
        scope.break_point(BreakOptions::new("beside").patched(), [&x], move |b| {
            // Its first run is live, and may.
            let stream = if std::mem::take(&mut first) { b.stream() } else { &own };
            ops.relu_into(stream, b.input(0)?, &y)
        })
    });
    assert!(matches!(cause(recorded), Misuse::OutsideTheCapture { .. }));
}

/// Rule 46: a model that launches on a stream of its own, by calls that the crate doesn't see, records nothing.
#[test]
fn a_recording_of_nothing_whose_output_is_the_pools_is_refused() {
    let rig = Rig::new(&driver());
    let own = Stream::new(&rig.context).expect("a stream");
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let recorded = capture.record(&rig.stream, |scope| {
        let out = scope.empty(DType::F32, &[64])?;
        // SAFETY: a live tensor of this length.
        unsafe { rig.context.driver().cuMemsetD8Async(out.address(), 0, 256, own.as_raw())? };
        Ok(out)
    });
    assert_eq!(cause(recorded), Misuse::NothingRecorded);
    // Nothing that lies in the pool comes out of these.
    BreakableCapture::new(&rig.pool).expect("a capture").record(&rig.stream, |_| Ok(())).expect("nothing at all");
    let dropped = |scope: &breakable_cuda_graph::Scope<'_, '_>| scope.empty(DType::F32, &[64]).map(drop);
    BreakableCapture::new(&rig.pool).expect("a capture").record(&rig.stream, dropped).expect("a temporary");
}

/// Rule 46: an operation that the driver took and that made no node.
#[cfg(not(feature = "driver-tests"))]
#[test]
fn an_operation_that_made_no_node_is_named() {
    use breakable_cuda_graph::sys::CUresult;
    use breakable_cuda_graph::sys::intercept::Fault;

    let rig = Rig::new(&driver());
    let (x, y) = (rig.ones(&[64]), rig.zeros(&[64]));
    let fault = Fault { call: Some(Call::cuLaunchKernel), after: 1, code: CUresult::CUDA_SUCCESS };
    rig.driver.intercept().expect("an intercepted driver").fail(fault);
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let recorded = capture.record(&rig.stream, |scope| {
        y.fill_bytes(&scope.stream()?, 0)?;
        rig.ops.relu_into(&scope.stream()?, &x, &y)?;
        rig.ops.relu_into(&scope.stream()?, &x, &y)
    });
    assert_eq!(cause(recorded), Misuse::OperationNotRecorded { operation: 2, segment: 0 });
}

/// Rule 47.
#[test]
fn what_another_value_of_the_context_drops_waits_for_the_segment() {
    let rig = Rig::new(&driver());
    let again = Device::get(&rig.driver, 0).expect("a device").primary_context().expect("the same context");
    let x = rig.ones(&[64]);
    for threaded in [false, true] {
        let mut buffer = Some(DeviceBuffer::new(&again, 64).expect("memory"));
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = capture
            .record(&rig.stream, |_| {
                let h = rig.ops.scale(&x, 2.0)?;
                let buffer = buffer.take();
                if threaded {
                    on_a_thread(|| drop(buffer))
                } else {
                    drop(buffer)
                }
                assert_eq!(rig.context.queued_drops(), 1);
                rig.ops.scale(&h, 2.0)
            })
            .expect("a recording");
        assert_eq!(rig.context.queued_drops(), 0);
        let _ = capture.replay(&rig.stream).expect("a replay");
        assert_same(&rig.read(&out), &[4.0; 64]);
    }
}

/// Rule 48: what another thread does while a segment is open, in every mode.
#[test]
fn no_call_of_another_thread_ends_a_capture() {
    for mode in MODES {
        let rig = Rig::new(&driver());
        let (x, event) = (rig.ones(&[64]), Event::new(&rig.context).expect("an event"));
        event.record(&rig.stream).expect("recorded");
        let (other, captured) = (Stream::new(&rig.context).expect("a stream"), rig.pool.capture_stream().clone());
        let mut dropped = BreakableCapture::new(&rig.pool).expect("a capture");
        dropped.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("a recording");
        let _ = dropped.replay(&rig.stream).expect("a replay");
        let mut dropped = Some(dropped);
        let mut capture = in_mode(&rig, mode);
        let out = capture
            .record(&rig.stream, |_| {
                let h = rig.ops.scale(&x, 2.0)?;
                let dropped = dropped.take();
                on_a_thread(|| {
                    event.is_done().and_then(|_| event.synchronize()).expect("an event");
                    other.is_idle().and_then(|_| other.synchronize()).expect("an unrelated stream");
                    let short = Tensor::zeros(&other, DType::F32, &[64]).expect("memory");
                    assert_eq!(short.read::<f32>(&other).expect("a read"), [0.0; 64]);
                    let temporary = eager(&rig.pool, &other, |_| rig.ops.scale(&short, 1.0)).expect("an eager run");
                    drop((temporary, short, dropped));
                    MemoryPool::new(&rig.context).and_then(|pool| pool.trim(0)).expect("a memory pool");
                    let refused = Misuse::CaptureInProgress { stream: captured.as_raw() as usize };
                    assert_eq!(cause(rig.context.synchronize()), refused);
                    assert_eq!(cause(captured.synchronize()), refused);
                    assert_eq!(cause(captured.is_idle()), refused);
                });
                rig.ops.scale(&h, 2.0)
            })
            .unwrap_or_else(|error| panic!("{mode:?}: {error}"));
        let _ = capture.replay(&rig.stream).expect("a replay");
        assert_same(&rig.read(&out), &[4.0; 64]);
        rig.context.synchronize().expect("no capture is open any more");
    }
}

/// Rule 48: a replay that would wait for a stream which another thread captures, and one on it.
#[test]
fn a_replay_does_not_join_another_threads_capture() {
    for_each_seed(|rig| {
        let other = CapturePool::new(&rig.context).expect("a pool");
        let (shared, replays) = (Stream::new(&rig.context).expect("a stream"), Stream::new(&rig.context).expect("one"));
        let x = rig.ones(&[64]);
        let mut first = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = first.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("a recording");
        let _ = first.replay(&shared).expect("a replay");
        let mut second =
            BreakableCapture::with_options(&other, CaptureOptions::default().stream(&shared)).expect("a capture");
        let recorded = second.record(&rig.stream, |_| {
            let h = rig.ops.scale(&x, 3.0)?;
            on_a_thread(|| {
                let refused = Misuse::CaptureInProgress { stream: shared.as_raw() as usize };
                assert_eq!(cause(first.replay(&replays).map(drop)), refused, "it comes after what is on that stream");
                assert_eq!(cause(first.replay(&shared).map(drop)), refused);
            });
            rig.ops.scale(&h, 1.0)
        });
        let tripled = recorded.expect("the other recording goes on");
        let _ = first.replay(&replays).expect("it can be replayed afterwards");
        assert_same(&out.read::<f32>(&replays).expect("a read"), &[2.0; 64]);
        let _ = second.replay(&rig.stream).expect("a replay");
        assert_same(&rig.read(&tripled), &[3.0; 64]);
    });
}

/// Rule 49.
#[test]
fn a_callers_own_capture_is_left_alone() {
    for mode in [
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
    ] {
        let rig = Rig::new(&driver());
        let x = rig.ones(&[64]);
        let make = || {
            let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
            capture.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).map(|out| (capture, out)).expect("a recording")
        };
        let ((dropped, _), (mut kept, out)) = (make(), make());
        let (raw, mut graph) = (rig.context.driver(), std::ptr::null_mut());
        // SAFETY: a live stream that nobody else captures.
        unsafe { raw.cuStreamBeginCapture_v2(rig.stream.as_raw(), mode).expect("begun") };
        let refused = cause(kept.replay(&rig.stream).map(drop));
        assert_eq!(refused, Misuse::ReplayInOthersCapture { stream: rig.stream.as_raw() as usize });
        drop(dropped);
        // SAFETY: begun above; the graph is destroyed.
        unsafe {
            raw.cuStreamEndCapture(rig.stream.as_raw(), &mut graph).expect("that capture goes on");
            raw.cuGraphDestroy(graph).expect("destroyed");
        }
        let _ = kept.replay(&rig.stream).expect("a replay");
        assert_same(&rig.read(&out), &[2.0; 64]);
        if let Some(reference) = rig.driver.ref_driver() {
            assert_eq!(reference.object_counts().graph_execs, 1, "the dropped capture's is gone");
        }
    }
}

/// Rule 52.
#[test]
fn the_context_is_current_where_the_callers_code_runs() {
    let rig = Rig::new(&driver());
    // A context's handle, as a number: the pointer itself is no thread's.
    struct Look(breakable_cuda_graph::Driver, Arc<Mutex<Vec<(&'static str, usize)>>>);
    impl Look {
        fn at(&self, what: &'static str) -> Result<()> {
            let mut current = std::ptr::null_mut();
            // SAFETY: a valid place.
            unsafe { self.0.cuCtxGetCurrent(&mut current).expect("asked") };
            self.1.lock().expect("the list").push((what, current as usize));
            Ok(())
        }
    }
    let seen: Arc<Mutex<Vec<(&'static str, usize)>>> = Arc::default();
    let look = || Look(rig.driver.clone(), seen.clone());
    on_a_thread(|| {
        let (inside, patched) = (look(), look());
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        capture
            .record(&rig.stream, |scope| {
                look().at("forward")?;
                scope.break_point("live", [None::<&Tensor>], move |_| inside.at("live break"))?;
                let options = BreakOptions::new("patched").patched();
                scope.break_point(options, [None::<&Tensor>], move |_| patched.at("patched break"))
            })
            .expect("a recording");
        let _ = capture.replay(&rig.stream).expect("a replay");
        eager(&rig.pool, &rig.stream, |_| look().at("eager")).expect("an eager run");
        trace(&rig.pool, &rig.stream, |_| look().at("trace")).expect("a trace");
        look().at("outside").expect("asked");
    });
    let seen = seen.lock().expect("the list");
    for what in ["forward", "live break", "patched break", "eager", "trace"] {
        let current: Vec<usize> = seen.iter().filter(|seen| seen.0 == what).map(|seen| seen.1).collect();
        assert!(
            !current.is_empty() && current.iter().all(|current| *current == rig.context.as_raw() as usize),
            "{what}"
        );
    }
    assert_eq!(seen.last(), Some(&("outside", 0)), "what was current before is again");
}

/// A time taken in a segment, on every replay, by events that the test no longer owns; a record that would have none is refused.
#[test]
fn a_segment_takes_times_by_external_events() {
    let rig = Rig::new(&driver());
    let timed = || Arc::new(Event::with_flags(&rig.context, EventFlags::TIMING).expect("an event"));
    let (start, end, state) = (timed(), timed(), rig.zeros(&[1024]));
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let refused = capture.record(&rig.stream, |scope| start.record(&scope.stream()?));
    assert!(matches!(cause(refused), Misuse::TimingInSegment));

    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    capture
        .record(&rig.stream, |scope| {
            let stream = scope.stream()?;
            start.record_external(&stream)?;
            rig.ops.scale_into(&stream, &state, 2.0, &state)?;
            end.record_external(&stream)
        })
        .expect("a recording");
    for _ in 0..3 {
        let _ = capture.replay(&rig.stream).expect("a replay");
        end.synchronize().expect("an event of the replay");
        assert!(end.elapsed_since(&start).is_ok());
    }
    let kept = Arc::downgrade(&end);
    drop(end);
    assert!(kept.upgrade().is_some(), "the segment keeps it");
    let _ = capture.replay(&rig.stream).expect("a replay");
    drop(capture);
    assert!(kept.upgrade().is_none());
}

/// Each replay waits for what another component has recorded before it, while that work is in flight.
#[test]
fn a_segment_waits_for_another_components_progress() {
    for_each_seed(|rig| {
        let other = Stream::new(&rig.context).expect("a stream");
        let (cache, result) = (rig.ones(&[4096]), rig.zeros(&[4096]));
        let arrived = Arc::new(Event::new(&rig.context).expect("an event"));
        rig.stream.synchronize().expect("what was enqueued");
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        capture
            .record(&rig.stream, |scope| {
                let stream = scope.stream()?;
                stream.wait_external(&arrived)?;
                rig.ops.scale_into(&stream, &cache, 1.0, &result)
            })
            .expect("a recording");
        let mut expected = 1.0_f32;
        for _ in 0..4 {
            for _ in 0..8 {
                rig.ops.scale_into(&other, &cache, 1.5, &cache).expect("a launch");
                expected *= 1.5;
            }
            arrived.record(&other).expect("a record");
            let _ = capture.replay(&rig.stream).expect("a replay");
            assert_same(&rig.read(&result), &[expected; 4096]);
        }
    });
}
