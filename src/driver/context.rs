//! Contexts: the primary context of a device, or a foreign one; what is current; drops that wait for an open capture.

use super::builtin_kernels::BuiltinKernels;
use super::deferred_drop::{Destroy, DropError};
use super::device::Device;
use crate::error::{Error, Misuse, Result};
use crate::sys::{CUcontext, CallError, Driver, first_failure};
use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Whatever must stay alive as long as a borrowed handle is used.
pub type KeepAlive = Arc<dyn Any + Send + Sync>;

/// A context. Cheap to clone; all handles made on it hold it.
///
/// It is `Send` and `Sync`, and works whatever the calling thread has current: each call makes this context current and puts back what was.
///
/// Handles that are dropped while a capture is open on the context are queued and destroyed when the last such capture closes, since some of
/// these calls would invalidate the capture (`cuModuleUnload`, `cuMemFree`, `cuGraphExecDestroy`).
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    raw: CUcontext,
    hold: Hold,
    drops: Mutex<Drops>,
    library: OnceLock<BuiltinKernels>,
}

enum Hold {
    /// Retained; released at the end.
    Primary,
    /// Someone else's.
    Borrowed(#[allow(dead_code)] Option<KeepAlive>),
}

#[derive(Default)]
struct Drops {
    open_captures: usize,
    queue: Vec<Destroy>,
    hook: Option<DropHook>,
}

// SAFETY: the driver's handles may be used from any thread; the rest is synchronised.
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
        self.inner.raw == other.inner.raw && self.driver() == other.driver()
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
    pub fn primary_context(&self) -> Result<Context> {
        let driver = self.driver();
        if !driver.is_of_this_process() {
            return Err(Misuse::ForkedAfterInit.into());
        }
        let mut raw = core::ptr::null_mut();
        // SAFETY: `raw` is a valid place.
        unsafe { driver.cuDevicePrimaryCtxRetain(&mut raw, self.as_raw())? };
        Ok(Context::new(self.clone(), raw, Hold::Primary))
    }
}

