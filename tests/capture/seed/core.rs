//! Segments, breaks and their handoffs.

use crate::support::{Rig, assert_close, assert_same, for_each_seed};
use breakable_cuda_graph::{
    BreakableCapture, Error, Misuse, Result, Tensor, break_here, eager, is_capturing, scrub_padding_tail,
    slice_to_real_tokens,
};

const ROWS: usize = 8;
const WIDTH: usize = 16;

/// Linear, a break that computes relu, linear, over a static input.
struct Small {
    rig: Rig,
    x: Tensor,
    w1: Tensor,
    w2: Tensor,
}

impl Small {
    fn new(rig: Rig) -> Small {
        let (w1, w2) = (rig.random(1, &[WIDTH, WIDTH]), rig.random(2, &[WIDTH, WIDTH]));
        let x = rig.zeros(&[ROWS, WIDTH]);
        Small { rig, x, w1, w2 }
    }

    /// The forward with relu as a break, as model code writes it.
    fn forward(&self) -> Result<Tensor> {
        let ops = &self.rig.ops;
        let h = ops.matmul(&self.x, &self.w1)?;
        let handoff = ops.empty_like(&h)?;
        let relu = ops.clone();
        let h = break_here("relu", handoff, [&h], move |b| relu.relu(b.input(0)?))?;
        ops.matmul(&h, &self.w2)
    }

    /// The same without any of the crate's recording.
    fn eager(&self, x: &Tensor) -> Vec<f32> {
        let ops = &self.rig.ops;
        let out =
            eager(&self.rig.pool, &self.rig.stream, |_| ops.matmul(&ops.relu(&ops.matmul(x, &self.w1)?)?, &self.w2));
        self.rig.read(&out.expect("the eager forward"))
    }

    fn capture(&self) -> (BreakableCapture<'static>, Tensor) {
        for _ in 0..3 {
            eager(&self.rig.pool, &self.rig.stream, |_| self.forward()).expect("warm-up");
        }
        self.rig.stream.synchronize().expect("warm-up");
        let mut capture = BreakableCapture::new(&self.rig.pool).expect("a capture");
        let out = capture.record(&self.rig.stream, |_| self.forward()).expect("the recording");
        (capture, out)
    }
}

#[test]
fn break_here_passthrough_when_inactive() {
    for_each_seed(|rig| {
        assert!(!is_capturing());
        let h = rig.random(1, &[ROWS, WIDTH]);
        let handoff = rig.zeros(&[ROWS, WIDTH]);
        let ops = rig.ops.clone();
        let out = eager(&rig.pool, &rig.stream, |_| {
            break_here("relu", handoff.clone(), [&h], move |b| ops.relu(b.input(0)?))
        });
        let out = out.expect("a direct call");
        assert!(out.is_same(&handoff), "the handoff itself is returned");
        let expected: Vec<f32> = rig.read(&h).iter().map(|value| value.max(0.0)).collect();
        assert_same(&rig.read(&out), &expected);
    });
}

#[test]
fn segments_split_at_break() {
    for_each_seed(|rig| {
        let (capture, _out) = Small::new(rig).capture();
        assert_eq!(capture.num_segments(), 3, "two segments and a break");
        assert_eq!(capture.num_launches(), 2);
    });
}

#[test]
fn replay_matches_eager() {
    for_each_seed(|rig| {
        let small = Small::new(rig);
        let (mut capture, out) = small.capture();
        for trial in 0..5 {
            let x = small.rig.random(100 + trial, &[ROWS, WIDTH]);
            small.rig.copy(&small.x, &x);
            let _ = capture.replay(&small.rig.stream).expect("a replay");
            assert_same(&small.rig.read(&out), &small.eager(&x));
        }
    });
}

