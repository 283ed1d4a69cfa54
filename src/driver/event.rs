//! Events.

use super::capture_mode::relaxed;
use super::capture_state::{self, NodeKind};
use super::context::Context;
use super::deferred_drop::Destroy;
use super::event_mark::EventMark;
use super::keep_alive::KeepAlive;
use super::live_break;
use super::operation::{self, Destination};
use super::stream::{Stream, ready};
use crate::error::{Misuse, Result};
use crate::sys::{CUevent, CUevent_flags_enum, CUevent_record_flags_enum};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
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
    mark: Mutex<EventMark>,
    keeps_time: bool,
    borrowed: Option<Option<KeepAlive>>,
}

// SAFETY: the driver synchronises events (T2 of `docs/DESIGN.md`); the mark is behind a lock.
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
        let keeps_time = flags.contains(EventFlags::TIMING);
        Ok(Event { context: context.clone(), raw, mark: Mutex::default(), keeps_time, borrowed: None })
    }

    /// Takes over a foreign event and destroys it in the end.
    ///
    /// # Safety
    /// `raw` is an event of this context that nobody else destroys.
    pub unsafe fn from_raw(context: &Context, raw: CUevent) -> Event {
        Event { context: context.clone(), raw, mark: Mutex::default(), keeps_time: false, borrowed: None }
    }

    /// Uses a foreign event, and keeps `owner` alive as long as this value lives.
    ///
    /// # Safety
    /// `raw` is an event of this context, and stays one for as long as this value lives.
    pub unsafe fn borrow_raw(context: &Context, raw: CUevent, owner: Option<KeepAlive>) -> Event {
        Event { context: context.clone(), raw, mark: Mutex::default(), keeps_time: false, borrowed: Some(owner) }
    }

    /// The driver's handle. It stays valid as long as this value lives.
    pub fn as_raw(&self) -> CUevent {
        self.raw
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// What is known of its latest record.
    pub(super) fn mark(&self) -> EventMark {
        *self.mark.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a query or a wait on the host for an event of a segment, and any while this thread has a segment open.
    fn expect_host_use(&self) -> Result<()> {
        if self.mark().capture != 0 {
            return Err(Misuse::EventFromSegment.into());
        }
        capture_state::refuse_synchronize("event")
    }

    /// Records the work that is on the stream now
    /// ([`cuEventRecord`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html)). In a segment, on a stream of the capture,
    /// it marks a place in the graph, and no time: see [`record_external`](Event::record_external).
    ///
    /// # Errors
    /// [`TimingInSegment`](crate::Misuse::TimingInSegment) in a segment, for an event with [`EventFlags::TIMING`];
    /// [`ContextMismatch`](crate::Misuse::ContextMismatch), [`OutsideTheCapture`](crate::Misuse::OutsideTheCapture) on a stream beside the segment that this
    /// thread has open, and what the driver returns.
    #[doc(alias = "cuEventRecord")]
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.context.expect_same(stream.context(), "stream")?;
        let to = operation::admit_order(&self.context, stream.as_raw(), "an event's record")?;
        if self.keeps_time && matches!(to, Destination::Capture(_)) {
            return Err(Misuse::TimingInSegment.into());
        }
        // SAFETY: both handles are live.
        unsafe { self.context.driver().cuEventRecord(self.raw, stream.as_raw())? };
        *self.mark.lock().unwrap_or_else(PoisonError::into_inner) = to.mark(stream.as_raw());
        Ok(())
    }

    /// Records the event anew on every replay of the segment that is open on the stream, as a node of its graph
    /// ([`cuEventRecordWithFlags`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html) with `CU_EVENT_RECORD_EXTERNAL`). So a time can be
    /// taken in a segment, and others can wait for a replay's progress: the event is queried, waited for and timed as any. The segment keeps it. Outside a
    /// segment this is [`record`](Event::record).
    ///
    /// ```
    /// # use breakable_cuda_graph::driver::{Device, Event, EventFlags, Stream};
    /// # use breakable_cuda_graph::{BreakableCapture, CapturePool, DType, Driver, Tensor};
    /// # use std::sync::Arc;
    /// # let context = Device::get(&Driver::reference()?, 0)?.primary_context()?;
    /// # let (stream, pool) = (Stream::new(&context)?, CapturePool::new(&context)?);
    /// let (start, end) = (Event::with_flags(&context, EventFlags::TIMING)?, Event::with_flags(&context, EventFlags::TIMING)?);
    /// let (start, end) = (Arc::new(start), Arc::new(end));
    /// let state = Tensor::zeros(&stream, DType::F32, &[1024])?;
    /// let mut capture = BreakableCapture::new(&pool)?;
    /// capture.record(&stream, |scope| {
    ///     start.record_external(&scope.stream()?)?;
    ///     state.fill_bytes(&scope.stream()?, 0)?;
    ///     end.record_external(&scope.stream()?)
    /// })?;
    /// let _ = capture.replay(&stream)?;
    /// stream.synchronize()?;
    /// println!("{:?}", end.elapsed_since(&start)?);
    /// # Ok::<(), breakable_cuda_graph::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`record`](Event::record), but for timing; that the driver lacks the call (before CUDA 11.1), in a segment.
    #[doc(alias = "cuEventRecordWithFlags")]
    pub fn record_external(self: &Arc<Self>, stream: &Stream) -> Result<()> {
        self.context.expect_same(stream.context(), "stream")?;
        let to = operation::admit_order(&self.context, stream.as_raw(), "an event's record")?;
        if let Destination::Device = to {
            return self.record(stream);
        }
        to.keep(|| self.clone());
        let external = CUevent_record_flags_enum::CU_EVENT_RECORD_EXTERNAL.0;
        // SAFETY: both handles are live; the segment keeps the event, and a stream outlives the capture of it.
        unsafe { self.context.driver().cuEventRecordWithFlags(self.raw, stream.as_raw(), external)? };
        to.done(stream.as_raw(), NodeKind::Other);
        // Its record is the replay's, on whatever stream that runs, and no edge of the graph.
        *self.mark.lock().unwrap_or_else(PoisonError::into_inner) = EventMark::default();
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
        self.expect_host_use()?;
        self.has_run()
    }

    /// Waits until the recorded work is done
    /// ([`cuEventSynchronize`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html)).
    ///
    /// # Errors
    /// As for [`is_done`](Event::is_done).
    #[doc(alias = "cuEventSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        self.expect_host_use()?;
        let mark = *self.mark.lock().unwrap_or_else(PoisonError::into_inner);
        self.settle()?;
        live_break::settled_event(&mark);
        Ok(())
    }

    /// Whether the recorded work is done, whatever this thread has open.
    pub(crate) fn has_run(&self) -> Result<bool> {
        let _bound = self.context.bind()?;
        let _relaxed = relaxed(self.context.driver())?;
        // SAFETY: a live event.
        ready(unsafe { self.context.driver().cuEventQuery(self.raw) })
    }

    /// Waits, whatever this thread has open.
    pub(crate) fn settle(&self) -> Result<()> {
        let _bound = self.context.bind()?;
        let _relaxed = relaxed(self.context.driver())?;
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
        self.expect_host_use()?;
        start.expect_host_use()?;
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
