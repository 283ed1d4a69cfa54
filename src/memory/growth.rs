//! How a pool grows: the options, the size of a slab, and when a new slab is better than cutting up a large free block.

use super::allocator::{Blocks, StreamKey, Usage};

/// What the address and size of a block are a multiple of, unless [`BlockOptions::alignment`] says otherwise: as of the driver's own allocations.
pub const ALIGNMENT: usize = 512;

/// What the size of a slab is a multiple of, unless [`BlockOptions::slab_granularity`] says otherwise: the driver's own granularity.
pub const SLAB_BYTES: usize = 2 << 20;

/// How a pool places blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BlockOptions {
    /// What the address and size of every block are a multiple of: a power of two. Default: [`ALIGNMENT`].
    pub alignment: usize,
    /// What the size of a slab is a multiple of; itself a multiple of `alignment`. Default: [`SLAB_BYTES`].
    pub slab_granularity: usize,
    /// A free block is split only if at least this is left of it; otherwise the request gets all of it. Default: [`ALIGNMENT`], so always.
    pub min_remainder: usize,
    /// How far the pool may grow by choice, as a part of the most bytes ever live: one `slack_divisor`-th. Zero: never. Default: 5.
    /// See [`Growth::Preferred`].
    pub slack_divisor: usize,
}

/// Which option makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOptions {
    /// [`BlockOptions::alignment`] is no power of two.
    #[error("the alignment of blocks, {0}, is not a power of two")]
    Alignment(usize),
    /// [`BlockOptions::slab_granularity`] is zero or no multiple of the alignment.
    #[error("the granularity of slabs, {0}, is not a multiple of the alignment of blocks")]
    SlabGranularity(usize),
}

/// The request is larger than any memory: rounding it up overflows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a request of {requested} bytes is larger than any memory")]
pub struct TooLarge {
    /// The bytes that were asked for.
    pub requested: usize,
}

/// Whether to add a slab before a request is placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    /// No: a free block holds it.
    Unneeded,
    /// Rather yes, a slab of this many bytes, but a free block holds it: where the slab can't be had, allocate all the same.
    ///
    /// The free block that fits best is larger than a slab need be and at least twice the request. The rest of it would not hold the next request
    /// of the block's own kind, and the pool would then have to grow by that larger size. A pool grows by choice only while the window that
    /// [`Blocks::start_window`] began is the one with the most bytes ever live, so a smaller capture after a larger one doesn't, and only as long as
    /// it holds no more than those bytes and one [`slack_divisor`](BlockOptions::slack_divisor)-th of them.
    Preferred(usize),
    /// Yes, a slab of this many bytes: no free block holds it.
    Needed(usize),
}

impl Default for BlockOptions {
    fn default() -> BlockOptions {
        BlockOptions { alignment: ALIGNMENT, slab_granularity: SLAB_BYTES, min_remainder: ALIGNMENT, slack_divisor: 5 }
    }
}

impl BlockOptions {
    pub(crate) fn check(&self) -> Result<(), InvalidOptions> {
        if !self.alignment.is_power_of_two() {
            return Err(InvalidOptions::Alignment(self.alignment));
        }
        if self.slab_granularity == 0 || !self.slab_granularity.is_multiple_of(self.alignment) {
            return Err(InvalidOptions::SlabGranularity(self.slab_granularity));
        }
        Ok(())
    }

    /// The size of the block for a request: at least one unit of alignment.
    pub(crate) fn round(&self, requested: usize) -> Result<usize, TooLarge> {
        round_up(requested, self.alignment)
    }
}

fn round_up(requested: usize, unit: usize) -> Result<usize, TooLarge> {
    // No object is larger than `isize::MAX`, and sums of two sizes can't overflow below it.
    let rounded = requested.max(1).checked_next_multiple_of(unit);
    rounded.filter(|&bytes| isize::try_from(bytes).is_ok()).ok_or(TooLarge { requested })
}

impl Blocks {
    /// The size of a slab for a request that no free block holds: the request, rounded up to [`BlockOptions::slab_granularity`].
    ///
    /// # Errors
    /// [`TooLarge`] where that overflows.
    pub fn slab_bytes_for(&self, requested: usize) -> Result<usize, TooLarge> {
        round_up(requested, self.options.slab_granularity)
    }

    /// Whether to add a slab before this request is placed, and of what size. Ask before [`allocate`](Blocks::allocate).
    ///
    /// # Errors
    /// [`TooLarge`] where rounding the request up overflows.
    pub fn growth_for(&self, stream: StreamKey, requested: usize) -> Result<Growth, TooLarge> {
        let bytes = self.options.round(requested)?;
        let slab_bytes = self.slab_bytes_for(requested)?;
        let lane = self.streams.get(&stream);
        let Some((lane, found)) = lane.and_then(|lane| Some((lane, lane.free.best_fit(bytes)?))) else {
            return Ok(Growth::Needed(slab_bytes));
        };
        let Usage { reserved, peak, .. } = lane.usage;
        let slack = peak.checked_div(self.options.slack_divisor).unwrap_or(0);
        let large = found.bytes / 2 >= bytes && found.bytes > self.options.slab_granularity;
        let at_peak = lane.window_peak >= peak;
        let allowed = slack > 0 && reserved.saturating_add(slab_bytes) <= peak.saturating_add(slack);
        Ok(if large && at_peak && allowed { Growth::Preferred(slab_bytes) } else { Growth::Unneeded })
    }
}