#[test]
fn multiple_breaks_chain() {
    const DEPTH: usize = 6;
    for_each_seed(|rig| {
        let weights: Vec<Tensor> = (0..=DEPTH).map(|layer| rig.random(layer as u64, &[WIDTH, WIDTH])).collect();
        let input = rig.zeros(&[ROWS, WIDTH]);
        let forward = |x: &Tensor, breaks: bool| -> Result<Tensor> {
            let mut h = rig.ops.matmul(x, &weights[0])?;
            for weight in &weights[1..] {
                h = if breaks {
                    let handoff = rig.ops.empty_like(&h)?;
                    let ops = rig.ops.clone();
                    break_here("relu", handoff, [&h], move |b| ops.relu(b.input(0)?))?
                } else {
                    rig.ops.relu(&h)?
                };
                h = rig.ops.matmul(&h, weight)?;
            }
            Ok(h)
        };
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = capture.record(&rig.stream, |_| forward(&input, true)).expect("the recording");
        assert_eq!(capture.num_segments(), 2 * DEPTH + 1);
        for trial in 0..4 {
            let x = rig.random(100 + trial, &[ROWS, WIDTH]);
            rig.copy(&input, &x);
            let _ = capture.replay(&rig.stream).expect("a replay");
            let expected = eager(&rig.pool, &rig.stream, |_| forward(&x, false)).expect("eager");
            assert_same(&rig.read(&out), &rig.read(&expected));
        }
    });
}

#[test]
fn nested_capture_rejected() {
    for_each_seed(|rig| {
        let mut outer = BreakableCapture::new(&rig.pool).expect("a capture");
        let input = rig.random(1, &[ROWS, WIDTH]);
        let out = outer.record(&rig.stream, |_| {
            let mut inner = BreakableCapture::new(&rig.pool)?;
            let refused = inner.record(&rig.stream, |_| Ok(()));
            assert!(matches!(refused, Err(Error::Misuse(Misuse::NestedCapture))), "{refused:?}");
            assert!(!inner.is_poisoned(), "refused before any side effect");
            assert!(is_capturing(), "the open one goes on");
            rig.ops.relu(&input)
        });
        let out = out.expect("the outer recording");
        let _ = outer.replay(&rig.stream).expect("a replay");
        let expected: Vec<f32> = rig.read(&input).iter().map(|value| value.max(0.0)).collect();
        assert_same(&rig.read(&out), &expected);
    });
}

#[test]
fn test_scrub_padding_tail() {
    for_each_seed(|rig| {
        let (matrix, vector) = (rig.ones(&[6, 3]), rig.ones(&[6]));
        scrub_padding_tail(&rig.stream, 4, [Some(&matrix), None, Some(&vector)]).expect("a scrub");
        for (tensor, width) in [(&matrix, 3), (&vector, 1)] {
            let values = rig.read(tensor);
            assert!(values[..4 * width].iter().all(|&value| value == 1.0), "{values:?}");
            assert!(values[4 * width..].iter().all(|&value| value == 0.0), "{values:?}");
        }
        let unpadded = rig.ones(&[4, 3]);
        scrub_padding_tail(&rig.stream, 4, [&unpadded]).expect("a scrub");
        assert!(rig.read(&unpadded).iter().all(|&value| value == 1.0));
    });
}

#[test]
fn test_slice_to_real_tokens() {
    for_each_seed(|rig| {
        let values: Vec<f32> = (0..6_u8).map(f32::from).collect();
        let a = Tensor::from_slice(&rig.stream, &values, &[6]).expect("a tensor");
        let b = a.reshape(&[6, 1]).expect("a view");
        let c = rig.ones(&[4]);
        let sliced = slice_to_real_tokens(4, [Some(&a), None, Some(&b), Some(&c)]);
        let [Some(a), None, Some(b), Some(same)] = &sliced[..] else { panic!("{sliced:?}") };
        assert_eq!((a.shape(), b.shape()), (&[4_usize][..], &[4_usize, 1][..]));
        assert!(same.is_same(&c), "one that has no more rows comes back as it is");
        assert_close(&rig.read(a), &values[..4], 0.0);
    });
}
