//! What a pool holds, in figures.

use super::allocator::{Blocks, StreamKey};
use std::collections::BTreeMap;

/// Bytes and counts, of one stream or of all. Bytes are those of blocks, so rounded up to the alignment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Usage {
    /// Bytes of slabs.
    pub reserved: usize,
    /// Bytes of live blocks.
    pub in_use: usize,
    /// The most bytes that were in use at once, ever, less what [`Blocks::roll_back`] has taken back.
    pub peak: usize,
    /// Slabs.
    pub slabs: usize,
    /// Live blocks.
    pub blocks_in_use: usize,
}

/// A snapshot of a pool's figures.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct BlockStats {
    /// Of all streams together. Its peak is that of the sum, not the sum of the peaks.
    pub total: Usage,
    /// Bytes that are reserved and not in use.
    pub free: usize,
    /// Free blocks.
    pub free_blocks: usize,
    /// The largest of them, in bytes. A request up to this size is served without a new slab, if it is of the right stream.
    pub largest_free: usize,
    /// Of each stream that ever had a slab.
    pub streams: BTreeMap<StreamKey, Usage>,
}

/// What happened since [`Blocks::start_window`], for the report of one recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Window {
    /// Bytes in use at the start.
    pub in_use_before: usize,
    /// Bytes of slabs at the start.
    pub reserved_before: usize,
    /// The most bytes in use at once since then, those of before included.
    pub peak: usize,
    /// Blocks allocated since then.
    pub allocations: u64,
}

impl Usage {
    /// Bytes that are reserved and not in use.
    pub fn free(&self) -> usize {
        self.reserved - self.in_use
    }

    pub(crate) fn add_slab(&mut self, bytes: usize) {
        self.reserved += bytes;
        self.slabs += 1;
    }

    pub(crate) fn remove_slab(&mut self, bytes: usize) {
        self.reserved -= bytes;
        self.slabs -= 1;
    }

    pub(crate) fn take(&mut self, bytes: usize) {
        self.in_use += bytes;
        self.blocks_in_use += 1;
        self.peak = self.peak.max(self.in_use);
    }

    pub(crate) fn give(&mut self, bytes: usize) {
        self.in_use -= bytes;
        self.blocks_in_use -= 1;
    }

    /// Takes the high-water mark back to `peak`, but not below what is live.
    pub(crate) fn lower_peak(&mut self, peak: usize) {
        self.peak = self.peak.min(peak.max(self.in_use));
    }
}

impl Window {
    pub(crate) fn note(&mut self, total: &Usage) {
        self.peak = self.peak.max(total.in_use);
        self.allocations += 1;
    }
}

impl Blocks {
    /// The figures of all streams together, without looking at any block.
    pub fn usage(&self) -> Usage {
        self.total
    }

    /// The figures of one stream; all zero for one that never had a slab.
    pub fn stream_usage(&self, stream: StreamKey) -> Usage {
        self.streams.get(&stream).map_or_else(Usage::default, |lane| lane.usage)
    }

    /// All figures. Takes time by the number of streams.
    pub fn stats(&self) -> BlockStats {
        let lists = || self.streams.values().map(|lane| &lane.free);
        BlockStats {
            total: self.total,
            free: self.total.free(),
            free_blocks: lists().map(|list| list.len()).sum(),
            largest_free: lists().map(|list| list.largest()).max().unwrap_or(0),
            streams: self.streams.iter().map(|(&key, lane)| (key, lane.usage)).collect(),
        }
    }

    /// Starts counting anew for [`window`](Blocks::window). There is one window at a time, as there is one recording at a time.
    pub fn start_window(&mut self) {
        let Usage { in_use, reserved, .. } = self.total;
        self.window = Window { in_use_before: in_use, reserved_before: reserved, peak: in_use, allocations: 0 };
        for lane in self.streams.values_mut() {
            lane.window_peak = lane.usage.in_use;
        }
    }

    /// What happened since the window was started, or since the pool was made.
    pub fn window(&self) -> Window {
        self.window
    }
}
