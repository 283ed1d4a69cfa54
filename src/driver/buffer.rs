//! Device and pinned host memory.

use super::capture_mode::relaxed;
use super::context::Context;
use super::deferred_drop::Destroy;
use super::event::Event;
use super::keep_alive::KeepAlive;
use super::memory_pool::MemoryPool;
use super::stream::Stream;
use super::stream_order::order_after;
use crate::error::{Error, Result};
use crate::sys::{CUdeviceptr, CUresult, CallError};
use core::ffi::c_void;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// A range of device memory, given back when dropped: in the order of its stream where it came from a [`MemoryPool`], at once where it came
/// from `cuMemAlloc`, not at all where it is borrowed.
#[doc(alias = "cuMemAlloc")]
pub struct DeviceBuffer {
    context: Context,
    address: CUdeviceptr,
    bytes: usize,
    origin: Origin,
}

enum Origin {
    Plain,
    /// The handles outlive the buffer, whose free still needs them.
    Ordered {
        stream: Stream,
        #[allow(dead_code)]
        pool: MemoryPool,
        /// Other streams with work that uses it: its return comes after that.
        users: Mutex<Vec<Stream>>,
    },
    Borrowed(#[allow(dead_code)] Option<KeepAlive>),
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("address", &format_args!("{:#x}", self.address))
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl DeviceBuffer {
    /// Memory from [`cuMemAlloc`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html). Its content is undefined. For what
    /// lives long: weights, static inputs.
    ///
    /// # Errors
    /// [`Error::DeviceOutOfMemory`], and what else the driver returns.
    #[doc(alias = "cuMemAlloc")]
    pub fn new(context: &Context, bytes: usize) -> Result<DeviceBuffer> {
        let _bound = context.bind()?;
        let _relaxed = relaxed(context.driver())?;
        let mut address = 0;
        // SAFETY: a valid place; the context is current. Zero bytes are an error to the driver.
        let taken = unsafe { context.driver().cuMemAlloc_v2(&mut address, bytes.max(1)) };
        taken.map_err(|call| too_little(context, bytes, call))?;
        Ok(DeviceBuffer { context: context.clone(), address, bytes, origin: Origin::Plain })
    }

    pub(super) fn ordered(pool: MemoryPool, stream: Stream, address: CUdeviceptr, bytes: usize) -> DeviceBuffer {
        let context = pool.context().clone();
        let origin = Origin::Ordered { stream, pool, users: Mutex::default() };
        DeviceBuffer { context, address, bytes, origin }
    }

    /// Uses foreign memory, and keeps `owner` alive as long as this value lives.
    ///
    /// # Safety
    /// `address` is the start of `bytes` bytes of device memory that kernels of this context can use for as long as this value lives.
    pub unsafe fn borrow_raw(
        context: &Context,
        address: CUdeviceptr,
        bytes: usize,
        owner: Option<KeepAlive>,
    ) -> DeviceBuffer {
        DeviceBuffer { context: context.clone(), address, bytes, origin: Origin::Borrowed(owner) }
    }

    /// Makes a stream-ordered return wait for the event: `false` for other memory.
    pub(crate) fn returns_after(&self, event: &Event) -> Result<bool> {
        match &self.origin {
            Origin::Ordered { stream, .. } => {
                stream.expect_not_captured()?;
                stream.wait(event).map(|()| true)
            }
            Origin::Plain | Origin::Borrowed(_) => Ok(false),
        }
    }

    /// Work on this stream is about to use it. Where it comes from and returns in the order of another one, that work comes after what is there now, and
    /// the return after what is on this stream by then.
    ///
    /// # Errors
    /// What the driver returns.
    #[inline]
    pub(crate) fn used_on(&self, user: &Stream) -> Result<()> {
        match &self.origin {
            Origin::Ordered { stream, users, .. } if stream.as_raw() != user.as_raw() => add_user(stream, users, user),
            _ => Ok(()),
        }
    }

    /// The device address.
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.context
    }
}

/// Says what the device has, where an allocation failed for want of memory.
#[cold]
fn too_little(context: &Context, requested: usize, call: CallError) -> Error {
    match context.memory_info() {
        Ok(info) if call.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            Error::DeviceOutOfMemory { requested, free: info.free, total: info.total, call }
        }
        _ => call.into(),
    }
}

#[cold]
fn add_user(stream: &Stream, users: &Mutex<Vec<Stream>>, user: &Stream) -> Result<()> {
    let mut users = users.lock().unwrap_or_else(PoisonError::into_inner);
    if users.iter().any(|known| known.as_raw() == user.as_raw()) {
        return Ok(());
    }
    if stream.expect_not_captured().is_err() {
        // What was there before the capture is all that matters.
        stream.settle_work()?;
    } else if user.expect_not_captured().is_ok() {
        order_after(user, stream, &Event::new(stream.context())?)?;
    }
    users.push(user.clone());
    Ok(())
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        match &self.origin {
            Origin::Plain => self.context.destroy(Destroy::Memory(self.address)),
            Origin::Ordered { stream, users, .. } => {
                for user in users.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                    self.context.destroy(Destroy::Order { later: stream.as_raw(), earlier: user.as_raw() });
                }
                self.context.destroy(Destroy::OrderedMemory(self.address, stream.as_raw()))
            }
            Origin::Borrowed(_) => {}
        }
    }
}

/// Page-locked host memory: copies from and to it are asynchronous, and a segment can record them
/// ([`cuMemHostAlloc`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html)).
#[doc(alias = "cuMemHostAlloc")]
pub struct PinnedBuffer {
    context: Context,
    address: *mut c_void,
    bytes: usize,
}

// SAFETY: plain memory under one owner.
unsafe impl Send for PinnedBuffer {}
// SAFETY: it is written through `&mut` alone, and by copies whose caller vouches that nobody reads meanwhile (T4 of `docs/DESIGN.md`).
unsafe impl Sync for PinnedBuffer {}

impl fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBuffer").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl PinnedBuffer {
    /// Zeroed memory.
    ///
    /// # Errors
    /// What the driver returns.
    pub fn new(context: &Context, bytes: usize) -> Result<PinnedBuffer> {
        let _bound = context.bind()?;
        let _relaxed = relaxed(context.driver())?;
        let mut address = core::ptr::null_mut();
        // SAFETY: a valid place; the context is current.
        unsafe { context.driver().cuMemHostAlloc(&mut address, bytes.max(1), 0)? };
        // SAFETY: the driver gave at least this many bytes.
        unsafe { address.cast::<u8>().write_bytes(0, bytes) };
        Ok(PinnedBuffer { context: context.clone(), address, bytes })
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn address(&self) -> *mut c_void {
        self.address
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: owned, initialised, of this length.
        unsafe { core::slice::from_raw_parts(self.address.cast(), self.bytes) }
    }

    /// The bytes, to be written. Work that is still on a stream may be reading or writing them: wait for it first.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: owned, initialised, of this length.
        unsafe { core::slice::from_raw_parts_mut(self.address.cast(), self.bytes) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        self.context.destroy(Destroy::Pinned(self.address));
    }
}
