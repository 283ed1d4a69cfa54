//! Branch and bound for a placement below a given height, after the MiniMalloc paper (Moffitt, ASPLOS 2023).
//!
//! Buffers are placed from the bottom up: each on top of what is placed in its lifetime, in order of (offset, rank). A placement in which no buffer
//! can move down can be made in this order, so nothing is lost. Below a node lie the buffers that could be next. One whose floor is not below
//! the end that some other could have need not be tried: that other would fit beneath it.
//!
//! A node is given up when in some section the bytes that are still to be placed don't fit above the lowest place that one of them can have. A buffer
//! that was passed over, which its floor alone would place before the last one, rests on one that is placed later, at the last one's offset
//! or above.
//!
//! Where no unplaced buffer crosses from one section to the next, the two sides are searched independently.

use super::budget::Budget;
use super::problem::{Buffer, Overlaps};
use std::collections::BTreeMap;

/// The floor of a buffer that is placed.
const PLACED: u64 = u64::MAX;

/// No less than any sum of sizes, and small enough to be added to one.
const NEVER: u64 = u64::MAX / 2;

/// The most nodes that may be open: each takes some of the stack.
const DEEPEST: usize = 1000;

/// How a search ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// There is a placement.
    Found,
    /// There is none.
    Impossible,
    /// The nodes or the budget are used up.
    Undecided,
}

/// A search. A buffer goes by its rank: 0 is preferred to 1.
#[derive(Debug)]
pub(super) struct Search {
    buffers: Vec<Buffer>,
    overlaps: Lists,
    members: Lists,
    /// The smallest buffer that is live together with each.
    least: Vec<u64>,
    /// A buffer like each, of the rank next before. The two are placed in order of their rank.
    symmetric: Vec<Option<u32>>,
    /// The height that is not to be exceeded.
    capacity: u64,
    /// How many nodes may still be looked at.
    nodes: u64,
    /// How many nodes are open.
    depth: usize,
    state: State,
    failures: Vec<u64>,
    offsets: Vec<u64>,
}

#[derive(Debug)]
struct State {
    /// The lowest place of each unplaced buffer: above what is placed in its lifetime.
    floor: Vec<u64>,
    /// What is still to be placed in each section.
    rest: Vec<u64>,
    /// How many unplaced buffers cross from each section to the next.
    crossing: Vec<u32>,
    /// An unplaced buffer of each section that can go low enough, or could when it was last looked at.
    candidate: Vec<u32>,
    /// Floors to come back to.
    log: Vec<(u32, u64)>,
    /// The unplaced buffers of all open parts, one after the other.
    open: Vec<u32>,
    /// The candidates of all open nodes, likewise.
    candidates: Vec<(u64, u32)>,
}

/// Unplaced buffers, a range of [`State::open`], that together cover a range of sections.
#[derive(Clone, Copy)]
struct Part {
    from: usize,
    to: usize,
    first: usize,
    last: usize,
}

/// Lists of numbers, one after the other.
#[derive(Debug)]
struct Lists {
    starts: Vec<usize>,
    items: Vec<u32>,
}

impl Lists {
    fn new(lists: impl Iterator<Item = impl Iterator<Item = u32>>) -> Lists {
        let (mut starts, mut items) = (vec![0], Vec::new());
        for list in lists {
            items.extend(list);
            starts.push(items.len());
        }
        Lists { starts, items }
    }

    fn of(&self, index: usize) -> &[u32] {
        &self.items[self.starts[index]..self.starts[index + 1]]
    }
}

/// For each buffer, one like it that is of the rank next before.
fn symmetric(buffers: &[Buffer]) -> Vec<Option<u32>> {
    let mut latest = BTreeMap::new();
    let kinds = buffers.iter().map(|buffer| (buffer.size, buffer.first, buffer.last));
    (0..).zip(kinds).map(|(index, kind)| latest.insert(kind, index)).collect()
}

