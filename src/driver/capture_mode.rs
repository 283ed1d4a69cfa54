//! Capture modes: which calls a capture forbids, and to whom.

use crate::error::Result;
use crate::sys::{CUstreamCaptureMode, Driver};
use std::marker::PhantomData;

/// Which calls are forbidden while a capture is open, because they may disturb it
/// ([`CUstreamCaptureMode`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html)).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum CaptureMode {
    /// The capturing thread may not make them; other threads may. What an engine with other threads wants.
    #[default]
    ThreadLocal,
    /// No thread of the process may make them: an unrelated allocation on another thread invalidates the capture.
    Global,
    /// Every thread may make them.
    Relaxed,
}

impl CaptureMode {
    pub(crate) fn as_raw(self) -> CUstreamCaptureMode {
        match self {
            CaptureMode::ThreadLocal => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            CaptureMode::Global => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            CaptureMode::Relaxed => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
        }
    }
}

/// Lets this thread make calls that an open capture forbids, its own or, in [`Global`](CaptureMode::Global) mode, another thread's, until the guard drops
/// ([`cuThreadExchangeStreamCaptureMode`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html)).
pub(crate) fn relaxed(driver: &Driver) -> Result<RelaxedGuard<'_>> {
    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: `mode` is a valid place; it holds the thread's previous mode afterwards.
    unsafe { driver.cuThreadExchangeStreamCaptureMode(&mut mode)? };
    Ok(RelaxedGuard { driver, previous: mode, _thread: PhantomData })
}

/// Puts the thread's capture mode back.
pub(crate) struct RelaxedGuard<'a> {
    driver: &'a Driver,
    previous: CUstreamCaptureMode,
    _thread: PhantomData<*const ()>,
}

impl Drop for RelaxedGuard<'_> {
    fn drop(&mut self) {
        let exchange = || {
            let mut mode = self.previous;
            // SAFETY: `mode` is a valid place.
            unsafe { self.driver.cuThreadExchangeStreamCaptureMode(&mut mode) }
        };
        // Tried twice: a thread that stays relaxed would make forbidden calls unnoticed.
        if let Err(error) = exchange().or_else(|_| exchange()) {
            log::warn!("the thread's capture mode could not be put back: {error}");
        }
    }
}
