//! What a trace says, against what a recording does.

use crate::stack::Stack;
use crate::support::{Rig, driver};
use breakable_cuda_graph::memory::Role;
use breakable_cuda_graph::{BreakableCapture, DType, Error, Misuse, empty, trace};

#[test]
fn a_trace_has_the_requests_of_a_recording_and_their_roles() {
    let rig = Rig::new(&driver());
    let stack = Stack::new(&rig, 64);
    let (trace, out) = trace(&rig.pool, &rig.stream, |scope| stack.forward(&rig, scope, 64)).expect("a trace");
    let roles: Vec<Role> = trace.requests().iter().map(|request| request.role).collect();
    let layer = [Role::Intermediate, Role::Scratch, Role::Handoff, Role::Intermediate];
    assert_eq!(roles[..15], layer.repeat(4)[..15]);
    assert_eq!(roles[15], Role::Output);
    assert_eq!(trace.name(2), Some("relu"));
    assert_eq!(trace.peak(512), stack.peak(64).max(3 * 512), "{trace:?}");
    let scratch = trace.scratch_peak(1);
    assert_eq!(scratch, 64 * stack.inner * 4, "a break's temporary is not the pool's");

    let before = rig.pool.usage().expect("usage").peak;
    assert_eq!(before, 0, "a trace takes nothing of the pool");
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let recorded = capture.record(&rig.stream, |scope| stack.forward(&rig, scope, 64)).expect("a recording");
    assert_eq!(rig.pool.usage().expect("usage").peak, trace.peak(512), "the trace's peak is the recording's");
    let _ = capture.replay(&rig.stream).expect("a replay");
    assert_eq!(rig.read(&recorded), rig.read(&out), "a traced run is an eager run");
}

#[test]
fn a_trace_ends_with_its_forward_and_survives_what_outlives_it() {
    let rig = Rig::new(&driver());
    let (trace, kept) = trace(&rig.pool, &rig.stream, |_| {
        let a = empty(DType::F32, &[100])?;
        let b = empty(DType::F32, &[50])?;
        b.set_name("b");
        drop(a);
        Ok(b)
    })
    .expect("a trace");
    assert_eq!(trace.steps().len(), 3);
    assert_eq!((trace.name(0), trace.name(1)), (None, Some("b")));
    assert_eq!(trace.requests()[1].released, None);
    kept.write(&rig.stream, &[1.0_f32; 50]).expect("memory of its own");
    drop(kept);
    assert_eq!(trace.scaled(3).peak(1), 3 * trace.peak(1));
}

#[test]
fn a_trace_in_a_trace_or_a_recording_is_refused_and_a_failed_one_leaves_nothing() {
    let rig = Rig::new(&driver());
    let nested = trace(&rig.pool, &rig.stream, |_| trace(&rig.pool, &rig.stream, |_| Ok(())).map(|_| ()));
    assert!(matches!(nested, Err(Error::Misuse(Misuse::NestedCapture))));
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let inside = capture.record(&rig.stream, |_| trace(&rig.pool, &rig.stream, |_| Ok(())).map(|_| ()));
    let Err(Error::Capture(error)) = inside else { panic!("a trace in a recording") };
    assert!(matches!(*error.source, Error::Misuse(Misuse::NestedCapture)));
    let failed = trace(&rig.pool, &rig.stream, |scope| {
        let x = empty(DType::F32, &[4])?;
        scope.break_point("no", [&x], |_| Err::<(), _>(Error::Misuse(Misuse::NoForward)))
    });
    assert!(matches!(failed, Err(Error::Break { index: 0, .. })), "{failed:?}");
    assert!(matches!(empty(DType::F32, &[1]), Err(Error::Misuse(Misuse::NoForward))), "the thread is as before");
    assert_eq!(rig.pool.usage().expect("usage").temporary, 0);
}
