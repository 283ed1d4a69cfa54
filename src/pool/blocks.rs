//! The arithmetic of the capture pool: which bytes of which slab serve a request. It knows no driver: slabs are ranges of addresses that are
//! given to it.
//!
//! Online best fit, keyed by stream: a request gets the smallest free block of its stream that holds it, the rest of that block stays free, and
//! a block that is released joins its free neighbours of the same slab. No operation looks at more than a logarithm of the blocks.
//!
//! Invariants:
//! 1. The blocks of a slab tile it: no overlap, no gap.
//! 2. No two neighbours of a slab are both free.
//! 3. A block is in the list of free blocks exactly when it is free.
#![deny(unsafe_code)]

use std::collections::{BTreeSet, HashMap};

/// Names a stream: free blocks of one stream never serve another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct StreamKey(pub(crate) u64);

/// Names a block from its allocation to its release. A later block in the same place has another id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct BlockId {
    index: usize,
    generation: u64,
}

/// Names a slab.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct SlabId(u64);

/// A block that was allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Block {
    pub(crate) id: BlockId,
    pub(crate) address: u64,
    /// The request, rounded up to [`ALIGNMENT`].
    pub(crate) bytes: usize,
}

/// An id whose block was released already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StaleBlock;

/// A slab that is not there, or of which a block is out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SlabInUse;

/// Bytes and blocks in all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct BlockStats {
    /// Bytes of slabs.
    pub(crate) reserved: usize,
    /// Bytes of blocks that are out.
    pub(crate) in_use: usize,
    /// The most of these at once, ever.
    pub(crate) peak: usize,
    /// Blocks that are out.
    pub(crate) blocks_in_use: usize,
}

/// What every block is aligned to and a multiple of: what the driver's own allocations are.
pub(crate) const ALIGNMENT: usize = 512;

/// What a slab is a multiple of.
pub(crate) const SLAB_BYTES: usize = 2 << 20;

/// The blocks of a pool.
#[derive(Default)]
pub(crate) struct Blocks {
    /// Places for blocks, free and out; those not in use are listed in `spare`.
    places: Vec<Place>,
    spare: Vec<usize>,
    free: BTreeSet<Free>,
    slabs: HashMap<SlabId, SlabInfo>,
    next_slab: u64,
    next_generation: u64,
    stats: BlockStats,
}

/// The order of best fit: the smallest that holds the request, and of these the lowest address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Free {
    stream: StreamKey,
    bytes: usize,
    address: u64,
    index: usize,
}

#[derive(Clone, Copy)]
struct Place {
    stream: StreamKey,
    slab: SlabId,
    address: u64,
    bytes: usize,
    generation: u64,
    state: BlockState,
    before: Option<usize>,
    after: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BlockState {
    Free,
    Out,
    /// The place holds no block.
    None,
}

struct SlabInfo {
    bytes: usize,
    first: usize,
}

impl Blocks {
    /// No slabs yet.
    pub(crate) fn new() -> Blocks {
        Blocks::default()
    }

    /// The size of a slab for a request that no free block holds; `None` when the request is larger than memory.
    pub(crate) fn slab_bytes_for(request: usize) -> Option<usize> {
        request.max(1).checked_next_multiple_of(SLAB_BYTES).filter(|&bytes| bytes <= isize::MAX as usize)
    }

    /// Adds a slab for a stream. Its address is a multiple of [`ALIGNMENT`], and it overlaps no other.
    pub(crate) fn add_slab(&mut self, stream: StreamKey, address: u64, bytes: usize) -> SlabId {
        let slab = SlabId(self.next_slab);
        self.next_slab += 1;
        let first = self.put(Place {
            stream,
            slab,
            address,
            bytes,
            generation: 0,
            state: BlockState::Free,
            before: None,
            after: None,
        });
        self.list(first);
        self.slabs.insert(slab, SlabInfo { bytes, first });
        self.stats.reserved += bytes;
        slab
    }

    /// Takes a slab away of which no block is out.
    pub(crate) fn remove_slab(&mut self, slab: SlabId) -> Result<(), SlabInUse> {
        let info = self.slabs.get(&slab).ok_or(SlabInUse)?;
        let (first, bytes) = (info.first, info.bytes);
        // Free neighbours are joined, so a slab that is wholly free is one block.
        if self.places[first].state != BlockState::Free || self.places[first].bytes != bytes {
            return Err(SlabInUse);
        }
        self.unlist(first);
        self.clear(first);
        self.slabs.remove(&slab);
        self.stats.reserved -= bytes;
        Ok(())
    }

