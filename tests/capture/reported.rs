//! Faults that users of other systems have reported, where no test of a subject shows them.

use crate::support::{Rig, assert_same, driver, for_each_seed, random_values};
use breakable_cuda_graph::driver::{DeviceBuffer, MemoryPool};
use breakable_cuda_graph::sys::Call;
use breakable_cuda_graph::{BreakableCapture, CapturePool, DType, Error, PoolOptions, Result, Scope, Tensor};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const ELEMENTS: usize = 64;

/// Losing candidates of an autotuner: their modules go in the window, and what was launched of the winner and the losers is replayed.
#[test]
fn modules_that_go_in_a_segment_leave_it_whole() {
    for_each_seed(|rig| {
        let (x, sum) = (rig.ones(&[ELEMENTS]), rig.zeros(&[ELEMENTS]));
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        capture
            .record(&rig.stream, |scope| {
                for factor in [2.0, 3.0, 4.0] {
                    let candidate = crate::support::demo::Ops::load(&rig.context)?;
                    let y = candidate.scale(&x, factor)?;
                    candidate.add_bias(&scope.stream()?, &y, &sum.reshape(&[1, ELEMENTS])?)?;
                }
                // One that was never launched, of which the segment keeps nothing.
                crate::support::demo::Ops::load(&rig.context).map(drop)
            })
            .expect("a recording");
        for round in 1..=2 {
            let _ = capture.replay(&rig.stream).expect("a replay");
            assert_same(&rig.read(&sum), &[9.0 * round as f32; ELEMENTS]);
        }
    });
}

/// A pool that is at its limit gives nothing back, trims nothing and waits for nothing: each of these would end the capture.
#[test]
fn a_pool_at_its_limit_makes_no_call_that_ends_the_capture() {
    let rig = Rig::with_pool(&driver().intercepted(), PoolOptions::default().max_bytes(2 << 20));
    let watch = rig.driver.intercept().expect("an intercepted driver");
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let mut made = Vec::new();
    let x = rig.ones(&[ELEMENTS]);
    capture
        .record(&rig.stream, |scope| {
            let kept = rig.ops.scale(&x, 2.0)?;
            drop(scope.empty(DType::U8, &[1 << 20])?);
            watch.start_log();
            let refused = scope.empty(DType::U8, &[4 << 20]);
            made = watch.take_log();
            assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
            Ok(kept)
        })
        .expect("an error that the forward handles is no end of the recording");
    assert_eq!(made, [], "the pool knows its limit");
}

/// What is asked of pools in the window: of a pool that no one has used before, and of one that has memory.
#[test]
fn pools_are_asked_and_used_for_the_first_time_in_a_segment() {
    for_each_seed(|rig| {
        let (x, memory) = (rig.ones(&[ELEMENTS]), MemoryPool::new(&rig.context).expect("a pool"));
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = capture.record(&rig.stream, |_| {
            let before = (rig.pool.usage()?.reserved, memory.usage()?.used);
            let y = rig.ops.scale(&x, 2.0)?;
            let _first = memory.allocate(256, &rig.stream)?;
            assert_eq!(before, (0, 0));
            assert!(rig.pool.usage()?.reserved > 0 && memory.usage()?.used >= 256);
            Ok(y)
        });
        let out = out.expect("a recording");
        let _ = capture.replay(&rig.stream).expect("a replay");
        assert_same(&rig.read(&out), &[2.0; ELEMENTS]);
    });
}

/// A kernel's code is loaded where it is found by name, and not at its first launch under a lock of the context.
#[test]
fn kernels_are_loaded_before_they_are_launched() {
    let rig = Rig::new(&driver().intercepted());
    let watch = rig.driver.intercept().expect("an intercepted driver");
    let (found, loaded) = (watch.count(Call::cuModuleGetFunction), watch.count(Call::cuFuncLoad));
    let own = crate::support::demo::Ops::load(&rig.context).expect("a module");
    let found = watch.count(Call::cuModuleGetFunction) - found;
    assert_eq!(watch.count(Call::cuFuncLoad) - loaded, if rig.driver.supports(Call::cuFuncLoad) { found } else { 0 });
    let x = rig.ones(&[ELEMENTS]);
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    watch.start_log();
    capture.record(&rig.stream, |_| own.scale(&x, 2.0)).expect("a recording");
    let made = watch.take_log();
    assert!(!made.iter().any(|call| [Call::cuModuleGetFunction, Call::cuModuleLoadDataEx].contains(call)), "{made:?}");
}

/// Two captures of one stream: what the second had is its own.
#[test]
fn a_capture_that_goes_takes_nothing_of_another_one_of_its_stream() {
    for_each_seed(|rig| {
        let x = rig.random(1, &[ELEMENTS]);
        let record = |factor: f32| {
            let chain = |_: &Scope<'_, '_>| rig.ops.scale(&rig.ops.scale(&x, factor)?, 2.0);
            let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
            let out = capture.record(&rig.stream, chain).expect("a recording");
            (capture, out)
        };
        let (mut first, out) = record(2.0);
        let second = record(3.0);
        drop(second);
        // It takes the memory, were it free.
        let _others: Vec<_> = (0..4).map(|_| DeviceBuffer::new(&rig.context, 2 << 20).expect("memory")).collect();
        let (third, _out) = record(5.0);
        drop(third);
        let expected: Vec<f32> = rig.read(&x).iter().map(|x| x * 2.0 * 2.0).collect();
        for _ in 0..2 {
            let _ = first.replay(&rig.stream).expect("a replay");
            assert_same(&rig.read(&out), &expected);
        }
    });
}

