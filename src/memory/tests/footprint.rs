//! What captures of several buckets make of a pool: figures that the project promises, on traces of whole forwards.

use crate::memory::planner::PlanOptions;
use crate::memory::{PoolPlan, Trace, online_footprint};

const MIB: usize = 1 << 20;

/// Writes a forward's trace. A value that is given up is released at once.
#[derive(Default)]
struct Forward(Trace);

impl Forward {
    fn tensor(&mut self, rows: usize, width: usize, element: usize) -> usize {
        self.0.allocate(rows * width * element)
    }

    fn drop(&mut self, tensors: impl IntoIterator<Item = usize>) {
        tensors.into_iter().for_each(|tensor| self.0.release(tensor).expect("it is live"));
    }
}

/// The seed's model, float32, 512 to 2048 to 512 wide, four layers, with every value given up after its last use: h, the handoff of its break,
/// h given up, the next x, the old x and the handoff given up.
fn seed_model(rows: usize) -> Trace {
    let mut forward = Forward::default();
    let mut x = None;
    for _ in 0..4 {
        let h = forward.tensor(rows, 2048, 4);
        let dst = forward.tensor(rows, 2048, 4);
        forward.drop([h]);
        let next = forward.tensor(rows, 512, 4);
        forward.drop(x.replace(next));
        forward.drop([dst]);
    }
    forward.drop(x);
    forward.0
}

/// The same, as Python holds it: a value lives until its name is bound anew, so the last layer's handoff is there still when h and the next
/// handoff are made.
fn seed_model_by_names(rows: usize) -> Trace {
    let mut forward = Forward::default();
    let (mut x, mut dst) = (None, None);
    for _ in 0..4 {
        let h = forward.tensor(rows, 2048, 4);
        let next = forward.tensor(rows, 2048, 4);
        forward.drop(dst.replace(next));
        forward.drop([h]);
        let next = forward.tensor(rows, 512, 4);
        forward.drop(x.replace(next));
    }
    forward.drop([x, dst].into_iter().flatten());
    forward.0
}

/// A decoder of eight layers in bfloat16, 4096 wide, grouped attention (6144 wide q, k and v), gated FFN of 14336, with small temporaries (row
/// statistics) between.
fn decoder(rows: usize) -> Trace {
    let mut forward = Forward::default();
    let mut residual = forward.tensor(rows, 4096, 2);
    for _ in 0..8 {
        let statistics = forward.tensor(rows, 1, 4);
        let normed = forward.tensor(rows, 4096, 2);
        forward.drop([statistics]);
        let qkv = forward.tensor(rows, 6144, 2);
        forward.drop([normed]);
        let attention = forward.tensor(rows, 4096, 2);
        forward.drop([qkv]);
        let projected = forward.tensor(rows, 4096, 2);
        forward.drop([attention]);
        let sum = forward.tensor(rows, 4096, 2);
        forward.drop([residual, projected]);
        residual = sum;
        let statistics = forward.tensor(rows, 1, 4);
        let normed = forward.tensor(rows, 4096, 2);
        forward.drop([statistics]);
        let gate_up = forward.tensor(rows, 2 * 14336, 2);
        forward.drop([normed]);
        let activated = forward.tensor(rows, 14336, 2);
        forward.drop([gate_up]);
        let down = forward.tensor(rows, 4096, 2);
        forward.drop([activated]);
        let sum = forward.tensor(rows, 4096, 2);
        forward.drop([residual, down]);
        residual = sum;
    }
    forward.drop([residual]);
    forward.0
}

/// Bytes of slabs after each capture, and the largest peak of live bytes among the traces.
#[derive(Debug)]
struct Footprint {
    reserved: Vec<usize>,
    peak: usize,
}

impl Footprint {
    fn ratio(&self) -> f64 {
        self.reserved.last().copied().unwrap_or(0) as f64 / self.peak as f64
    }

    /// Rule 36: the later captures add at most 2 MiB or a tenth of the first.
    fn later_captures_add_little(&self) -> bool {
        let allowed = (2 * MIB).max(self.reserved[0] / 10);
        self.reserved.windows(2).all(|pair| pair[1] - pair[0] <= allowed)
    }
}

fn capture(model: Model, buckets: &[usize]) -> Footprint {
    let traces: Vec<Trace> = buckets.iter().map(|&rows| model(rows)).collect();
    let peak = traces.iter().map(|trace| trace.peak(512)).max().unwrap_or(0);
    Footprint { reserved: online_footprint(&traces).expect("not larger than memory"), peak }
}

type Model = fn(usize) -> Trace;

const MODELS: [(&str, Model); 3] = [("seed", seed_model), ("seed by names", seed_model_by_names), ("decoder", decoder)];

/// Buckets as they come where the largest is captured first.
const DESCENDING: [&[usize]; 4] = [
    &[4096, 2048, 4096],
    &[8192, 4096, 2048, 1024, 4096],
    &[3000, 1700, 900, 3000],
    &[
        8192, 7168, 6144, 5120, 4096, 3584, 3072, 2560, 2048, 1792, 1536, 1280, 1024, 768, 512, 384, 256, 128, 64, 32,
        16,
    ],
];

#[test]
fn later_captures_add_little_when_the_largest_comes_first() {
    for (name, model) in MODELS {
        for buckets in DESCENDING {
            let footprint = capture(model, buckets);
            assert!(footprint.later_captures_add_little(), "{name}, {buckets:?}: {footprint:?}");
        }
    }
}

/// The seed's model: a third more than the peak of live bytes for the first, as a small request cuts up the block that the next large one needs, and nothing
/// for the others. With a plan it is the peak.
#[test]
fn the_seeds_model_takes_a_third_more_than_its_peak_without_a_plan() {
    let footprint = capture(seed_model, &[4096, 2048, 4096]);
    assert_eq!((footprint.peak, &footprint.reserved[..]), (72 * MIB, &[96 * MIB; 3][..]));
    let footprint = capture(seed_model, &[8192, 4096, 2048, 1024, 4096]);
    assert_eq!((footprint.peak, &footprint.reserved[..]), (144 * MIB, &[192 * MIB; 5][..]));
    let plan = PoolPlan::new([seed_model(4096)], &PlanOptions::default()).expect("a plan");
    assert_eq!(plan.bytes(), 72 * MIB);
}

#[test]
fn whole_forwards_without_a_plan_take_at_most_two_fifths_more_than_their_peak() {
    for (name, model) in MODELS {
        for buckets in DESCENDING {
            let footprint = capture(model, buckets);
            assert!(footprint.ratio() <= 1.4, "{name}, {buckets:?}: {:.3} of {footprint:?}", footprint.ratio());
        }
    }
}

/// Smallest first, no later capture fits what the earlier ones left in one piece: the pool comes near the sum. That is why the runner captures
/// the largest bucket first; a slab can't grow in place.
#[test]
fn capturing_the_smallest_first_costs_more() {
    for (name, model) in MODELS {
        let ascending = capture(model, &[1024, 2048, 4096, 8192]);
        let descending = capture(model, &[8192, 4096, 2048, 1024]);
        assert!(descending.ratio() < ascending.ratio(), "{name}: {ascending:?}, {descending:?}");
        let sum: usize = [1024, 2048, 4096, 8192].iter().map(|&rows| model(rows).peak(512)).sum();
        let reserved = ascending.reserved[3];
        assert!(reserved <= sum, "{name}: never beyond the sum of the peaks: {reserved} of {sum}");
    }
}
