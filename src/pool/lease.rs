//! Lending a pool's free memory to eager work.

use super::capture_pool::CapturePool;
use super::shared::{Closed, PoolHandle};
use crate::driver::capture_state;
use crate::driver::{Context, Stream};
use crate::error::{Error, Misuse, OutOfMemory, Result};
use crate::memory::allocator::{ALIGNMENT, BlockState};
use crate::tensor::storage::{Hold, Storage};
use crate::tensor::{DType, Layout, Tensor};
use std::sync::Arc;

/// The memory of a pool that no tensor holds, as scratch for eager work. While this or a tensor of it lives, the pool's captures can't be replayed and
/// nothing is recorded: [`Misuse::PoolLent`].
#[derive(Debug)]
#[must_use = "the memory is back with the pool when this drops"]
pub struct ScratchLease {
    loan: Arc<Loan>,
    /// What is left, as address and bytes, ascending.
    free: Vec<(u64, usize)>,
}

/// Ends when the last tensor is gone.
struct Loan {
    pool: PoolHandle,
}

impl std::fmt::Debug for Loan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loan").finish_non_exhaustive()
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.pool.set_closed(None);
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
        let mut turn = inner.lock()?;
        turn.order(stream)?;
        inner.settle()?;
        inner.next_replay();
        let state = inner.state();
        let start = state.planned_slab.as_ref().map_or(0, |slab| slab.address);
        let planned = state.planned.free().into_iter().map(|(from, to)| (start + from as u64, to - from));
        let online = state.blocks.snapshot();
        let online = online.iter().filter(|block| matches!(block.state, BlockState::Free));
        let mut free: Vec<(u64, usize)> = planned.chain(online.map(|block| (block.address, block.bytes))).collect();
        drop(state);
        free.sort_unstable();
        inner.set_closed(Some(Closed::Lent));
        Ok(ScratchLease { loan: Arc::new(Loan { pool: inner.clone() }), free })
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
        let whole = bytes.max(1).checked_next_multiple_of(ALIGNMENT).unwrap_or(usize::MAX);
        let fitting = self.free.iter_mut().filter(|(_, free)| *free >= whole).min_by_key(|(_, free)| *free);
        let Some((address, free)) = fitting else {
            return Err(Error::OutOfMemory(Box::new(OutOfMemory {
                requested: bytes,
                in_use: 0,
                reserved: self.bytes(),
                limit: None,
                bucket: None,
                segment: None,
                call: None,
            })));
        };
        let at = *address;
        *address += whole as u64;
        *free -= whole;
        let context: Context = self.loan.pool.context().clone();
        let storage = Storage {
            address: at,
            bytes,
            context: Some(context),
            recording: None,
            hold: Hold::Nothing(self.loan.clone()),
        };
        Ok(Tensor::of_storage(storage, dtype, layout))
    }
}
