//! Streams.

use super::capture_mode::relaxed;
use super::capture_state::{self, NodeKind};
use super::context::Context;
use super::deferred_drop::Destroy;
use super::event::Event;
use super::keep_alive::KeepAlive;
use super::live_break::{self, LiveBreakGuard};
use super::operation::{self, Destination};
use crate::error::{Misuse, Result};
use crate::sys::{CUevent_wait_flags_enum, CUresult, CUstream, CUstream_flags_enum, Call, CallError};
use std::fmt;
use std::sync::Arc;

/// A stream. Cheap to clone; it is destroyed with its last clone, unless it is borrowed.
///
/// Attributes that a caller gives a stream by [`cuStreamSetAttribute`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html) (an access
/// policy window, a synchronisation policy) are its own, and hold for what is enqueued on it: eager runs and live breaks. Segments are captured on the stream
/// of their pool, and patched bodies are listed or captured on another of the crate's, so that their nodes have none of them. What a kernel is launched with
/// itself, [`LaunchConfig::attributes`](super::LaunchConfig::attributes), goes with it everywhere.
#[derive(Clone)]
pub struct Stream {
    inner: Arc<Inner>,
}

struct Inner {
    context: Context,
    raw: CUstream,
    kind: StreamKind,
    /// `None`: destroyed here.
    borrowed: Option<Option<KeepAlive>>,
}

// SAFETY: the driver synchronises streams (T2 of `docs/DESIGN.md`); the rest is never changed.
unsafe impl Send for Inner {}
// SAFETY: likewise.
unsafe impl Sync for Inner {}

/// How a stream is ordered with the legacy default stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum StreamKind {
    /// Not at all: what a capture needs, and what the crate makes.
    NonBlocking,
    /// Waits for the legacy stream and the other way round: a call of any library on the legacy stream would break a capture.
    Blocking,
    /// The legacy default stream itself.
    Legacy,
}

/// How to make a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct StreamOptions {
    /// Lower numbers go first; clamped by the driver to what the device has. `None` is the default priority.
    pub priority: Option<i32>,
}

impl StreamOptions {
    /// With this priority.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = Some(priority);
        self
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("raw", &self.inner.raw).field("kind", &self.inner.kind).finish()
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Stream) -> bool {
        self.inner.raw == other.inner.raw && self.inner.context == other.inner.context
    }
}

impl Eq for Stream {}

impl Stream {
    /// A non-blocking stream of default priority.
    ///
    /// # Errors
    /// What the driver returns.
    pub fn new(context: &Context) -> Result<Stream> {
        Stream::with_options(context, StreamOptions::default())
    }

    /// A non-blocking stream
    /// ([`cuStreamCreateWithPriority`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html)).
    ///
    /// # Errors
    /// What the driver returns.
    #[doc(alias = "cuStreamCreateWithPriority")]
    pub fn with_options(context: &Context, options: StreamOptions) -> Result<Stream> {
        let _bound = context.bind()?;
        let flags = CUstream_flags_enum::CU_STREAM_NON_BLOCKING.0;
        let mut raw = core::ptr::null_mut();
        // SAFETY: `raw` is a valid place; the context is current.
        unsafe { context.driver().cuStreamCreateWithPriority(&mut raw, flags, options.priority.unwrap_or(0))? };
        Ok(Stream {
            inner: Arc::new(Inner { context: context.clone(), raw, kind: StreamKind::NonBlocking, borrowed: None }),
        })
    }

    /// Takes over a foreign stream and destroys it in the end.
    ///
    /// # Errors
    /// [`Misuse::ContextMismatch`] when it belongs to another context, [`Misuse::WouldInvalidate`] while it is captured, and what the driver
    /// returns.
    ///
    /// # Safety
    /// `raw` is a stream of this driver that nobody else destroys.
    pub unsafe fn from_raw(context: &Context, raw: CUstream) -> Result<Stream> {
        let kind = inspect(context, raw)?;
        Ok(Stream { inner: Arc::new(Inner { context: context.clone(), raw, kind, borrowed: None }) })
    }

