//! A pool's memory is released, lent and trimmed after the replays that are on their way, on whatever stream.

use crate::support::{Rig, assert_same, driver, for_each_driver};
use breakable_cuda_graph::driver::Stream;
use breakable_cuda_graph::pool::Backing;
use breakable_cuda_graph::{BreakableCapture, DType, Error, Misuse, PoolOptions, scrub_padding_tail};

const ELEMENTS: usize = 1024;

#[test]
fn a_release_saves_what_the_last_replay_writes() {
    for_each_driver(|driver| {
        let rig = Rig::with_pool(driver, PoolOptions::default().backing(Backing::ReservedAddresses));
        let x = rig.ones(&[ELEMENTS]);
        let state = rig.pool.persistent(DType::F32, &[ELEMENTS]).expect("a tensor");
        state.write(&rig.stream, &[0.0_f32; ELEMENTS]).expect("zeros");
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let write = |scope: &breakable_cuda_graph::Scope<'_, '_>| rig.ops.scale_into(&scope.stream()?, &x, 7.0, &state);
        capture.record(&rig.stream, write).expect("a recording");
        let other = Stream::new(&rig.context).expect("a stream");
        let _ = capture.replay(&other).expect("a replay");
        rig.pool.release().expect("released");
        rig.pool.restore().expect("restored");
        assert_same(&rig.read(&state), &[7.0; ELEMENTS]);
    });
}

#[test]
fn a_release_overwrites_results() {
    let rig = Rig::with_pool(&driver(), PoolOptions::default().backing(Backing::ReservedAddresses));
    let x = rig.ones(&[ELEMENTS]);
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let out = capture.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("a recording");
    let replayed = capture.replay(&rig.stream).expect("a replay");
    replayed.check().expect("they are there");
    rig.pool.release().expect("released");
    for _ in 0..2 {
        assert!(matches!(replayed.check(), Err(Error::Misuse(Misuse::OutputsOverwritten))));
        assert!(replayed.read::<f32>(&out, &rig.stream).is_err());
        rig.pool.restore().expect("restored");
    }
}

#[test]
fn lent_memory_is_used_after_the_last_replay() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let (x, result) = (rig.ones(&[ELEMENTS]), rig.zeros(&[ELEMENTS]));
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        capture
            .record(&rig.stream, |scope| {
                let h = rig.ops.scale(&rig.ops.scale(&x, 2.0)?, 2.0)?;
                rig.ops.scale_into(&scope.stream()?, &h, 2.0, &result)
            })
            .expect("a recording");
        rig.stream.synchronize().expect("done");
        let _ = capture.replay(&rig.stream).expect("a replay");
        let other = Stream::new(&rig.context).expect("a stream");
        let mut lent = rig.pool.lend(&other).expect("a loan");
        let all = lent.largest() / 4;
        lent.empty(DType::F32, &[all]).expect("all of it").fill_bytes(&other, 0xff).expect("a fill");
        assert_same(&rig.read(&result), &[8.0; ELEMENTS]);
    });
}

/// A capture holds addresses and not blocks.
#[test]
fn a_pool_is_not_trimmed_under_a_capture_that_holds_no_block() {
    let rig = Rig::new(&driver());
    let (x, result) = (rig.ones(&[ELEMENTS]), rig.zeros(&[ELEMENTS]));
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    capture
        .record(&rig.stream, |scope| rig.ops.scale_into(&scope.stream()?, &rig.ops.scale(&x, 2.0)?, 2.0, &result))
        .expect("a recording");
    assert_eq!(rig.pool.usage().expect("usage").in_use, 0);
    assert!(matches!(rig.pool.trim(), Err(Error::Misuse(Misuse::PoolInUse { .. }))));
    let _ = capture.replay(&rig.stream).expect("a replay");
    assert_same(&rig.read(&result), &[4.0; ELEMENTS]);
}

/// Calls of other threads that have found the memory there are waited for too, and what they enqueue.
#[test]
fn a_release_waits_for_calls_that_are_under_way() {
    const FEW: usize = 4;
    let rig = Rig::with_pool(&driver(), PoolOptions::default().backing(Backing::ReservedAddresses));
    let state = rig.pool.persistent(DType::F32, &[FEW]).expect("a tensor");
    let x = rig.ones(&[FEW]);
    // Each finds the memory there when the next releases it.
    let work = || {
        let stream = Stream::new(&rig.context).expect("a stream");
        for turn in 0..2400 {
            rig.pool.release().expect("released");
            rig.pool.restore().expect("restored");
            let Ok(state) = rig.pool.persistent(DType::F32, &[FEW]) else { continue };
            let used = match turn % 6 {
                0 => rig.ops.scale_into(&stream, &x, 3.0, &state),
                1 => state.fill_bytes(&stream, 0),
                2 => state.copy_from(&stream, &x),
                3 => scrub_padding_tail(&stream, 1, [&state]),
                4 => state.write(&stream, &[5.0_f32; FEW]),
                _ => state.read::<f32>(&stream).map(drop),
            };
            assert!(matches!(used, Ok(()) | Err(Error::Misuse(Misuse::PoolReleased))), "{turn}: {used:?}");
        }
    };
    std::thread::scope(|threads| (0..6).for_each(|_| drop(threads.spawn(work))));
    rig.context.synchronize().expect("nothing has used memory that was away");
    state.write(&rig.stream, &[7.0_f32; FEW]).expect("written");
    assert_same(&rig.read(&state), &[7.0; FEW]);
}
