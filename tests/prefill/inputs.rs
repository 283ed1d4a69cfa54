//! Static inputs and their padded tails (rule 28), operations that refuse to be captured, and what a capture is asked to keep.

use crate::support::{Rig, assert_same, driver, for_each_seed};
use breakable_cuda_graph::{
    BreakableCapture, Error, ReplayOptions, StaticInput, TailRule, Tensor, TensorError, eager, forbid_in_segment,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn tails_hold_what_was_declared() {
    for_each_seed(|rig| {
        let pad = StaticInput::new(&rig.context, "lengths", &[6, 2], TailRule::from(1_i32)).expect("an input");
        let alone = StaticInput::new(&rig.context, "cache", &[6, 2], TailRule::LeftAlone).expect("an input");
        let read = |tensor: &Tensor| tensor.read::<i32>(&rig.stream).expect("a read");
        for input in [&pad, &alone] {
            assert_eq!(input.fill(&rig.stream, &[9; 12], 6).expect("a batch"), 6);
            assert_eq!(input.fill(&rig.stream, &[3, 4], 4).expect("a batch"), 1);
        }
        assert_eq!(read(pad.tensor()), [3, 4, 1, 1, 1, 1, 1, 1, 9, 9, 9, 9], "the tail of the bucket, and no further");
        assert_eq!(read(alone.tensor()), [3, 4, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9]);
        assert_eq!(pad.bucket(4).address(), pad.tensor().address());
        assert_eq!(pad.fill(&rig.stream, &[], 2).expect("no rows"), 0);
        assert_eq!(read(&pad.bucket(2)), [1; 4]);
    });
}

/// What does not fit the element type is refused when the input is made.
#[test]
fn a_tail_that_does_not_fit_the_element_type_is_refused() {
    let rig = Rig::new(&driver());
    for (rule, part) in [(TailRule::from(1_i32), "another element type"), (TailRule::DummySlot(-1), "integer type")] {
        let error = StaticInput::<f32>::new(&rig.context, "scales", &[6], rule).expect_err("it is refused");
        let Error::Tensor(TensorError::UnfitTail { input: "scales", reason, .. }) = &error else { panic!("{error}") };
        assert!(reason.contains(part) && error.code() == 607, "{error}");
    }
}

#[test]
fn batches_that_do_not_fit_are_refused_before_anything_is_copied() {
    for_each_seed(|rig| {
        let input = StaticInput::<f32>::new(&rig.context, "ids", &[4, 2], TailRule::Zero).expect("an input");
        input.fill(&rig.stream, &[7.0; 8], 4).expect("a batch");
        let rows = input.fill(&rig.stream, &[1.0; 6], 2);
        assert!(
            matches!(rows, Err(Error::Tensor(TensorError::TooManyRows { input: "ids", rows: 3, most: 2 }))),
            "{rows:?}"
        );
        let bucket = input.fill(&rig.stream, &[1.0; 2], 5);
        assert!(matches!(bucket, Err(Error::Tensor(TensorError::TooManyRows { rows: 5, most: 4, .. }))), "{bucket:?}");
        let part = input.fill(&rig.stream, &[1.0; 3], 4);
        assert!(matches!(part, Err(Error::Tensor(TensorError::Shape { .. }))), "{part:?}");
        assert_same(&rig.read(input.tensor()), &[7.0; 8]);
    });
}

#[test]
fn an_operation_that_must_be_live_refuses_to_be_captured() {
    for_each_seed(|rig| {
        let input = rig.random(1, &[2, 4]);
        let attention = |x: &Tensor| {
            forbid_in_segment("attention")?;
            rig.ops.relu(x)
        };
        eager(&rig.pool, &rig.stream, |_| attention(&input)).expect("eagerly it runs");
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let error = capture.record(&rig.stream, |_| attention(&input)).expect_err("it is not a break");
        assert!(error.to_string().contains("attention must not be captured"), "{error}");
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let recorded =
            capture.record(&rig.stream, |scope| scope.break_point("attention", [&input], |b| attention(b.input(0)?)));
        let _out = recorded.expect("as a break it is recorded");
        let _ = capture.replay_with(&rig.stream, ReplayOptions::default()).expect("and replayed");
    });
}

/// What the capture is asked to keep goes after its execs.
#[test]
fn kept_resources_go_after_the_execs() {
    struct Resource {
        driver: breakable_cuda_graph::Driver,
        gone: Arc<AtomicBool>,
    }
    impl Drop for Resource {
        fn drop(&mut self) {
            let watch = self.driver.intercept().expect("a watched driver");
            let (made, ended) = (
                watch.successes(breakable_cuda_graph::sys::Call::cuGraphInstantiateWithParams),
                watch.successes(breakable_cuda_graph::sys::Call::cuGraphExecDestroy),
            );
            self.gone.store(made == ended && made > 0, Ordering::Relaxed);
        }
    }
    let rig = crate::support::Rig::new(&crate::support::driver().intercepted());
    let gone = Arc::new(AtomicBool::new(false));
    let input = rig.random(1, &[2, 4]);
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    capture.keep_alive(Arc::new(Resource { driver: rig.driver.clone(), gone: gone.clone() }));
    let _out = capture.record(&rig.stream, |_| rig.ops.relu(&input)).expect("a recording");
    let _ = capture.replay(&rig.stream).expect("a replay");
    assert!(!gone.load(Ordering::Relaxed));
    drop(capture);
    assert!(gone.load(Ordering::Relaxed), "after every exec");
}
