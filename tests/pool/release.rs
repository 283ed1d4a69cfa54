//! Memory that is given back and taken again under captures that stay.

use crate::stack::Stack;
use crate::support::{Rig, assert_same, driver, for_each_driver, random_values};
use breakable_cuda_graph::driver::Stream;
use breakable_cuda_graph::memory::PoolPlan;
use breakable_cuda_graph::memory::planner::PlanOptions;
use breakable_cuda_graph::pool::{Backing, RestoredContent};
use breakable_cuda_graph::sys::intercept::{Fault, Intercept};
use breakable_cuda_graph::sys::{CUresult, Call};
use breakable_cuda_graph::{
    BreakableCapture, CaptureOptions, CapturePool, DType, Error, Misuse, PoolOptions, Tensor, eager, is_capturing,
    trace,
};

const MIB: usize = 1 << 20;

fn options() -> PoolOptions {
    PoolOptions::default().backing(Backing::ReservedAddresses).restored(RestoredContent::Nan)
}

fn free(rig: &Rig) -> usize {
    rig.context.memory_info().expect("memory").free
}

/// A hundred times between replays in random order: the results are those of eager runs, and the device has the pool's bytes in between.
#[test]
fn captures_replay_after_their_memory_was_away() {
    let rig = Rig::with_pool(&driver(), options());
    let buckets = if rig.is_reference() { [64, 32, 16] } else { [4096, 2048, 512] };
    let stack = Stack::new(&rig, buckets[0]);
    let traces =
        buckets.map(|rows| trace(&rig.pool, &rig.stream, |scope| stack.forward(&rig, scope, rows)).expect("a trace").0);
    let plan = PoolPlan::new(traces, &PlanOptions::default()).expect("a plan");
    rig.pool.take_plan(&plan).expect("the range");
    let mut captures = Vec::new();
    for (rows, trace) in buckets.into_iter().zip(plan.traces()) {
        let mut capture =
            BreakableCapture::with_options(&rig.pool, CaptureOptions::default().plan(trace)).expect("a capture");
        // The last one's outputs stay: they are blocks like others.
        let out = capture.record(&rig.stream, |scope| stack.forward(&rig, scope, rows)).expect("a recording");
        let expected = eager(&rig.pool, &rig.stream, |scope| stack.forward(&rig, scope, rows)).expect("eager");
        captures.push((capture, out, rig.read(&expected)));
    }
    let pool = rig.pool.usage().expect("usage").reserved;
    for (turn, value) in random_values(7, 100).into_iter().enumerate() {
        let before = free(&rig);
        rig.pool.release().expect("released");
        assert!(rig.pool.is_released());
        if rig.is_reference() || turn == 0 {
            assert_eq!(free(&rig) - before, pool, "the pool's bytes are the device's");
        }
        let which = (value.to_bits() as usize) % captures.len();
        let (capture, out, expected) = &mut captures[which];
        assert!(matches!(capture.replay(&rig.stream), Err(Error::Misuse(Misuse::PoolReleased))));
        rig.pool.restore().expect("restored");
        if rig.is_reference() {
            assert_eq!(free(&rig), before);
            assert!(rig.read(out).iter().all(|value| value.is_nan()), "nothing of the content is left");
        }
        let _ = capture.replay(&rig.stream).expect("a replay");
        assert_same(&rig.read(out), expected);
    }
    assert_eq!(rig.pool.usage().expect("usage").reserved, pool);
}

