//! Single cases, each of one rule.

use super::{
    BufferSpec, Method, PlanError, PlanOptions, Random, SearchBudget, above_its_bound, plan, planned, specs, tight,
};
use std::time::Duration;

#[test]
fn no_demands_take_no_bytes() {
    let placement = planned(&[], &PlanOptions::new());
    assert_eq!((placement.bytes(), placement.lower_bound(), placement.offsets().len()), (0, 0, 0));
    assert!(placement.overhead() == 0.0);
}

#[test]
fn no_bytes_take_one_unit_of_their_own() {
    let specs = [BufferSpec::new(0, 0, 2), BufferSpec::new(0, 1, 3)];
    let placement = planned(&specs, &PlanOptions::new());
    assert_eq!(placement.offsets(), [0, 512]);
    assert_eq!((placement.bytes(), placement.method()), (1024, Method::OnlineBestFit));
}

#[test]
fn bytes_are_free_at_the_moment_of_the_end() {
    let specs = [BufferSpec::new(512, 5, 9), BufferSpec::new(512, 0, 5)];
    assert_eq!(planned(&specs, &PlanOptions::new()).offsets(), [0, 0]);
    assert_eq!(planned(&specs, &PlanOptions::new()).bytes(), 512);
}

#[test]
fn times_may_be_any() {
    let specs = [BufferSpec::new(3, 0, u64::MAX), BufferSpec::new(4, u64::MAX - 1, u64::MAX), BufferSpec::new(4, 7, 8)];
    assert_eq!(planned(&specs, &tight()).bytes(), 7);
}

#[test]
fn sizes_and_offsets_follow_the_alignment() {
    let specs = [BufferSpec::new(1, 0, 2), BufferSpec::new(100, 0, 2), BufferSpec::new(65, 1, 3)];
    for (alignment, bytes) in [(1, 166), (16, 208), (64, 64 + 128 + 128), (4096, 3 * 4096)] {
        assert_eq!(planned(&specs, &PlanOptions::new().alignment(alignment)).bytes(), bytes);
    }
}

/// Online, the second goes on top of the first, and in the middle of where the third is to be.
#[test]
fn greedy_placement_meets_the_bound_where_best_fit_online_does_not() {
    let specs = [BufferSpec::new(4, 0, 2), BufferSpec::new(2, 1, 6), BufferSpec::new(6, 2, 6)];
    let placement = planned(&specs, &tight().budget(SearchBudget::Steps(0)));
    assert_eq!((placement.bytes(), placement.method()), (8, Method::GreedyBySize));
}

#[test]
fn the_search_meets_the_bound_where_the_fast_methods_do_not() {
    let specs = hard();
    let fast = planned(&specs, &tight().budget(SearchBudget::Steps(0)));
    assert!(fast.bytes() > fast.lower_bound());
    assert_ne!(fast.method(), Method::Improved);
    for budget in [SearchBudget::default(), SearchBudget::Time(Duration::MAX)] {
        let improved = planned(&specs, &tight().budget(budget));
        assert_eq!((improved.bytes(), improved.method()), (improved.lower_bound(), Method::Improved));
    }
    let hurried = planned(&specs, &tight().budget(SearchBudget::Time(Duration::ZERO)));
    assert_eq!(hurried, fast);
}

fn hard() -> Vec<BufferSpec> {
    specs(&mut Random(0), 40, 50, 30, 12)
}

#[test]
fn the_work_ends_where_no_plan_is_lower_though_the_bound_is_missed() {
    let placement = planned(&above_its_bound(), &tight().budget(SearchBudget::Time(Duration::MAX)));
    assert_eq!((placement.bytes(), placement.lower_bound()), (5, 4));
}

/// Bound to be missed in one part of the time, and more than that is live in another.
#[test]
fn a_part_that_misses_its_own_bound_need_not_be_above_that_of_the_whole() {
    let mut specs = above_its_bound();
    specs.extend([BufferSpec::new(3, 6, 7), BufferSpec::new(2, 6, 8)]);
    let placement = planned(&specs, &tight().budget(SearchBudget::Time(Duration::MAX)));
    assert_eq!((placement.bytes(), placement.lower_bound()), (5, 5));
}

#[test]
fn alignments_are_powers_of_two() {
    for alignment in [0, 3, 513] {
        let options = PlanOptions::new().alignment(alignment);
        assert_eq!(plan(&[], &options), Err(PlanError::Alignment(alignment)));
    }
}

#[test]
fn lifetimes_are_not_empty() {
    let fine = BufferSpec::new(1, 0, 1);
    for (begin, end) in [(5, 5), (5, 4)] {
        let error = plan(&[fine, BufferSpec::new(1, begin, end)], &PlanOptions::new());
        assert_eq!(error, Err(PlanError::Lifetime { index: 1, begin, end }));
    }
}

#[test]
fn sums_are_no_larger_than_an_allocation() {
    let most = isize::MAX as usize;
    let at = |bytes, begin| BufferSpec::new(bytes, begin, begin + 1);
    let too_large = |index, bytes| Err(PlanError::TooLarge { index, bytes });
    assert_eq!(plan(&[at(1, 0), at(usize::MAX, 0)], &PlanOptions::new()), too_large(1, usize::MAX));
    assert_eq!(plan(&[at(most, 0)], &PlanOptions::new()), too_large(0, most));
    assert_eq!(plan(&[at(most - 1, 0), at(1, 1), at(1, 2)], &tight()), too_large(2, 1));
    assert_eq!(planned(&[at(most - 1, 0), at(1, 1)], &tight()).bytes(), most - 1);
    assert_eq!(plan(&[at(1, 0)], &PlanOptions::new().alignment(1 << (usize::BITS - 1))), too_large(0, 1));
}

#[test]
fn a_plan_above_the_limit_is_an_error() {
    let specs = hard();
    let fast = planned(&specs, &tight().budget(SearchBudget::Steps(0)));
    let (bytes, lower_bound) = (fast.bytes(), fast.lower_bound());
    let limited = |limit, steps| plan(&specs, &tight().budget(SearchBudget::Steps(steps)).max_bytes(limit));
    assert_eq!(limited(bytes, 0), Ok(fast));
    assert_eq!(limited(bytes - 1, 0), Err(PlanError::AboveLimit { bytes, lower_bound, limit: bytes - 1 }));
    assert_eq!(limited(lower_bound, 20_000).map(|placement| placement.bytes()), Ok(lower_bound));
    let limit = lower_bound - 1;
    assert_eq!(limited(limit, 20_000), Err(PlanError::AboveLimit { bytes: lower_bound, lower_bound, limit }));
}
