//! Lending a pool's free memory to eager work.

use super::availability::Closed;
use super::capture_pool::CapturePool;
use super::shared::PoolHandle;
use crate::driver::capture_state;
use crate::driver::{Context, RecordingId, Stream};
use crate::error::{Error, Misuse, OutOfMemory, Result};
use crate::memory::sizes::{ALIGNMENT, round_up};
use crate::tensor::storage::{Hold, PoolMemory, Storage};
use crate::tensor::{DType, Layout, Tensor};
use std::sync::{Arc, Weak};

/// The memory of a pool that no tensor holds, as scratch for eager work. While this or a tensor of it lives, the pool's captures can't be replayed and
/// nothing is recorded: [`Misuse::PoolLent`].
#[derive(Debug)]
#[must_use = "the memory is back with the pool when this drops"]
pub struct ScratchLease {
    hold: Arc<LeaseHold>,
    /// What is left, as address and bytes, ascending.
    free: Vec<(u64, usize)>,
}

/// Ends when the last tensor is gone.
struct LeaseHold {
    pool: PoolHandle,
}

impl std::fmt::Debug for LeaseHold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseHold").finish_non_exhaustive()
    }
}

impl PoolMemory for LeaseHold {
    fn expect_usable(&self) -> Result<()> {
        Ok(())
    }

    fn expect_whole(&self, _: RecordingId) -> Result<()> {
        Ok(())
    }

    fn used_on(&self, stream: &Stream) {
        self.pool.users.note(stream);
    }

    /// A pool is not released while its memory is lent.
    fn enter(&self) -> Result<()> {
        Ok(())
    }

    fn leave(&self) {}
}

impl Drop for LeaseHold {
    fn drop(&mut self) {
        let _memory = self.pool.memory();
        self.pool.availability.set(None);
    }
}

impl CapturePool {
    /// Lends the memory that no tensor holds, after the last replay, in the order of this stream. Work that uses it goes to the same stream, or is
    /// ordered before later work on it by the caller: the next replay comes after what is on this stream by then.
    ///
    /// The results of the last replay are lost.
    ///
    /// # Errors
    /// [`Misuse::PoolLent`], [`Misuse::PoolReleased`], [`Misuse::PoolBusy`], [`Misuse::ReplayWhileRecording`] while a segment is open on this thread,
    /// [`Misuse::ContextMismatch`], and what the driver returns.
    pub fn lend(&self, stream: &Stream) -> Result<ScratchLease> {
        let inner = self.handle();
        inner.context().expect_same(stream.context(), "stream")?;
        if capture_state::is_open() {
            return Err(Misuse::ReplayWhileRecording.into());
        }
        let mut guard = inner.lock()?;
        guard.order(stream)?;
        inner.settle()?;
        inner.next_replay();
        let free = {
            // One step, so that no block is taken of what is lent.
            let memory = inner.memory();
            inner.availability.set(Some(Closed::Lent));
            memory.arena.free_ranges()
        };
        Ok(ScratchLease { hold: Arc::new(LeaseHold { pool: inner.clone() }), free })
    }
}

impl ScratchLease {
    /// The largest piece that is left, in bytes.
    pub fn largest(&self) -> usize {
        self.free.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0)
    }

    /// All that is left, in bytes.
    pub fn bytes(&self) -> usize {
        self.free.iter().map(|(_, bytes)| bytes).sum()
    }

    /// An undefined row-major tensor in the smallest piece that holds it. Its bytes are not lent twice: drop this value and lend again to start anew.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where no piece holds it; [`TensorError::Layout`](crate::TensorError::Layout).
    pub fn empty(&mut self, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let layout = Layout::contiguous(shape)?;
        let bytes = layout.elements() * dtype.size();
        let whole = round_up(bytes, ALIGNMENT).unwrap_or(usize::MAX);
        let fitting = self.free.iter_mut().filter(|(_, free)| *free >= whole).min_by_key(|(_, free)| *free);
        let Some((address, free)) = fitting else {
            return Err(Error::OutOfMemory(Box::new(OutOfMemory {
                requested: bytes,
                reserved: self.bytes(),
                ..OutOfMemory::default()
            })));
        };
        let at = *address;
        *address += whole as u64;
        *free -= whole;
        let context: Context = self.hold.pool.context().clone();
        let storage = Storage {
            address: at,
            bytes,
            context: Some(context),
            recording: None,
            hold: Hold::View { memory: self.hold.clone(), of: Weak::new() },
        };
        Ok(Tensor::of_storage(storage, dtype, layout))
    }
}
