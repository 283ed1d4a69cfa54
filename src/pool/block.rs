//! A block of a capture pool, as the hold behind a tensor.

use super::blocks::BlockId;
use super::capture_pool::PoolHandle;

/// Returns its block when dropped.
pub(super) struct PoolBlock {
    pub(super) pool: PoolHandle,
    pub(super) id: BlockId,
}

impl Drop for PoolBlock {
    fn drop(&mut self) {
        self.pool.give_back(self.id);
    }
}
