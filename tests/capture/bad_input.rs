//! What a caller can get wrong, each a typed error that leaves everything usable.

use crate::support::{Rig, assert_same, for_each_seed};
use breakable_cuda_graph::driver::{
    Context, Device, DeviceBuffer, Event, Graph, GraphExec, InstantiateFlags, PinnedBuffer, Stream, StreamKind,
};
use breakable_cuda_graph::sys::intercept::Fault;
use breakable_cuda_graph::sys::{
    CUgraphInstantiate_flags_enum, CUgraphInstantiateResult, CUgraphNodeType, CUresult, CUstream_flags_enum,
    CUstreamCaptureMode, Call,
};
use breakable_cuda_graph::tensor::Layout;
use breakable_cuda_graph::{
    BreakOptions, BreakableCapture, CaptureMode, CaptureOptions, CapturePool, DType, Error, GraphOptions, Misuse,
    PoolOptions, ReplayOptions, Result, Tensor, TensorError, break_point, current_stream, eager, empty,
    scrub_padding_tail,
};
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::Arc;

const WIDTH: usize = 8;

/// The cause of a failed recording.
#[track_caller]
fn cause<T: std::fmt::Debug>(result: Result<T>) -> Error {
    match result.expect_err("it fails") {
        Error::Capture(error) => match *error.source {
            Error::Break { source, .. } => *source,
            other => other,
        },
        other => other,
    }
}

/// A recording of one operation and one break, and its replay, work.
fn check_usable(rig: &Rig) {
    let input = rig.random(1, &[4, WIDTH]);
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let ops = rig.ops.clone();
    let out = capture
        .record(&rig.stream, |scope| {
            let h = rig.ops.scale(&input, 2.0)?;
            scope.break_point("relu", [&h], move |b| ops.relu(b.input(0)?))
        })
        .expect("a recording");
    let _ = capture.replay(&rig.stream).expect("a replay");
    let expected: Vec<f32> = rig.read(&input).iter().map(|value| (value * 2.0).max(0.0)).collect();
    assert_same(&rig.read(&out), &expected);
}

fn raw_stream(context: &Context, flags: u32) -> breakable_cuda_graph::sys::CUstream {
    let mut raw = std::ptr::null_mut();
    let made = context.with_current(|| {
        // SAFETY: a valid place, with the context current.
        unsafe { context.driver().cuStreamCreate(&mut raw, flags) }
    });
    made.and_then(|made| Ok(made?)).expect("a stream");
    raw
}

#[test]
fn captures_that_are_not_recorded_or_failed_do_not_replay() {
    for_each_seed(|rig| {
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        assert!(matches!(capture.replay(&rig.stream), Err(Error::Misuse(Misuse::NotRecorded))));
        let failed: Result<()> = capture.record(&rig.stream, |_| Err(Error::user("no weights")));
        let error = failed.expect_err("it fails");
        assert!(error.to_string().contains("no weights"), "{error}");
        assert!(matches!(capture.replay(&rig.stream), Err(Error::Misuse(Misuse::Poisoned))));
        assert!(matches!(capture.record(&rig.stream, |_| Ok(())), Err(Error::Misuse(Misuse::Poisoned))));

        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        capture.record(&rig.stream, |_| Ok(())).expect("an empty recording");
        assert_eq!((capture.num_segments(), capture.num_launches()), (1, 0));
        assert!(matches!(capture.record(&rig.stream, |_| Ok(())), Err(Error::Misuse(Misuse::AlreadyRecorded))));
        let _ = capture.replay(&rig.stream).expect("it can be replayed all the same");
        check_usable(&rig);
    });
}

#[test]
fn captures_of_another_pool_are_refused() {
    for_each_seed(|rig| {
        let other = CapturePool::new(&rig.context).expect("a pool");
        let capture = BreakableCapture::new(&other).expect("a capture");
        assert!(matches!(capture.expect_pool(&rig.pool), Err(Error::Misuse(Misuse::ForeignPool))));
        capture.expect_pool(&other).expect("its own pool");
    });
}

