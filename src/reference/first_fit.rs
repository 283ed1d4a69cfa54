//! The blocks of a memory pool by first fit, keyed by stream. It is simple on purpose, and shares no code with the allocator that it is to judge.

use super::ids::Handle;
use std::collections::BTreeMap;

/// The free ranges of a pool's slabs.
#[derive(Default)]
pub(super) struct FirstFit {
    /// In the order in which they were added.
    slabs: Vec<Slab>,
}

struct Slab {
    stream: Handle,
    address: u64,
    bytes: usize,
    /// Free ranges by address, with their bytes. No two touch.
    free: BTreeMap<u64, usize>,
}

/// `bytes` up to a multiple of `unit`; `None` where there is no such number.
pub(super) fn round_up(bytes: usize, unit: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(unit)
}

impl Slab {
    fn is_free(&self) -> bool {
        self.free.get(&self.address) == Some(&self.bytes)
    }
}

impl FirstFit {
    /// Adds a slab for a stream, wholly free.
    pub(super) fn add_slab(&mut self, stream: Handle, address: u64, bytes: usize) {
        self.slabs.push(Slab { stream, address, bytes, free: BTreeMap::from([(address, bytes)]) });
    }

    /// The first free range of the stream that holds this many bytes, cut to size: its address.
    pub(super) fn take(&mut self, stream: Handle, bytes: usize) -> Option<u64> {
        for slab in self.slabs.iter_mut().filter(|slab| slab.stream == stream) {
            let found = slab.free.iter().find(|(_, free)| **free >= bytes).map(|(address, free)| (*address, *free));
            if let Some((address, free)) = found {
                slab.free.remove(&address);
                if free > bytes {
                    slab.free.insert(address + bytes as u64, free - bytes);
                }
                return Some(address);
            }
        }
        None
    }

    /// Takes back what [`take`](FirstFit::take) gave.
    pub(super) fn give(&mut self, address: u64, bytes: usize) {
        let within = |slab: &&mut Slab| (slab.address..slab.address + slab.bytes as u64).contains(&address);
        let Some(slab) = self.slabs.iter_mut().find(within) else { return };
        let (mut start, mut length) = (address, bytes);
        if let Some((&before, &free)) = slab.free.range(..address).next_back()
            && before + free as u64 == address
        {
            slab.free.remove(&before);
            (start, length) = (before, length + free);
        }
        if let Some(free) = slab.free.remove(&(address + bytes as u64)) {
            length += free;
        }
        slab.free.insert(start, length);
    }

    /// Takes away the first slab that is wholly free: its address and bytes.
    pub(super) fn take_free_slab(&mut self) -> Option<(u64, usize)> {
        let at = self.slabs.iter().position(Slab::is_free)?;
        let slab = self.slabs.remove(at);
        Some((slab.address, slab.bytes))
    }

    /// All slabs, each with its address and bytes.
    pub(super) fn slabs(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        self.slabs.iter().map(|slab| (slab.address, slab.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SLAB: usize = 16;

    #[test]
    fn the_first_range_that_is_large_enough_is_taken() {
        let mut pool = FirstFit::default();
        pool.add_slab(1, 1000, 64);
        assert_eq!([pool.take(1, 16), pool.take(1, 8), pool.take(1, 16)], [Some(1000), Some(1016), Some(1024)]);
        pool.give(1016, 8);
        assert_eq!(pool.take(1, 16), Some(1040), "the hole of 8 is too small");
        assert_eq!(pool.take(1, 8), Some(1016));
        assert_eq!(pool.take(1, 16), None);
    }

    #[test]
    fn free_neighbours_are_joined_and_a_slab_that_is_free_can_go() {
        let mut pool = FirstFit::default();
        pool.add_slab(1, 1000, 48);
        for address in [1000, 1016, 1032] {
            assert_eq!(pool.take(1, 16), Some(address));
        }
        for address in [1000, 1032, 1016] {
            assert_eq!(pool.take_free_slab(), None);
            pool.give(address, 16);
        }
        assert_eq!(pool.take_free_slab(), Some((1000, 48)));
        assert_eq!(pool.take(1, 8), None);
    }

    #[test]
    fn streams_have_slabs_of_their_own() {
        let mut pool = FirstFit::default();
        pool.add_slab(1, 1000, 16);
        assert_eq!(pool.take(2, 8), None);
        pool.add_slab(2, 2000, 16);
        assert_eq!((pool.take(2, 8), pool.take(1, 8)), (Some(2000), Some(1000)));
    }

    proptest! {
        /// Against a map of which bytes are taken: what is given is free, of the stream's slabs, and the lowest place in the first slab that has one.
        #[test]
        fn it_agrees_with_a_map_of_bytes(steps in prop::collection::vec((0_usize..3, 1_usize..10, 0_usize..32), 1..200)) {
            let mut pool = FirstFit::default();
            let slabs = [(0_usize, 100_u64), (1, 200), (0, 300)];
            for (stream, address) in slabs {
                pool.add_slab(stream, address, SLAB);
            }
            let mut taken = [[false; SLAB]; 3];
            let mut out: Vec<(u64, usize)> = Vec::new();
            for (action, bytes, pick) in steps {
                if action < 2 {
                    let expected = slabs.iter().zip(&taken).filter(|((stream, _), _)| *stream == action).find_map(|((_, base), taken)| {
                        (0..=SLAB - bytes).find(|at| taken[*at..at + bytes].iter().all(|taken| !taken)).map(|at| base + at as u64)
                    });
                    prop_assert_eq!(pool.take(action, bytes), expected);
                    if let Some(address) = expected {
                        out.push((address, bytes));
                        taken[address as usize / 100 - 1][address as usize % 100..][..bytes].fill(true);
                    }
                } else if !out.is_empty() {
                    let (address, bytes) = out.swap_remove(pick % out.len());
                    pool.give(address, bytes);
                    taken[address as usize / 100 - 1][address as usize % 100..][..bytes].fill(false);
                }
            }
            for (address, bytes) in out {
                pool.give(address, bytes);
            }
            let mut free = Vec::new();
            while let Some((address, bytes)) = pool.take_free_slab() {
                prop_assert_eq!(bytes, SLAB);
                free.push(address);
            }
            prop_assert_eq!(free, [100, 200, 300]);
        }
    }
}