impl Context {
    fn new(device: Device, raw: CUcontext, hold: Hold) -> Context {
        Context { inner: Arc::new(Inner { device, raw, hold, drops: Mutex::default(), library: OnceLock::new() }) }
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
        Ok(Context::new(Device::from_handle(driver, device), raw, Hold::Borrowed(owner)))
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
    /// ([`cuCtxSynchronize`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__CTX.html)). Invalidates every open capture.
    ///
    /// # Errors
    /// [`Misuse::SynchronizeWhileCapturing`] when this thread has a segment open, and what the driver returns, which may come from earlier work.
    pub fn synchronize(&self) -> Result<()> {
        super::open_capture::refuse_synchronize("context")?;
        let _bound = self.bind()?;
        // SAFETY: no arguments; the context is current.
        unsafe { self.driver().cuCtxSynchronize()? };
        Ok(())
    }

    /// Free and total memory of the device
    /// ([`cuMemGetInfo`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html)).
    ///
    /// # Errors
    /// What the driver returns.
    pub fn memory_info(&self) -> Result<MemoryInfo> {
        let _bound = self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: two valid places; the context is current.
        unsafe { self.driver().cuMemGetInfo_v2(&mut free, &mut total)? };
        Ok(MemoryInfo { free, total })
    }

    /// Sets what is told of driver calls that fail in drops; `None` goes back to a warning through `log`.
    pub fn on_drop_error(&self, hook: Option<DropHook>) {
        self.drops().hook = hook;
    }

    /// How many drops wait for an open capture to close.
    pub fn queued_drops(&self) -> usize {
        self.drops().queue.len()
    }

    /// The crate's own kernels on this context, loaded at the first call.
    pub(crate) fn builtin_kernels(&self) -> Result<&BuiltinKernels> {
        if let Some(library) = self.inner.library.get() {
            return Ok(library);
        }
        let loaded = BuiltinKernels::load(self)?;
        let library = self.inner.library.get_or_init(|| loaded);
        if !library.same(&loaded) {
            // Another thread was first.
            self.destroy(loaded.destroy());
        }
        Ok(library)
    }

    fn drops(&self) -> MutexGuard<'_, Drops> {
        self.inner.drops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// LaunchRecorder that a capture opens; drops are queued from now on.
    pub(crate) fn capture_opens(&self) {
        self.drops().open_captures += 1;
    }

    /// LaunchRecorder that a capture has closed; carries out the queued drops if it was the last.
    pub(crate) fn capture_closed(&self) {
        let queue = {
            let mut drops = self.drops();
            drops.open_captures = drops.open_captures.saturating_sub(1);
            if drops.open_captures > 0 {
                return;
            }
            std::mem::take(&mut drops.queue)
        };
        for destroy in queue {
            self.destroy(destroy);
        }
    }

    /// Tells of an error in a drop, where there is nobody to return it to.
    pub(crate) fn report_in_drop(&self, what: &'static str, error: &Error) {
        match error.driver_call() {
            Some(error) => report(&DropError { what, error }, self.drops().hook.clone()),
            None => log::warn!("dropping a {what}: {error}"),
        }
    }

    /// Destroys or frees something, now or when the open captures have closed. A failure goes to the hook.
    pub(crate) fn destroy(&self, destroy: Destroy) {
        let done = {
            // Held through the call, so that no capture opens on another thread meanwhile.
            let mut drops = self.drops();
            if drops.open_captures > 0 {
                drops.queue.push(destroy);
                return;
            }
            run(self.driver(), self.inner.raw, destroy)
        };
        if let Err(error) = done {
            report(&error, self.drops().hook.clone());
        }
    }
}

/// What is told of driver calls that fail in drops.
pub type DropHook = Arc<dyn Fn(&DropError) + Send + Sync>;

/// Carries out a drop in the given context without disturbing the thread's record of its first failing call.
fn run(driver: &Driver, context: CUcontext, destroy: Destroy) -> Result<(), DropError> {
    // The driver does not survive a fork: in the child its objects are not there to destroy.
    if !driver.is_of_this_process() {
        return Ok(());
    }
    let before = first_failure::get();
    let bound = bind_stubbornly(driver, context);
    // SAFETY: a destroy is made once, by the owner of the handle, when it drops; the context is current.
    let done = unsafe { destroy.run(driver) };
    drop(bound);
    first_failure::set(before);
    done.map_err(|error| DropError { what: destroy.what(), error })
}

fn report(error: &DropError, hook: Option<DropHook>) {
    match hook {
        Some(hook) => hook(error),
        None => log::warn!("{error}"),
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let drops = std::mem::take(self.drops.get_mut().unwrap_or_else(PoisonError::into_inner));
        let driver = self.device.driver();
        let library = self.library.take().map(|library| library.destroy());
        for destroy in drops.queue.into_iter().chain(library) {
            if let Err(error) = run(driver, self.raw, destroy) {
                report(&error, drops.hook.clone());
            }
        }
        if matches!(self.hold, Hold::Primary) && driver.is_of_this_process() {
            // SAFETY: retained once by `primary_context`, released once here.
            if let Err(error) = unsafe { driver.cuDevicePrimaryCtxRelease_v2(self.device.as_raw()) } {
                report(&DropError { what: "primary context", error }, drops.hook);
            }
        }
    }
}

/// A context is current until this drops; then what was current before is again.
pub(crate) struct Bound<'a> {
    driver: &'a Driver,
    /// What to put back, unless the context was current already.
    previous: Option<CUcontext>,
    /// The current context belongs to the thread.
    _thread: PhantomData<*const ()>,
}

#[inline]
fn bind(driver: &Driver, raw: CUcontext) -> Result<Bound<'_>, CallError> {
    let mut current = core::ptr::null_mut();
    // SAFETY: `current` is a valid place.
    unsafe { driver.cuCtxGetCurrent(&mut current)? };
    let previous = if current == raw {
        None
    } else {
        // SAFETY: the context is live: its `Inner` is, or the caller of `borrow_raw` vouches for it.
        unsafe { driver.cuCtxSetCurrent(raw)? };
        Some(current)
    };
    Ok(Bound { driver, previous, _thread: PhantomData })
}

/// As [`bind`], on paths that clean up: tried twice, and gone on without if that fails too.
fn bind_stubbornly(driver: &Driver, raw: CUcontext) -> Option<Bound<'_>> {
    bind(driver, raw).or_else(|_| bind(driver, raw)).ok()
}

impl Drop for Bound<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(previous) = self.previous {
            // SAFETY: it was current a moment ago. Tried twice: leaving the wrong context current would break the caller's other code.
            let restored =
                unsafe { self.driver.cuCtxSetCurrent(previous).or_else(|_| self.driver.cuCtxSetCurrent(previous)) };
            if let Err(error) = restored {
                log::warn!("the context that was current before could not be made current again: {error}");
            }
        }
    }
}
