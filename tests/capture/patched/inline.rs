//! Inline breaks: captured once, with the segment.

use crate::support::{Rig, assert_same, driver, for_each_driver};
use breakable_cuda_graph::{BreakOptions, BreakableCapture, DType, Error, Misuse, eager, is_capturing};
use std::cell::Cell;

#[test]
fn an_inline_break_is_part_of_its_segment() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let x = rig.random(1, &[6, 4]);
        let runs = std::sync::atomic::AtomicUsize::new(0);
        let (rig_ref, runs_ref) = (&rig, &runs);
        let forward = |scope: &breakable_cuda_graph::Scope<'_, '_>, x: &breakable_cuda_graph::Tensor| {
            let h = rig_ref.ops.scale(x, 2.0)?;
            runs_ref.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let ops = rig_ref.ops.clone();
            let y = scope.break_point(BreakOptions::new("inline").inline(), [&h], move |b| {
                let t = b.empty(DType::F32, b.input(0)?.shape())?;
                ops.scale_into(b.stream(), b.input(0)?, 3.0, &t)?;
                Ok(t)
            })?;
            let handoff = rig_ref.ops.empty_like(&h)?;
            let ops = rig_ref.ops.clone();
            let z = scope
                .break_here(BreakOptions::new("here").inline(), handoff, [&y], move |b| ops.scale(b.input(0)?, 0.5))?;
            rig_ref.ops.add(&z, &h)
        };
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = capture.record(&rig.stream, |scope| forward(scope, &x)).expect("a recording");
        assert_eq!((capture.num_segments(), capture.num_breaks(), capture.num_launches()), (1, 0, 1));
        let expected = eager(&rig.pool, &rig.stream, |scope| forward(scope, &x)).expect("eager");
        for _ in 0..3 {
            let _ = capture.replay(&rig.stream).expect("a replay");
            assert_same(&rig.read(&out), &rig.read(&expected));
        }
        assert_eq!(runs.load(std::sync::atomic::Ordering::Relaxed), 2, "once captured, once eager");
    });
}

#[test]
fn an_inline_break_runs_in_the_segment_and_its_own_breaks_run_through() {
    let rig = Rig::new(&driver());
    let x = rig.random(1, &[4]);
    let seen = Cell::new(false);
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let (tell, heard) = std::sync::mpsc::channel();
    let ops = rig.ops.clone();
    let out = capture
        .record(&rig.stream, |scope| {
            seen.set(is_capturing());
            scope.break_point(BreakOptions::new("outer").inline(), [&x], move |b| {
                let nested =
                    BreakableCapture::with_own_pool(b.input(0)?.context().ok_or(Error::Misuse(Misuse::NoForward))?)?
                        .record(b.stream(), |_| Ok(()));
                let told = tell.send((is_capturing(), matches!(nested, Err(Error::Misuse(Misuse::NestedCapture)))));
                assert!(told.is_ok());
                let ops = ops.clone();
                breakable_cuda_graph::break_point("inner", [b.input(0)?], move |b| ops.scale(b.input(0)?, 2.0))
            })
        })
        .expect("a recording");
    assert_eq!(heard.recv(), Ok((true, true)));
    assert!(seen.get());
    assert_eq!((capture.num_segments(), capture.num_launches()), (1, 1));
    let _ = capture.replay(&rig.stream).expect("a replay");
    let expected: Vec<f32> = rig.read(&x).iter().map(|x| 2.0 * x).collect();
    assert_same(&rig.read(&out), &expected);
}

#[test]
fn an_inline_break_that_fails_poisons_the_recording() {
    let rig = Rig::new(&driver());
    let x = rig.random(1, &[4]);
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let failed = capture.record(&rig.stream, |scope| {
        // Whatever the forward makes of it.
        let _ = scope
            .break_point(BreakOptions::new("fails").inline(), [&x], |_| Err::<(), _>(Error::Misuse(Misuse::NoForward)));
        rig.ops.relu(&x)
    });
    assert!(matches!(failed, Err(Error::Capture(_))), "{failed:?}");
    assert!(capture.is_poisoned());
}
