//! Pinning a pool's memory: it is neither given back nor trimmed while someone outside knows its physical pages.

use super::availability::Closed;
use super::capture_pool::CapturePool;
use super::mapping::MappingHold;
use crate::error::{Misuse, Result};
use std::fmt;
use std::sync::Arc;

/// Keeps a pool's memory where it is and mapped, until it drops. For what is registered by its physical pages: a communicator's graph buffers
/// (NCCL's `ncclCommRegister` and its registration of captured buffers), memory that was exported to another process, a network card's.
#[must_use = "the memory is pinned as long as this lives"]
pub struct PoolPin {
    pool: CapturePool,
    /// A trim finds it.
    _hold: Arc<MappingHold>,
}

impl CapturePool {
    /// Pins the pool's memory: while the result lives, [`release`](CapturePool::release) is refused with [`Misuse::PoolPinned`], and
    /// [`trim`](CapturePool::trim) with [`Misuse::PoolInUse`]. The pool grows and replays as before. Any number of pins may live.
    ///
    /// # Errors
    /// [`Misuse::PoolReleased`].
    ///
    /// ```
    /// # use breakable_cuda_graph::driver::Device;
    /// use breakable_cuda_graph::{CapturePool, Driver, Error, Misuse, PoolOptions, pool::Backing};
    ///
    /// # let context = Device::get(&Driver::reference()?, 0)?.primary_context()?;
    /// let pool = CapturePool::with_options(&context, PoolOptions::default().backing(Backing::ReservedAddresses))?;
    /// let registered = pool.pin()?; // A communicator has registered its buffers.
    /// assert!(matches!(pool.release(), Err(Error::Misuse(Misuse::PoolPinned { pins: 1 }))));
    /// drop(registered);
    /// pool.release()?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn pin(&self) -> Result<PoolPin> {
        let inner = self.handle();
        // A release decides under the same lock.
        let _memory = inner.memory();
        if inner.availability.closed() == Some(Closed::Released) {
            return Err(Misuse::PoolReleased.into());
        }
        inner.availability.pin();
        Ok(PoolPin { pool: self.clone(), _hold: inner.retain_mapping() })
    }
}

impl Drop for PoolPin {
    fn drop(&mut self) {
        self.pool.handle().availability.unpin();
    }
}

impl fmt::Debug for PoolPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolPin").finish_non_exhaustive()
    }
}
