//! Works on a placement above the lower bound: searches for lower ones, by several ranks of the buffers and for falling heights.

use super::budget::Budget;
use super::problem::{Buffer, Problem};
use super::search::{Outcome, Search};

/// The most buffers of one component that are searched: the search goes as deep.
const MOST: usize = 1000;

/// Buffers that no other connects, through its lifetime, with the rest.
#[derive(Debug)]
struct Component {
    /// Their numbers.
    indices: Vec<usize>,
    buffers: Vec<Buffer>,
    /// For each, the most that is live in one of its sections.
    pressure: Vec<u64>,
    sections: usize,
    /// No placement is lower.
    bound: u64,
    /// The height of the best placement yet.
    height: u64,
    rounds: u64,
    random: Random,
}

/// Improves a placement until it is as high as the lower bound, or nothing is left of the budget. Whether it got lower.
pub(super) fn improve(problem: &Problem, by_begin: &[usize], offsets: &mut [u64], budget: &mut Budget) -> bool {
    let before = problem.height(offsets);
    let mut components = components(problem, by_begin, offsets);
    let goal = problem.bound();
    while let Some(worst) = components.iter_mut().max_by_key(|component| component.height) {
        let goal = goal.max(worst.bound);
        if worst.height <= goal || worst.buffers.len() > MOST || !budget.is_left() {
            break;
        }
        worst.round(goal, offsets, budget);
    }
    problem.height(offsets) < before
}

fn components(problem: &Problem, by_begin: &[usize], offsets: &[u64]) -> Vec<Component> {
    let mut components: Vec<Component> = Vec::new();
    let (mut start, mut reach) = (0, 0);
    for &index in by_begin {
        let mut buffer = problem.buffers[index];
        if buffer.first >= reach {
            start = buffer.first;
            components.push(Component {
                indices: Vec::new(),
                buffers: Vec::new(),
                pressure: Vec::new(),
                sections: 0,
                bound: 0,
                height: 0,
                rounds: 0,
                random: Random(0x9e37_79b9_7f4a_7c15),
            });
        }
        reach = reach.max(buffer.last);
        let Some(component) = components.last_mut() else { continue };
        let pressure = problem.live[buffer.first..buffer.last].iter().copied().max().unwrap_or(0);
        component.pressure.push(pressure);
        component.bound = component.bound.max(pressure);
        component.height = component.height.max(offsets[index] + buffer.size);
        component.sections = reach - start;
        buffer.first -= start;
        buffer.last -= start;
        component.buffers.push(buffer);
        component.indices.push(index);
    }
    components
}

/// By what the buffers are ranked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Key {
    Pressure,
    Area,
    Sections,
    Size,
}

const RANKS: [[Key; 3]; 6] = [
    [Key::Sections, Key::Area, Key::Pressure],
    [Key::Pressure, Key::Area, Key::Sections],
    [Key::Pressure, Key::Sections, Key::Area],
    [Key::Area, Key::Pressure, Key::Sections],
    [Key::Size, Key::Area, Key::Pressure],
    [Key::Sections, Key::Size, Key::Pressure],
];

impl Component {
    /// One search.
    fn round(&mut self, goal: u64, offsets: &mut [u64], budget: &mut Budget) {
        let round = self.rounds;
        self.rounds += 1;
        let which = round as usize % (2 * RANKS.len());
        let level = round / (2 * RANKS.len() as u64);
        let target = if which % 2 == 0 { goal } else { goal + (self.height - goal) / 2 };
        let nodes = (self.buffers.len() as u64 * 2) << level.min(40);
        let order = self.ranked(RANKS[which / 2], level);
        let buffers = order.iter().map(|&at| self.buffers[at]).collect();
        let mut search = Search::new(buffers, self.sections);
        match search.run(target, nodes, budget) {
            Outcome::Found => {
                let placed = order.iter().zip(&search.offsets);
                placed.clone().for_each(|(&at, &offset)| offsets[self.indices[at]] = offset);
                self.height = placed.map(|(&at, &offset)| offset + self.buffers[at].size).max().unwrap_or(0);
            }
            Outcome::Impossible => self.bound = self.bound.max(target + 1),
            Outcome::Undecided => {}
        }
    }

    fn ranked(&mut self, keys: [Key; 3], level: u64) -> Vec<usize> {
        let noise: Vec<f64> =
            (0..self.buffers.len()).map(|_| if level == 0 { 1.0 } else { 1.0 + 0.3 * self.random.unit() }).collect();
        let value = |at: usize, key: Key| {
            let buffer = &self.buffers[at];
            noise[at]
                * match key {
                    Key::Pressure => self.pressure[at] as f64,
                    Key::Area => buffer.area() as f64,
                    Key::Sections => (buffer.last - buffer.first) as f64,
                    Key::Size => buffer.size as f64,
                }
        };
        let mut order: Vec<usize> = (0..self.buffers.len()).collect();
        order.sort_by(|&a, &b| {
            let compare = |key: &Key| value(b, *key).total_cmp(&value(a, *key));
            keys.iter().map(compare).find(|order| order.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
        });
        order
    }
}

/// A small generator (splitmix64): the same numbers every time.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// In [0, 1).
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
