//! What a recorded body may not do is a typed error that names the break, and the capture can be replayed afterwards.

use super::model::{Captured, Live};
use crate::support::{Rig, assert_same, driver};
use breakable_cuda_graph::BreakKind::Patched;
use breakable_cuda_graph::driver::MemoryPool;
use breakable_cuda_graph::{
    BreakOptions, BreakableCapture, CaptureOptions, Error, Misuse, Result, Tensor, active_forward, current_stream,
    forbid_in_segment,
};

/// What the body does in a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Does {
    Scale,
    Synchronize,
    ReadBack,
    Forbidden,
    OwnError,
    SynchronizeRaw,
    Allocate,
    Panic,
}

#[test]
fn a_body_that_does_what_only_live_breaks_may_is_named() {
    let rig = Rig::new(&driver());
    let x = rig.random(1, &[4, 4]);
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let rig = &rig;
    let out = active_forward(&Does::Scale, || {
        capture.record(&rig.stream, |scope| {
            let h = rig.ops.scale(&x, 2.0)?;
            let y = scope.break_point(BreakOptions::new("attention").patched(), [&h], move |b| run(rig, b))?;
            rig.ops.relu(&y)
        })
    })
    .expect("a recording");
    let mut replay = |does: Does| active_forward(&does, || capture.replay(&rig.stream).map(|_| ()));
    replay(Does::Scale).expect("a replay");
    let expected = rig.read(&out);
    for does in [Does::Synchronize, Does::ReadBack, Does::Forbidden, Does::SynchronizeRaw, Does::Allocate] {
        let Err(Error::NotPatchable { name, index: 0, .. }) = replay(does) else { panic!("{does:?}") };
        assert_eq!(name, "attention");
        replay(Does::Scale).expect("a replay");
        assert_same(&rig.read(&out), &expected);
    }
    let Err(Error::Break { source, .. }) = replay(Does::OwnError) else { panic!("its own error") };
    assert!(matches!(*source, Error::User(_)));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| replay(Does::Panic)));
    assert!(panicked.is_err());
    let Err(Error::Break { source, .. }) = active_forward(&1_u8, || capture.replay(&rig.stream).map(|_| ())) else {
        panic!("no context")
    };
    assert!(matches!(*source, Error::Misuse(Misuse::NoForwardContext { .. })));
    active_forward(&Does::Scale, || capture.replay(&rig.stream).map(|_| ())).expect("a replay");
    assert_same(&rig.read(&out), &expected);
    assert!(matches!(current_stream(), Err(Error::Misuse(Misuse::NoForward))), "the thread is as before");
}

fn run(rig: &Rig, b: &breakable_cuda_graph::Break<'_>) -> Result<Tensor> {
    let input = b.input(0)?;
    match b.forward_ctx::<Does>()? {
        Does::Scale => {}
        Does::Synchronize => b.stream().synchronize()?,
        Does::ReadBack => drop(input.read::<f32>(b.stream())?),
        Does::Forbidden => forbid_in_segment("plan")?,
        Does::OwnError => return Err(Error::user("no room in the cache")),
        Does::SynchronizeRaw => {
            // SAFETY: a live stream. The driver invalidates the capture.
            unsafe { rig.driver.cuStreamSynchronize(b.stream().as_raw())? };
        }
        Does::Allocate => {
            let pool = MemoryPool::new(&rig.context)?;
            let mut address = 0;
            // SAFETY: live handles and a valid place. The memory would belong to the graph.
            unsafe { rig.driver.cuMemAllocFromPoolAsync(&mut address, 512, pool.as_raw(), b.stream().as_raw())? };
        }
        Does::Panic => panic!("as asked for"),
    }
    let y = match b.output(0) {
        Some(y) => y,
        None => b.empty(input.dtype(), input.shape())?,
    };
    rig.ops.scale_into(b.stream(), input, 3.0, &y)?;
    Ok(y)
}

/// The same at capture time: the recording fails, and leaves nothing.
#[test]
fn a_body_that_can_not_be_recorded_fails_the_capture() {
    let rig = Rig::new(&driver());
    let x = rig.random(1, &[4, 4]);
    let rig = &rig;
    for does in [Does::Synchronize, Does::SynchronizeRaw, Does::OwnError] {
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let failed = active_forward(&does, || {
            capture.record(&rig.stream, |scope| {
                let h = rig.ops.scale(&x, 2.0)?;
                scope.break_point(BreakOptions::new("attention").patched(), [&h], move |b| run(rig, b))
            })
        });
        let Err(Error::Capture(error)) = failed else { panic!("{does:?}") };
        match *error.source {
            // The first run is an eager one, which may synchronise.
            Error::NotPatchable { ref name, .. } => assert_eq!(name, "attention"),
            Error::Break { .. } => assert_eq!(does, Does::OwnError),
            ref other => panic!("{other}"),
        }
        assert!(capture.is_poisoned());
        assert_eq!(rig.pool.usage().expect("usage").blocks, 0);
    }
    Captured::new(rig, &[Patched; 3], CaptureOptions::default()).check(Live::new(2.0), None);
}