#[test]
fn legacy_and_blocking_foreign_streams_are_refused_with_the_reason() {
    for_each_seed(|rig| {
        // SAFETY: the legacy stream is always there.
        let legacy =
            unsafe { Stream::borrow_raw(&rig.context, std::ptr::null_mut(), None) }.expect("the legacy stream");
        assert_eq!(legacy.kind(), StreamKind::Legacy);
        let options = CaptureOptions::default().stream(&legacy);
        assert!(matches!(BreakableCapture::with_options(&rig.pool, options), Err(Error::Misuse(Misuse::LegacyStream))));

        // SAFETY: a stream just made, which nobody else destroys.
        let blocking = unsafe { Stream::from_raw(&rig.context, raw_stream(&rig.context, 0)) }.expect("a stream");
        assert_eq!(blocking.kind(), StreamKind::Blocking);
        let options = CaptureOptions::default().stream(&blocking);
        assert!(matches!(
            BreakableCapture::with_options(&rig.pool, options),
            Err(Error::Misuse(Misuse::BlockingStream))
        ));

        // A foreign non-blocking stream is captured.
        let raw = raw_stream(&rig.context, CUstream_flags_enum::CU_STREAM_NON_BLOCKING.0);
        // SAFETY: likewise.
        let foreign = unsafe { Stream::from_raw(&rig.context, raw) }.expect("a stream");
        let options = CaptureOptions::default().stream(&foreign);
        let mut capture = BreakableCapture::with_options(&rig.pool, options).expect("a capture");
        let input = rig.random(1, &[4, WIDTH]);
        let out = capture.record(&rig.stream, |_| rig.ops.scale(&input, 2.0)).expect("a recording");
        assert!(matches!(capture.replay(&legacy), Err(Error::Misuse(Misuse::LegacyStream))));
        let _ = capture.replay(&foreign).expect("a replay");
        foreign.synchronize().expect("the replay");
        let expected: Vec<f32> = rig.read(&input).iter().map(|value| value * 2.0).collect();
        assert_same(&rig.read(&out), &expected);
        check_usable(&rig);
    });
}

#[test]
fn wrong_shapes_types_and_places_are_typed_errors() {
    for_each_seed(|rig| {
        let tensor = rig.zeros(&[4, WIDTH]);
        assert!(matches!(tensor.write(&rig.stream, &[0.0_f32; 3]), Err(Error::Tensor(TensorError::Shape { .. }))));
        assert!(matches!(
            tensor.write(&rig.stream, &[0_i32; 4 * WIDTH]),
            Err(Error::Tensor(TensorError::DType { .. }))
        ));
        assert!(matches!(tensor.read::<f64>(&rig.stream), Err(Error::Tensor(TensorError::DType { .. }))));
        assert!(matches!(tensor.reshape(&[5, WIDTH]), Err(Error::Tensor(TensorError::Shape { .. }))));
        assert!(matches!(tensor.narrow(0, 3, 2), Err(Error::Tensor(TensorError::OutOfRange { .. }))));
        assert!(matches!(tensor.narrow(2, 0, 1), Err(Error::Tensor(TensorError::OutOfRange { .. }))));
        assert!(matches!(tensor.narrow(0, usize::MAX, 2), Err(Error::Tensor(TensorError::OutOfRange { .. }))));
        assert!(matches!(tensor.transpose(0, 2), Err(Error::Tensor(TensorError::OutOfRange { .. }))));
        assert!(matches!(Layout::contiguous(&[1; 9]), Err(Error::Tensor(TensorError::Layout { .. }))));
        assert!(matches!(Layout::contiguous(&[usize::MAX, 2]), Err(Error::Tensor(TensorError::Layout { .. }))));
        assert!(matches!(Layout::strided(&[2, 2], &[1]), Err(Error::Tensor(TensorError::Layout { .. }))));
        assert!(matches!(Layout::strided(&[3, 3], &[usize::MAX, 1]), Err(Error::Tensor(TensorError::Layout { .. }))));
        assert!(matches!(
            Tensor::allocate(&rig.context, DType::F32, &[usize::MAX / 2, 8]),
            Err(Error::Tensor(TensorError::Layout { .. }))
        ));
        assert!(matches!(Tensor::host(&[0.0_f32; 3], &[4]), Err(Error::Tensor(TensorError::Shape { .. }))));
        let buffer = DeviceBuffer::new(&rig.context, 16).expect("a buffer");
        let layout = Layout::contiguous(&[5]).expect("a layout");
        assert!(matches!(
            Tensor::from_buffer(buffer, DType::F32, layout),
            Err(Error::Tensor(TensorError::OutOfRange { .. }))
        ));
        let host = Tensor::host(&[1.0_f32; 8], &[8]).expect("a tensor");
        assert!(matches!(
            scrub_padding_tail(&rig.stream, 1, [&host]),
            Err(Error::Tensor(TensorError::Location { .. }))
        ));
        assert!(matches!(host.write(&rig.stream, &[0.0_f32; 8]), Err(Error::Tensor(TensorError::Location { .. }))));
        let strided = rig.zeros(&[4, WIDTH]).narrow(1, 1, 2).expect("a view");
        assert!(matches!(strided.write(&rig.stream, &[0.0_f32; 8]), Err(Error::Tensor(TensorError::Shape { .. }))));
        assert!(matches!(strided.fill_bytes(&rig.stream, 0), Err(Error::Tensor(TensorError::Shape { .. }))));
        check_usable(&rig);
    });
}

#[test]
fn free_functions_outside_a_forward_are_typed_errors() {
    for_each_seed(|rig| {
        assert!(matches!(current_stream(), Err(Error::Misuse(Misuse::NoForward))));
        assert!(matches!(empty(DType::F32, &[1]), Err(Error::Misuse(Misuse::NoForward))));
        let input = rig.zeros(&[1]);
        let broken: Result<Tensor> = break_point("nowhere", [&input], |b| Ok(b.input(0)?.clone()));
        assert!(matches!(broken, Err(Error::Misuse(Misuse::NoForward))));
    });
}

