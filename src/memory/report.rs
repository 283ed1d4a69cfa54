//! What a pool holds, block by block.

use super::allocator::{BlockId, Blocks, SlabId, StreamKey};
use super::block_table::State;
use std::sync::Arc;

/// One block, in a report. Plain data.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BlockReport {
    /// Where it starts.
    pub address: u64,
    /// Its size.
    pub bytes: usize,
    /// Whether it is live.
    pub state: BlockState,
    /// Its slab.
    pub slab: SlabId,
    /// Its stream.
    pub stream: StreamKey,
    /// The name it was given, of a live block.
    pub name: Option<Arc<str>>,
}

/// Whether a block is live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockState {
    /// It can serve a request of its stream.
    Free,
    /// It was allocated and not released yet.
    Live {
        /// Its id.
        id: BlockId,
        /// The bytes that were asked for.
        requested: usize,
    },
}

impl Blocks {
    /// Every block, free and live, by address. Takes time by the number of blocks.
    pub fn snapshot(&self) -> Vec<BlockReport> {
        let mut reports = Vec::new();
        for (&address, slab) in &self.slab_at {
            debug_assert_eq!(self.slabs[slab].address, address);
            let mut next = Some(self.slabs[slab].first);
            while let Some(index) = next {
                let place = self.table.get(index);
                next = place.after();
                let id = BlockId { index, generation: place.generation };
                let (state, name) = match place.state {
                    State::Live => {
                        let state = BlockState::Live { id, requested: place.requested };
                        (state, self.names.get(&id).cloned())
                    }
                    State::Free | State::Empty => (BlockState::Free, None),
                };
                let (slab, stream) = (place.slab, place.stream);
                reports.push(BlockReport { address: place.address, bytes: place.bytes, state, slab, stream, name });
            }
        }
        reports
    }
}
