//! A block of a capture pool, as the hold behind a tensor.

use super::shared::PoolHandle;
use crate::memory::allocator::BlockId;

/// Returns its block when dropped.
pub(super) struct PoolBlock {
    pub(super) pool: PoolHandle,
    pub(super) block: BlockRef,
}

/// Which block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BlockRef {
    /// One of the online arithmetic's.
    Block(BlockId),
    /// At this offset of the planned range.
    Planned(usize),
}

impl Drop for PoolBlock {
    fn drop(&mut self) {
        self.pool.give_back(self.block);
    }
}
