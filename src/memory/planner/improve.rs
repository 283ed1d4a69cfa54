//! Works on a placement above the lower bound: searches for lower ones, by several ranks of the buffers and below several heights.

use super::budget::Budget;
use super::problem::{Buffer, Overlaps, Problem};
use super::rank::{RANKS, Weights};
use super::search::{Outcome, Search};

/// The most buffers of one component that are searched; a node of the search looks at all of them.
const MOST_BUFFERS: usize = 5000;

/// By how many nodes for each buffer the searches grow from pass to pass, beginning with as many.
const NODES: u64 = 2;

/// Improves a placement until it is as high as the lower bound, or nothing is left of the budget. Whether it changed anything.
pub(super) fn improve(problem: &Problem, by_begin: &[usize], offsets: &mut [u64], budget: &mut Budget) -> bool {
    let mut components = components(problem, by_begin, offsets);
    let mut changed = false;
    while let Some(highest) = components.iter_mut().max_by_key(|component| component.height) {
        let goal = problem.bound().max(highest.bound);
        if highest.height <= goal || highest.buffers.len() > MOST_BUFFERS || !budget.is_left() {
            break;
        }
        changed |= highest.search(goal, offsets, budget);
    }
    changed
}

/// Buffers that no other connects, through its lifetime, with the rest.
#[derive(Debug)]
struct Component {
    /// Their numbers in the problem.
    indices: Vec<usize>,
    /// Themselves, with sections counted from the component's first.
    buffers: Vec<Buffer>,
    /// Made for the first search.
    overlaps: Option<Overlaps>,
    weights: Weights,
    /// No placement is lower, as far as is known.
    bound: u64,
    /// The height of the best placement yet.
    height: u64,
    searches: u64,
}

/// The components of a problem, in order of time.
fn components(problem: &Problem, by_begin: &[usize], offsets: &[u64]) -> Vec<Component> {
    let mut components = Vec::new();
    let mut rest = by_begin;
    while let Some(&index) = rest.first() {
        let first = problem.buffers[index].first;
        let mut last = problem.buffers[index].last;
        let mut count = 0;
        while let Some(buffer) = rest.get(count).map(|&index| &problem.buffers[index]).filter(|next| next.first < last)
        {
            last = last.max(buffer.last);
            count += 1;
        }
        let (own, others) = rest.split_at(count);
        rest = others;
        let ends = own.iter().map(|&index| offsets[index] + problem.buffers[index].size);
        let moved = |&index: &usize| {
            let buffer = problem.buffers[index];
            Buffer { first: buffer.first - first, last: buffer.last - first, ..buffer }
        };
        let live = problem.live[first..last].to_vec();
        components.push(Component {
            indices: own.to_vec(),
            buffers: own.iter().map(moved).collect(),
            overlaps: None,
            bound: live.iter().copied().max().unwrap_or(0),
            height: ends.max().unwrap_or(0),
            weights: Weights::new(live),
            searches: 0,
        });
    }
    components
}

impl Component {
    /// One search, the next in turn. Whether it found a lower placement.
    fn search(&mut self, goal: u64, offsets: &mut [u64], budget: &mut Budget) -> bool {
        let turn = self.searches;
        self.searches += 1;
        // Every other search is for the goal itself. Where that can't be had, the others come nearer to it step by step.
        let above = self.height - goal;
        let target = goal + [0, above / 2, 0, above - above / 5][turn as usize % 4];
        let target = target.min(self.height - 1);
        // Each rank is taken twice, for the goal and above, and every other pass is with noise. The nodes grow slowly: many short searches that
        // learn from each other find more than a few long ones, but a proof that there is nothing to find takes a long one.
        let rank = RANKS[turn as usize / 2 % RANKS.len()];
        let pass = turn / (2 * RANKS.len() as u64);
        let nodes = (NODES * self.buffers.len() as u64).saturating_mul(pass + 1);

        let overlaps = self.overlaps.get_or_insert_with(|| {
            let by_begin: Vec<usize> = (0..self.buffers.len()).collect();
            Overlaps::new(&self.buffers, &by_begin)
        });
        let order = self.weights.order(&self.buffers, rank, pass % 2 == 1);
        let mut search = Search::new(&self.buffers, overlaps, &order);
        let outcome = search.run(target, nodes, budget);
        self.weights.learn(search.failures());
        match outcome {
            Outcome::Found => {
                self.height = 0;
                for (&at, &offset) in order.iter().zip(search.offsets()) {
                    offsets[self.indices[at]] = offset;
                    self.height = self.height.max(offset + self.buffers[at].size);
                }
            }
            Outcome::Impossible => self.bound = self.bound.max(target + 1),
            Outcome::Undecided => {}
        }
        outcome == Outcome::Found
    }
}
