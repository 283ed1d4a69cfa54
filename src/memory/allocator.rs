//! The arithmetic of the capture pool: which bytes of which slab serve a request. It knows no driver: slabs are ranges of addresses that are
//! given to it, and the bytes behind them are never touched.
//!
//! Online best fit, keyed by stream. A request gets the smallest free block of its stream that holds it, and of several of that size the
//! one at the lowest address. The rest of that block stays free, and a block that is released joins its free neighbours of the same slab, at
//! once. No call but the reports looks at more than a logarithm of the blocks.
//!
//! Invariants:
//! 1. The blocks of a slab tile it: no overlap, no gap. Slabs don't overlap, and a block lies in one slab even where two slabs touch, so
//!    that each slab can be given back alone.
//! 2. No two neighbours of a slab are both free.
//! 3. A block is in its stream's free list exactly when it is free.
//! 4. The free blocks follow from the slabs and the live blocks alone, whatever the order in which these came and went (from 1 and 2). So a
//!    recording that fails leaves nothing behind once its tensors are dropped and its slabs removed.
//! 5. The same calls with the same slabs give the same addresses.
pub use super::growth::{ALIGNMENT, BlockOptions, Growth, InvalidOptions, SLAB_BYTES, TooLarge};
pub use super::report::{BlockReport, BlockState};
pub use super::usage::{BlockStats, Usage, Window};

use super::block_table::{BlockNode, BlockTable, State};
use super::free_list::{Free, FreeList};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Names a stream: free blocks of one stream never serve another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamKey(pub u64);

/// Names a block from its allocation to its release. A later block in the same place has another id, so an id that is kept too long is found
/// out and never taken for that of another block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BlockId {
    pub(super) index: usize,
    pub(super) generation: u64,
}

impl BlockId {
    /// Grows with every allocation of the pool; no two blocks have the same.
    pub fn generation(self) -> u64 {
        self.generation
    }
}

/// Names a slab. Ids grow in the order in which slabs are added, and none is used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlabId(u64);

/// A block that was allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Its name, to release it by.
    pub id: BlockId,
    /// Where it starts, a multiple of [`BlockOptions::alignment`].
    pub address: u64,
    /// Its size: the request rounded up to the alignment, and the rest of the free block where that was too small to be split off.
    pub bytes: usize,
    /// What was asked for.
    pub requested: usize,
}

/// The block was released already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the block was released already")]
pub struct StaleBlock;

/// Why a slab could not be removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoveSlabError {
    /// Some of its blocks are live.
    #[error("blocks of the slab are in use")]
    InUse,
    /// There is no such slab, or it was removed before.
    #[error("there is no such slab")]
    Unknown,
}

/// Why a range can't be a slab.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddSlabError {
    /// Its address or size is not a multiple of [`BlockOptions::alignment`].
    #[error("the slab's address or size is not a multiple of {alignment} bytes")]
    Misaligned {
        /// The alignment.
        alignment: usize,
    },
    /// It has no bytes, or reaches past the last address.
    #[error("the slab is empty or reaches past the last address")]
    OutOfRange,
    /// It overlaps a slab of the pool, of this stream or another.
    #[error("the slab overlaps another")]
    Overlap,
}

/// A moment in the life of a pool, to come back to with [`Blocks::roll_back`] when a recording fails.
#[derive(Clone, Debug)]
pub struct Mark {
    next_slab: u64,
    peak: usize,
    stream_peaks: Vec<(StreamKey, usize)>,
}

/// The blocks of a pool.
#[derive(Debug, Default)]
pub struct Blocks {
    pub(super) options: BlockOptions,
    pub(super) table: BlockTable,
    pub(super) streams: BTreeMap<StreamKey, Lane>,
    pub(super) slabs: BTreeMap<SlabId, Slab>,
    /// By address, to find overlaps.
    pub(super) slab_at: BTreeMap<u64, SlabId>,
    pub(super) next_slab: u64,
    pub(super) next_generation: u64,
    pub(super) total: Usage,
    pub(super) window: Window,
    pub(super) names: HashMap<BlockId, Arc<str>>,
}

