//! One capture for each padded bucket, made at its first use, with the padded tail zeroed.

use crate::support::{Rig, assert_same, for_each_seed};
use breakable_cuda_graph::{BreakableCapture, CaptureOptions, Result, Tensor, break_here, eager};
use std::collections::BTreeMap;

const WIDTH: usize = 16;
const BUCKETS: [usize; 3] = [4, 8, 16];

struct Bucketed {
    rig: Rig,
    weights: Vec<Tensor>,
    input: Tensor,
    captures: BTreeMap<usize, (BreakableCapture<'static>, Tensor)>,
}

impl Bucketed {
    fn forward(&self, x: &Tensor, breaks: bool) -> Result<Tensor> {
        let ops = &self.rig.ops;
        let mut h = ops.matmul(x, &self.weights[0])?;
        for weight in &self.weights[1..] {
            h = if breaks {
                let handoff = ops.empty_like(&h)?;
                let relu = ops.clone();
                break_here("attention", handoff, [&h], move |b| relu.relu(b.input(0)?))?
            } else {
                ops.relu(&h)?
            };
            h = ops.matmul(&h, weight)?;
        }
        Ok(h)
    }

    /// Pads to a bucket, captures it at its first use, replays it.
    fn run(&mut self, rows: usize) -> Vec<f32> {
        let bucket = BUCKETS.into_iter().find(|&bucket| bucket >= rows).expect("a bucket");
        if !self.captures.contains_key(&bucket) {
            let x = self.input.leading_rows(bucket);
            let options = CaptureOptions::default().bucket(bucket);
            let mut capture = BreakableCapture::with_options(&self.rig.pool, options).expect("a capture");
            let out = capture.record(&self.rig.stream, |_| self.forward(&x, true)).expect("the recording");
            self.captures.insert(bucket, (capture, out));
        }
        let (capture, out) = self.captures.get_mut(&bucket).expect("captured");
        let _ = capture.replay(&self.rig.stream).expect("a replay");
        self.rig.read(&out.leading_rows(rows))
    }
}

#[test]
fn replay_matches_eager_across_buckets() {
    for_each_seed(|rig| {
        let weights = (0..4).map(|layer| rig.random(layer, &[WIDTH, WIDTH])).collect();
        let input = rig.zeros(&[16, WIDTH]);
        let mut model = Bucketed { rig, weights, input, captures: BTreeMap::new() };
        for (trial, rows) in [3, 4, 5, 8, 11, 16, 1].into_iter().enumerate() {
            let x = model.rig.random(100 + trial as u64, &[rows, WIDTH]);
            model.input.fill_bytes(&model.rig.stream, 0).expect("a memset");
            model.rig.copy(&model.input.leading_rows(rows), &x);
            let got = model.run(rows);
            let expected = eager(&model.rig.pool, &model.rig.stream, |_| model.forward(&x, false)).expect("eager");
            assert_same(&got, &model.rig.read(&expected));
        }
        assert_eq!(model.captures.keys().copied().collect::<Vec<_>>(), BUCKETS);
    });
}
