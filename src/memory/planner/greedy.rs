//! Greedy placement: one buffer after the other, each into a gap between those that are placed already.

use super::problem::{Buffer, Overlaps, Problem};
use super::types::Method;

/// Which gap a buffer takes, of those that hold it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fit {
    /// The lowest.
    First,
    /// The smallest, and of several the lowest; the space above all others only where there is no gap.
    Best,
}

/// The orders that are tried.
pub(super) const METHODS: [Method; 4] =
    [Method::GreedyBySize, Method::GreedyByArea, Method::GreedyByDuration, Method::GreedyByConflicts];

/// Best fit at each moment: buffers come in order of their begin, and leave at their end. `order` is that order.
pub(super) fn online(problem: &Problem, order: &[usize]) -> Vec<u64> {
    let mut offsets = vec![0; problem.buffers.len()];
    // The live buffers as (offset, end, last section), by offset.
    let mut live: Vec<(u64, u64, usize)> = Vec::new();
    for &index in order {
        let buffer = &problem.buffers[index];
        live.retain(|&(_, _, last)| last > buffer.first);
        let offset = gap(live.iter().map(|&(offset, end, _)| (offset, end)), buffer.size, Fit::Best);
        offsets[index] = offset;
        let at = live.partition_point(|&(other, _, _)| other < offset);
        live.insert(at, (offset, offset + buffer.size, buffer.last));
    }
    offsets
}

/// BlockTable all buffers in this order.
pub(super) fn place(problem: &Problem, overlaps: &Overlaps, order: &[usize], fit: Fit) -> Vec<u64> {
    const UNPLACED: u64 = u64::MAX;
    let mut offsets = vec![UNPLACED; problem.buffers.len()];
    let mut placed: Vec<(u64, u64)> = Vec::new();
    for &index in order {
        let others = overlaps.of(index).iter().filter(|&&other| offsets[other] != UNPLACED);
        placed.clear();
        placed.extend(others.map(|&other| (offsets[other], offsets[other] + problem.buffers[other].size)));
        placed.sort_unstable();
        offsets[index] = gap(placed.iter().copied(), problem.buffers[index].size, fit);
    }
    offsets
}

/// Where a buffer goes among others, which come as (offset, end) by offset and may overlap.
fn gap(others: impl Iterator<Item = (u64, u64)>, size: u64, fit: Fit) -> u64 {
    let (mut top, mut best) = (0, None);
    for (offset, end) in others {
        let space = offset.saturating_sub(top);
        if space >= size {
            if fit == Fit::First {
                return top;
            }
            if best.is_none_or(|(least, _)| space < least) {
                best = Some((space, top));
            }
        }
        top = top.max(end);
    }
    best.map_or(top, |(_, at)| at)
}

/// The buffers in the order of a method; those that are equal in it by begin, as in `by_begin`.
pub(super) fn order(problem: &Problem, overlaps: &Overlaps, by_begin: &[usize], method: Method) -> Vec<usize> {
    let conflicts = |index: usize| {
        let others = overlaps.of(index).iter().map(|&other| u128::from(problem.buffers[other].size)).sum::<u128>();
        others + u128::from(problem.buffers[index].size)
    };
    let key = |index: usize| {
        let buffer: &Buffer = &problem.buffers[index];
        let (size, duration) = (u128::from(buffer.size), u128::from(buffer.duration));
        match method {
            Method::GreedyBySize => (size, duration),
            Method::GreedyByArea => (buffer.area(), size),
            Method::GreedyByDuration => (duration, size),
            _ => (conflicts(index), size),
        }
    };
    let mut order = by_begin.to_vec();
    order.sort_by_cached_key(|&index| std::cmp::Reverse(key(index)));
    order
}
