//! The blocks of all slabs, free and live, each linked with its neighbours of the same slab.

use super::free_list::Free;
use super::ids::StreamKey;

/// A block, free or live, or a place that holds none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockNode {
    pub(crate) stream: StreamKey,
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    /// Of the last live block here.
    pub(crate) generation: u64,
    pub(crate) state: State,
    before: Option<usize>,
    after: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Free,
    Live,
    /// The place holds no block.
    Empty,
}

/// Blocks by index. Places that hold no block are used again.
#[derive(Debug, Default)]
pub(crate) struct BlockTable {
    all: Vec<BlockNode>,
    empty: Vec<usize>,
}

impl BlockNode {
    /// A free block without neighbours: a whole slab.
    pub(crate) fn new(stream: StreamKey, address: u64, bytes: usize) -> BlockNode {
        BlockNode { stream, address, bytes, generation: 0, state: State::Free, before: None, after: None }
    }

    /// The neighbour at the higher address.
    #[cfg(test)]
    pub(crate) fn after(&self) -> Option<usize> {
        self.after
    }
}

impl BlockTable {
    pub(crate) fn put(&mut self, place: BlockNode) -> usize {
        match self.empty.pop() {
            Some(index) => {
                self.all[index] = place;
                index
            }
            None => {
                self.all.push(place);
                self.all.len() - 1
            }
        }
    }

    /// Makes the place one that holds no block. Its neighbours are not told.
    pub(crate) fn take_out(&mut self, index: usize) {
        self.all[index].state = State::Empty;
        self.empty.push(index);
    }

    pub(crate) fn get(&self, index: usize) -> &BlockNode {
        &self.all[index]
    }

    /// As [`get`](BlockTable::get), of an index that may be none of these.
    pub(crate) fn find(&self, index: usize) -> Option<&BlockNode> {
        self.all.get(index)
    }

    /// Cuts a free block, which is in no list, to size. The rest is a free block after it; `None` when there is no rest.
    pub(crate) fn split(&mut self, index: usize, bytes: usize) -> Option<Free> {
        let whole = self.all[index];
        if whole.bytes <= bytes {
            return None;
        }
        let rest = self.put(BlockNode {
            address: whole.address + bytes as u64,
            bytes: whole.bytes - bytes,
            generation: 0,
            before: Some(index),
            ..whole
        });
        if let Some(after) = whole.after {
            self.all[after].before = Some(rest);
        }
        self.all[index].after = Some(rest);
        self.all[index].bytes = bytes;
        Some(self.entry(rest))
    }

    /// Makes a free block, which is in no list, a live one.
    pub(crate) fn occupy(&mut self, index: usize, generation: u64) {
        let place = &mut self.all[index];
        place.state = State::Live;
        place.generation = generation;
    }

    /// The neighbours that are free, as they stand in the free list.
    pub(crate) fn free_neighbours(&self, index: usize) -> (Option<Free>, Option<Free>) {
        let place = &self.all[index];
        let free = |neighbour: usize| (self.all[neighbour].state == State::Free).then(|| self.entry(neighbour));
        (place.before.and_then(free), place.after.and_then(free))
    }

    /// Makes a live block a free one, joined with its free neighbours, which are in no list any more. Gives the joined block, to be listed.
    pub(crate) fn vacate(&mut self, index: usize) -> Free {
        let mut place = self.all[index];
        place.state = State::Free;
        self.all[index].state = State::Free;
        if let Some(after) = place.after.filter(|&after| self.all[after].state == State::Free) {
            self.swallow(index, after);
        }
        match place.before.filter(|&before| self.all[before].state == State::Free) {
            Some(before) => {
                self.swallow(before, index);
                self.entry(before)
            }
            None => self.entry(index),
        }
    }

    /// Makes `index` take over the bytes of `after`, its neighbour.
    fn swallow(&mut self, index: usize, after: usize) {
        let swallowed = self.all[after];
        self.all[index].bytes += swallowed.bytes;
        self.all[index].after = swallowed.after;
        if let Some(next) = swallowed.after {
            self.all[next].before = Some(index);
        }
        self.take_out(after);
    }

    fn entry(&self, index: usize) -> Free {
        let place = &self.all[index];
        Free { bytes: place.bytes, address: place.address, index }
    }

    #[cfg(test)]
    pub(crate) fn blocks(&self) -> usize {
        self.all.len() - self.empty.len()
    }
}
