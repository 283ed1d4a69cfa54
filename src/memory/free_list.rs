//! The free blocks of one stream, in the order of best fit.

use std::collections::BTreeSet;

/// A free block. The order is that of best fit: by size, and of one size by address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Free {
    pub(crate) bytes: usize,
    pub(crate) address: u64,
    pub(crate) index: usize,
}

/// The free blocks of one stream.
#[derive(Debug, Default)]
pub(crate) struct FreeList {
    by_size: BTreeSet<Free>,
}

impl FreeList {
    pub(crate) fn insert(&mut self, free: Free) {
        let new = self.by_size.insert(free);
        debug_assert!(new, "listed twice: {free:?}");
    }

    pub(crate) fn remove(&mut self, free: &Free) {
        let there = self.by_size.remove(free);
        debug_assert!(there, "not listed: {free:?}");
    }

    /// The smallest that holds the bytes, and of several the one at the lowest address.
    pub(crate) fn best_fit(&self, bytes: usize) -> Option<Free> {
        self.by_size.range(Free { bytes, address: 0, index: 0 }..).next().copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Free> {
        self.by_size.iter()
    }
}