/// What captures read and never write is declared, or found: it reads as NaN after a restore.
#[test]
fn persistent_tensors_keep_their_content_and_undeclared_state_shows() {
    for_each_driver(|driver| {
        let rig = Rig::with_pool(driver, options());
        let x = rig.random(1, &[16]);
        let table = rig.pool.persistent(DType::F32, &[16]).expect("a tensor");
        let values = random_values(2, 16);
        table.write(&rig.stream, &values).expect("written");
        // In the pool's memory as well, by a capture that runs once and is then gone: state that nobody declared.
        let mut filler = BreakableCapture::new(&rig.pool).expect("a capture");
        let undeclared = filler.record(&rig.stream, |_| rig.ops.scale(&x, 1.0)).expect("a recording");
        let _ = filler.replay(&rig.stream).expect("a replay");

        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let (good, bad) = capture
            .record(&rig.stream, |_| Ok((rig.ops.add(&x, &table)?, rig.ops.add(&x, &undeclared)?)))
            .expect("a recording");
        let _ = capture.replay(&rig.stream).expect("a replay");
        let before = rig.read(&good);
        assert!(rig.read(&bad).iter().all(|value| value.is_finite()));
        for _ in 0..3 {
            rig.pool.release().expect("released");
            rig.pool.restore().expect("restored");
            assert_same(&rig.read(&table), &values);
            let _ = capture.replay(&rig.stream).expect("a replay");
            assert_same(&rig.read(&good), &before);
            assert!(rig.read(&bad).iter().all(|value| value.is_nan()), "it shows");
        }
        drop(table);
        rig.pool.release().expect("released");
        rig.pool.restore().expect("the capture holds the table");
        let _ = capture.replay(&rig.stream).expect("a replay");
        assert_same(&rig.read(&good), &before);
    });
}

#[test]
fn a_released_pool_refuses_work_by_name_and_calls_repeat_harmlessly() {
    let rig = Rig::with_pool(&driver(), options());
    let x = rig.random(1, &[16]);
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let out = capture.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("a recording");
    rig.pool.restore().expect("nothing to do");
    rig.pool.release().expect("released");
    rig.pool.release().expect("it is");
    assert!(matches!(capture.replay(&rig.stream), Err(Error::Misuse(Misuse::PoolReleased))));
    let mut other = BreakableCapture::new(&rig.pool).expect("a capture");
    assert!(matches!(other.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)), Err(Error::Misuse(Misuse::PoolReleased))));
    assert!(matches!(rig.pool.lend(&rig.stream), Err(Error::Misuse(Misuse::PoolReleased))));
    assert!(matches!(rig.pool.trim(), Err(Error::Misuse(Misuse::PoolReleased))));
    assert!(matches!(rig.pool.persistent(DType::F32, &[4]), Err(Error::Misuse(Misuse::PoolReleased))));
    eager(&rig.pool, &rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("eager work has memory of its own");
    rig.pool.restore().expect("restored");
    assert!(!rig.pool.is_released());
    other.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("not poisoned by the refusal");
    let _ = capture.replay(&rig.stream).expect("a replay");
    assert_same(&rig.read(&out), &rig.read(&eager(&rig.pool, &rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("eager")));

    let ordinary = Rig::new(&rig.driver);
    assert!(matches!(ordinary.pool.release(), Err(Error::Misuse(Misuse::ReleaseUnsupported))));
    ordinary.pool.restore().expect("nothing to do");
}

/// Neither in a break nor while a segment is open.
#[test]
fn release_and_restore_are_refused_in_a_recording() {
    let rig = Rig::with_pool(&driver(), options());
    let x = rig.random(1, &[16]);
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let pool = rig.pool.clone();
    capture
        .record(&rig.stream, |scope| {
            assert!(is_capturing());
            assert!(matches!(rig.pool.release(), Err(Error::Misuse(Misuse::SynchronizeWhileCapturing { .. }))));
            assert!(matches!(rig.pool.restore(), Err(Error::Misuse(Misuse::SynchronizeWhileCapturing { .. }))));
            let y = scope.break_point("release", [&x], move |b| {
                assert!(matches!(pool.release(), Err(Error::Misuse(Misuse::PoolBusy))));
                Ok(b.input(0)?.clone())
            })?;
            rig.ops.scale(&y, 2.0)
        })
        .expect("the recording goes on");
    let _ = capture.replay(&rig.stream).expect("a replay");
}

/// Where the device has no room for it, a restore says so and can be made again.
#[test]
fn a_restore_without_room_can_be_made_later() {
    let rig = Rig::with_pool(&driver(), options());
    if !rig.is_reference() {
        // Filling a real device would be rude to its other users.
        return;
    }
    let x = rig.random(1, &[16]);
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let out = capture.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("a recording");
    rig.pool.release().expect("released");
    let free = free(&rig);
    let hog = breakable_cuda_graph::driver::DeviceBuffer::new(&rig.context, free - MIB).expect("memory");
    let Err(Error::OutOfMemory(error)) = rig.pool.restore() else { panic!("there is no room") };
    assert_eq!((error.requested, error.reserved), (rig.pool.usage().expect("usage").reserved, 0));
    assert!(matches!(capture.replay(&rig.stream), Err(Error::Misuse(Misuse::PoolReleased))));
    drop(hog);
    rig.pool.restore().expect("restored");
    let _ = capture.replay(&rig.stream).expect("a replay");
    let expected: Vec<f32> = rig.read(&x).iter().map(|value| value * 2.0).collect();
    assert_same(&rig.read(&out), &expected);
}

/// A pool that is dropped while it is released, or with captures still around, leaves nothing on the device.
#[test]
fn a_dropped_pool_leaves_nothing() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let before = free(&rig);
        for released in [false, true] {
            let mine = breakable_cuda_graph::CapturePool::with_options(&rig.context, options()).expect("a pool");
            let x = rig.random(1, &[16]);
            let mut capture = BreakableCapture::new(&mine).expect("a capture");
            let out: Tensor = capture.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("a recording");
            let _ = capture.replay(&rig.stream).expect("a replay");
            if released {
                mine.release().expect("released");
            }
            drop((mine, out));
            drop(capture);
            drop(x);
            if rig.is_reference() {
                assert_eq!(free(&rig), before, "released: {released}");
            }
        }
    });
}

