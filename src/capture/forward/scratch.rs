//! Where the temporaries of patched breaks lie: at the same addresses on every replay.

use crate::driver::{Context, RecordingId, Stream};
use crate::error::{Error, Misuse, Result};
use crate::memory::sizes::{ALIGNMENT, round_up};
use crate::pool::MappingHold;
use crate::tensor::storage::{Hold, PoolMemory, Storage};
use crate::tensor::{DType, Layout, Tensor};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

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
    pool: Arc<MappingHold>,
}

thread_local! {
    /// The scratch of the patched break that runs on this thread, or null.
    static ACTIVE: Cell<*const Scratch> = const { Cell::new(core::ptr::null()) };
}

/// A scratch is the running break's until this drops.
pub(crate) struct ActiveScratch {
    around: *const Scratch,
}

impl Drop for ActiveScratch {
    fn drop(&mut self) {
        ACTIVE.set(self.around);
    }
}

impl PoolMemory for Scratch {
    /// Outside its break the memory is others'.
    fn expect_usable(&self) -> Result<()> {
        self.pool.expect_usable()?;
        if ACTIVE.get() == core::ptr::from_ref(self) { Ok(()) } else { Err(Misuse::ScratchOutsideItsBreak.into()) }
    }

    fn expect_whole(&self, _: RecordingId) -> Result<()> {
        Ok(())
    }

    fn used_on(&self, stream: &Stream) {
        self.pool.used_on(stream);
    }

    /// A break runs under the replay lock, which a release takes.
    fn enter(&self) -> Result<()> {
        self.expect_usable()
    }

    fn leave(&self) {}
}

impl Scratch {
    /// The region that this tensor of the pool is.
    pub(crate) fn new(
        region: Option<&Tensor>,
        context: &Context,
        recording: RecordingId,
        pool: Arc<MappingHold>,
    ) -> Arc<Scratch> {
        Arc::new(Scratch {
            address: region.map_or(0, Tensor::address),
            bytes: region.map_or(0, Tensor::extent_bytes),
            next: AtomicUsize::new(0),
            exceeded: AtomicUsize::new(0),
            context: context.clone(),
            recording,
            pool,
        })
    }

    /// Its break runs on this thread until the result drops.
    pub(crate) fn activate(self: &Arc<Self>) -> ActiveScratch {
        ActiveScratch { around: ACTIVE.replace(Arc::as_ptr(self)) }
    }

    /// Whether a tensor of an earlier run is still held, whose place is not to be given out again. `known`: references to it that are no tensor's.
    pub(crate) fn is_held(self: &Arc<Self>, known: usize) -> bool {
        Arc::strong_count(self) > known
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
            hold: Hold::View { memory: self.clone(), of: Weak::new() },
        };
        Ok(Tensor::of_storage(storage, dtype, layout))
    }
}

/// What a temporary takes of the region.
pub(crate) fn rounded(bytes: usize) -> Option<usize> {
    round_up(bytes, ALIGNMENT).ok()
}