impl Search {
    /// `order` has the buffers by rank, first to last.
    pub(super) fn new(buffers: &[Buffer], overlaps: &Overlaps, order: &[usize]) -> Search {
        let count = order.len();
        let ranked: Vec<Buffer> = order.iter().map(|&at| buffers[at]).collect();
        let mut rank = vec![0; count];
        (0_u32..).zip(order).for_each(|(place, &at)| rank[at] = place);
        let sections = ranked.iter().map(|buffer| buffer.last).max().unwrap_or(0);

        let mut members = vec![Vec::new(); sections];
        let (mut rest, mut crossing) = (vec![0; sections], vec![0; sections]);
        for (index, buffer) in (0_u32..).zip(&ranked) {
            let own = buffer.first..buffer.last;
            members[own.clone()].iter_mut().for_each(|members: &mut Vec<u32>| members.push(index));
            rest[own].iter_mut().for_each(|rest| *rest += buffer.size);
            crossing[buffer.first..buffer.last - 1].iter_mut().for_each(|crossing| *crossing += 1);
        }
        let neighbours = Lists::new(order.iter().map(|&at| overlaps.of(at).iter().map(|&other| rank[other])));
        let least = order.iter().map(|&at| overlaps.of(at).iter().map(|&other| buffers[other].size).min());
        let state = State {
            floor: vec![0; count],
            rest,
            crossing,
            candidate: members.iter().map(|members| members.first().copied().unwrap_or(0)).collect(),
            log: Vec::new(),
            open: (0..count as u32).collect(),
            candidates: Vec::new(),
        };
        Search {
            overlaps: neighbours,
            members: Lists::new(members.into_iter().map(Vec::into_iter)),
            least: least.map(|least| least.unwrap_or(NEVER)).collect(),
            symmetric: symmetric(&ranked),
            buffers: ranked,
            capacity: 0,
            nodes: 0,
            depth: 0,
            state,
            failures: vec![0; sections],
            offsets: vec![0; count],
        }
    }

    /// Where the buffers are placed, by rank. Complete when a placement was found.
    pub(super) fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// How often each section was the reason to give up a node.
    pub(super) fn failures(&self) -> &[u64] {
        &self.failures
    }

    /// Looks for a placement of at most this height, for at most so many nodes.
    pub(super) fn run(&mut self, capacity: u64, nodes: u64, budget: &mut Budget) -> Outcome {
        (self.capacity, self.nodes) = (capacity, nodes);
        if self.state.rest.iter().any(|&rest| rest > capacity) {
            return Outcome::Impossible;
        }
        let part = Part { from: 0, to: self.state.open.len(), first: 0, last: self.state.rest.len() };
        self.descend(part, (0, 0), budget)
    }

    /// BlockTable all buffers of a part, the first not before `last`.
    fn descend(&mut self, part: Part, last: (u64, u32), budget: &mut Budget) -> Outcome {
        if part.from == part.to {
            return Outcome::Found;
        }
        let begin = self.state.candidates.len();
        self.push_candidates(part, last);
        let end = self.state.candidates.len();
        let mut outcome = Outcome::Impossible;
        for at in begin..end {
            if self.nodes == 0 || self.depth == DEEPEST || !budget.step() {
                outcome = Outcome::Undecided;
                break;
            }
            self.nodes -= 1;
            self.depth += 1;
            let candidate = self.state.candidates[at];
            let logged = self.state.log.len();
            outcome = match self.place(candidate) && self.is_possible(part, candidate) {
                true => self.branch(part, candidate, budget),
                false => Outcome::Impossible,
            };
            self.take_back(candidate, logged);
            self.depth -= 1;
            if outcome != Outcome::Impossible {
                break;
            }
        }
        self.state.candidates.truncate(begin);
        outcome
    }

