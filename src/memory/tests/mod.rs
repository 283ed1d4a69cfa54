//! Tests of the allocator: single cases, properties against a brute-force model, and the footprint of captures.

mod cases;
mod footprint;
mod model;
mod properties;

use super::allocator::{Allocator, Block};
use super::block_table::State;
use super::ids::{BlockId, SlabId, StreamKey};
use super::sizes::{SLAB_BYTES, round_up};

const ONE: StreamKey = StreamKey(1);
const TWO: StreamKey = StreamKey(2);

/// An allocator with a source of slabs.
struct Source {
    allocator: Allocator,
    next: u64,
    /// Addresses left out between slabs.
    gap: u64,
}

impl Source {
    fn new(gap: u64) -> Source {
        Source { allocator: Allocator::default(), next: 1 << 32, gap }
    }

    fn add_slab(&mut self, stream: StreamKey, bytes: usize) -> SlabId {
        let slab = self.allocator.add_slab(stream, self.next, bytes).expect("the addresses are free");
        self.next += bytes as u64 + self.gap;
        slab
    }

    /// A block, in a slab of its own where no free block holds the request.
    fn take(&mut self, stream: StreamKey, bytes: usize) -> Block {
        if let Some(block) = self.allocator.allocate(stream, bytes) {
            return block;
        }
        self.add_slab(stream, round_up(bytes, SLAB_BYTES).expect("not larger than memory"));
        self.allocator.allocate(stream, bytes).expect("the slab holds the request")
    }
}

/// A block of a slab, free or live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Report {
    address: u64,
    bytes: usize,
    slab: SlabId,
    stream: StreamKey,
    live: Option<BlockId>,
}

impl Allocator {
    /// Every block by address, as the slabs' links tell.
    fn snapshot(&self) -> Vec<Report> {
        let mut reports = Vec::new();
        for (&address, &slab) in &self.slab_at {
            assert_eq!(self.slabs[&slab].address, address);
            let mut next = Some(self.slabs[&slab].first);
            while let Some(index) = next {
                let block = self.table.get(index);
                next = block.after();
                let id = BlockId { index, generation: block.generation };
                let live = (block.state == State::Live).then_some(id);
                reports.push(Report { address: block.address, bytes: block.bytes, slab, stream: block.stream, live });
            }
        }
        reports
    }

    /// The size of a live block.
    fn bytes_of(&self, block: Block) -> usize {
        self.live(block.id).expect("it is live").bytes
    }
}
