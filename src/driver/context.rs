//! Contexts: the primary context of a device, or a foreign one.

use super::capture_state;
use super::current::{Bound, bind};
use super::deferred_drop::{Destroy, DropError};
use super::device::Device;
use super::keep_alive::KeepAlive;
use super::live_break;
use super::registry::{self, BuiltinKernels, ContextEntry, DropHook};
use crate::error::{Error, Misuse, Result};
use crate::sys::{CUcontext, CallError, Driver};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// A context. Cheap to clone; all handles made on it hold it. Two values are equal where they are the same context of the driver, however they were
/// obtained, and share what the crate knows of it.
///
/// It is `Send` and `Sync`, and works whatever the calling thread has current: each call makes this context current and puts back what was.
///
/// Handles that are dropped while a capture is open on the context are queued and destroyed when the last such capture closes, since some of
/// these calls would invalidate the capture (`cuModuleUnload`, `cuMemFree`, `cuGraphExecDestroy`).
#[derive(Clone)]
#[doc(alias = "cuModuleUnload", alias = "cuMemFree", alias = "cuGraphExecDestroy")]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    raw: CUcontext,
    entry: Arc<ContextEntry>,
    /// The entry's own, once this value has asked for them.
    kernels: OnceLock<BuiltinKernels>,
    hold: Hold,
}

enum Hold {
    /// Retained; released at the end.
    Primary,
    /// Someone else's.
    Borrowed(#[allow(dead_code)] Option<KeepAlive>),
}

// SAFETY: the driver synchronises contexts (T2 of `docs/DESIGN.md`); the rest is behind a lock, or never changed.
unsafe impl Send for Inner {}
// SAFETY: likewise.
unsafe impl Sync for Inner {}

/// Free and total device memory in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryInfo {
    /// Bytes that are free.
    pub free: usize,
    /// Bytes in all.
    pub total: usize,
}

/// Whether two values are the same context of the driver.
impl PartialEq for Context {
    #[inline]
    fn eq(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.inner.entry, &other.inner.entry)
    }
}

impl Eq for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("device", &self.inner.device).field("raw", &self.inner.raw).finish()
    }
}

impl Device {
    /// Retains the device's primary context, whose flags are left as they are
    /// ([`cuDevicePrimaryCtxRetain`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__PRIMARY__CTX.html)).
    ///
    /// # Errors
    /// [`Misuse::ForkedAfterInit`], or what the driver returns.
    #[doc(alias = "cuDevicePrimaryCtxRetain")]
    pub fn primary_context(&self) -> Result<Context> {
        let driver = self.driver();
        if !driver.is_of_this_process() {
            return Err(Misuse::ForkedAfterInit.into());
        }
        let mut raw = core::ptr::null_mut();
        // SAFETY: `raw` is a valid place.
        unsafe { driver.cuDevicePrimaryCtxRetain(&mut raw, self.as_raw())? };
        // Should the next call fail, the context is released again, for which it need not stand in the registry.
        let id = context_id(driver, raw).inspect_err(|_| {
            // SAFETY: retained a moment ago. The first error is the one to tell.
            let _ = unsafe { driver.cuDevicePrimaryCtxRelease_v2(self.as_raw()) };
        })?;
        Ok(Context::new(self.clone(), raw, id, Hold::Primary))
    }
}

impl Context {
    fn new(device: Device, raw: CUcontext, id: u64, hold: Hold) -> Context {
        let entry = registry::enter(device.driver(), raw, id);
        Context { inner: Arc::new(Inner { device, raw, entry, kernels: OnceLock::new(), hold }) }
    }

    /// Uses a foreign context, and keeps `owner` alive as long as anything made on it lives.
    ///
    /// # Errors
    /// What the driver returns for a handle that is not a context.
    ///
    /// # Safety
    /// `raw` is a context of this driver, and stays one for as long as the returned value or anything made on it lives.
    pub unsafe fn borrow_raw(driver: &Driver, raw: CUcontext, owner: Option<KeepAlive>) -> Result<Context> {
        let bound = bind(driver, raw)?;
        let mut device = 0;
        // SAFETY: `device` is a valid place; the context is current.
        unsafe { driver.cuCtxGetDevice(&mut device)? };
        drop(bound);
        let id = context_id(driver, raw)?;
        Ok(Context::new(Device::from_handle(driver, device), raw, id, Hold::Borrowed(owner)))
    }