#[test]
fn zero_rows_work() {
    for_each_seed(|rig| {
        let input = rig.zeros(&[0, WIDTH]);
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let ops = rig.ops.clone();
        let out = capture
            .record(&rig.stream, |scope| {
                let h = rig.ops.scale(&input, 2.0)?;
                let h = scope.break_point("relu", [&h], move |b| ops.relu(b.input(0)?))?;
                rig.ops.scale(&h, 2.0)
            })
            .expect("a recording");
        assert_eq!(out.shape(), [0, WIDTH]);
        let _ = capture.replay_with(&rig.stream, ReplayOptions::default().valid_rows(0)).expect("a replay");
        assert!(rig.read(&out).is_empty());
        scrub_padding_tail(&rig.stream, 0, [&input]).expect("nothing to do");
        assert!(input.leading_rows(0).read::<f32>(&rig.stream).expect("a read").is_empty());
        check_usable(&rig);
    });
}

#[test]
fn a_pool_at_its_limit_says_so_and_can_be_used_on() {
    const LIMIT: usize = 4 << 20;
    crate::support::for_each_driver(|driver| {
        let rig = Rig::with_pool(driver, PoolOptions::default().max_bytes(LIMIT));
        let before = rig.pool.usage().expect("usage");
        let options = CaptureOptions::default().bucket(512);
        let mut capture = BreakableCapture::with_options(&rig.pool, options).expect("a capture");
        let input = rig.random(1, &[4, WIDTH]);
        let recorded = capture.record(&rig.stream, |scope| {
            let ops = rig.ops.clone();
            let small = BreakOptions::new("small").not_rows();
            let _small = scope.break_point(small, [&input], move |b| ops.relu(b.input(0)?))?;
            let _large = scope.empty(DType::U8, &[LIMIT])?;
            Ok(())
        });
        let Error::OutOfMemory(error) = cause(recorded) else { panic!("another error") };
        assert_eq!(
            (error.requested, error.limit, error.bucket, error.segment),
            (LIMIT, Some(LIMIT), Some(512), Some(1))
        );
        assert!(error.in_use > 0 && error.reserved >= error.in_use && error.call.is_none());
        let after = rig.pool.usage().expect("usage");
        assert_eq!((after.in_use, after.reserved), (before.in_use, before.reserved), "everything was given back");
        check_usable(&rig);
    });
}