/// What belongs to one stream.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) free: FreeList,
    pub(super) usage: Usage,
    /// The most bytes in use at once since the window was started.
    pub(super) window_peak: usize,
}

#[derive(Debug)]
pub(super) struct Slab {
    pub(super) stream: StreamKey,
    pub(super) address: u64,
    pub(super) bytes: usize,
    /// The place of its first block.
    pub(super) first: usize,
}

impl Blocks {
    /// No slabs yet, and the default options.
    pub fn new() -> Blocks {
        Blocks::default()
    }

    /// No slabs yet.
    ///
    /// # Errors
    /// [`InvalidOptions`] says which option it is.
    pub fn with_options(options: BlockOptions) -> Result<Blocks, InvalidOptions> {
        options.check()?;
        Ok(Blocks { options, ..Blocks::default() })
    }

    /// The options.
    pub fn options(&self) -> &BlockOptions {
        &self.options
    }

    /// Adds a slab for a stream, wholly free.
    ///
    /// # Errors
    /// [`AddSlabError`]; the pool is as before.
    pub fn add_slab(&mut self, stream: StreamKey, address: u64, bytes: usize) -> Result<SlabId, AddSlabError> {
        let alignment = self.options.alignment;
        if !address.is_multiple_of(alignment as u64) || !bytes.is_multiple_of(alignment) {
            return Err(AddSlabError::Misaligned { alignment });
        }
        let end = address.checked_add(bytes as u64).filter(|_| bytes > 0).ok_or(AddSlabError::OutOfRange)?;
        // Only where addresses are wider than `usize`.
        if self.total.reserved.checked_add(bytes).is_none() {
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
        let first = self.table.put(BlockNode::new(stream, slab, address, bytes));
        self.slabs.insert(slab, Slab { stream, address, bytes, first });
        self.slab_at.insert(address, slab);
        let lane = self.streams.entry(stream).or_default();
        lane.free.insert(Free { bytes, address, index: first });
        lane.usage.add_slab(bytes);
        self.total.add_slab(bytes);
        Ok(slab)
    }

    /// Takes away a slab of which no block is live, so that its memory can be given back.
    ///
    /// # Errors
    /// [`RemoveSlabError`]; the pool is as before.
    pub fn remove_slab(&mut self, slab: SlabId) -> Result<(), RemoveSlabError> {
        let info = self.slabs.get(&slab).ok_or(RemoveSlabError::Unknown)?;
        if !self.is_wholly_free(info) {
            return Err(RemoveSlabError::InUse);
        }
        let &Slab { stream, address, bytes, first } = info;
        self.slabs.remove(&slab);
        self.slab_at.remove(&address);
        self.table.take_out(first);
        self.total.remove_slab(bytes);
        if let Some(lane) = self.streams.get_mut(&stream) {
            lane.free.remove(&Free { bytes, address, index: first });
            lane.usage.remove_slab(bytes);
        }
        Ok(())
    }

    /// Free neighbours are joined, so a slab that is wholly free is one block.
    fn is_wholly_free(&self, slab: &Slab) -> bool {
        let first = self.table.get(slab.first);
        first.state == State::Free && first.bytes == slab.bytes
    }

    /// The stream's slabs of which no block is live, oldest first.
    pub fn free_slabs(&self, stream: StreamKey) -> impl Iterator<Item = SlabId> + '_ {
        let mine = self.slabs.iter().filter(move |(_, slab)| slab.stream == stream);
        mine.filter(|(_, slab)| self.is_wholly_free(slab)).map(|(&id, _)| id)
    }

    /// This moment, for [`roll_back`](Blocks::roll_back).
    pub fn mark(&self) -> Mark {
        let stream_peaks = self.streams.iter().map(|(&key, lane)| (key, lane.usage.peak)).collect();
        Mark { next_slab: self.next_slab, peak: self.total.peak, stream_peaks }
    }

