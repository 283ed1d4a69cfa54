//! Tests of the block arithmetic: single cases, properties against a brute-force model, and the footprint of captures.

mod cases;
mod footprint;
mod model;
mod properties;

use super::allocator::{Block, Blocks, Growth, SlabId, StreamKey};

const ONE: StreamKey = StreamKey(1);
const TWO: StreamKey = StreamKey(2);

/// Blocks with a source of slabs.
struct Arena {
    blocks: Blocks,
    next: u64,
    /// Addresses left out between slabs.
    gap: u64,
}

impl Arena {
    fn new(blocks: Blocks, gap: u64) -> Arena {
        Arena { blocks, next: 1 << 32, gap }
    }

    fn add_slab(&mut self, stream: StreamKey, bytes: usize) -> SlabId {
        let slab = self.blocks.add_slab(stream, self.next, bytes).expect("the addresses are free");
        self.next += bytes as u64 + self.gap;
        slab
    }

    /// Plain best fit: a slab only where no free block holds the request.
    fn take(&mut self, stream: StreamKey, bytes: usize) -> Block {
        if let Some(block) = self.blocks.allocate(stream, bytes) {
            return block;
        }
        let slab_bytes = self.blocks.slab_bytes_for(bytes).expect("not larger than memory");
        self.add_slab(stream, slab_bytes);
        self.blocks.allocate(stream, bytes).expect("the slab holds the request")
    }

    /// As [`take`](Arena::take), but grows also where the pool would rather have a slab.
    fn take_or_grow(&mut self, stream: StreamKey, bytes: usize) -> Block {
        match self.blocks.growth_for(stream, bytes).expect("not larger than memory") {
            Growth::Unneeded => {}
            Growth::Preferred(slab_bytes) | Growth::Needed(slab_bytes) => {
                self.add_slab(stream, slab_bytes);
            }
        }
        self.blocks.allocate(stream, bytes).expect("a free block holds the request")
    }
}