    /// Uses a foreign stream, and keeps `owner` alive as long as this value or a clone lives. A null handle is the legacy default stream.
    ///
    /// ```
    /// # use breakable_cuda_graph::driver::{Device, Stream};
    /// # use breakable_cuda_graph::Driver;
    /// # let context = Device::get(&Driver::reference()?, 0)?.primary_context()?;
    /// # let stream = Stream::new(&context)?;
    /// # let engines = std::sync::Arc::new(Stream::new(&context)?);
    /// // An engine's own stream, by its handle; the owner lives as long as anything here uses it.
    /// // SAFETY: a stream of this context, which its owner keeps.
    /// let stream = unsafe { Stream::borrow_raw(&context, engines.as_raw(), Some(engines.clone()))? };
    /// assert!(stream.is_idle()?);
    /// # Ok::<(), breakable_cuda_graph::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Misuse::ContextMismatch`] when it belongs to another context, [`Misuse::WouldInvalidate`] while it is captured, and what the driver
    /// returns.
    ///
    /// # Safety
    /// `raw` is a stream of this driver, and stays one for as long as this value or a clone lives.
    pub unsafe fn borrow_raw(context: &Context, raw: CUstream, owner: Option<KeepAlive>) -> Result<Stream> {
        let kind = inspect(context, raw)?;
        Ok(Stream { inner: Arc::new(Inner { context: context.clone(), raw, kind, borrowed: Some(owner) }) })
    }

    /// The driver's handle. It stays valid as long as this value or a clone lives.
    #[inline]
    pub fn as_raw(&self) -> CUstream {
        self.inner.raw
    }

    /// The context.
    #[inline]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// How it is ordered with the legacy default stream.
    pub fn kind(&self) -> StreamKind {
        self.inner.kind
    }

    /// Its priority ([`cuStreamGetPriority`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html)).
    ///
    /// # Errors
    /// What the driver returns.
    #[doc(alias = "cuStreamGetPriority")]
    pub fn priority(&self) -> Result<i32> {
        let mut priority = 0;
        // SAFETY: a live stream and a valid place.
        unsafe { self.context().driver().cuStreamGetPriority(self.as_raw(), &mut priority)? };
        Ok(priority)
    }

    /// A number that no other stream of the process has
    /// ([`cuStreamGetId`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html)).
    ///
    /// # Errors
    /// [`Misuse::WouldInvalidate`] while the stream is captured, and what the driver returns.
    #[doc(alias = "cuStreamGetId")]
    pub fn id(&self) -> Result<u64> {
        refuse_captured(self.context(), self.as_raw(), Call::cuStreamGetId)?;
        let mut id = 0;
        // SAFETY: a live stream and a valid place.
        unsafe { self.context().driver().cuStreamGetId(self.as_raw(), &mut id)? };
        Ok(id)
    }

