//! Streams.

use super::capture_state;
use super::context::Context;
use super::deferred_drop::Destroy;
use super::event::Event;
use super::keep_alive::KeepAlive;
use crate::error::{Misuse, Result};
use crate::sys::{CUresult, CUstream, CUstream_flags_enum, Call, CallError};
use std::fmt;
use std::sync::Arc;

/// A stream. Cheap to clone; it is destroyed with its last clone, unless it is borrowed.
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

// SAFETY: a stream may be used from any thread; the driver synchronises.
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
    /// [`Misuse::SynchronizeWhileCapturing`] when this thread has a segment open: the call would invalidate the capture. What the driver
    /// returns, which may come from earlier work.
    #[doc(alias = "cuStreamSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        capture_state::refuse_synchronize("stream")?;
        self.settle()
    }

    /// Waits, whatever the thread has open.
    pub(crate) fn settle(&self) -> Result<()> {
        // SAFETY: a live stream.
        unsafe { self.context().driver().cuStreamSynchronize(self.as_raw())? };
        Ok(())
    }

    /// Whether all work on the stream is done ([`cuStreamQuery`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html)).
    ///
    /// # Errors
    /// As for [`synchronize`](Stream::synchronize).
    #[doc(alias = "cuStreamQuery")]
    pub fn is_idle(&self) -> Result<bool> {
        capture_state::refuse_synchronize("stream")?;
        // SAFETY: a live stream.
        ready(unsafe { self.context().driver().cuStreamQuery(self.as_raw()) })
    }

    /// Makes later work on the stream wait for the event's latest record
    /// ([`cuStreamWaitEvent`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html)). In a segment, waiting for an event
    /// that the segment recorded draws the stream into the capture: it must be joined before the segment ends.
    ///
    /// # Errors
    /// [`Misuse::EventFromSegment`] for an event recorded in a segment that is not open any more,
    /// [`Misuse::EventFromOutside`] in a segment for one that was recorded before it, and what the driver returns.
    #[doc(alias = "cuStreamWaitEvent")]
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.context().expect_same(event.context(), "event")?;
        let segment = event.segment();
        capture_state::check_wait(self.context().driver(), self.as_raw(), segment)?;
        // SAFETY: both handles are live.
        unsafe { self.context().driver().cuStreamWaitEvent(self.as_raw(), event.as_raw(), 0)? };
        capture_state::mark_forked(self.as_raw(), segment);
        Ok(())
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
    let captured = context.entry().capture_of(raw).is_some() || capture_state::is_captured(context.driver(), raw)?;
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
