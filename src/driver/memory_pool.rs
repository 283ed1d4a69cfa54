//! Stream-ordered memory pools.

use super::buffer::DeviceBuffer;
use super::capture_mode::relaxed;
use super::capture_state;
use super::context::Context;
use super::deferred_drop::Destroy;
use super::keep_alive::KeepAlive;
use super::operation;
use super::stream::Stream;
use crate::error::{Error, Misuse, Result};
use crate::sys::{
    CUmemAllocationType, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, Call, device_location, first_failure,
    set_max_size, zeroed,
};
use std::fmt;
use std::sync::Arc;

/// A stream-ordered memory pool of its own ([`CUmemoryPool`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html)).
/// Cheap to clone; destroyed when its last clone and its last buffer are gone. The device's default pool is never touched.
#[derive(Clone)]
pub struct MemoryPool {
    inner: Arc<Inner>,
}

struct Inner {
    context: Context,
    raw: CUmemoryPool,
    /// `None`: destroyed here.
    borrowed: Option<Option<KeepAlive>>,
}

// SAFETY: the driver synchronises pools (T2 of `docs/DESIGN.md`).
unsafe impl Send for Inner {}
// SAFETY: likewise.
unsafe impl Sync for Inner {}

/// How to make a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct MemoryPoolOptions {
    /// The most bytes that the pool may hold. `None`: the device's memory. It is always passed on: a pool without it reserves twice the
    /// device's memory of address space. Drivers before CUDA 12.2 have no limit.
    pub max_bytes: Option<usize>,
    /// How many unused bytes the pool keeps when a synchronisation would give them back. `None`: all. The driver's own default is none.
    pub keep_bytes: Option<u64>,
}

impl MemoryPoolOptions {
    /// With a limit.
    #[must_use]
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// With this release threshold.
    #[must_use]
    pub fn keep_bytes(mut self, bytes: u64) -> Self {
        self.keep_bytes = Some(bytes);
        self
    }
}

/// What a pool holds, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct MemoryPoolUsage {
    /// Taken from the device.
    pub reserved: u64,
    /// Of these, lent out.
    pub used: u64,
}

impl fmt::Debug for MemoryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryPool").field("raw", &self.inner.raw).finish_non_exhaustive()
    }
}

impl MemoryPool {
    /// A pool on the context's device, without a limit of its own, which keeps unused memory.
    ///
    /// # Errors
    /// As for [`with_options`](MemoryPool::with_options).
    pub fn new(context: &Context) -> Result<MemoryPool> {
        MemoryPool::with_options(context, MemoryPoolOptions::default())
    }

    /// A pool on the context's device
    /// ([`cuMemPoolCreate`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html)).
    ///
    /// # Errors
    /// [`Error::PoolsUnsupported`] where the device has none, and what the driver returns.
    #[doc(alias = "cuMemPoolCreate")]
    pub fn with_options(context: &Context, options: MemoryPoolOptions) -> Result<MemoryPool> {
        let device = context.device();
        if !device.supports_memory_pools()? {
            return Err(Error::PoolsUnsupported { device: device.name()?, driver: context.driver().version() });
        }
        let max_bytes = match options.max_bytes {
            Some(bytes) => bytes,
            None => device.total_memory()?,
        };
        let mut properties: CUmemPoolProps = zeroed();
        properties.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = device_location(device.as_raw());
        set_max_size(&mut properties, context.driver().version(), max_bytes);
        let _bound = context.bind()?;
        let _relaxed = relaxed(context.driver())?;
        let mut raw = core::ptr::null_mut();
        // SAFETY: a valid place and filled properties.
        unsafe { context.driver().cuMemPoolCreate(&mut raw, &properties)? };
        context.entry().add_pool(raw);
        let pool = MemoryPool { inner: Arc::new(Inner { context: context.clone(), raw, borrowed: None }) };
        let mut keep = options.keep_bytes.unwrap_or(u64::MAX);
        // SAFETY: this attribute takes a 64-bit integer.
        unsafe {
            context.driver().cuMemPoolSetAttribute(
                raw,
                CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                (&raw mut keep).cast(),
            )?;
        }
        Ok(pool)
    }

    /// Takes over a foreign pool and destroys it in the end.
    ///
    /// # Safety
    /// `raw` is a pool on this context's device that nobody else destroys.
    pub unsafe fn from_raw(context: &Context, raw: CUmemoryPool) -> MemoryPool {
        MemoryPool { inner: Arc::new(Inner { context: context.clone(), raw, borrowed: None }) }
    }

