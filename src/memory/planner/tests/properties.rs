//! What holds for all buffers, tried on random ones.

use super::{BufferSpec, Method, Random, SearchBudget, above_its_bound, below, planned, specs, tight};
use crate::memory::planner::PlanOptions;

/// The least height: of all orders, with each buffer on top of those before it. In order of its offsets, that gives the best placement, or
/// one as low.
fn optimum(specs: &[BufferSpec]) -> usize {
    fn go(specs: &[BufferSpec], offsets: &mut Vec<(usize, usize)>, height: usize, best: &mut usize) {
        if height >= *best {
            return;
        }
        if offsets.len() == specs.len() {
            *best = height;
            return;
        }
        for (index, spec) in specs.iter().enumerate() {
            if offsets.iter().any(|&(other, _)| other == index) {
                continue;
            }
            let beneath = offsets.iter().filter(|&&(other, _)| {
                let other = &specs[other];
                other.begin < spec.end && spec.begin < other.end
            });
            let end = beneath.map(|&(_, end)| end).max().unwrap_or(0) + spec.bytes;
            offsets.push((index, end));
            go(specs, offsets, height.max(end), best);
            offsets.pop();
        }
    }
    let mut best = usize::MAX;
    go(specs, &mut Vec::new(), 0, &mut best);
    best
}

#[test]
fn small_plans_are_optimal() {
    let mut improved = 0;
    for seed in 0..1500 {
        let mut random = Random(seed);
        let (count, sizes) = (1 + below(&mut random, 7), 2 + below(&mut random, 12));
        let (moments, longest) = (1 + below(&mut random, 8), 1 + below(&mut random, 5));
        let specs = specs(&mut random, count, sizes, moments, longest);
        let placement = planned(&specs, &tight().budget(SearchBudget::Steps(1_000_000)));
        assert_eq!(placement.bytes(), optimum(&specs), "seed {seed}: {specs:?}");
        improved += usize::from(placement.method() == Method::Improved);
    }
    assert!(improved > 0, "too easy");
}

/// Nearly all random cases have a plan at the bound. These are like one that has none.
#[test]
fn small_plans_are_optimal_above_the_bound_too() {
    let mut above = 0;
    for seed in 0..100 {
        let mut random = Random(seed);
        let mut specs = above_its_bound();
        for spec in &mut specs {
            spec.bytes = 4 * spec.bytes + below(&mut random, 3) as usize - 1;
        }
        let placement = planned(&specs, &tight().budget(SearchBudget::Steps(1_000_000)));
        assert_eq!(placement.bytes(), optimum(&specs), "seed {seed}: {specs:?}");
        above += usize::from(placement.overhead() > 0.0);
    }
    assert!((10..100).contains(&above), "{above} of 100 above the bound");
}

#[test]
fn plans_are_sound_and_the_same_every_time() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let (count, sizes) = (2 + below(&mut random, 120), 1 + below(&mut random, 5000));
        let (moments, longest) = (1 + below(&mut random, 100), 1 + below(&mut random, 40));
        let specs = specs(&mut random, count, sizes, moments, longest);
        let options = PlanOptions::new().alignment(1 << below(&mut random, 10)).budget(SearchBudget::Steps(3000));
        let placement = planned(&specs, &options);
        assert_eq!(planned(&specs, &options), placement, "seed {seed}");
        let fast = planned(&specs, &options.budget(SearchBudget::Steps(0)));
        assert!(placement.bytes() <= fast.bytes(), "seed {seed}");
    }
}

/// Parts of the trace that nothing connects are improved each on its own.
#[test]
fn more_effort_is_never_worse() {
    let mut random = Random(7);
    let mut all = Vec::new();
    for part in 0..4 {
        let own = specs(&mut random, 40, 50, 30, 12);
        let moved = own.into_iter().map(|own| BufferSpec::new(own.bytes, own.begin + part * 100, own.end + part * 100));
        all.extend(moved);
    }
    let budgets = [0, 1, 100, 3000, 30_000];
    let heights = budgets.map(|steps| planned(&all, &tight().budget(SearchBudget::Steps(steps))).bytes());
    assert!(heights.is_sorted_by(|a, b| a >= b), "{heights:?}");
    assert!(heights[4] < heights[0], "{heights:?}");
}

/// The search places one buffer at each level of the stack: there is a limit to it.
#[test]
fn many_buffers_do_not_exhaust_the_stack() {
    let specs = specs(&mut Random(1), 3000, 1000, 3000, 300);
    let placement = planned(&specs, &tight().budget(SearchBudget::Steps(20_000)));
    assert!(placement.overhead() < 0.5, "{}", placement.overhead());
}