    /// Waits until all work on the stream is done
    /// ([`cuStreamSynchronize`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html)).
    ///
    /// # Errors
    /// [`Misuse::SynchronizeWhileCapturing`] when this thread has a segment open, and [`Misuse::CaptureInProgress`] when another thread captures this
    /// stream: the call would invalidate the capture. What the driver returns, which may come from earlier work.
    #[doc(alias = "cuStreamSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        capture_state::refuse_synchronize("stream")?;
        self.settle()
    }

    /// Waits, whatever the thread has open.
    pub(crate) fn settle(&self) -> Result<()> {
        let driver = self.context().driver();
        let _relaxed = relaxed(driver)?;
        // SAFETY: a live stream.
        let wait = || unsafe { driver.cuStreamSynchronize(self.as_raw()) };
        self.context().entry().wait_for_stream(self.as_raw(), wait)??;
        live_break::settled(self.as_raw());
        Ok(())
    }

    /// Waits for the work on the stream, whatever is captured: while the stream itself is, for what was there before.
    ///
    /// # Errors
    /// What the driver returns; [`Misuse::CaptureInProgress`] where code outside the crate captures it, or it was drawn into a capture.
    pub(crate) fn settle_work(&self) -> Result<()> {
        if let Some(capture) = self.context().entry().capture_with(self.as_raw()) {
            let before = capture.before().filter(|_| capture.stream() == self.as_raw());
            return match before.and_then(|before| before.downcast_ref::<Event>()) {
                Some(before) => before.settle(),
                None => Err(Misuse::CaptureInProgress { stream: self.as_raw() as usize }.into()),
            };
        }
        if self.kind() != StreamKind::Legacy && capture_state::is_captured(self.context().driver(), self.as_raw())? {
            return Err(Misuse::CaptureInProgress { stream: self.as_raw() as usize }.into());
        }
        self.settle()
    }

    /// Whether all work on the stream is done, whatever this thread has open.
    pub(crate) fn has_run(&self) -> Result<bool> {
        let driver = self.context().driver();
        let _relaxed = relaxed(driver)?;
        // SAFETY: a live stream.
        let query = || unsafe { driver.cuStreamQuery(self.as_raw()) };
        ready(self.context().entry().ask_about_stream(self.as_raw(), query)?)
    }

    /// Fails where the stream is being captured, by whomever.
    ///
    /// # Errors
    /// [`Misuse::CaptureInProgress`] for a capture of the crate's, [`Misuse::ReplayInOthersCapture`] for one of other code.
    #[inline]
    pub(crate) fn expect_not_captured(&self) -> Result<()> {
        // To ask the driver about the legacy stream may end captures of blocking streams.
        if self.kind() == StreamKind::Legacy || !capture_state::is_captured(self.context().driver(), self.as_raw())? {
            return Ok(());
        }
        self.refuse_as_captured()
    }

    #[cold]
    fn refuse_as_captured(&self) -> Result<()> {
        let stream = self.as_raw() as usize;
        match operation::capture_with(self.context(), self.as_raw())? {
            Some(_) => Err(Misuse::CaptureInProgress { stream }.into()),
            None => Err(Misuse::ReplayInOthersCapture { stream }.into()),
        }
    }

    /// Whether all work on the stream is done ([`cuStreamQuery`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html)).
    ///
    /// # Errors
    /// As for [`synchronize`](Stream::synchronize).
    #[doc(alias = "cuStreamQuery")]
    pub fn is_idle(&self) -> Result<bool> {
        capture_state::refuse_synchronize("stream")?;
        self.has_run()
    }

    /// Makes later work on the stream wait for the event's latest record
    /// ([`cuStreamWaitEvent`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html)). In a segment, waiting for an event
    /// that the segment recorded draws the stream into the capture: it must be joined before the segment ends.
    ///
    /// # Errors
    /// [`Misuse::EventFromSegment`] for an event recorded in a segment that is not open any more or is another one's,
    /// [`Misuse::EventFromOutside`] in a segment for one that was recorded before it, [`Misuse::OutsideTheCapture`] on a stream beside the segment that
    /// this thread has open, and what the driver returns.
    #[doc(alias = "cuStreamWaitEvent")]
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.context().expect_same(event.context(), "event")?;
        let (context, mark) = (self.context(), event.mark());
        let to = operation::admit_wait(context, self.as_raw(), &mark)?;
        if let Destination::Capture(capture) = &to
            && capture.is_stale(self.as_raw(), &mark)
        {
            // A block that an operation since the event has used may be given to this branch: it is to come after that operation too.
            let now = Event::new(context)?;
            // SAFETY: live handles; the first is the stream that is captured, which takes part in the same capture.
            unsafe {
                context.driver().cuEventRecord(now.as_raw(), capture.stream())?;
                context.driver().cuStreamWaitEvent(self.as_raw(), now.as_raw(), 0)?;
            }
        }
        // SAFETY: both handles are live.
        unsafe { context.driver().cuStreamWaitEvent(self.as_raw(), event.as_raw(), 0)? };
        to.waited(self.as_raw(), &mark);
        Ok(())
    }

    /// Makes later work wait, on every replay of the segment that is open on this stream, for what the event's latest record stands for when the replay is
    /// launched ([`cuStreamWaitEvent`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html) with `CU_EVENT_WAIT_EXTERNAL`): for the
    /// progress of another component, a transfer of a cache, say. Its owner records the event outside the segment, before each replay. The segment keeps
    /// the event. Outside a segment this is [`wait`](Stream::wait).
    ///
    /// # Errors
    /// As for [`wait`](Stream::wait), but for the place of the record.
    #[doc(alias = "cuStreamWaitEvent")]
    pub fn wait_external(&self, event: &Arc<Event>) -> Result<()> {
        self.context().expect_same(event.context(), "event")?;
        let to = operation::admit_order(self.context(), self.as_raw(), "a wait for an event")?;
        if let Destination::Device = to {
            return self.wait(event);
        }
        to.keep(|| event.clone());
        let external = CUevent_wait_flags_enum::CU_EVENT_WAIT_EXTERNAL.0;
        // SAFETY: both handles are live; the segment keeps the event.
        unsafe { self.context().driver().cuStreamWaitEvent(self.as_raw(), event.as_raw(), external)? };
        to.done(self.as_raw(), NodeKind::Other);
        Ok(())
    }

    /// A live break begins on the stream: until the guard drops, work beside it is looked at.
    #[inline]
    pub(crate) fn enter_live_break(&self) -> LiveBreakGuard {
        live_break::enter(self.context().entry().address(), self.as_raw())
    }

    /// The reason why the stream can't be captured, if there is one: the legacy stream and blocking streams can't.
    pub(crate) fn refuse_for_capture(&self) -> Result<()> {
        match self.kind() {
            StreamKind::NonBlocking => Ok(()),
            StreamKind::Blocking => Err(Misuse::BlockingStream.into()),
            StreamKind::Legacy => Err(Misuse::LegacyStream.into()),
        }
    }
}

