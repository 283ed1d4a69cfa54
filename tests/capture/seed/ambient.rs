//! Break points and the live forward context.

use crate::support::{assert_same, for_each_seed};
use breakable_cuda_graph::{
    BreakableCapture, Result, Tensor, active_forward, break_point, current_forward_ctx, eager, is_capturing,
};
use std::sync::{Arc, Mutex};

const ROWS: usize = 8;
const WIDTH: usize = 16;

struct Scale(f32);

struct Batch {
    mode: &'static str,
    factor: f32,
}

#[test]
fn passthrough_runs_method_when_not_capturing() {
    for_each_seed(|rig| {
        assert!(!is_capturing());
        let calls = Arc::new(Mutex::new(Vec::new()));
        let forward = |x: &Tensor, scale: f32| -> Result<Tensor> {
            let (ops, calls) = (rig.ops.clone(), calls.clone());
            break_point("scale", [x], move |b| {
                let x = b.input(0)?;
                calls.lock().expect("calls").push(x.rows());
                ops.scale(x, scale)
            })
        };
        let x = rig.random(1, &[4, WIDTH]);
        let out = eager(&rig.pool, &rig.stream, |_| forward(&x, 3.0)).expect("a direct call");
        let expected: Vec<f32> = rig.read(&x).iter().map(|value| value * 3.0).collect();
        assert_same(&rig.read(&out), &expected);

        // Without rows it runs all the same, and its result is what comes back.
        let none = rig.zeros(&[0, WIDTH]);
        let out = eager(&rig.pool, &rig.stream, |_| forward(&none, 9.0)).expect("a direct call");
        assert_eq!(out.shape(), [0, WIDTH]);
        assert!(!out.is_same(&none));
        assert_eq!(*calls.lock().expect("calls"), [4, 0]);
    });
}

#[test]
fn ambient_ctx_rebinds_at_replay() {
    for_each_seed(|rig| {
        let (w0, w1) = (rig.random(1, &[WIDTH, WIDTH]), rig.random(2, &[WIDTH, WIDTH]));
        let input = rig.zeros(&[ROWS, WIDTH]);
        let forward = || -> Result<Tensor> {
            let h = rig.ops.matmul(&input, &w0)?;
            let (ops, w1) = (rig.ops.clone(), w1.clone());
            break_point("attention", [&h], move |b| {
                let scale = b.forward_ctx::<Scale>()?.0;
                ops.scale(&ops.relu(&ops.matmul(b.input(0)?, &w1)?)?, scale)
            })
        };
        let (dummy, live) = (Scale(2.0), Scale(5.0));
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = active_forward(&dummy, || capture.record(&rig.stream, |_| forward())).expect("the recording");
        assert_eq!(capture.num_segments(), 3);

        let x = rig.random(100, &[ROWS, WIDTH]);
        rig.copy(&input, &x);
        let _ = active_forward(&live, || capture.replay(&rig.stream)).expect("a replay");
        let expected = eager(&rig.pool, &rig.stream, |_| {
            let h = rig.ops.matmul(&rig.ops.matmul(&x, &w0)?, &w1)?;
            rig.ops.scale(&rig.ops.relu(&h)?, live.0)
        });
        assert_same(&rig.read(&out), &rig.read(&expected.expect("eager")));
    });
}