    /// The smallest free block of the stream that holds the request, cut to size. `None`: add a slab first. A request of no bytes gets a block
    /// of its own too.
    pub(crate) fn allocate(&mut self, stream: StreamKey, bytes: usize) -> Option<Block> {
        let bytes = bytes.max(1).checked_next_multiple_of(ALIGNMENT)?;
        let from = Free { stream, bytes, address: 0, index: 0 };
        let found = *self.free.range(from..).next().filter(|free| free.stream == stream)?;
        self.free.remove(&found);
        let index = found.index;
        if found.bytes > bytes {
            let whole = self.places[index];
            let rest = self.put(Place {
                address: whole.address + bytes as u64,
                bytes: whole.bytes - bytes,
                before: Some(index),
                ..whole
            });
            if let Some(after) = whole.after {
                self.places[after].before = Some(rest);
            }
            self.places[index].after = Some(rest);
            self.places[index].bytes = bytes;
            self.list(rest);
        }
        self.next_generation += 1;
        let place = &mut self.places[index];
        place.state = BlockState::Out;
        place.generation = self.next_generation;
        let block = Block { id: BlockId { index, generation: place.generation }, address: place.address, bytes };
        self.stats.in_use += bytes;
        self.stats.blocks_in_use += 1;
        self.stats.peak = self.stats.peak.max(self.stats.in_use);
        Some(block)
    }

    /// Gives a block back.
    pub(crate) fn release(&mut self, id: BlockId) -> Result<(), StaleBlock> {
        if !self.is_out(id) {
            return Err(StaleBlock);
        }
        let mut index = id.index;
        self.stats.in_use -= self.places[index].bytes;
        self.stats.blocks_in_use -= 1;
        self.places[index].state = BlockState::Free;
        if let Some(after) = self.places[index].after.filter(|&after| self.places[after].state == BlockState::Free) {
            self.join(index, after);
        }
        if let Some(before) = self.places[index].before.filter(|&before| self.places[before].state == BlockState::Free)
        {
            self.unlist(before);
            // `index` is not listed yet, so it can be swallowed as it is.
            self.swallow(before, index);
            index = before;
        }
        self.list(index);
        Ok(())
    }

    /// Whether the block is out still.
    pub(crate) fn is_out(&self, id: BlockId) -> bool {
        self.places
            .get(id.index)
            .is_some_and(|place| place.state == BlockState::Out && place.generation == id.generation)
    }

    /// Bytes and blocks in all.
    pub(crate) fn stats(&self) -> BlockStats {
        self.stats
    }

    fn put(&mut self, place: Place) -> usize {
        match self.spare.pop() {
            Some(index) => {
                self.places[index] = place;
                index
            }
            None => {
                self.places.push(place);
                self.places.len() - 1
            }
        }
    }

    fn clear(&mut self, index: usize) {
        self.places[index].state = BlockState::None;
        self.spare.push(index);
    }

    fn entry(&self, index: usize) -> Free {
        let place = &self.places[index];
        Free { stream: place.stream, bytes: place.bytes, address: place.address, index }
    }

    fn list(&mut self, index: usize) {
        self.free.insert(self.entry(index));
    }

    fn unlist(&mut self, index: usize) {
        self.free.remove(&self.entry(index));
    }

    /// Joins a block with the free one after it.
    fn join(&mut self, index: usize, after: usize) {
        self.unlist(after);
        self.swallow(index, after);
    }

    /// Makes `index` take over the bytes of `after`, its neighbour, which is in no list.
    fn swallow(&mut self, index: usize, after: usize) {
        let swallowed = self.places[after];
        self.places[index].bytes += swallowed.bytes;
        self.places[index].after = swallowed.after;
        if let Some(next) = swallowed.after {
            self.places[next].before = Some(index);
        }
        self.clear(after);
    }
}

#[cfg(test)]
mod tests {
    use super::{ALIGNMENT, Block, BlockState, Blocks, SLAB_BYTES, SlabId, SlabInUse, StaleBlock, StreamKey};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const ONE: StreamKey = StreamKey(1);
    const TWO: StreamKey = StreamKey(2);

    /// Addresses that grow, with a gap between slabs.
    struct Arena {
        blocks: Blocks,
        next: u64,
        slabs: Vec<(SlabId, u64, usize)>,
    }

    impl Arena {
        fn new() -> Arena {
            Arena { blocks: Blocks::new(), next: 1 << 32, slabs: Vec::new() }
        }