    /// The driver's handle. It stays valid as long as this value or a clone lives.
    pub fn as_raw(&self) -> CUcontext {
        self.inner.raw
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The driver.
    pub fn driver(&self) -> &Driver {
        self.inner.device.driver()
    }

    /// Fails with [`Misuse::ContextMismatch`] unless `other` is this context.
    pub(crate) fn expect_same(&self, other: &Context, what: &'static str) -> Result<()> {
        if self == other {
            return Ok(());
        }
        Err(Misuse::ContextMismatch { what, expected: self.inner.device.ordinal(), got: other.inner.device.ordinal() }
            .into())
    }

    /// Makes the context current until the guard drops, and then puts back what was.
    #[inline]
    pub(crate) fn bind(&self) -> Result<Bound<'_>, CallError> {
        bind(self.driver(), self.inner.raw)
    }

    /// Runs `work` with this context current, for foreign code that reads it; puts back what was.
    ///
    /// # Errors
    /// What the driver returns when the context can't be made current.
    pub fn with_current<R>(&self, work: impl FnOnce() -> R) -> Result<R> {
        let _bound = self.bind()?;
        Ok(work())
    }

    /// Waits for all work on the context
    /// ([`cuCtxSynchronize`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__CTX.html)). The driver ends every capture of the context for it, so it is refused while
    /// one is open, and none opens before it is done.
    ///
    /// # Errors
    /// [`Misuse::SynchronizeWhileCapturing`] when this thread has a segment open, [`Misuse::CaptureInProgress`] when another one has, and what the driver
    /// returns, which may come from earlier work.
    #[doc(alias = "cuCtxSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        capture_state::refuse_synchronize("context")?;
        let _bound = self.bind()?;
        // SAFETY: no arguments; the context is current.
        self.entry().while_none_is_open(|| unsafe { self.driver().cuCtxSynchronize() })??;
        live_break::settled_all(self.entry().address());
        Ok(())
    }

    /// Free and total memory of the device
    /// ([`cuMemGetInfo`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html)).
    ///
    /// # Errors
    /// What the driver returns.
    #[doc(alias = "cuMemGetInfo")]
    pub fn memory_info(&self) -> Result<MemoryInfo> {
        let _bound = self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: two valid places; the context is current.
        unsafe { self.driver().cuMemGetInfo_v2(&mut free, &mut total)? };
        Ok(MemoryInfo { free, total })
    }

    /// Sets what is told of driver calls that fail in drops, for all values of this context; `None` goes back to a warning through `log`.
    pub fn on_drop_error(&self, hook: Option<DropHook>) {
        self.inner.entry.set_hook(hook);
    }

    /// How many drops wait for an open capture to close.
    pub fn queued_drops(&self) -> usize {
        self.inner.entry.queued_drops()
    }

    /// What the whole process knows of the context.
    pub(super) fn entry(&self) -> &ContextEntry {
        &self.inner.entry
    }

    /// Where this value keeps the handles of the crate's own kernels.
    pub(super) fn kernels(&self) -> &OnceLock<BuiltinKernels> {
        &self.inner.kernels
    }

    /// Tells of an error in a drop, where there is nobody to return it to.
    pub(crate) fn report_in_drop(&self, what: &'static str, error: &Error) {
        match error.driver_call() {
            Some(error) => self.inner.entry.report(&DropError { what, error }),
            None => log::warn!("dropping a {what}: {error}"),
        }
    }

    /// Destroys or frees something, now or when the open captures have closed. A failure goes to the hook.
    pub(crate) fn destroy(&self, what: Destroy) {
        self.inner.entry.destroy(self.driver(), what);
    }
}

/// The driver's id of a context, which no other context of the process has had
/// ([`cuCtxGetId`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__CTX.html)). The caller vouches that it lives.
fn context_id(driver: &Driver, raw: CUcontext) -> Result<u64> {
    let mut id = 0;
    // SAFETY: a live context, as the caller says, and a valid place.
    unsafe { driver.cuCtxGetId(raw, &mut id)? };
    Ok(id)
}

impl Drop for Inner {
    fn drop(&mut self) {
        let driver = self.device.driver();
        self.entry.leave(driver);
        if matches!(self.hold, Hold::Primary) && driver.is_of_this_process() {
            // SAFETY: retained once by `primary_context`, released once here.
            if let Err(error) = unsafe { driver.cuDevicePrimaryCtxRelease_v2(self.device.as_raw()) } {
                self.entry.report(&DropError { what: "primary context", error });
            }
        }
    }
}
