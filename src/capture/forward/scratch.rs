//! Where the temporaries of patched breaks lie: at the same addresses on every replay.

use crate::driver::{Context, KeepAlive, RecordingId};
use crate::error::{Error, Result};
use crate::memory::sizes::{ALIGNMENT, round_up};
use crate::tensor::storage::{Hold, Storage};
use crate::tensor::{DType, Layout, Tensor};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A region of the capture pool for one break, as large as its temporaries were together when it was captured. Temporaries lie one behind the other.
/// The block is not held: the region is used between the break's inputs and its handoffs, and belongs to others before and after.
pub(crate) struct Scratch {
    address: u64,
    bytes: usize,
    next: AtomicUsize,
    /// What was asked for in vain, in bytes; 0 where all was served.
    exceeded: AtomicUsize,
    context: Context,
    recording: RecordingId,
    /// Keeps the pool's memory mapped.
    _pool: KeepAlive,
}

impl Scratch {
    /// The region that this tensor of the pool is.
    pub(crate) fn new(
        region: Option<&Tensor>,
        context: &Context,
        recording: RecordingId,
        pool: KeepAlive,
    ) -> Arc<Scratch> {
        Arc::new(Scratch {
            address: region.map_or(0, Tensor::address),
            bytes: region.map_or(0, Tensor::extent_bytes),
            next: AtomicUsize::new(0),
            exceeded: AtomicUsize::new(0),
            context: context.clone(),
            recording,
            _pool: pool,
        })
    }

    /// Begins anew.
    pub(crate) fn reset(&self) {
        self.next.store(0, Ordering::Relaxed);
        self.exceeded.store(0, Ordering::Relaxed);
    }

    /// The error of the last request that was larger than what was left, if one was.
    pub(crate) fn exceeded(&self) -> Option<Error> {
        let requested = self.exceeded.load(Ordering::Relaxed);
        let left = self.bytes - self.next.load(Ordering::Relaxed);
        (requested > 0).then_some(Error::ScratchExceeded { requested, left })
    }

    /// An undefined row-major tensor.
    pub(crate) fn empty(self: &Arc<Self>, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let layout = Layout::contiguous(shape)?;
        let bytes = layout.elements() * dtype.size();
        let start = self.next.load(Ordering::Relaxed);
        let Some(end) = rounded(bytes).and_then(|bytes| start.checked_add(bytes)).filter(|end| *end <= self.bytes)
        else {
            // A tensor of no bytes takes a place too.
            self.exceeded.store(bytes.max(1), Ordering::Relaxed);
            return Err(Error::ScratchExceeded { requested: bytes, left: self.bytes - start });
        };
        self.next.store(end, Ordering::Relaxed);
        let storage = Storage {
            address: self.address + start as u64,
            bytes,
            context: Some(self.context.clone()),
            recording: Some(self.recording),
            hold: Hold::Nothing(self.clone()),
        };
        Ok(Tensor::of_storage(storage, dtype, layout))
    }
}

/// What a temporary takes of the region.
pub(crate) fn rounded(bytes: usize) -> Option<usize> {
    round_up(bytes, ALIGNMENT).ok()
}