        fn take(&mut self, stream: StreamKey, bytes: usize) -> Block {
            if let Some(block) = self.blocks.allocate(stream, bytes) {
                return block;
            }
            let slab_bytes = Blocks::slab_bytes_for(bytes).expect("not larger than memory");
            let slab = self.blocks.add_slab(stream, self.next, slab_bytes);
            self.slabs.push((slab, self.next, slab_bytes));
            self.next += slab_bytes as u64 + SLAB_BYTES as u64;
            self.blocks.allocate(stream, bytes).expect("the slab holds the request")
        }

        /// Checks the invariants against what is known to be out.
        fn check(&self, out: &BTreeMap<u64, (Block, StreamKey)>) {
            let in_use: usize = out.values().map(|(block, _)| block.bytes).sum();
            let stats = self.blocks.stats();
            assert_eq!((stats.in_use, stats.blocks_in_use), (in_use, out.len()));
            assert!(stats.peak >= stats.in_use);
            assert_eq!(stats.reserved, self.slabs.iter().map(|slab| slab.2).sum::<usize>());
            let mut listed = 0;
            for &(slab, address, bytes) in &self.slabs {
                let (mut at, mut free_before, mut next) = (address, false, Some(self.blocks.slabs[&slab].first));
                while let Some(index) = next {
                    let place = self.blocks.places[index];
                    assert_eq!((place.address, place.slab), (at, slab), "the blocks tile the slab");
                    assert_eq!(place.address % ALIGNMENT as u64, 0);
                    let free = place.state == BlockState::Free;
                    assert!(!(free && free_before), "free neighbours are joined");
                    assert_eq!(self.blocks.free.contains(&self.blocks.entry(index)), free);
                    match out.get(&place.address) {
                        Some((block, stream)) => {
                            assert_eq!((place.bytes, place.stream, free), (block.bytes, *stream, false))
                        }
                        None => assert!(free),
                    }
                    listed += usize::from(free);
                    (at, free_before, next) = (at + place.bytes as u64, free, place.after);
                }
                assert_eq!(at, address + bytes as u64, "to its end");
            }
            assert_eq!(listed, self.blocks.free.len());
        }
    }

    #[derive(Clone, Debug)]
    enum Action {
        Take(u64, usize),
        Release(usize),
        ReleaseAgain,
        RemoveSlab(usize),
    }

    fn actions() -> impl Strategy<Value = Vec<Action>> {
        let size = prop_oneof![Just(0_usize), 1..2000_usize, 1..(SLAB_BYTES * 2)];
        let action = prop_oneof![
            6 => (1..3_u64, size).prop_map(|(stream, bytes)| Action::Take(stream, bytes)),
            5 => (0..64_usize).prop_map(Action::Release),
            1 => Just(Action::ReleaseAgain),
            1 => (0..8_usize).prop_map(Action::RemoveSlab),
        ];
        prop::collection::vec(action, 1..120)
    }

    proptest! {
        #[test]
        fn invariants_hold_whatever_is_done(actions in actions()) {
            let mut arena = Arena::new();
            let mut out: BTreeMap<u64, (Block, StreamKey)> = BTreeMap::new();
            let mut released = None;
            for action in actions {
                match action {
                    Action::Take(stream, bytes) => {
                        let stream = StreamKey(stream);
                        let fitting = arena
                            .blocks
                            .free
                            .iter()
                            .filter(|free| free.stream == stream && free.bytes >= bytes.max(1))
                            .map(|free| free.bytes)
                            .min();
                        let reserved = arena.blocks.stats().reserved;
                        let block = arena.take(stream, bytes);
                        prop_assert!(block.bytes >= bytes && block.bytes < bytes + 2 * ALIGNMENT);
                        prop_assert!(out.insert(block.address, (block, stream)).is_none());
                        if let Some(fitting) = fitting.filter(|&fitting| fitting >= block.bytes) {
                            prop_assert_eq!(arena.blocks.stats().reserved, reserved, "a free block of {} held it", fitting);
                        }
                    }
                    Action::Release(nth) => {
                        if let Some(address) = out.keys().nth(nth).copied() {
                            let (block, _) = out.remove(&address).expect("it is out");
                            prop_assert!(arena.blocks.is_out(block.id));
                            prop_assert_eq!(arena.blocks.release(block.id), Ok(()));
                            prop_assert!(!arena.blocks.is_out(block.id));
                            released = Some(block.id);
                        }
                    }
                    Action::ReleaseAgain => {
                        if let Some(id) = released {
                            prop_assert_eq!(arena.blocks.release(id), Err(StaleBlock));
                        }
                    }
                    Action::RemoveSlab(nth) => {
                        if let Some(&(slab, address, bytes)) = arena.slabs.get(nth) {
                            let in_use = out.range(address..address + bytes as u64).next().is_some();
                            prop_assert_eq!(arena.blocks.remove_slab(slab).is_err(), in_use);
                            if !in_use {
                                arena.slabs.remove(nth);
                            }
                        }
                    }
                }
                arena.check(&out);
            }
        }

        #[test]
        fn the_same_requests_get_the_same_addresses(sizes in prop::collection::vec(1..100_000_usize, 1..60)) {
            let run = || {
                let mut arena = Arena::new();
                let mut blocks = Vec::new();
                for (at, &bytes) in sizes.iter().enumerate() {
                    let block = arena.take(ONE, bytes);
                    blocks.push(block);
                    if at % 3 == 2 {
                        let oldest = blocks[at / 3];
                        let _ = arena.blocks.release(oldest.id);
                    }
                }
                blocks.iter().map(|block| block.address).collect::<Vec<_>>()
            };
            prop_assert_eq!(run(), run());
        }
    }