/// `Ok(false)` for `CUDA_ERROR_NOT_READY`.
pub(super) fn ready(done: Result<(), CallError>) -> Result<bool> {
    match done {
        Ok(()) => Ok(true),
        Err(error) if error.code() == CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Refuses a call on a stream that is captured, by whomever: it would invalidate the capture.
fn refuse_captured(context: &Context, raw: CUstream, call: Call) -> Result<()> {
    // The registry knows it without a call where the crate has begun the capture, on whatever thread.
    let captured = context.entry().capture_with(raw).is_some() || capture_state::is_captured(context.driver(), raw)?;
    if captured { Err(Misuse::WouldInvalidate { call }.into()) } else { Ok(()) }
}

/// The stream's kind, after a check that it belongs to the context.
fn inspect(context: &Context, raw: CUstream) -> Result<StreamKind> {
    const LEGACY: usize = 1;
    if raw.is_null() || raw as usize == LEGACY {
        return Ok(StreamKind::Legacy);
    }
    let driver = context.driver();
    let _bound = context.bind()?;
    let mut owner = core::ptr::null_mut();
    // SAFETY: the caller vouches for the stream; `owner` is a valid place.
    unsafe { driver.cuStreamGetCtx(raw, &mut owner)? };
    if owner != context.as_raw() {
        let expected = context.device().ordinal();
        // SAFETY: the driver just gave the handle.
        let got = unsafe { Context::borrow_raw(driver, owner, None)? }.device().ordinal();
        return Err(Misuse::ContextMismatch { what: "stream", expected, got }.into());
    }
    refuse_captured(context, raw, Call::cuStreamGetFlags)?;
    let mut flags = 0;
    // SAFETY: as above.
    unsafe { driver.cuStreamGetFlags(raw, &mut flags)? };
    let non_blocking = flags & CUstream_flags_enum::CU_STREAM_NON_BLOCKING.0 != 0;
    Ok(if non_blocking { StreamKind::NonBlocking } else { StreamKind::Blocking })
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.borrowed.is_none() {
            self.context.destroy(Destroy::Stream(self.raw));
        }
    }
}