/// A pool that goes while a segment of another one is open: its memory waits for the end of the segment, which is not disturbed.
#[test]
fn a_pool_that_is_dropped_in_a_segment_does_not_disturb_it() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let before = free(&rig);
        let x = rig.random(1, &[16]);
        let mine = breakable_cuda_graph::CapturePool::with_options(&rig.context, options()).expect("a pool");
        let mut first = BreakableCapture::new(&mine).expect("a capture");
        drop(first.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("a recording"));
        let _ = first.replay(&rig.stream).expect("a replay");
        let mut second = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = second
            .record(&rig.stream, |_| {
                let y = rig.ops.scale(&x, 3.0)?;
                drop((first, mine));
                rig.ops.relu(&y)
            })
            .expect("the recording goes on");
        let _ = second.replay(&rig.stream).expect("a replay");
        let expected: Vec<f32> = rig.read(&x).iter().map(|x| (3.0 * x).max(0.0)).collect();
        assert_same(&rig.read(&out), &expected);
        drop((out, second, x));
        rig.pool.trim().expect("nothing is in use");
        if rig.is_reference() {
            assert_eq!(free(&rig), before, "the dropped pool's memory is the device's again");
        }
    });
}

/// Every driver call of a release and a restore fails in turn: the error names it, and a restore afterwards puts everything right.
#[test]
fn every_call_of_a_release_and_a_restore_fails_in_turn() {
    let driver = driver().intercepted();
    let rig = Rig::with_pool(&driver, options());
    let x = rig.random(1, &[16]);
    let values = random_values(2, 16);
    let table = rig.pool.persistent(DType::F32, &[16]).expect("a tensor");
    table.write(&rig.stream, &values).expect("written");
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let out = capture.record(&rig.stream, |_| rig.ops.add(&x, &table)).expect("a recording");
    let _ = capture.replay(&rig.stream).expect("a replay");
    let expected = rig.read(&out);
    let whole = free(&rig);
    let watch = driver.intercept().expect("a watched driver");
    let mut failed = std::collections::BTreeSet::new();
    // A call that frees has done its work when it fails; one that unmaps may have done nothing too.
    let ways = [(Intercept::fail as fn(&Intercept, Fault), None), (Intercept::refuse, Some(Call::cuMemUnmap))];
    let codes = [CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_ERROR_UNKNOWN];
    for ((set, only), code) in ways.into_iter().flat_map(|way| codes.map(|code| (way, code))) {
        for after in 0.. {
            set(watch, Fault { call: only, after, code });
            let result = rig.pool.release().and_then(|()| rig.pool.restore());
            let fired = watch.clear_fault();
            let Some(&call) = fired.first() else {
                result.expect("no call failed");
                break;
            };
            failed.insert(call);
            let what = format!("call {after} ({call}) returning {}", code.0);
            if let Err(error) = &result {
                let named = error.driver_call().unwrap_or_else(|| panic!("{what}: the error names no call: {error}"));
                assert_eq!((named.call(), named.code()), (call, code), "{what}: {error}");
            }
            rig.pool.restore().unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_same(&rig.read(&table), &values);
            let _ = capture.replay(&rig.stream).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_same(&rig.read(&out), &expected);
            assert_eq!(free(&rig), whole, "{what}");
        }
    }
    for call in [Call::cuMemUnmap, Call::cuMemCreate, Call::cuMemMap, Call::cuMemSetAccess, Call::cuMemRelease] {
        assert!(failed.contains(&call), "{call} is part of it: {failed:?}");
    }
}

