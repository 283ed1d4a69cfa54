//! A pool's memory as scratch for eager work.

use crate::support::{Rig, assert_same, driver, for_each_driver};
use breakable_cuda_graph::driver::Stream;
use breakable_cuda_graph::{BreakableCapture, DType, Error, Misuse, PoolOptions, eager};

#[test]
fn lent_memory_is_the_pools_and_replays_wait_for_its_return() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let x = rig.random(1, &[1024]);
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = capture.record(&rig.stream, |_| rig.ops.relu(&rig.ops.scale(&x, 2.0)?)).expect("a recording");
        let other = Stream::new(&rig.context).expect("a stream");
        for stream in [&rig.stream, &other] {
            let replayed = capture.replay(&rig.stream).expect("a replay").check().is_ok();
            assert!(replayed);
            let mut lent = rig.pool.lend(stream).expect("a loan");
            let usage = rig.pool.usage().expect("usage");
            assert_eq!(lent.bytes(), usage.reserved - usage.in_use, "what no tensor holds");
            let scratch = lent.empty(DType::F32, &[4096]).expect("scratch");
            let more = lent.empty(DType::F32, &[4096]).expect("scratch");
            assert!(scratch.address().abs_diff(more.address()) >= 4096 * 4);
            rig.ops.fill(stream, &scratch, f32::NAN).expect("eager work");
            rig.ops.fill(stream, &more, 1.0).expect("eager work");
            assert!(matches!(capture.replay(&rig.stream), Err(Error::Misuse(Misuse::PoolLent))));
            let mut second = BreakableCapture::new(&rig.pool).expect("a capture");
            assert!(matches!(second.record(&rig.stream, |_| rig.ops.relu(&x)), Err(Error::Misuse(Misuse::PoolLent))));
            assert!(matches!(rig.pool.lend(stream), Err(Error::Misuse(Misuse::PoolLent))));
            assert!(matches!(rig.pool.trim(), Err(Error::Misuse(Misuse::PoolLent))));
            drop(lent);
            assert!(
                matches!(capture.replay(&rig.stream), Err(Error::Misuse(Misuse::PoolLent))),
                "its tensors are still there"
            );
            drop((scratch, more));
            // The fills come first, whatever the streams.
            let _ = capture.replay(&rig.stream).expect("a replay");
            let expected = eager(&rig.pool, &rig.stream, |_| rig.ops.relu(&rig.ops.scale(&x, 2.0)?)).expect("eager");
            assert_same(&rig.read(&out), &rig.read(&expected));
        }
    });
}

#[test]
fn results_are_lost_to_a_loan_and_too_much_is_refused() {
    let rig = Rig::with_pool(&driver(), PoolOptions::default());
    let x = rig.random(1, &[64]);
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let out = capture.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("a recording");
    {
        let replayed = capture.replay(&rig.stream).expect("a replay");
        let mut lent = rig.pool.lend(&rig.stream).expect("a loan");
        assert!(matches!(replayed.check(), Err(Error::Misuse(Misuse::OutputsOverwritten))));
        let whole = lent.largest();
        let Err(Error::OutOfMemory(error)) = lent.empty(DType::U8, &[whole + 1]) else { panic!("too much") };
        assert_eq!((error.requested, error.reserved), (whole + 1, lent.bytes()));
        let all = lent.empty(DType::U8, &[whole]).expect("all of it");
        assert_eq!((lent.bytes(), all.extent_bytes()), (0, whole));
        assert_ne!(all.address(), out.address(), "what a tensor holds is not lent");
    }
    let _ = capture.replay(&rig.stream).expect("a replay");
}

/// The memory of a plan is lent as well, and neither in a recording nor in a break.
#[test]
fn a_loan_is_refused_in_a_recording() {
    let rig = Rig::new(&driver());
    let x = rig.random(1, &[64]);
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let pool = rig.pool.clone();
    capture
        .record(&rig.stream, |scope| {
            assert!(matches!(rig.pool.lend(&rig.stream), Err(Error::Misuse(Misuse::ReplayWhileRecording))));
            scope.break_point("lend", [&x], move |b| {
                assert!(matches!(pool.lend(b.stream()), Err(Error::Misuse(Misuse::PoolBusy))));
                Ok(b.input(0)?.clone())
            })
        })
        .expect("the recording goes on");
}