/// Tensors of many sizes that are taken of a pool after a recording are never where its replays write.
#[test]
fn no_tensor_that_is_taken_later_is_written_by_a_replay() {
    let rig = Rig::new(&driver());
    let x = rig.ones(&[8 << 10]);
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    // Much that is free again when the recording ends, and that each replay writes.
    let out = capture.record(&rig.stream, |_| {
        let all = (0..16).map(|_| rig.ops.scale(&x, 2.0)).collect::<Result<Vec<_>>>()?;
        rig.ops.scale(&all[0], 2.0)
    });
    let out = out.expect("a recording");
    let mut taken: Vec<(Tensor, f32)> = Vec::new();
    for (turn, random) in random_values(7, 1000).into_iter().enumerate() {
        let elements = 1 + (random.abs() * 4096.0) as usize;
        let tensor = rig.pool.persistent(DType::F32, &[elements]).expect("a tensor");
        rig.ops.fill(&rig.stream, &tensor, turn as f32).expect("a fill");
        taken.push((tensor, turn as f32));
        if turn % 3 == 0 {
            taken.remove(turn / 3 % taken.len());
        }
        if turn % 100 == 0 {
            let _ = capture.replay(&rig.stream).expect("a replay");
        }
    }
    let _ = capture.replay(&rig.stream).expect("a replay");
    for (tensor, value) in &taken {
        assert!(rig.read(tensor).iter().all(|read| read == value), "{value}");
    }
    assert_same(&rig.read(&out), &[4.0; 8 << 10]);
}

/// A buffer that outlives the capture which used it goes without an error of its own or of somebody else's call.
#[test]
fn what_a_capture_used_goes_quietly_after_it() {
    for_each_seed(|rig| {
        let failed = Arc::new(AtomicUsize::new(0));
        let count = failed.clone();
        rig.context.on_drop_error(Some(Arc::new(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        })));
        let memory = MemoryPool::new(&rig.context).expect("a pool");
        let buffer = memory.allocate(ELEMENTS * 4, &rig.stream).expect("memory");
        let layout = *rig.ones(&[ELEMENTS]).layout();
        let used = Tensor::from_buffer(buffer, DType::F32, layout).expect("a tensor");
        used.write(&rig.stream, &[1.0_f32; ELEMENTS]).expect("written");
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = capture.record(&rig.stream, |_| rig.ops.scale(&used, 2.0)).expect("a recording");
        let _ = capture.replay(&rig.stream).expect("a replay");
        assert_same(&rig.read(&out), &[2.0; ELEMENTS]);
        drop((capture, out));
        drop(used);
        let harmless = DeviceBuffer::new(&rig.context, 64).map(drop);
        harmless.and_then(|()| rig.stream.synchronize()).expect("nothing is left over");
        assert_eq!(failed.load(Ordering::SeqCst), 0);
        rig.context.on_drop_error(None);
    });
}

/// A write of much ordinary host memory, and a replay that reads it at once: 200 times, with values of its own each time.
#[test]
fn a_replay_reads_what_was_written_right_before() {
    const MANY: usize = 256 << 10;
    let rig = Rig::new(&driver());
    let x = rig.zeros(&[MANY]);
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let out = capture.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("a recording");
    let turns = if rig.is_reference() { 20 } else { 200 };
    for turn in 1..=turns {
        let mut values = vec![turn as f32; MANY];
        x.write(&rig.stream, &values).expect("written");
        values.fill(f32::NAN);
        let _ = capture.replay(&rig.stream).expect("a replay");
        assert!(rig.read(&out).iter().all(|value| *value == 2.0 * turn as f32), "turn {turn}");
    }
}

/// Pools keep what they have over every wait, and the device's default pool, which others use too, is never asked for.
#[test]
fn pools_keep_their_memory_and_leave_the_devices_own_alone() {
    let rig = Rig::new(&driver().intercepted());
    let memory = MemoryPool::new(&rig.context).expect("a pool");
    drop(memory.allocate(8 << 20, &rig.stream).expect("memory"));
    let reserved = memory.usage().expect("usage").reserved;
    assert!(reserved >= 8 << 20);
    for _ in 0..100 {
        drop(memory.allocate(8 << 20, &rig.stream).expect("memory"));
        rig.stream.synchronize().expect("done");
        assert_eq!(memory.usage().expect("usage").reserved, reserved);
    }
    // Each has addresses of its own, as much as its limit, for as long as it lives.
    for _ in 0..100 {
        let pool = CapturePool::new(&rig.context).expect("a pool");
        let x = rig.ones(&[ELEMENTS]);
        BreakableCapture::new(&pool).expect("a capture").record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("room");
    }
    let watch = rig.driver.intercept().expect("an intercepted driver");
    assert_eq!(watch.count(Call::cuDeviceGetDefaultMemPool), 0);
}
