//! The current context of the calling thread: made current for a call, and put back.

use crate::sys::{CUcontext, CallError, Driver};
use std::marker::PhantomData;

/// A context is current until this drops; then what was current before is again.
pub(crate) struct Bound<'a> {
    driver: &'a Driver,
    /// What to put back, unless the context was current already.
    previous: Option<CUcontext>,
    /// The current context belongs to the thread.
    _thread: PhantomData<*const ()>,
}

/// Makes a context current
/// ([`cuCtxSetCurrent`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__CTX.html)), if another one is. The caller vouches that it lives.
#[inline]
pub(super) fn bind(driver: &Driver, raw: CUcontext) -> Result<Bound<'_>, CallError> {
    let mut current = core::ptr::null_mut();
    // SAFETY: `current` is a valid place.
    unsafe { driver.cuCtxGetCurrent(&mut current)? };
    let previous = if current == raw {
        None
    } else {
        // SAFETY: the context is live, as the caller says.
        unsafe { driver.cuCtxSetCurrent(raw)? };
        Some(current)
    };
    Ok(Bound { driver, previous, _thread: PhantomData })
}

/// As [`bind`], on paths that clean up: tried twice, and gone on without if that fails too.
pub(super) fn bind_stubbornly(driver: &Driver, raw: CUcontext) -> Option<Bound<'_>> {
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
