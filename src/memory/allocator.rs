//! Online best fit, keyed by stream: which bytes of which slab serve a request.
//!
//! A request gets the smallest free block of its stream that holds it, and of several of that size the one at the lowest address. The rest of that block
//! stays free, and a block that is released joins its free neighbours of the same slab, at once. No call looks at more than a logarithm of the blocks.
//!
//! Invariants:
//! 1. The blocks of a slab tile it: no overlap, no gap. Slabs don't overlap, and a block lies in one slab even where two slabs touch, so
//!    that each slab can be given back alone.
//! 2. No two neighbours of a slab are both free.
//! 3. A block is in its stream's free list exactly when it is free.
//! 4. The free blocks follow from the slabs and the live blocks alone, whatever the order in which these came and went (from 1 and 2). So a
//!    recording that fails leaves nothing behind once its tensors are dropped and its slabs removed.
//! 5. The same calls with the same slabs give the same addresses.

use super::block_table::{BlockNode, BlockTable, State};
use super::free_list::{Free, FreeList};
use super::ids::{BlockId, SlabId, StaleBlock, StreamKey};
use super::sizes::{ALIGNMENT, round_up};
use std::collections::BTreeMap;

/// A block that was allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Block {
    /// Its name, to release it by.
    pub(crate) id: BlockId,
    /// Where it starts, a multiple of [`ALIGNMENT`].
    pub(crate) address: u64,
}

/// Why a slab could not be removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RemoveSlabError {
    /// Some of its blocks are live.
    InUse,
    /// There is no such slab, or it was removed before.
    Unknown,
}

/// Why a range can't be a slab.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AddSlabError {
    /// Its address or size is not a multiple of [`ALIGNMENT`].
    Misaligned,
    /// It has no bytes, or reaches past the last address.
    OutOfRange,
    /// It overlaps another slab, of this stream or another.
    Overlap,
}

/// Bytes and counts. Bytes are those of blocks, so rounded up to the alignment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Usage {
    /// Bytes of slabs.
    pub(crate) reserved: usize,
    /// Bytes of live blocks.
    pub(crate) in_use: usize,
    /// Live blocks.
    pub(crate) blocks: usize,
}

/// The blocks of all slabs.
#[derive(Debug, Default)]
pub(crate) struct Allocator {
    pub(super) table: BlockTable,
    /// The free blocks of each stream that ever had a slab.
    pub(super) free: BTreeMap<StreamKey, FreeList>,
    pub(super) slabs: BTreeMap<SlabId, Slab>,
    /// By address, to find overlaps.
    pub(super) slab_at: BTreeMap<u64, SlabId>,
    next_slab: u64,
    next_generation: u64,
    usage: Usage,
}

#[derive(Debug)]
pub(super) struct Slab {
    pub(super) stream: StreamKey,
    pub(super) address: u64,
    pub(super) bytes: usize,
    /// The place of its first block.
    pub(super) first: usize,
}

impl Allocator {
    /// Adds a slab for a stream, wholly free.
    ///
    /// # Errors
    /// [`AddSlabError`]; nothing has changed then.
    pub(crate) fn add_slab(&mut self, stream: StreamKey, address: u64, bytes: usize) -> Result<SlabId, AddSlabError> {
        if !address.is_multiple_of(ALIGNMENT as u64) || !bytes.is_multiple_of(ALIGNMENT) {
            return Err(AddSlabError::Misaligned);
        }
        let end = address.checked_add(bytes as u64).filter(|_| bytes > 0).ok_or(AddSlabError::OutOfRange)?;
        // Only where addresses are wider than `usize`.
        if self.usage.reserved.checked_add(bytes).is_none() {
            return Err(AddSlabError::OutOfRange);
        }
        if let Some((_, below)) = self.slab_at.range(..end).next_back() {
            let below = &self.slabs[below];
            if below.address + below.bytes as u64 > address {
                return Err(AddSlabError::Overlap);
            }
        }

        let slab = SlabId(self.next_slab);
        self.next_slab += 1;
        let first = self.table.put(BlockNode::new(stream, address, bytes));
        self.slabs.insert(slab, Slab { stream, address, bytes, first });
        self.slab_at.insert(address, slab);
        self.free.entry(stream).or_default().insert(Free { bytes, address, index: first });
        self.usage.reserved += bytes;
        Ok(slab)
    }

    /// Takes away a slab of which no block is live, so that its memory can be given back.
    ///
    /// # Errors
    /// [`RemoveSlabError`]; nothing has changed then.
    pub(crate) fn remove_slab(&mut self, slab: SlabId) -> Result<(), RemoveSlabError> {
        let &Slab { stream, address, bytes, first } = self.slabs.get(&slab).ok_or(RemoveSlabError::Unknown)?;
        // Free neighbours are joined, so a slab that is wholly free is one block.
        let block = self.table.get(first);
        if block.state != State::Free || block.bytes != bytes {
            return Err(RemoveSlabError::InUse);
        }
        self.slabs.remove(&slab);
        self.slab_at.remove(&address);
        self.table.take_out(first);
        self.usage.reserved -= bytes;
        if let Some(free) = self.free.get_mut(&stream) {
            free.remove(&Free { bytes, address, index: first });
        }
        Ok(())
    }

    /// The smallest free block of the stream that holds the request, cut to size. A request of no bytes gets a block of its own, of one unit of
    /// alignment. `None`: no free block holds it.
    pub(crate) fn allocate(&mut self, stream: StreamKey, requested: usize) -> Option<Block> {
        let bytes = round_up(requested, ALIGNMENT).ok()?;
        let free = self.free.get_mut(&stream)?;
        let found = free.best_fit(bytes)?;
        free.remove(&found);
        let index = found.index;
        if let Some(rest) = self.table.split(index, bytes) {
            free.insert(rest);
        }
        self.next_generation += 1;
        let generation = self.next_generation;
        self.table.occupy(index, generation);
        self.usage.in_use += bytes;
        self.usage.blocks += 1;
        Some(Block { id: BlockId { index, generation }, address: found.address })
    }

    /// Gives a block back. It can serve the next request of its stream.
    ///
    /// # Errors
    /// [`StaleBlock`] when it was released before; nothing has changed then.
    pub(crate) fn release(&mut self, id: BlockId) -> Result<(), StaleBlock> {
        let &BlockNode { stream, bytes, .. } = self.live(id).ok_or(StaleBlock)?;
        self.usage.in_use -= bytes;
        self.usage.blocks -= 1;
        let free = self.free.entry(stream).or_default();
        let (before, after) = self.table.free_neighbours(id.index);
        for neighbour in [before, after].into_iter().flatten() {
            free.remove(&neighbour);
        }
        free.insert(self.table.vacate(id.index));
        Ok(())
    }

    /// The live block of this id.
    pub(super) fn live(&self, id: BlockId) -> Option<&BlockNode> {
        self.table.find(id.index).filter(|block| block.state == State::Live && block.generation == id.generation)
    }

    /// The figures of all streams together.
    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }

    /// The free ranges of all streams, as address and bytes, in no order.
    pub(crate) fn free_ranges(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        self.free.values().flat_map(FreeList::iter).map(|free| (free.address, free.bytes))
    }
}
