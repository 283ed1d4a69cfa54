//! A block of a capture pool, as the hold behind a tensor.

use super::blocks::BlockId;
use super::inner::PoolHandle;

/// Returns its block when dropped.
pub(super) struct PoolBlock {
    pub(super) pool: PoolHandle,
    pub(super) spot: Spot,
}

/// Which block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Spot {
    /// One of the online arithmetic's.
    Block(BlockId),
    /// At this offset of the planned range.
    Planned(usize),
}

impl Drop for PoolBlock {
    fn drop(&mut self) {
        self.pool.give_back(self.spot);
    }
}