    #[test]
    fn the_smallest_block_that_fits_is_taken() {
        let mut arena = Arena::new();
        let sizes = [4096, 512, 2048, 512, 8192, 512];
        let blocks: Vec<Block> = sizes.iter().map(|&bytes| arena.take(ONE, bytes)).collect();
        for at in [0, 2, 4] {
            arena.blocks.release(blocks[at].id).expect("out");
        }
        assert_eq!(arena.take(ONE, 1500).address, blocks[2].address);
        assert_eq!(arena.take(ONE, 4096).address, blocks[0].address);
        assert_eq!(arena.take(ONE, 4097).address, blocks[4].address);
    }

    #[test]
    fn streams_never_share_free_blocks() {
        let mut arena = Arena::new();
        let block = arena.take(ONE, 4096);
        arena.blocks.release(block.id).expect("out");
        assert_eq!(arena.blocks.allocate(TWO, 16), None);
        assert_eq!(arena.take(ONE, 16).address, block.address);
    }

    #[test]
    fn slabs_are_removed_only_when_wholly_free() {
        let mut arena = Arena::new();
        let block = arena.take(ONE, 16);
        let slab = arena.slabs[0].0;
        assert_eq!(arena.blocks.remove_slab(slab), Err(SlabInUse));
        arena.blocks.release(block.id).expect("out");
        assert_eq!(arena.blocks.remove_slab(slab), Ok(()));
        assert_eq!(arena.blocks.remove_slab(slab), Err(SlabInUse), "it is gone");
        assert_eq!(arena.blocks.stats().reserved, 0);
        assert_eq!(arena.blocks.allocate(ONE, 16), None);
    }

    #[test]
    fn requests_larger_than_memory_are_refused() {
        let mut blocks = Blocks::new();
        assert_eq!(blocks.allocate(ONE, usize::MAX), None);
        assert_eq!(Blocks::slab_bytes_for(usize::MAX), None);
        assert_eq!(Blocks::slab_bytes_for(0), Some(SLAB_BYTES));
        assert_eq!(Blocks::slab_bytes_for(SLAB_BYTES + 1), Some(2 * SLAB_BYTES));
    }

    /// Bytes of slabs and the peak of live bytes after captures of the four-layer model (512 to 2048 to 512 wide, f32) for these buckets, each
    /// layer: h, its handoff, h given up, the next x, the old x and the handoff given up.
    fn capture_buckets(buckets: &[usize]) -> (Vec<usize>, usize) {
        let mut arena = Arena::new();
        let mut reserved = Vec::new();
        for &rows in buckets {
            let (wide, narrow) = (rows * 2048 * 4, rows * 512 * 4);
            let mut x: Option<Block> = None;
            for _ in 0..4 {
                let h = arena.take(ONE, wide);
                let handoff = arena.take(ONE, wide);
                arena.blocks.release(h.id).expect("out");
                let next = arena.take(ONE, narrow);
                if let Some(x) = x.replace(next) {
                    arena.blocks.release(x.id).expect("out");
                }
                arena.blocks.release(handoff.id).expect("out");
            }
            arena.blocks.release(x.expect("an output").id).expect("out");
            reserved.push(arena.blocks.stats().reserved);
        }
        (reserved, arena.blocks.stats().peak)
    }

    #[test]
    fn captures_of_a_pool_take_the_largest_and_not_the_sum() {
        for buckets in [&[4096, 2048, 4096][..], &[8192, 4096, 2048, 1024, 4096]] {
            let (reserved, peak) = capture_buckets(buckets);
            // Online best fit: a narrow tensor splits a wide free block, whose rest no wide one fits.
            assert!(reserved[0] <= peak * 4 / 3, "{reserved:?} for a peak of {peak}");
            assert_eq!(reserved.last(), reserved.first(), "later captures add nothing: {reserved:?}");
        }
    }
}
