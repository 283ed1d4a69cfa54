//! The model: slabs and live blocks in plain lists, from which everything else is worked out anew, byte range by byte range.

use super::{Allocator, Block, SlabId, StreamKey};
use crate::memory::sizes::ALIGNMENT;

#[derive(Default)]
pub(super) struct Model {
    pub(super) slabs: Vec<ModelSlab>,
    pub(super) live: Vec<ModelBlock>,
}

/// A live block.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct ModelBlock {
    pub(super) block: Block,
    pub(super) bytes: usize,
    pub(super) stream: StreamKey,
}

#[derive(Clone, Copy)]
pub(super) struct ModelSlab {
    pub(super) id: SlabId,
    pub(super) stream: StreamKey,
    pub(super) address: u64,
    pub(super) bytes: usize,
}

/// A range of addresses, with its slab, and the live block in it, if it is not free.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Range {
    pub(super) address: u64,
    pub(super) bytes: usize,
    pub(super) slab: SlabId,
    pub(super) stream: StreamKey,
    pub(super) live: Option<ModelBlock>,
}

impl ModelBlock {
    fn end(&self) -> u64 {
        self.block.address + self.bytes as u64
    }
}

impl ModelSlab {
    fn end(&self) -> u64 {
        self.address + self.bytes as u64
    }

    pub(super) fn holds(&self, live: &ModelBlock) -> bool {
        self.address <= live.block.address && live.end() <= self.end()
    }
}

impl Model {
    /// All ranges by address: the live blocks, and the gaps between them, each as long as it can be.
    pub(super) fn ranges(&self) -> Vec<Range> {
        let mut slabs = self.slabs.clone();
        slabs.sort_by_key(|slab| slab.address);
        let mut ranges = Vec::new();
        for slab in slabs {
            let mut mine: Vec<ModelBlock> = self.live.iter().copied().filter(|live| slab.holds(live)).collect();
            mine.sort_by_key(|live| live.block.address);
            let range = |address, bytes, live| Range { address, bytes, slab: slab.id, stream: slab.stream, live };
            let mut at = slab.address;
            for live in mine {
                if live.block.address > at {
                    ranges.push(range(at, (live.block.address - at) as usize, None));
                }
                ranges.push(range(live.block.address, live.bytes, Some(live)));
                at = live.end();
            }
            if at < slab.end() {
                ranges.push(range(at, (slab.end() - at) as usize, None));
            }
        }
        ranges
    }

    /// The gap that serves a request of so many bytes: the smallest, then the lowest.
    pub(super) fn best_fit(&self, stream: StreamKey, bytes: usize) -> Option<Range> {
        let fits = |range: &Range| range.live.is_none() && range.stream == stream && range.bytes >= bytes;
        self.ranges().into_iter().filter(fits).min_by_key(|range| (range.bytes, range.address))
    }

    pub(super) fn is_free(&self, slab: &ModelSlab) -> bool {
        !self.live.iter().any(|live| slab.holds(live))
    }

    /// Compares everything the allocator tells with the model.
    pub(super) fn compare(&self, allocator: &Allocator) {
        // No overlap: in the order of addresses, each live block ends before the next begins, and each lies in one slab of its stream.
        let mut sorted = self.live.clone();
        sorted.sort_by_key(|live| live.block.address);
        for pair in sorted.windows(2) {
            assert!(pair[0].end() <= pair[1].block.address, "blocks overlap: {pair:?}");
        }
        for live in &self.live {
            let slab = self.slabs.iter().find(|slab| slab.holds(live)).expect("a block lies in a slab");
            assert_eq!(slab.stream, live.stream, "of its own stream");
            assert_eq!(live.block.address % ALIGNMENT as u64, 0);
            assert_eq!(allocator.bytes_of(live.block), live.bytes);
        }

        let ranges = self.ranges();
        let told = allocator.snapshot();
        let expected: Vec<_> =
            ranges.iter().map(|range| (range.address, range.bytes, range.slab, range.stream)).collect();
        let found: Vec<_> = told.iter().map(|told| (told.address, told.bytes, told.slab, told.stream)).collect();
        assert_eq!(found, expected, "the blocks tile the slabs, and free neighbours are joined");
        for (told, range) in told.iter().zip(&ranges) {
            assert_eq!(told.live, range.live.map(|live| live.block.id));
        }
        assert_eq!(allocator.table.blocks(), ranges.len(), "no place is lost");

        let usage = allocator.usage();
        assert_eq!(usage.reserved, self.slabs.iter().map(|slab| slab.bytes).sum::<usize>());
        assert_eq!(usage.in_use, self.live.iter().map(|live| live.bytes).sum::<usize>());
        assert_eq!(usage.blocks, self.live.len());
        for (&stream, list) in &allocator.free {
            let listed: Vec<(usize, u64)> = list.iter().map(|free| (free.bytes, free.address)).collect();
            let gaps = ranges.iter().filter(|range| range.live.is_none() && range.stream == stream);
            let mut gaps: Vec<(usize, u64)> = gaps.map(|range| (range.bytes, range.address)).collect();
            gaps.sort_unstable();
            assert_eq!(listed, gaps, "the free list is the gaps");
        }
        let free: usize = allocator.free_ranges().map(|(_, bytes)| bytes).sum();
        assert_eq!(free + usage.in_use, usage.reserved);
    }
}
