//! Users of a pool's memory that hold no block of it.

use super::shared::{PoolHandle, PoolShared};
use crate::driver::{RecordingId, Stream};
use crate::error::Result;
use crate::tensor::storage::PoolMemory;
use std::sync::Arc;

/// Counts as a user of the memory: held by whatever refers to it without holding a block, as captures do, and views of what they write. Keeps the pool.
pub(crate) struct MappingHold {
    pool: PoolHandle,
}

impl PoolShared {
    /// Keeps the pool's memory from being unmapped.
    pub(crate) fn retain_mapping(self: &Arc<Self>) -> Arc<MappingHold> {
        self.availability.enter();
        Arc::new(MappingHold { pool: self.clone() })
    }
}

impl PoolMemory for MappingHold {
    #[inline]
    fn expect_usable(&self) -> Result<()> {
        self.pool.availability.expect_mapped()
    }

    fn expect_whole(&self, recording: RecordingId) -> Result<()> {
        self.pool.results.expect_whole(recording)
    }

    #[inline]
    fn used_on(&self, stream: &Stream) {
        self.pool.users.note(stream);
    }

    #[inline]
    fn enter(&self) -> Result<()> {
        self.pool.enter()
    }

    #[inline]
    fn leave(&self) {
        self.pool.users.leave();
    }
}

impl Drop for MappingHold {
    fn drop(&mut self) {
        self.pool.availability.leave();
    }
}
