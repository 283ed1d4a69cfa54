//! Tests of the planner: single cases, and properties of random ones against a brute-force optimum.

mod cases;
mod forward;
mod properties;

use super::rank::Random;
use super::{BufferSpec, Method, Placement, PlanError, PlanOptions, SearchBudget, plan};

/// Byte for byte, the least alignment.
fn tight() -> PlanOptions {
    PlanOptions::new().alignment(1)
}

fn below(random: &mut Random, limit: u64) -> u64 {
    random.next() % limit
}

/// Random buffers: sizes from 1 to `sizes`, and lifetimes of at most `longest` that begin before `moments`.
fn specs(random: &mut Random, count: u64, sizes: u64, moments: u64, longest: u64) -> Vec<BufferSpec> {
    let mut spec = |_| {
        let begin = below(random, moments);
        BufferSpec::new(1 + below(random, sizes) as usize, begin, begin + 1 + below(random, longest))
    };
    (0..count).map(&mut spec).collect()
}

/// Four bytes are live all the time, and no plan takes less than five.
fn above_its_bound() -> Vec<BufferSpec> {
    let all = [(2, 0, 1), (2, 0, 2), (1, 1, 3), (1, 2, 3), (1, 1, 5), (1, 2, 5), (2, 3, 6), (2, 5, 6)];
    all.map(|(bytes, begin, end)| BufferSpec::new(bytes, begin, end)).to_vec()
}

/// Plans, and checks everything that holds for every plan.
fn planned(specs: &[BufferSpec], options: &PlanOptions) -> Placement {
    let placement = plan(specs, options).expect("the buffers are fine");
    let rounded = |spec: &BufferSpec| spec.bytes.max(1).next_multiple_of(options.alignment);
    let live = |moment: u64| specs.iter().filter(move |spec| spec.begin <= moment && moment < spec.end);
    let peaks = specs.iter().map(|spec| live(spec.begin).map(rounded).sum::<usize>());
    assert_eq!(placement.lower_bound(), peaks.max().unwrap_or(0));
    assert!(placement.bytes() >= placement.lower_bound());
    assert_eq!(placement.overhead() > 0.0, placement.bytes() > placement.lower_bound());

    assert_eq!(placement.offsets().len(), specs.len());
    let ends = specs.iter().zip(placement.offsets()).map(|(spec, offset)| offset + rounded(spec));
    let ends: Vec<usize> = ends.collect();
    assert_eq!(placement.bytes(), ends.iter().copied().max().unwrap_or(0));
    for (index, (a, &at)) in specs.iter().zip(placement.offsets()).enumerate() {
        assert!(at.is_multiple_of(options.alignment), "{at} in {placement:?}");
        for (other, b) in specs.iter().enumerate().skip(index + 1) {
            let live_together = a.begin < b.end && b.begin < a.end;
            let apart = ends[index] <= placement.offsets()[other] || ends[other] <= at;
            assert!(!live_together || apart, "{index} and {other} of {specs:?} overlap in {placement:?}");
        }
    }
    placement
}
