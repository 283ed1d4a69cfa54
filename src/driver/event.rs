//! Events.

use super::capture_state;
use super::context::Context;
use super::deferred_drop::Destroy;
use super::keep_alive::KeepAlive;
use super::stream::{Stream, ready};
use crate::error::Result;
use crate::sys::{CUevent, CUevent_flags_enum};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

bitflags::bitflags! {
    /// How an event behaves ([`CUevent_flags`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html)). Without
    /// [`TIMING`](EventFlags::TIMING) recording is cheaper.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct EventFlags: u32 {
        /// A thread that waits for it sleeps instead of spinning.
        const BLOCKING_SYNC = CUevent_flags_enum::CU_EVENT_BLOCKING_SYNC.0;
        /// It keeps a time, for [`Event::elapsed_since`]. The driver's own flag is the opposite.
        const TIMING = 1 << 16;
    }
}

/// An event. It remembers whether it was last recorded inside a segment: such a record is an edge of that graph and nothing to wait for
/// anywhere else, so using it elsewhere is a typed error instead of `CUDA_ERROR_INVALID_VALUE`.
pub struct Event {
    context: Context,
    raw: CUevent,
    /// The serial number of the segment that it was last recorded in, or 0.
    segment: AtomicU64,
    borrowed: Option<Option<KeepAlive>>,
}

// SAFETY: an event may be used from any thread; the driver synchronises.
unsafe impl Send for Event {}
// SAFETY: likewise.
unsafe impl Sync for Event {}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("raw", &self.raw).finish_non_exhaustive()
    }
}

impl Event {
    /// An event without timing.
    ///
    /// # Errors
    /// What the driver returns.
    pub fn new(context: &Context) -> Result<Event> {
        Event::with_flags(context, EventFlags::empty())
    }

    /// An event ([`cuEventCreate`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html)).
    ///
    /// # Errors
    /// What the driver returns.
    #[doc(alias = "cuEventCreate")]
    pub fn with_flags(context: &Context, flags: EventFlags) -> Result<Event> {
        let mut bits = (flags & EventFlags::BLOCKING_SYNC).bits();
        if !flags.contains(EventFlags::TIMING) {
            bits |= CUevent_flags_enum::CU_EVENT_DISABLE_TIMING.0;
        }
        let _bound = context.bind()?;
        let mut raw = core::ptr::null_mut();
        // SAFETY: `raw` is a valid place; the context is current.
        unsafe { context.driver().cuEventCreate(&mut raw, bits)? };
        Ok(Event { context: context.clone(), raw, segment: AtomicU64::new(0), borrowed: None })
    }

    /// Takes over a foreign event and destroys it in the end.
    ///
    /// # Safety
    /// `raw` is an event of this context that nobody else destroys.
    pub unsafe fn from_raw(context: &Context, raw: CUevent) -> Event {
        Event { context: context.clone(), raw, segment: AtomicU64::new(0), borrowed: None }
    }

    /// Uses a foreign event, and keeps `owner` alive as long as this value lives.
    ///
    /// # Safety
    /// `raw` is an event of this context, and stays one for as long as this value lives.
    pub unsafe fn borrow_raw(context: &Context, raw: CUevent, owner: Option<KeepAlive>) -> Event {
        Event { context: context.clone(), raw, segment: AtomicU64::new(0), borrowed: Some(owner) }
    }

    /// The driver's handle. It stays valid as long as this value lives.
    pub fn as_raw(&self) -> CUevent {
        self.raw
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn segment(&self) -> u64 {
        self.segment.load(Ordering::Relaxed)
    }

    /// Records the work that is on the stream now
    /// ([`cuEventRecord`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html)). In a segment, on a stream of the capture,
    /// it marks a place in the graph.
    ///
    /// # Errors
    /// [`ContextMismatch`](crate::Misuse::ContextMismatch), and what the driver returns.
    #[doc(alias = "cuEventRecord")]
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.context.expect_same(stream.context(), "stream")?;
        let segment = capture_state::segment_of(self.context.driver(), stream.as_raw())?;
        // SAFETY: both handles are live.
        unsafe { self.context.driver().cuEventRecord(self.raw, stream.as_raw())? };
        self.segment.store(segment, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the recorded work is done; an event that was never recorded is
    /// ([`cuEventQuery`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html)).
    ///
    /// # Errors
    /// [`EventFromSegment`](crate::Misuse::EventFromSegment),
    /// [`SynchronizeWhileCapturing`](crate::Misuse::SynchronizeWhileCapturing), and what the driver returns.
    #[doc(alias = "cuEventQuery")]
    pub fn is_done(&self) -> Result<bool> {
        capture_state::check_host_use(self.segment())?;
        let _bound = self.context.bind()?;
        // SAFETY: a live event.
        ready(unsafe { self.context.driver().cuEventQuery(self.raw) })
    }

    /// Waits until the recorded work is done
    /// ([`cuEventSynchronize`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html)).
    ///
    /// # Errors
    /// As for [`is_done`](Event::is_done).
    #[doc(alias = "cuEventSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        capture_state::check_host_use(self.segment())?;
        let _bound = self.context.bind()?;
        // SAFETY: a live event.
        unsafe { self.context.driver().cuEventSynchronize(self.raw)? };
        Ok(())
    }

    /// The time between two recorded events that have [`EventFlags::TIMING`] and are done
    /// ([`cuEventElapsedTime`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html)).
    ///
    /// # Errors
    /// What the driver returns.
    #[doc(alias = "cuEventElapsedTime")]
    pub fn elapsed_since(&self, start: &Event) -> Result<Duration> {
        capture_state::check_host_use(self.segment())?;
        let _bound = self.context.bind()?;
        let mut milliseconds = 0.0;
        // SAFETY: live events and a valid place.
        unsafe { self.context.driver().cuEventElapsedTime(&mut milliseconds, start.raw, self.raw)? };
        Ok(Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3).unwrap_or_default())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.borrowed.is_none() {
            self.context.destroy(Destroy::Event(self.raw));
        }
    }
}