#[test]
fn a_device_out_of_memory_says_so_and_can_be_used_on() {
    for_each_seed(|rig| {
        let total = rig.context.memory_info().expect("the memory").total;
        let before = rig.pool.usage().expect("usage");
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let recorded = capture.record(&rig.stream, |scope| scope.empty(DType::U8, &[total + (64 << 20)]));
        let Error::OutOfMemory(error) = cause(recorded) else { panic!("another error") };
        let call = error.call.expect("the driver's call");
        assert_eq!((call.call(), call.code()), (Call::cuMemAllocFromPoolAsync, CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        assert_eq!(error.segment, Some(0));
        assert_eq!(rig.pool.usage().expect("usage"), before);
        check_usable(&rig);
    });
}
#[test]
fn failed_captures_give_their_memory_back_every_time() {
    for_each_seed(|rig| {
        let before = rig.pool.usage().expect("usage");
        for _ in 0..5 {
            let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
            let recorded: Result<()> = capture.record(&rig.stream, |scope| {
                let _blocks: Vec<Tensor> = [1_usize << 20, 3 << 20, 5 << 20]
                    .into_iter()
                    .map(|bytes| scope.empty(DType::U8, &[bytes]))
                    .collect::<Result<_>>()?;
                Err(Error::user(std::io::Error::other("the user's own")))
            });
            let Error::User(source) = cause(recorded) else { panic!("another error") };
            assert!(source.downcast_ref::<std::io::Error>().is_some(), "the user's own error is the source");
            let after = rig.pool.usage().expect("usage");
            assert_eq!((after.in_use, after.reserved, after.slabs), (before.in_use, before.reserved, before.slabs));
        }
        check_usable(&rig);
    });
}

#[test]
fn replays_while_a_segment_is_open_and_from_the_pools_own_breaks_are_refused() {
    for_each_seed(|rig| {
        let input = rig.random(1, &[4, WIDTH]);
        let mut other = BreakableCapture::new(&rig.pool).expect("a capture");
        let _out = other.record(&rig.stream, |_| rig.ops.relu(&input)).expect("a recording");
        let other = Arc::new(std::sync::Mutex::new(other));
        let (replayed, stream) = (other.clone(), rig.stream.clone());
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let _out = capture
            .record(&rig.stream, |scope| {
                let refused = other.lock().expect("the capture").replay(&rig.stream).map(drop);
                assert!(matches!(refused, Err(Error::Misuse(Misuse::ReplayWhileRecording))), "{refused:?}");
                let ops = rig.ops.clone();
                scope.break_point("replays", [&input], move |b| {
                    let refused = replayed.lock().expect("the capture").replay(&stream).map(drop);
                    assert!(matches!(refused, Err(Error::Misuse(Misuse::PoolBusy))), "{refused:?}");
                    ops.relu(b.input(0)?)
                })
            })
            .expect("a recording");
        let _ = capture.replay(&rig.stream).expect("a replay");
        check_usable(&rig);
    });
}

#[test]
fn waiting_in_a_segment_is_refused_before_the_driver_sees_it() {
    for_each_seed(|rig| {
        let input = rig.random(1, &[4, WIDTH]);
        let event = Event::new(&rig.context).expect("an event");
        event.record(&rig.stream).expect("a record");
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = capture
            .record(&rig.stream, |scope| {
                let stream = scope.stream()?;
                let refused = [
                    rig.stream.synchronize(),
                    stream.synchronize(),
                    stream.is_idle().map(drop),
                    event.synchronize(),
                    event.is_done().map(drop),
                    rig.context.synchronize(),
                ];
                for refused in refused {
                    assert!(
                        matches!(refused, Err(Error::Misuse(Misuse::SynchronizeWhileCapturing { .. }))),
                        "{refused:?}"
                    );
                }
                assert!(matches!(stream.wait(&event), Err(Error::Misuse(Misuse::EventFromOutside))));
                assert!(matches!(
                    stream.id(),
                    Err(Error::Misuse(Misuse::WouldInvalidate { call: Call::cuStreamGetId }))
                ));
                // SAFETY: a live stream.
                let borrowed = unsafe { Stream::borrow_raw(&rig.context, stream.as_raw(), None) };
                assert!(matches!(
                    borrowed,
                    Err(Error::Misuse(Misuse::WouldInvalidate { call: Call::cuStreamGetFlags }))
                ));
                assert!(matches!(input.read::<f32>(&rig.stream), Err(Error::Misuse(Misuse::HostMemoryInSegment))));
                assert!(matches!(
                    input.write(&rig.stream, &[0.0_f32; 4 * WIDTH]),
                    Err(Error::Misuse(Misuse::HostMemoryInSegment))
                ));
                let usage = rig.pool.usage()?;
                assert!(usage.reserved >= usage.in_use, "the pool's usage can be asked");
                rig.ops.relu(&input)
            })
            .expect("the capture survives all that");
        let _ = capture.replay(&rig.stream).expect("a replay");
        let expected: Vec<f32> = rig.read(&input).iter().map(|value| value.max(0.0)).collect();
        assert_same(&rig.read(&out), &expected);
    });
}

/// Rule 16.
#[test]
fn unjoined_side_streams_are_named_by_their_fork() {
    for_each_seed(|rig| {
        let input = rig.random(1, &[4, WIDTH]);
        let side = Stream::new(&rig.context).expect("a stream");
        for at_break in [true, false] {
            let fork = Event::new(&rig.context).expect("an event");
            let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
            let recorded = capture.record(&rig.stream, |scope| {
                let h = rig.ops.relu(&input)?;
                fork.record(&scope.stream()?)?;
                side.wait(&fork)?;
                rig.ops.scale_into(&side, &h, 2.0, &h)?;
                if at_break {
                    scope.break_point("too early", [&h], |_| Ok(()))?;
                }
                Ok(())
            });
            let error = cause(recorded);
            let unjoined = Misuse::UnjoinedWork { stream: Some(side.as_raw() as usize), forked_at: 1 };
            assert!(matches!(&error, Error::Misuse(misuse) if *misuse == unjoined), "{error:?}");
            side.synchronize().expect("the side stream is usable");
            check_usable(&rig);
        }
        // Joined, it is recorded.
        let (fork, join) = (Event::new(&rig.context).expect("an event"), Event::new(&rig.context).expect("an event"));
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = capture
            .record(&rig.stream, |scope| {
                let stream = scope.stream()?;
                let h = rig.ops.relu(&input)?;
                let doubled = rig.ops.empty_like(&h)?;
                fork.record(&stream)?;
                side.wait(&fork)?;
                rig.ops.scale_into(&side, &h, 2.0, &doubled)?;
                join.record(&side)?;
                stream.wait(&join)?;
                rig.ops.add(&h, &doubled)
            })
            .expect("a recording");
        assert!(matches!(rig.stream.wait(&join), Err(Error::Misuse(Misuse::EventFromSegment))));
        assert!(matches!(join.synchronize(), Err(Error::Misuse(Misuse::EventFromSegment))));
        let _ = capture.replay(&rig.stream).expect("a replay");
        let expected: Vec<f32> = rig.read(&input).iter().map(|v| v.max(0.0) + v.max(0.0) * 2.0).collect();
        assert_same(&rig.read(&out), &expected);
    });
}

/// Memory of the graph's own is refused, through the crate and when it got in past it.
#[test]
fn allocations_on_the_capture_stream_are_refused() {
    for_each_seed(|rig| {
        let pool = breakable_cuda_graph::driver::MemoryPool::new(&rig.context).expect("a pool");
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let recorded = capture.record(&rig.stream, |scope| {
            let refused = pool.allocate(1024, &scope.stream()?).map(drop);
            assert!(
                matches!(
                    refused,
                    Err(Error::Misuse(Misuse::StreamIsCapturing { call: Call::cuMemAllocFromPoolAsync }))
                ),
                "{refused:?}"
            );
            // On another stream it is made, past the rule of the mode.
            pool.allocate(1024, &rig.stream).map(drop)
        });
        recorded.expect("the capture survives");
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let recorded = capture.record(&rig.stream, |scope| {
            let mut address = 0;
            let stream = scope.stream()?;
            // SAFETY: live handles and a valid place.
            unsafe { rig.driver.cuMemAllocFromPoolAsync(&mut address, 1024, pool.as_raw(), stream.as_raw())? };
            Ok(())
        });
        let error = cause(recorded);
        assert!(matches!(error, Error::Misuse(Misuse::MemoryNodes { count: 1 })), "{error:?}");
        check_usable(&rig);
    });
}

/// A raw forbidden call in a segment. The error names the first call that failed, with its segment.
#[test]
fn a_forbidden_call_in_a_segment_is_named_with_its_place() {
    for_each_seed(|rig| {
        let input = rig.random(1, &[4, WIDTH]);
        for mode in [CaptureMode::ThreadLocal, CaptureMode::Global] {
            let options = CaptureOptions::default().name("decoder").bucket(4).graph(GraphOptions::default().mode(mode));
            let mut capture = BreakableCapture::with_options(&rig.pool, options).expect("a capture");
            let recorded = capture.record(&rig.stream, |scope| {
                let ops = rig.ops.clone();
                let h = scope.break_point("break", [&input], move |b| ops.relu(b.input(0)?))?;
                let h = rig.ops.scale(&h, 2.0)?;
                let mut address = 0;
                // SAFETY: a valid place.
                let _swallowed = rig.context.with_current(|| unsafe { rig.driver.cuMemAlloc_v2(&mut address, 1024) });
                rig.ops.scale(&h, 2.0)
            });
            let error = recorded.expect_err("the capture is invalidated");
            let text = error.to_string();
            let Error::Capture(error) = error else { panic!("{error:?}") };
            assert_eq!((error.segment, error.operation, error.bucket), (1, 1, Some(4)), "{text}");
            let first = error.first_call.expect("the first call that failed");
            assert_eq!(first.call(), Call::cuMemAlloc_v2);
            assert_eq!(first.code(), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
            assert!(text.contains("cuMemAlloc_v2 returned CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (900)"), "{text}");
            assert!(text.contains("decoder") && text.contains("run the forward once before capturing"), "{text}");
            check_usable(&rig);
        }
        // The crate's own allocation is made past the rule. A tensor's is refused: `empty` is what is meant there.
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        capture
            .record(&rig.stream, |_| {
                let refused = Tensor::allocate(&rig.context, DType::F32, &[16]);
                assert!(matches!(refused, Err(Error::Misuse(Misuse::AllocateInSegment))), "{refused:?}");
                DeviceBuffer::new(&rig.context, 64).map(drop)
            })
            .expect("it survives");
    });
}

/// Another thread's call, which this one knows nothing of: the error does not say whose it was, as it can't be known.
#[test]
fn what_ended_a_capture_is_not_guessed_at() {
    for_each_seed(|rig| {
        let input = rig.random(1, &[4, WIDTH]);
        let options = CaptureOptions::default().graph(GraphOptions::default().mode(CaptureMode::Global));
        let mut capture = BreakableCapture::with_options(&rig.pool, options).expect("a capture");
        let recorded = capture.record(&rig.stream, |_| {
            let forbidden = || {
                let mut address = 0;
                // SAFETY: a valid place.
                let call = || unsafe { rig.driver.cuMemAlloc_v2(&mut address, 1024) };
                rig.context.with_current(call).and_then(|call| Ok(call?))
            };
            let other = std::thread::scope(|threads| threads.spawn(forbidden).join().expect("no panic"));
            assert!(other.is_err(), "the mode forbids it to every thread");
            rig.ops.relu(&input)
        });
        let error = recorded.expect_err("the capture is invalidated");
        let call = error.driver_call().expect("a call");
        assert_eq!(call.code(), CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "{error}");
        let text = error.to_string();
        assert!(text.contains("An earlier call invalidated the capture, and which one is not known here"), "{text}");
        check_usable(&rig);
    });
}

/// What is dropped in a segment is destroyed when it closes.
#[test]
fn drops_in_a_segment_wait_for_its_end() {
    for_each_seed(|rig| {
        let input = rig.random(1, &[4, WIDTH]);
        let mut old = BreakableCapture::new(&rig.pool).expect("a capture");
        let old_out = old.record(&rig.stream, |_| rig.ops.relu(&input)).expect("a recording");
        let buffer = DeviceBuffer::new(&rig.context, 64).expect("a buffer");
        let pinned = PinnedBuffer::new(&rig.context, 64).expect("a buffer");
        let (event, stream) =
            (Event::new(&rig.context).expect("an event"), Stream::new(&rig.context).expect("a stream"));
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = capture
            .record(&rig.stream, |_| {
                drop((old, old_out, buffer, pinned, event, stream));
                drop(crate::support::demo::Ops::load(&rig.context)?);
                assert!(rig.context.queued_drops() >= 5, "{}", rig.context.queued_drops());
                rig.ops.relu(&input)
            })
            .expect("the capture survives");
        assert_eq!(rig.context.queued_drops(), 0);
        let _ = capture.replay(&rig.stream).expect("a replay");
        let expected: Vec<f32> = rig.read(&input).iter().map(|value| value.max(0.0)).collect();
        assert_same(&rig.read(&out), &expected);
    });
}

/// A buffer that a recorded launch reads is kept by the capture.
#[test]
fn buffers_of_recorded_launches_are_kept() {
    for_each_seed(|rig| {
        let input = rig.random(1, &[4, WIDTH]);
        let temporary = Tensor::allocate(&rig.context, DType::F32, &[4, WIDTH]).expect("a tensor");
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let (out, weak) = capture
            .record(&rig.stream, {
                let (rig, input) = (&rig, &input);
                move |_| {
                    rig.ops.scale_into(&current_stream()?, input, 2.0, &temporary)?;
                    let weak = temporary.downgrade();
                    Ok((rig.ops.relu(&temporary)?, weak))
                }
            })
            .expect("a recording");
        assert!(weak.is_live());
        for _ in 0..3 {
            let _ = capture.replay(&rig.stream).expect("a replay");
            let expected: Vec<f32> = rig.read(&input).iter().map(|value| (value * 2.0).max(0.0)).collect();
            assert_same(&rig.read(&out), &expected);
        }
        drop(capture);
        assert!(!weak.is_live());
    });
}

/// A recorded copy from pinned host memory keeps the buffer, and reads what it holds at each replay.
#[test]
fn pinned_buffers_of_recorded_copies_are_kept() {
    for_each_seed(|rig| {
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let mut pinned = PinnedBuffer::new(&rig.context, 16).expect("a buffer");
        pinned.as_mut_slice().copy_from_slice(&[1.5_f32, 2.5, 3.5, 4.5].map(f32::to_ne_bytes).concat());
        let out = capture
            .record(&rig.stream, |scope| {
                let pinned = Arc::new(pinned);
                let staged = scope.empty(DType::F32, &[4])?;
                // SAFETY: the tensor is as long as the buffer.
                unsafe { scope.stream()?.copy_pinned_to_device(staged.address(), &pinned, 0..16)? };
                assert!(matches!(
                    // SAFETY: refused before anything is copied.
                    unsafe { scope.stream()?.copy_pinned_to_device(staged.address(), &pinned, 8..17) },
                    Err(Error::Tensor(TensorError::OutOfRange { end: 17, length: 16, .. }))
                ));
                rig.ops.scale(&staged, 2.0)
            })
            .expect("a recording");
        for _ in 0..3 {
            let _ = capture.replay(&rig.stream).expect("a replay");
            assert_same(&rig.read(&out), &[3.0, 5.0, 7.0, 9.0]);
        }
    });
}

/// Rule 30: replays of one pool on several streams are ordered, and a drop right after a replay is safe.
#[test]
fn replays_of_one_pool_are_ordered_across_streams() {
    for_each_seed(|rig| {
        let inputs: Vec<Tensor> = (0..3).map(|at| rig.random(at, &[64, WIDTH])).collect();
        let streams: Vec<Stream> = (0..3).map(|_| Stream::new(&rig.context).expect("a stream")).collect();
        let results: Vec<Tensor> = (0..3).map(|_| rig.zeros(&[64, WIDTH])).collect();
        rig.stream.synchronize().expect("the inputs");
        let mut captures = Vec::new();
        for (input, result) in inputs.iter().zip(&results) {
            let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
            capture
                .record(&rig.stream, |_| {
                    let mut h = rig.ops.scale(input, 2.0)?;
                    for _ in 0..8 {
                        h = rig.ops.scale(&h, 1.0)?;
                    }
                    rig.ops.scale_into(&current_stream()?, &h, 1.0, result)
                })
                .expect("a recording");
            captures.push(capture);
        }
        for round in 0..4 {
            for (at, capture) in captures.iter_mut().enumerate() {
                let replayed = capture.replay(&streams[(at + round) % 3]).expect("a replay");
                replayed.check().expect("the latest");
            }
        }
        drop(captures);
        for stream in &streams {
            stream.synchronize().expect("the replays");
        }
        for (input, result) in inputs.iter().zip(&results) {
            let expected: Vec<f32> = rig.read(input).iter().map(|value| value * 2.0).collect();
            assert_same(&rig.read(result), &expected);
        }
    });
}

/// Any thread, whatever is current there; two threads on one pool take turns.
#[test]
fn captures_replay_from_any_thread() {
    for_each_seed(|rig| {
        let input = rig.random(1, &[4, WIDTH]);
        let expected: Vec<f32> = rig.read(&input).iter().map(|value| value * 4.0).collect();
        std::thread::scope(|threads| {
            for _ in 0..3 {
                let (rig, input, expected) = (&rig, &input, &expected);
                threads.spawn(move || {
                    let stream = Stream::new(&rig.context).expect("a stream");
                    let ops = rig.ops.clone();
                    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
                    let landing = Tensor::zeros(&stream, DType::F32, &[4, WIDTH]).expect("a tensor");
                    capture
                        .record(&stream, |scope| {
                            let h = rig.ops.scale(input, 2.0)?;
                            let h = scope.break_point("double", [&h], move |b| ops.scale(b.input(0)?, 2.0))?;
                            rig.ops.scale_into(&scope.stream()?, &h, 1.0, &landing)
                        })
                        .expect("a recording");
                    for _ in 0..4 {
                        let _ = capture.replay(&stream).expect("a replay");
                    }
                    assert_same(&landing.read::<f32>(&stream).expect("a read"), expected);
                });
            }
        });
    });
}

#[test]
fn devices_that_are_not_there_are_typed_errors() {
    let driver = crate::support::driver();
    let count = Device::count(&driver).expect("a count");
    let error = Device::get(&driver, count).expect_err("one past the last");
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    assert!(
        matches!(&error, Error::NoSuchDevice { ordinal, count: have, visible: list } if (*ordinal, *have) == (count, count) && *list == visible)
    );
    let listed = Error::NoSuchDevice { ordinal: 4, count: 1, visible: Some("7".to_owned()) }.to_string();
    assert_eq!(listed, "there is no device 4: the driver sees 1 (CUDA_VISIBLE_DEVICES=7, numbered from 0)");
    assert!(Device::get(&driver, usize::MAX).is_err());
}

#[test]
fn an_allocation_that_fails_says_what_the_device_has() {
    let rig = Rig::new(&crate::support::driver());
    let requested = 1 << 60;
    let error = DeviceBuffer::new(&rig.context, requested).expect_err("more than any device has");
    let Error::DeviceOutOfMemory { requested: asked, free, total, .. } = &error else {
        panic!("another error: {error}")
    };
    assert!(*asked == requested && free <= total && *total < requested);
    assert_eq!(error.driver_call().map(|call| call.code()), Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
    assert!(DeviceBuffer::new(&rig.context, 4096).is_ok(), "nothing is lost");
}

#[test]
fn eager_forwards_check_their_stream() {
    for_each_seed(|rig| {
        let result = eager(&rig.pool, &rig.stream, |scope| {
            assert_eq!(scope.stream()?, rig.stream);
            let temporary = scope.empty(DType::F32, &[4])?;
            rig.ops.scale_into(&rig.stream, &rig.ones(&[4]), 2.0, &temporary)?;
            Ok(temporary)
        });
        assert_same(&rig.read(&result.expect("eager")), &[2.0; 4]);
    });
}

#[cfg(not(feature = "driver-tests"))]
mod two_devices {
    use super::*;
    use crate::support::demo::options;
    use breakable_cuda_graph::Driver;

    /// The wrong device's handles are refused, and the wrong current context does no harm.
    #[test]
    fn every_call_uses_its_own_context() {
        let driver = Driver::reference_with(options().devices(2)).expect("two devices");
        let contexts: Vec<Context> = (0..2)
            .map(|at| Device::get(&driver, at).and_then(|device| device.primary_context()).expect("a context"))
            .collect();
        let streams: Vec<Stream> = contexts.iter().map(|context| Stream::new(context).expect("a stream")).collect();
        let pools: Vec<CapturePool> =
            contexts.iter().map(|context| CapturePool::new(context).expect("a pool")).collect();
        let ops = crate::support::demo::Ops::load(&contexts[0]).expect("the kernels");
        let input = Tensor::from_slice(&streams[0], &[1.0_f32, -2.0], &[2]).expect("a tensor");

        let mismatch = |result: Result<()>| {
            assert!(matches!(result, Err(Error::Misuse(Misuse::ContextMismatch { .. }))), "{result:?}");
        };
        mismatch(eager(&pools[0], &streams[1], |_| Ok(())));
        mismatch(ops.scale_into(&streams[1], &input, 1.0, &input));
        mismatch(input.write(&streams[1], &[0.0_f32; 2]));
        mismatch(Event::new(&contexts[1]).expect("an event").record(&streams[0]));
        let mut capture = BreakableCapture::new(&pools[0]).expect("a capture");
        mismatch(capture.record(&streams[1], |_| Ok(())));
        mismatch(BreakableCapture::with_options(&pools[0], CaptureOptions::default().stream(&streams[1])).map(drop));

        // With the other device's context current everything goes where it belongs.
        let out = contexts[1].with_current(|| -> Result<Tensor> {
            let out = capture.record(&streams[0], |_| ops.relu(&input))?;
            let _ = capture.replay(&streams[0])?;
            Ok(out)
        });
        let out = out.expect("current").expect("a capture");
        assert_same(&out.read(&streams[0]).expect("a read"), &[1.0, 0.0]);
        mismatch(capture.replay(&streams[1]).map(drop));
    }
}

/// An exec that can't be made says what the driver said: the call, its code and the result kind, and no node where none is named.
#[test]
fn an_exec_that_can_not_be_made_says_why() {
    let rig = Rig::new(&crate::support::driver().intercepted());
    let graph = Graph::new(&rig.context).expect("a graph");
    let watch = rig.driver.intercept().expect("a watched driver");
    let (call, code) = (Call::cuGraphInstantiateWithParams, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    watch.fail(Fault { call: Some(call), after: 0, code });
    let failed = GraphExec::new(&graph, InstantiateFlags::default());
    assert_eq!(watch.clear_fault().len(), 1);
    let Err(Error::Instantiate(failed)) = failed else { panic!("{failed:?}") };
    assert_eq!((failed.error.call(), failed.error.code(), failed.node), (call, code, None));
    assert_eq!(failed.result, CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_ERROR);
    GraphExec::new(&graph, InstantiateFlags::default()).expect("and is made afterwards");
}

/// The node that a driver names is told by its place, through the children that it is inside of, and its kind.
#[test]
fn an_exec_that_can_not_be_made_says_for_which_node() {
    unsafe extern "C" fn nothing(_: *mut c_void) {}
    let rig = Rig::new(&crate::support::driver());
    let (driver, stream) = (&rig.driver, rig.stream.as_raw());
    let tensor = rig.zeros(&[4]);
    let captured = |host: bool| -> Graph {
        let mut graph = null_mut();
        // SAFETY: a live stream, a tensor that outlives the graph, and a function that takes any pointer.
        unsafe {
            driver.cuStreamBeginCapture_v2(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).expect("begun");
            driver.cuMemsetD32Async(tensor.address(), 7, 4, stream).expect("a memset");
            if host {
                driver.cuLaunchHostFunc(stream, Some(nothing), null_mut()).expect("a host function");
            }
            driver.cuStreamEndCapture(stream, &mut graph).expect("ended");
            Graph::from_raw(&rig.context, graph)
        }
    };
    // Execs that kernels can launch have no host functions; no other way is known to make a driver name a node.
    let device_launch = InstantiateFlags::from_bits_retain(
        CUgraphInstantiate_flags_enum::CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH.0.into(),
    );
    let around = |graphs: &[&Graph]| {
        let outer = Graph::new(&rig.context).expect("a graph");
        for graph in graphs {
            let mut node = null_mut();
            // SAFETY: two live graphs and a valid place.
            unsafe { driver.cuGraphAddChildGraphNode(&mut node, outer.as_raw(), null(), 0, graph.as_raw()) }
                .expect("a child");
        }
        outer
    };
    let failing = |graph: &Graph| match GraphExec::new(graph, device_launch) {
        Err(Error::Instantiate(failed)) => {
            let kind = CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED;
            assert_eq!((failed.error.code(), failed.result), (CUresult::CUDA_ERROR_INVALID_VALUE, kind));
            let node = failed.node.clone().expect("a node is named");
            assert_eq!(node.kind, CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST);
            (node.path, failed.to_string())
        }
        other => panic!("{other:?}"),
    };
    let (fine, bad) = rig.context.with_current(|| (captured(false), captured(true))).expect("current");
    GraphExec::new(&fine, device_launch).expect("memsets are fine");
    let (path, text) = failing(&bad);
    assert_eq!(path, [1]);
    assert!(text.ends_with("(result kind 3) at node 1 of kind 3"), "{text}");
    let inner = around(&[&fine, &bad]);
    assert_eq!(failing(&inner).0, [1, 1]);
    let (path, text) = failing(&around(&[&fine, &fine, &inner]));
    assert_eq!(path, [2, 1, 1]);
    assert!(text.ends_with("at node 2/1/1 of kind 3"), "{text}");
    // What is wrong is not for other execs.
    GraphExec::new(&bad, InstantiateFlags::default()).expect("an exec that the host launches");
}
