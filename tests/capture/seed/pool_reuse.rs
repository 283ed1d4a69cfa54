//! The pool's memory is that of the largest capture and not the sum.

use crate::support::{Rig, assert_same, for_each_seed};
use breakable_cuda_graph::{BreakableCapture, CaptureOptions, Result, Tensor, break_here, eager};

#[test]
fn same_and_smaller_captures_reuse_pool() {
    // The reference driver computes the same forward narrower: the sizes of blocks relative to each other are what counts, and slabs are
    // multiples of 2 MiB, so the rows stay.
    for_each_seed(|rig| {
        let (width, inner) = if rig.is_reference() { (16, 64) } else { (512, 2048) };
        let (w1, w2) = (rig.random(1, &[width, inner]), rig.random(2, &[inner, width]));
        let input = rig.random(3, &[4096, width]);
        let mut captures = Vec::new();
        let mut growth = Vec::new();
        for rows in [4096, 2048, 4096] {
            let x = input.leading_rows(rows);
            let before = rig.pool.usage().expect("usage").reserved;
            let mut capture =
                BreakableCapture::with_options(&rig.pool, CaptureOptions::default().bucket(rows)).expect("a capture");
            let out = capture.record(&rig.stream, |_| forward(&rig, &x, &w1, &w2, true)).expect("the recording");
            growth.push(rig.pool.usage().expect("usage").reserved - before);
            captures.push((capture, out, x));
        }
        let allowance = (2 << 20).max(growth[0] / 10);
        assert!(growth[1] <= allowance && growth[2] <= allowance, "{growth:?}");
        // About what is live at once, two wide tensors and a narrow one: best fit splits a wide block for a narrow tensor, and slabs are rounded.
        let live = 4096 * (2 * inner + width) * 4;
        assert!(growth[0] <= live * 4 / 3 + (2 << 20), "{growth:?} for {live} bytes live");
        for (capture, out, x) in &mut captures {
            let _ = capture.replay(&rig.stream).expect("a replay");
            let got = rig.read(out);
            let expected =
                eager(&rig.pool, &rig.stream, |_| forward(&rig, x, &w1, &w2, false)).expect("the eager forward");
            assert_same(&got, &rig.read(&expected));
        }
    });
}

fn forward(rig: &Rig, x: &Tensor, w1: &Tensor, w2: &Tensor, breaks: bool) -> Result<Tensor> {
    let mut x = x.clone();
    for _ in 0..4 {
        let mut h = rig.ops.matmul(&x, w1)?;
        h = if breaks {
            let handoff = rig.ops.empty_like(&h)?;
            let ops = rig.ops.clone();
            break_here("relu", handoff, [&h], move |b| ops.relu(b.input(0)?))?
        } else {
            rig.ops.relu(&h)?
        };
        x = rig.ops.matmul(&h, w2)?;
    }
    Ok(x)
}
