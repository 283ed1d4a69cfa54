//! Where a tensor's bytes lie, and who gives them back.

use crate::driver::{Context, DeviceBuffer, Event, RecordingId, Stream};
use crate::error::Result;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

/// The bytes behind a tensor and all its views. Given back when the last of them is gone.
pub(crate) struct Storage {
    /// Device address, or host address for [`Hold::Host`].
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    /// `None` for host memory.
    pub(crate) context: Option<Context>,
    /// The recording in which it was taken from a capture pool, if it was. That recording's own segments write it anew on every replay.
    pub(crate) recording: Option<RecordingId>,
    pub(crate) hold: Hold,
}

/// What is given back in the end.
pub(crate) enum Hold {
    /// A buffer of its own.
    Buffer(DeviceBuffer),
    /// A block of a capture pool, which returns to it when this drops.
    Block(Box<dyn PoolMemory>),
    /// A buffer of its own that stands for a block of a capture pool in a trace, which this tells of its return.
    Traced(DeviceBuffer, Box<dyn TraceObserver>),
    /// Nothing: the memory is somebody else's, which this keeps from being unmapped at least. `of`: what holds the block, if something still does.
    View { memory: Arc<dyn PoolMemory>, of: Weak<Storage> },
    /// Host bytes, aligned for every element type.
    Host(HostMemory),
}

/// Host memory that is read through its address: a box would claim that it alone has the address, each time that it moves.
pub(crate) struct HostMemory {
    memory: NonNull<[u64]>,
}

// SAFETY: plain numbers under one owner, which nobody writes.
unsafe impl Send for HostMemory {}
// SAFETY: shared use only reads.
unsafe impl Sync for HostMemory {}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: it came from a box, which nobody else has.
        drop(unsafe { Box::from_raw(self.memory.as_ptr()) });
    }
}

/// A tensor's way to the capture pool that its memory is part of.
pub(crate) trait PoolMemory: Send + Sync {
    /// Fails where the memory is not there, or not for this.
    fn expect_usable(&self) -> Result<()>;

    /// Fails where what is in it is not what the recording's latest replay should have left there.
    fn expect_whole(&self, recording: RecordingId) -> Result<()>;

    /// Work on this stream uses the memory.
    fn used_on(&self, stream: &Stream);

    /// Fails as [`expect_usable`](PoolMemory::expect_usable). Otherwise the memory is not taken away before [`leave`](PoolMemory::leave).
    fn enter(&self) -> Result<()>;

    /// The work that [`enter`](PoolMemory::enter) was for is enqueued.
    fn leave(&self);
}

/// Tells a trace of a tensor's end by being dropped.
pub(crate) trait TraceObserver: Send + Sync {
    /// Names the tensor in the trace.
    fn set_name(&self, name: &str);

    /// LaunchRecorder that a break's result lands in the tensor.
    fn set_handoff(&self);
}

/// Memory to which work is being enqueued: it is not taken away meanwhile.
pub(crate) struct InUse<'a>(Option<&'a dyn PoolMemory>);

impl Drop for InUse<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(memory) = self.0 {
            memory.leave();
        }
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hold = match self.hold {
            Hold::Buffer(_) => "buffer",
            Hold::Block(_) => "pool block",
            Hold::Traced(..) => "traced buffer",
            Hold::View { .. } => "not owned",
            Hold::Host(_) => "host",
        };
        f.debug_struct("Storage")
            .field("address", &format_args!("{:#x}", self.address))
            .field("bytes", &self.bytes)
            .field("hold", &hold)
            .finish_non_exhaustive()
    }
}

impl Storage {
    pub(crate) fn of_buffer(buffer: DeviceBuffer) -> Storage {
        Storage {
            address: buffer.address(),
            bytes: buffer.bytes(),
            context: Some(buffer.context().clone()),
            recording: None,
            hold: Hold::Buffer(buffer),
        }
    }

    /// Host memory, of which the first `bytes` bytes are the tensor's.
    pub(crate) fn of_host(memory: Box<[u64]>, bytes: usize) -> Storage {
        let memory = NonNull::from(Box::leak(memory));
        // Exposed, for who is told the address: a library that is given a DLPack view.
        let address = memory.cast::<u8>().as_ptr().expose_provenance() as u64;
        Storage { address, bytes, context: None, recording: None, hold: Hold::Host(HostMemory { memory }) }
    }

    /// Where host memory begins; null for memory of a device.
    pub(crate) fn host(&self) -> *const u8 {
        match &self.hold {
            Hold::Host(host) => host.memory.cast::<u8>().as_ptr(),
            _ => core::ptr::null(),
        }
    }

    /// The same bytes without their block, which may be given back: only the memory is kept from being unmapped.
    pub(crate) fn unheld(self: &Arc<Self>, memory: Arc<dyn PoolMemory>) -> Storage {
        Storage {
            address: self.address,
            bytes: self.bytes,
            context: self.context.clone(),
            recording: self.recording,
            hold: Hold::View { memory, of: self.downgrade() },
        }
    }

    /// What holds the block, weakly: a view of it holds nothing that a reference could come back to.
    pub(crate) fn downgrade(self: &Arc<Self>) -> Weak<Storage> {
        match &self.hold {
            Hold::View { of, .. } => of.clone(),
            _ => Arc::downgrade(self),
        }
    }

    fn pool_memory(&self) -> Option<&dyn PoolMemory> {
        match &self.hold {
            Hold::Block(memory) => Some(&**memory),
            Hold::View { memory, .. } => Some(&**memory),
            _ => None,
        }
    }

    /// Fails where the memory is a capture pool's and can't be used now.
    #[inline]
    pub(crate) fn expect_usable(&self) -> Result<()> {
        self.pool_memory().map_or(Ok(()), PoolMemory::expect_usable)
    }

    /// Fails where the memory can't be read now, or the latest replay of the recording that it was taken in has failed.
    pub(crate) fn expect_readable(&self) -> Result<()> {
        self.expect_usable()?;
        match (self.pool_memory(), self.recording) {
            (Some(memory), Some(recording)) => memory.expect_whole(recording),
            _ => Ok(()),
        }
    }

    /// Fails as [`expect_usable`](Storage::expect_usable), and keeps the memory as it is until the guard drops, once the work on it is enqueued.
    #[inline]
    pub(crate) fn enter(&self) -> Result<InUse<'_>> {
        let memory = self.pool_memory();
        memory.map_or(Ok(()), PoolMemory::enter)?;
        Ok(InUse(memory))
    }

    /// As the drop of what [`enter`](Storage::enter) gave, where that was forgotten.
    #[inline]
    pub(crate) fn leave(&self) {
        drop(InUse(self.pool_memory()));
    }

    /// Work on this stream is about to use the memory.
    ///
    /// # Errors
    /// What the driver returns.
    #[inline]
    pub(crate) fn used_on(&self, stream: &Stream) -> Result<()> {
        match &self.hold {
            Hold::Buffer(buffer) | Hold::Traced(buffer, _) => return buffer.used_on(stream),
            Hold::Block(memory) => memory.used_on(stream),
            Hold::View { memory, .. } => memory.used_on(stream),
            Hold::Host(_) => {}
        }
        Ok(())
    }

    /// Makes the memory's return wait for the event, where it happens in the order of a stream of the crate's: `false` where it does not.
    pub(crate) fn returns_after(&self, event: &Event) -> Result<bool> {
        match &self.hold {
            Hold::Buffer(buffer) | Hold::Traced(buffer, _) => buffer.returns_after(event),
            _ => Ok(false),
        }
    }
}