    fn push_candidates(&mut self, part: Part, last: (u64, u32)) {
        let State { floor, open, candidates, .. } = &mut self.state;
        let begin = candidates.len();
        let open = &open[part.from..part.to];
        let ends = open.iter().map(|&index| floor[index as usize] + self.buffers[index as usize].size);
        let lowest_end = ends.min().unwrap_or(0);
        for &index in open {
            let offset = floor[index as usize];
            let symmetric_first =
                || self.symmetric[index as usize].is_some_and(|other| floor[other as usize] != PLACED);
            if offset < lowest_end && (offset, index) >= last && !symmetric_first() {
                candidates.push((offset, index));
            }
        }
        candidates[begin..].sort_unstable();
    }

    /// BlockTable a buffer. False when another's floor gets too high.
    fn place(&mut self, (offset, index): (u64, u32)) -> bool {
        let State { floor, rest, crossing, log, .. } = &mut self.state;
        let Buffer { size, first, last, .. } = self.buffers[index as usize];
        self.offsets[index as usize] = offset;
        floor[index as usize] = PLACED;
        rest[first..last].iter_mut().for_each(|rest| *rest -= size);
        crossing[first..last - 1].iter_mut().for_each(|crossing| *crossing -= 1);
        let end = offset + size;
        let mut fits = true;
        for &other in self.overlaps.of(index as usize) {
            let floor = &mut floor[other as usize];
            if *floor < end {
                log.push((other, *floor));
                *floor = end;
                if end + self.buffers[other as usize].size > self.capacity {
                    fits = false;
                    self.failures[self.buffers[other as usize].first] += 1;
                }
            }
        }
        fits
    }

    fn take_back(&mut self, (offset, index): (u64, u32), logged: usize) {
        let State { floor, rest, crossing, log, .. } = &mut self.state;
        let Buffer { size, first, last, .. } = self.buffers[index as usize];
        log.drain(logged..).for_each(|(other, before)| floor[other as usize] = before);
        floor[index as usize] = offset;
        rest[first..last].iter_mut().for_each(|rest| *rest += size);
        crossing[first..last - 1].iter_mut().for_each(|crossing| *crossing += 1);
    }

    /// Whether all sections of a part can still hold what is to be placed there, after `last` was placed.
    fn is_possible(&mut self, part: Part, last: (u64, u32)) -> bool {
        let State { floor, rest, candidate, .. } = &mut self.state;
        for section in part.first..part.last {
            if rest[section] == 0 {
                continue;
            }
            let Some(highest) = self.capacity.checked_sub(rest[section]) else {
                self.failures[section] += 1;
                return false;
            };
            let goes_low = |index: u32| {
                let offset = floor[index as usize];
                let passed_over = (offset, index) < last;
                let lowest = if passed_over { offset.max(last.0 + self.least[index as usize]) } else { offset };
                lowest <= highest
            };
            if !goes_low(candidate[section]) {
                match self.members.of(section).iter().find(|&&index| goes_low(index)) {
                    Some(&index) => candidate[section] = index,
                    None => {
                        self.failures[section] += 1;
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Goes on below a buffer that was placed: with the rest of its part, or with each of the parts into which that falls.
    fn branch(&mut self, part: Part, last: (u64, u32), budget: &mut Budget) -> Outcome {
        let begin = self.state.open.len();
        let placed = &self.buffers[last.1 as usize];
        let (first_cut, last_cut) = (placed.first, placed.last - 1);
        let mut from = part.first;
        let mut outcome = Outcome::Found;
        for boundary in (first_cut..last_cut).chain([part.last - 1]) {
            if boundary + 1 < part.last && self.state.crossing[boundary] > 0 {
                continue;
            }
            let to = boundary + 1;
            for at in part.from..part.to {
                let index = self.state.open[at];
                let first = self.buffers[index as usize].first;
                if index != last.1 && from <= first && first < to {
                    self.state.open.push(index);
                }
            }
            let below = Part { from: begin, to: self.state.open.len(), first: from, last: to };
            outcome = self.descend(below, last, budget);
            self.state.open.truncate(begin);
            if outcome != Outcome::Found {
                break;
            }
            from = to;
        }
        outcome
    }
}
