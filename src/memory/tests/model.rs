//! The model: slabs and live blocks in plain lists, from which everything else is worked out anew, byte range by byte range.

use super::{Block, SlabId, StreamKey};
use crate::memory::allocator::{BlockState, Blocks};

#[derive(Default)]
pub(super) struct Model {
    pub(super) slabs: Vec<ModelSlab>,
    pub(super) live: Vec<(Block, StreamKey)>,
    pub(super) peak: usize,
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
    pub(super) live: Option<Block>,
}

impl ModelSlab {
    fn end(&self) -> u64 {
        self.address + self.bytes as u64
    }

    pub(super) fn holds(&self, block: &Block) -> bool {
        self.address <= block.address && block.address + block.bytes as u64 <= self.end()
    }
}

impl Model {
    /// All ranges by address: the live blocks, and the gaps between them, each as long as it can be.
    pub(super) fn ranges(&self) -> Vec<Range> {
        let mut slabs = self.slabs.clone();
        slabs.sort_by_key(|slab| slab.address);
        let mut ranges = Vec::new();
        for slab in slabs {
            let mut mine: Vec<Block> =
                self.live.iter().map(|(block, _)| *block).filter(|block| slab.holds(block)).collect();
            mine.sort_by_key(|block| block.address);
            let range = |address, bytes, live| Range { address, bytes, slab: slab.id, stream: slab.stream, live };
            let mut at = slab.address;
            for block in mine {
                if block.address > at {
                    ranges.push(range(at, (block.address - at) as usize, None));
                }
                ranges.push(range(block.address, block.bytes, Some(block)));
                at = block.address + block.bytes as u64;
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
        !self.live.iter().any(|(block, _)| slab.holds(block))
    }

    pub(super) fn in_use(&self) -> usize {
        self.live.iter().map(|(block, _)| block.bytes).sum()
    }

    /// Compares everything the pool tells with the model.
    pub(super) fn compare(&self, blocks: &Blocks) {
        // No overlap: in the order of addresses, each live block ends before the next begins, and each lies in one slab of its stream.
        let mut sorted = self.live.clone();
        sorted.sort_by_key(|(block, _)| block.address);
        for pair in sorted.windows(2) {
            assert!(pair[0].0.address + pair[0].0.bytes as u64 <= pair[1].0.address, "blocks overlap: {pair:?}");
        }
        for (block, stream) in &self.live {
            let slab = self.slabs.iter().find(|slab| slab.holds(block)).expect("a block lies in a slab");
            assert_eq!(slab.stream, *stream, "of its own stream");
            assert_eq!(block.address % blocks.options().alignment as u64, 0);
            assert!(blocks.is_live(block.id));
        }

        let ranges = self.ranges();
        let told: Vec<Range> = blocks
            .snapshot()
            .iter()
            .map(|report| Range {
                address: report.address,
                bytes: report.bytes,
                slab: report.slab,
                stream: report.stream,
                live: match report.state {
                    BlockState::Free => None,
                    BlockState::Live { id, requested } => {
                        Some(Block { id, address: report.address, bytes: report.bytes, requested })
                    }
                },
            })
            .collect();
        assert_eq!(told, ranges, "the blocks tile the slabs, and free neighbours are joined");
        assert_eq!(blocks.table.blocks(), ranges.len(), "no place is lost");

        let stats = blocks.stats();
        let free = || ranges.iter().filter(|range| range.live.is_none());
        assert_eq!(stats.total.reserved, self.slabs.iter().map(|slab| slab.bytes).sum::<usize>());
        assert_eq!((stats.total.in_use, stats.total.blocks_in_use), (self.in_use(), self.live.len()));
        assert_eq!((stats.total.slabs, stats.total.peak), (self.slabs.len(), self.peak));
        assert_eq!(stats.free, free().map(|range| range.bytes).sum::<usize>());
        assert_eq!(stats.free + stats.total.in_use, stats.total.reserved);
        assert_eq!(stats.free_blocks, free().count());
        assert_eq!(stats.largest_free, free().map(|range| range.bytes).max().unwrap_or(0));
        for (&stream, usage) in &stats.streams {
            let mine = || self.live.iter().filter(|(_, key)| *key == stream);
            let slabs = || self.slabs.iter().filter(|slab| slab.stream == stream);
            assert_eq!(usage.in_use, mine().map(|(block, _)| block.bytes).sum::<usize>());
            assert_eq!(usage.reserved, slabs().map(|slab| slab.bytes).sum::<usize>());
            assert_eq!((usage.blocks_in_use, usage.slabs), (mine().count(), slabs().count()));
            assert_eq!(*usage, blocks.stream_usage(stream));
            let whole: Vec<SlabId> = slabs().filter(|slab| self.is_free(slab)).map(|slab| slab.id).collect();
            assert_eq!(blocks.free_slabs(stream).collect::<Vec<_>>(), whole);
            let listed: Vec<(usize, u64)> =
                blocks.streams[&stream].free.iter().map(|free| (free.bytes, free.address)).collect();
            let mut gaps: Vec<(usize, u64)> =
                free().filter(|range| range.stream == stream).map(|range| (range.bytes, range.address)).collect();
            gaps.sort_unstable();
            assert_eq!(listed, gaps, "the free list is the gaps");
        }
    }
}