#[test]
fn break_reads_live_scalar_off_ambient_not_frozen_arg() {
    for_each_seed(|rig| {
        let w0 = rig.random(1, &[WIDTH, WIDTH]);
        let input = rig.zeros(&[ROWS, WIDTH]);
        let seen = Arc::new(Mutex::new(("", "")));
        let forward = |frozen: &'static str| -> Result<Tensor> {
            let h = rig.ops.matmul(&input, &w0)?;
            let (ops, seen) = (rig.ops.clone(), seen.clone());
            break_point("backend", [&h], move |b| {
                let (mode, factor) = current_forward_ctx(|batch: Option<&Batch>| {
                    batch.map_or(("none", 0.0), |batch| (batch.mode, batch.factor))
                });
                *seen.lock().expect("seen") = (frozen, mode);
                ops.scale(b.input(0)?, factor)
            })
        };
        let (dummy, live) = (Batch { mode: "extend", factor: 1.0 }, Batch { mode: "mixed", factor: 4.0 });
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = active_forward(&dummy, || capture.record(&rig.stream, |_| forward("extend"))).expect("the recording");
        assert_eq!(*seen.lock().expect("seen"), ("extend", "extend"));

        let x = rig.random(100, &[ROWS, WIDTH]);
        rig.copy(&input, &x);
        let _ = active_forward(&live, || capture.replay(&rig.stream)).expect("a replay");
        assert_eq!(*seen.lock().expect("seen"), ("extend", "mixed"));
        let expected = eager(&rig.pool, &rig.stream, |_| rig.ops.scale(&rig.ops.matmul(&x, &w0)?, 4.0)).expect("eager");
        assert_same(&rig.read(&out), &rig.read(&expected));
    });
}

#[test]
fn break_point_computed_out_shape() {
    for_each_seed(|rig| {
        let (w0, narrow) = (rig.random(1, &[WIDTH, WIDTH]), rig.random(2, &[WIDTH, WIDTH / 2]));
        let input = rig.zeros(&[ROWS, WIDTH]);
        let forward = || -> Result<Tensor> {
            let h = rig.ops.matmul(&input, &w0)?;
            let (ops, narrow) = (rig.ops.clone(), narrow.clone());
            break_point("narrow", [&h], move |b| ops.matmul(&ops.relu(b.input(0)?)?, &narrow))
        };
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = capture.record(&rig.stream, |_| forward()).expect("the recording");
        assert_eq!(out.shape(), [ROWS, WIDTH / 2]);

        let x = rig.random(100, &[ROWS, WIDTH]);
        rig.copy(&input, &x);
        let _ = capture.replay(&rig.stream).expect("a replay");
        let expected =
            eager(&rig.pool, &rig.stream, |_| rig.ops.matmul(&rig.ops.relu(&rig.ops.matmul(&x, &w0)?)?, &narrow));
        assert_same(&rig.read(&out), &rig.read(&expected.expect("eager")));
    });
}

#[test]
fn nested_break_inner_passes_through() {
    for_each_seed(|rig| {
        let (w0, w1) = (rig.random(1, &[WIDTH, WIDTH]), rig.random(2, &[WIDTH, WIDTH]));
        let input = rig.zeros(&[ROWS, WIDTH]);
        let inner_active = Arc::new(Mutex::new(Vec::new()));
        let forward = || -> Result<Tensor> {
            let h = rig.ops.matmul(&input, &w0)?;
            let (ops, w1, inner_active) = (rig.ops.clone(), w1.clone(), inner_active.clone());
            break_point("outer", [&h], move |b| {
                let (inner_ops, inner_active) = (ops.clone(), inner_active.clone());
                let h = break_point("inner", [b.input(0)?], move |b| {
                    inner_active.lock().expect("seen").push(is_capturing());
                    inner_ops.relu(b.input(0)?)
                })?;
                ops.matmul(&h, &w1)
            })
        };
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = capture.record(&rig.stream, |_| forward()).expect("the recording");
        assert_eq!(capture.num_segments(), 3, "exactly one break");

        let x = rig.random(100, &[ROWS, WIDTH]);
        rig.copy(&input, &x);
        let _ = capture.replay(&rig.stream).expect("a replay");
        assert_eq!(*inner_active.lock().expect("seen"), [false, false], "once at capture, once in the replay");
        let expected =
            eager(&rig.pool, &rig.stream, |_| rig.ops.matmul(&rig.ops.relu(&rig.ops.matmul(&x, &w0)?)?, &w1));
        assert_same(&rig.read(&out), &rig.read(&expected.expect("eager")));
    });
}