/// While a capture is open on the context memory waits for its way back. Its addresses are not given out again before, to a recording on another thread say,
/// also where the pool has no others.
#[test]
fn addresses_of_memory_on_its_way_back_are_not_given_out_again() {
    let rig = Rig::new(&driver());
    let small = options().max_bytes(2 * MIB);
    let pool = CapturePool::with_options(&rig.context, small).expect("a pool");
    let (x, other) = (rig.ones(&[64]), Stream::new(&rig.context).expect("a stream"));
    let mut open = BreakableCapture::new(&rig.pool).expect("a capture");
    let mut made = None;
    open.record(&rig.stream, |_| {
        let h = rig.ops.scale(&x, 2.0)?;
        made = std::thread::scope(|threads| {
            let record = || {
                let mut failed = BreakableCapture::new(&pool).expect("a capture");
                let fails = failed.record(&other, |_| rig.ops.scale(&x, 2.0).and(Err::<(), _>(Error::user("no"))));
                assert!(fails.is_err());
                assert!(rig.context.queued_drops() > 0, "the slab waits");
                let mut capture = BreakableCapture::new(&pool).expect("a capture");
                let out = capture.record(&other, |_| rig.ops.scale(&x, 3.0)).expect("it has memory");
                (capture, out)
            };
            threads.spawn(record).join().ok()
        });
        rig.ops.scale(&h, 2.0)
    })
    .expect("a recording");
    let (mut capture, out) = made.expect("no panic");
    let _ = capture.replay(&rig.stream).expect("a replay");
    assert_same(&rig.read(&out), &[3.0; 64]);
}

#[test]
fn a_pinned_pool_keeps_its_pages() {
    for_each_driver(|driver| {
        let rig = Rig::with_pool(driver, options());
        let x = rig.ones(&[256]);
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = capture.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("a recording");
        let mut pins = vec![rig.pool.pin().expect("pinned"), rig.pool.pin().expect("pinned again")];
        while let Some(pin) = pins.pop() {
            let refused = rig.pool.release().expect_err("it is pinned");
            assert!(matches!(refused, Error::Misuse(Misuse::PoolPinned { pins: left }) if left == pins.len() + 1));
            assert!(!rig.pool.is_released());
            let _ = capture.replay(&rig.stream).expect("it replays as before");
            assert_same(&rig.read(&out), &[2.0; 256]);
            std::thread::scope(|threads| threads.spawn(|| drop(pin)).join()).expect("dropped elsewhere");
        }
        rig.pool.release().expect("nobody knows its pages any more");
        let refused = rig.pool.pin().expect_err("there is nothing to pin");
        assert!(matches!(refused, Error::Misuse(Misuse::PoolReleased)), "{refused}");
        rig.pool.restore().expect("restored");
        drop((capture, out));
        let pin = rig.pool.pin().expect("pinned");
        assert!(matches!(rig.pool.trim(), Err(Error::Misuse(Misuse::PoolInUse { users: 1 }))));
        drop(pin);
        rig.pool.trim().expect("nobody uses it");
    });
}