    /// Uses a foreign pool, and keeps `owner` alive as long as this value, a clone or a buffer of it lives.
    ///
    /// # Safety
    /// `raw` is a pool on this context's device, and stays one for as long as this value, a clone or a buffer of it lives.
    pub unsafe fn borrow_raw(context: &Context, raw: CUmemoryPool, owner: Option<KeepAlive>) -> MemoryPool {
        MemoryPool { inner: Arc::new(Inner { context: context.clone(), raw, borrowed: Some(owner) }) }
    }

    /// The driver's handle. It stays valid as long as this value or a clone lives.
    pub fn as_raw(&self) -> CUmemoryPool {
        self.inner.raw
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Takes memory, in the stream's order
    /// ([`cuMemAllocFromPoolAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html)). Dropping the buffer
    /// gives it back in the order of the same stream.
    ///
    /// # Errors
    /// [`Misuse::StreamIsCapturing`] on a stream that is being captured: the memory would belong to the graph, whose second launch fails.
    /// [`Misuse::ContextMismatch`], and what the driver returns (`CUDA_ERROR_OUT_OF_MEMORY` too when the pool's limit is reached).
    #[doc(alias = "cuMemAllocFromPoolAsync")]
    pub fn allocate(&self, bytes: usize, stream: &Stream) -> Result<DeviceBuffer> {
        self.context().expect_same(stream.context(), "stream")?;
        if operation::capture_with(self.context(), stream.as_raw())?.is_some() {
            return Err(Misuse::StreamIsCapturing { call: Call::cuMemAllocFromPoolAsync }.into());
        }
        let driver = self.context().driver();
        let _bound = self.context().bind()?;
        let _relaxed = relaxed(driver)?;
        let mut address = 0;
        // SAFETY: live handles and a valid place. Zero bytes are an error to the driver.
        unsafe { driver.cuMemAllocFromPoolAsync(&mut address, bytes.max(1), self.as_raw(), stream.as_raw())? };
        Ok(DeviceBuffer::ordered(self.clone(), stream.clone(), address, bytes))
    }

    /// What it holds ([`cuMemPoolGetAttribute`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html)). Works while
    /// a segment is open.
    ///
    /// # Errors
    /// What the driver returns.
    #[doc(alias = "cuMemPoolGetAttribute")]
    pub fn usage(&self) -> Result<MemoryPoolUsage> {
        let driver = self.context().driver();
        let _bound = self.context().bind()?;
        let _relaxed = relaxed(driver)?;
        let ask = |attribute| {
            let mut value = 0_u64;
            // SAFETY: these attributes are 64-bit integers.
            unsafe { driver.cuMemPoolGetAttribute(self.as_raw(), attribute, (&raw mut value).cast())? };
            Ok::<_, crate::sys::CallError>(value)
        };
        Ok(MemoryPoolUsage {
            reserved: ask(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
            used: ask(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
        })
    }

    /// Gives unused memory beyond `keep` bytes back to the device
    /// ([`cuMemPoolTrimTo`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html)). Not while a segment is open.
    ///
    /// # Errors
    /// [`Misuse::SynchronizeWhileCapturing`], and what the driver returns.
    #[doc(alias = "cuMemPoolTrimTo")]
    pub fn trim(&self, keep: usize) -> Result<()> {
        capture_state::refuse_synchronize("memory pool")?;
        let _bound = self.context().bind()?;
        let _relaxed = relaxed(self.context().driver())?;
        // SAFETY: a live pool.
        unsafe { self.context().driver().cuMemPoolTrimTo(self.as_raw(), keep)? };
        Ok(())
    }
}

/// Gives back to the device what the memory pools of a context keep unused, as far as the crate has made them
/// ([`cuMemPoolTrimTo`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html)). Waits for nothing, and works while a segment is open. What
/// fails is no failure of what asks for it.
pub(crate) fn trim_all(context: &Context) {
    let trimmed = || -> Result<()> {
        let driver = context.driver();
        let _bound = context.bind()?;
        let _relaxed = relaxed(driver)?;
        context.entry().for_each_pool(|pool| {
            // SAFETY: a live pool: it is known until it is destroyed.
            let _ = unsafe { driver.cuMemPoolTrimTo(pool, 0) };
        });
        Ok(())
    };
    let _ = first_failure::untouched(trimmed);
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.borrowed.is_none() {
            self.context.entry().forget_pool(self.raw);
            self.context.destroy(Destroy::Pool(self.raw));
        }
    }
}
