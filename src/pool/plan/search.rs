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
use super::problem::Buffer;

/// The floor of a buffer that is placed.
const PLACED: u64 = u64::MAX;

/// How a search ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// There is a placement.
    Found,
    /// There is none.
    Impossible,
    /// The nodes are used up.
    Undecided,
}

/// A search over buffers in order of their rank. Their sections are numbered from 0, and each boundary between two is crossed by one.
#[derive(Debug)]
pub(super) struct Search {
    buffers: Vec<Buffer>,
    overlaps: Lists,
    members: Lists,
    /// The smallest buffer that is live together with each.
    least: Vec<u64>,
    /// A buffer like it of the rank next before.
    twin: Vec<Option<u32>>,
    capacity: u64,
    nodes: u64,
    state: State,
    /// Where the buffers are placed; complete when a placement was found.
    pub(super) offsets: Vec<u64>,
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
    witness: Vec<u32>,
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
    starts: Vec<u32>,
    items: Vec<u32>,
}

impl Lists {
    fn new(lists: impl Iterator<Item = Vec<u32>>) -> Lists {
        let (mut starts, mut items) = (vec![0], Vec::new());
        for list in lists {
            items.extend(list);
            starts.push(items.len() as u32);
        }
        Lists { starts, items }
    }

    fn range(&self, index: usize) -> std::ops::Range<usize> {
        self.starts[index] as usize..self.starts[index + 1] as usize
    }

    fn of(&self, index: usize) -> &[u32] {
        &self.items[self.range(index)]
    }
}

impl Search {
    /// The buffers in order of their rank.
    pub(super) fn new(buffers: Vec<Buffer>, sections: usize) -> Search {
        let count = buffers.len();
        let mut members = vec![Vec::new(); sections];
        let mut rest = vec![0; sections];
        let mut crossing = vec![0; sections];
        for (index, buffer) in buffers.iter().enumerate() {
            for section in buffer.first..buffer.last {
                members[section].push(index as u32);
                rest[section] += buffer.size;
            }
            crossing[buffer.first..buffer.last - 1].iter_mut().for_each(|crossing| *crossing += 1);
        }
        let overlaps = Lists::new(buffers.iter().enumerate().map(|(index, buffer)| {
            let meets = |(other, _): &(usize, &Buffer)| *other != index;
            let others = buffers.iter().enumerate().filter(meets);
            others
                .filter(|(_, other)| other.first < buffer.last && buffer.first < other.last)
                .map(|(other, _)| other as u32)
                .collect()
        }));
        let least = (0..count).map(|index| {
            overlaps.of(index).iter().map(|&other| buffers[other as usize].size).min().unwrap_or(u64::MAX / 4)
        });
        let least = least.collect();
        let twin = (0..count).map(|index| {
            let own = &buffers[index];
            let like = |other: &Buffer| (other.size, other.first, other.last) == (own.size, own.first, own.last);
            buffers[..index].iter().rposition(like).map(|other| other as u32)
        });
        let twin = twin.collect();
        let witness = members.iter().map(|members| members.first().copied().unwrap_or(0)).collect();
        let state = State {
            floor: vec![0; count],
            rest,
            crossing,
            witness,
            log: Vec::new(),
            open: (0..count as u32).collect(),
            candidates: Vec::new(),
        };
        let members = Lists::new(members.into_iter());
        Search { buffers, overlaps, members, least, twin, capacity: 0, nodes: 0, state, offsets: vec![0; count] }
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

    /// Places all buffers of a part, the first not before `last`.
    fn descend(&mut self, part: Part, last: (u64, u32), budget: &mut Budget) -> Outcome {
        if part.from == part.to {
            return Outcome::Found;
        }
        let begin = self.state.candidates.len();
        self.push_candidates(part, last);
        let end = self.state.candidates.len();
        let mut outcome = Outcome::Impossible;
        for at in begin..end {
            if self.nodes == 0 || !budget.step() {
                outcome = Outcome::Undecided;
                break;
            }
            self.nodes -= 1;
            let candidate = self.state.candidates[at];
            let logged = self.state.log.len();
            outcome = match self.place(candidate) && self.is_possible(part, candidate) {
                true => self.branch(part, candidate, budget),
                false => Outcome::Impossible,
            };
            self.take_back(candidate, logged);
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
            let twin_first = || self.twin[index as usize].is_some_and(|twin| floor[twin as usize] != PLACED);
            if offset < lowest_end && (offset, index) >= last && !twin_first() {
                candidates.push((offset, index));
            }
        }
        candidates[begin..].sort_unstable();
    }

    /// Places a buffer. False when another's floor gets too high.
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
                fits &= end + self.buffers[other as usize].size <= self.capacity;
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
        let State { floor, rest, witness, .. } = &mut self.state;
        for section in part.first..part.last {
            if rest[section] == 0 {
                continue;
            }
            let Some(highest) = self.capacity.checked_sub(rest[section]) else {
                return false;
            };
            let goes_low = |index: u32| {
                let offset = floor[index as usize];
                let passed_over = (offset, index) < last;
                let lowest = if passed_over { offset.max(last.0 + self.least[index as usize]) } else { offset };
                lowest <= highest
            };
            if !goes_low(witness[section]) {
                match self.members.of(section).iter().find(|&&index| goes_low(index)) {
                    Some(&index) => witness[section] = index,
                    None => return false,
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