    /// The slabs that were added since, oldest first, whether free or not.
    pub fn slabs_since(&self, mark: &Mark) -> impl Iterator<Item = SlabId> + '_ {
        self.slabs.range(SlabId(mark.next_slab)..).map(|(&id, _)| id)
    }

    /// Undoes what a failed recording has left: removes the slabs that were added since and are wholly free, lists them, and takes the high-water
    /// marks back to what they were, or to what is live now. The recording's blocks are to be released first; one that is still live keeps its
    /// slab.
    pub fn roll_back(&mut self, mark: &Mark) -> Vec<SlabId> {
        let added: Vec<SlabId> = self.slabs_since(mark).collect();
        let removed = added.into_iter().filter(|&slab| self.remove_slab(slab).is_ok()).collect();
        self.total.lower_peak(mark.peak);
        for (key, lane) in &mut self.streams {
            let before = mark.stream_peaks.binary_search_by_key(key, |&(key, _)| key);
            lane.usage.lower_peak(before.map_or(0, |at| mark.stream_peaks[at].1));
        }
        removed
    }

    /// The smallest free block of the stream that holds the request, cut to size. A request of no bytes gets a block of its own, of one unit of
    /// alignment.
    ///
    /// `None`: no free block holds it. Add a slab of [`slab_bytes_for`](Blocks::slab_bytes_for) bytes and ask again. Asking
    /// [`growth_for`](Blocks::growth_for) first keeps the pool smaller.
    pub fn allocate(&mut self, stream: StreamKey, requested: usize) -> Option<Block> {
        let bytes = self.options.round(requested).ok()?;
        let lane = self.streams.get_mut(&stream)?;
        let found = lane.free.best_fit(bytes)?;
        lane.free.remove(&found);
        let index = found.index;
        let bytes = if found.bytes - bytes >= self.options.min_remainder {
            if let Some(rest) = self.table.split(index, bytes) {
                lane.free.insert(rest);
            }
            bytes
        } else {
            found.bytes
        };
        self.next_generation += 1;
        let generation = self.next_generation;
        self.table.occupy(index, generation, requested);
        lane.usage.take(bytes);
        lane.window_peak = lane.window_peak.max(lane.usage.in_use);
        self.total.take(bytes);
        self.window.note(&self.total);
        Some(Block { id: BlockId { index, generation }, address: found.address, bytes, requested })
    }

    /// Gives a block back. It can serve the next request of its stream.
    ///
    /// # Errors
    /// [`StaleBlock`] when it was released before; the pool is as before.
    pub fn release(&mut self, id: BlockId) -> Result<(), StaleBlock> {
        let place = self.live(id).ok_or(StaleBlock)?;
        let (stream, bytes) = (place.stream, place.bytes);
        if !self.names.is_empty() {
            self.names.remove(&id);
        }
        self.total.give(bytes);
        let lane = self.streams.entry(stream).or_default();
        lane.usage.give(bytes);
        let (before, after) = self.table.free_neighbours(id.index);
        for neighbour in [before, after].into_iter().flatten() {
            lane.free.remove(&neighbour);
        }
        lane.free.insert(self.table.vacate(id.index));
        Ok(())
    }

    /// Whether the block was not released yet. A weak reference asks this before it is followed.
    pub fn is_live(&self, id: BlockId) -> bool {
        self.live(id).is_some()
    }

    /// The live block of this id.
    fn live(&self, id: BlockId) -> Option<&BlockNode> {
        self.table.find(id.index).filter(|place| place.state == State::Live && place.generation == id.generation)
    }

    /// Gives a live block a name for the reports. It is forgotten when the block is released.
    ///
    /// # Errors
    /// [`StaleBlock`] when the block was released.
    pub fn set_name(&mut self, id: BlockId, name: impl Into<Arc<str>>) -> Result<(), StaleBlock> {
        self.live(id).ok_or(StaleBlock)?;
        self.names.insert(id, name.into());
        Ok(())
    }
}
