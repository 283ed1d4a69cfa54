//! Static memory planning: offsets for buffers whose lifetimes are known, such that the whole takes few bytes.
//!
//! - `types` is what is asked and answered.
//! - `problem` turns buffers into sizes in units and lifetimes in sections.
//! - `greedy` has the fast methods.
//! - `search` looks for a placement below a given height, `improve` decides which heights and how long, `rank` what is tried first, and `budget`
//!   counts.
//!
//! [`plan`] takes the best of the fast methods. Where that is above the lower bound (the most bytes live at once), it searches for better ones
//! until the bound is met or the search budget is used up. How much it can find in that time differs from case to case; finding the least is NP-hard.

mod budget;
mod greedy;
mod improve;
mod problem;
mod rank;
mod search;
#[cfg(test)]
mod tests;
mod types;

pub use types::{BufferSpec, Method, Placement, PlanError, PlanOptions, SearchBudget};

use budget::Budget;
use greedy::Fit;
use problem::{Overlaps, Problem};

/// The most pairs of buffers live together for which more than online best fit is tried: the other methods go through all of them often.
const MOST_PAIRS: u64 = 1 << 20;

/// Gives each buffer an offset, such that no two that are live together share a byte.
///
/// The fast methods take time in proportion to the pairs of buffers that are live together, and what follows takes [`PlanOptions::budget`] at
/// most. Beyond a million such pairs only online best fit is tried, and beyond 5000 buffers that lifetimes connect nothing is improved.
///
/// ```
/// use breakable_cuda_graph::memory::planner::{BufferSpec, PlanOptions, plan};
///
/// let buffers = [BufferSpec::new(1024, 0, 2), BufferSpec::new(512, 1, 3), BufferSpec::new(1024, 2, 3)];
/// let placement = plan(&buffers, &PlanOptions::default())?;
/// assert_eq!(placement.bytes(), 1536); // The first and the last lie in the same bytes.
/// assert_eq!(placement.offsets()[0], placement.offsets()[2]);
/// # Ok::<(), breakable_cuda_graph::memory::planner::PlanError>(())
/// ```
///
/// # Errors
/// [`PlanError`] says which buffer or option it is.
pub fn plan(specs: &[BufferSpec], options: &PlanOptions) -> Result<Placement, PlanError> {
    let alignment = options.alignment;
    if !alignment.is_power_of_two() {
        return Err(PlanError::Alignment(alignment));
    }
    let mut budget = Budget::new(options.budget);
    let mut by_begin: Vec<usize> = (0..specs.len()).collect();
    by_begin.sort_by_key(|&index| specs[index].begin);
    let problem = Problem::new(specs, &by_begin, alignment)?;
    let lower_bound = problem.bound() as usize * alignment;
    check_limit(lower_bound, lower_bound, options)?;

    let (mut offsets, mut method) = fast(&problem, &by_begin);
    let is_small = problem.pairs <= MOST_PAIRS;
    if is_small && improve::improve(&problem, &by_begin, &mut offsets, &mut budget) {
        method = Method::Improved;
    }
    let bytes = problem.height(&offsets) as usize * alignment;
    check_limit(bytes, lower_bound, options)?;
    let offsets = offsets.into_iter().map(|offset| offset as usize * alignment).collect();
    Ok(Placement { offsets, bytes, lower_bound, method })
}

fn check_limit(bytes: usize, lower_bound: usize, options: &PlanOptions) -> Result<(), PlanError> {
    match options.max_bytes {
        Some(limit) if bytes > limit => Err(PlanError::AboveLimit { bytes, lower_bound, limit }),
        _ => Ok(()),
    }
}

/// The best of the fast methods; of several the first. Stops at the lower bound.
fn fast(problem: &Problem, by_begin: &[usize]) -> (Vec<u64>, Method) {
    let mut best = (greedy::online(problem, by_begin), Method::OnlineBestFit);
    let mut height = problem.height(&best.0);
    if height == problem.bound() || problem.pairs > MOST_PAIRS {
        return best;
    }
    let overlaps = Overlaps::new(&problem.buffers, by_begin);
    for method in greedy::METHODS {
        let order = greedy::order(problem, &overlaps, by_begin, method);
        for fit in [Fit::First, Fit::Best] {
            let offsets = greedy::place(problem, &overlaps, &order, fit);
            let found = problem.height(&offsets);
            if found < height {
                (best, height) = ((offsets, method), found);
            }
            if height == problem.bound() {
                return best;
            }
        }
    }
    best
}
