//! The ranks by which a search prefers one buffer to another of the same offset.

use super::problem::Buffer;
use std::cmp::Ordering;

/// How far the numbers behind a rank are changed at random, as a part of them.
const NOISE: f64 = 0.3;

/// How much of a section's weight is left after the next search.
const MEMORY: f64 = 0.9;

/// What a buffer is ranked by: more goes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Key {
    /// The weights of its sections: how often they made earlier searches give up.
    Conflicts,
    /// These, times its size.
    ConflictArea,
    /// The most that is live in one of its sections.
    Pressure,
    /// Its size, times its duration.
    Area,
    /// How many sections it lies in.
    Sections,
    /// Its size.
    Size,
}

/// The ranks that are taken in turn. Where the first key is the same the next decides.
///
/// Those by conflict weight are what solves most cases: they have the buffers of crowded sections placed first, where these can still be fitted together.
pub(super) const RANKS: [[Key; 3]; 8] = [
    [Key::Conflicts, Key::Area, Key::Pressure],
    [Key::ConflictArea, Key::Area, Key::Pressure],
    [Key::Sections, Key::Area, Key::Pressure],
    [Key::Pressure, Key::Area, Key::Sections],
    [Key::Pressure, Key::Sections, Key::Area],
    [Key::Area, Key::Pressure, Key::Sections],
    [Key::Size, Key::Area, Key::Pressure],
    [Key::Sections, Key::Size, Key::Pressure],
];

/// What is known of each section, for ranks.
#[derive(Debug)]
pub(super) struct Weights {
    live: Vec<u64>,
    conflicts: Vec<f64>,
    random: Random,
}

impl Weights {
    /// What is live in each section.
    pub(super) fn new(live: Vec<u64>) -> Weights {
        let conflicts = vec![0.0; live.len()];
        Weights { live, conflicts, random: Random(0) }
    }

    /// Learns from a search how often each section made it give up a node.
    pub(super) fn learn(&mut self, failures: &[u64]) {
        let all = failures.iter().sum::<u64>().max(1) as f64;
        for (conflicts, &failures) in self.conflicts.iter_mut().zip(failures) {
            *conflicts = *conflicts * MEMORY + failures as f64 / all;
        }
    }

    /// The buffers by rank. With noise, another one each time.
    pub(super) fn order(&mut self, buffers: &[Buffer], keys: [Key; 3], noise: bool) -> Vec<usize> {
        let values: Vec<[f64; 3]> = buffers
            .iter()
            .map(|buffer| {
                let factor = if noise { 1.0 + NOISE * self.random.unit() } else { 1.0 };
                keys.map(|key| self.value(buffer, key) * factor)
            })
            .collect();
        let mut order: Vec<usize> = (0..buffers.len()).collect();
        order.sort_by(|&a, &b| {
            let pairs = values[b].iter().zip(&values[a]);
            pairs.map(|(b, a)| b.total_cmp(a)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
        });
        order
    }

    fn value(&self, buffer: &Buffer, key: Key) -> f64 {
        let sections = buffer.first..buffer.last;
        let conflicts = || self.conflicts[sections.clone()].iter().sum::<f64>();
        match key {
            Key::Conflicts => conflicts(),
            Key::ConflictArea => conflicts() * buffer.size as f64,
            Key::Pressure => self.live[sections].iter().max().map_or(0.0, |&live| live as f64),
            Key::Area => buffer.area() as f64,
            Key::Sections => sections.len() as f64,
            Key::Size => buffer.size as f64,
        }
    }
}

/// A small generator (splitmix64): the same numbers every time.
#[derive(Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
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
