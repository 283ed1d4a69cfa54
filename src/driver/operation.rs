//! Where an operation goes that is about to be enqueued: to a capture that its stream takes part in, of whatever thread, or to the device (rules 44 and 45).

use super::capture_state::{self, CaptureState, NodeKind};
use super::context::Context;
use super::event_mark::EventMark;
use super::keep_alive::KeepAlive;
use super::live_break;
use super::recording_id::RecordingId;
use crate::error::{Misuse, Result};
use crate::sys::CUstream;
use std::cell::Cell;
use std::sync::Arc;

/// Where an operation goes.
pub(crate) enum Destination {
    /// To the device. So does what goes to a capture that was begun outside the crate, of which nothing is known.
    Device,
    /// Into an open capture of the crate, which counts it and keeps what it refers to.
    Capture(Arc<CaptureState>),
}

thread_local! {
    /// How many calls of [`outside_capture`] are under way.
    static OUTSIDE: Cell<usize> = const { Cell::new(0) };
}

/// Runs work that is meant for streams beside the capture that is open on this thread: it is done now, once, and is no part of any replay. Without this such
/// work is refused ([`Misuse::OutsideTheCapture`]), as it is nearly always a mistake: a replay would leave it out.
///
/// In a live break the same is said of work on streams that nothing orders with the break's own ([`Misuse::OutsideTheBreak`]), and of streams that are drawn
/// in and joined later, by another break say: whoever says so answers for the order.
///
/// ```
/// # use breakable_cuda_graph::driver::{Device, Stream};
/// # use breakable_cuda_graph::{BreakableCapture, CapturePool, DType, Driver, Error, Misuse, Tensor, outside_capture};
/// # let context = Device::get(&Driver::reference()?, 0)?.primary_context()?;
/// # let (stream, pool) = (Stream::new(&context)?, CapturePool::new(&context)?);
/// let (own, counter) = (Stream::new(&context)?, Tensor::zeros(&stream, DType::I32, &[1])?);
/// BreakableCapture::new(&pool)?.record(&stream, |_| {
///     let refused = counter.fill_bytes(&own, 1);
///     assert!(matches!(refused, Err(Error::Misuse(Misuse::OutsideTheCapture { .. }))));
///     outside_capture(|| counter.fill_bytes(&own, 1)) // Meant to be done now.
/// })?;
/// # Ok::<(), breakable_cuda_graph::Error>(())
/// ```
pub fn outside_capture<R>(work: impl FnOnce() -> R) -> R {
    struct Restore;
    impl Drop for Restore {
        fn drop(&mut self) {
            OUTSIDE.set(OUTSIDE.get() - 1);
        }
    }
    OUTSIDE.set(OUTSIDE.get() + 1);
    let _restore = Restore;
    work()
}

/// Finds where an operation on a stream goes. To be asked before the driver sees it. `what`: for the error.
///
/// # Errors
/// [`Misuse::OutsideTheCapture`] on a thread that has a capture open on this context of which the stream is no part, and [`Misuse::OutsideTheBreak`] on one
/// that runs a live break which nothing orders with it.
#[inline]
pub(crate) fn admit(context: &Context, stream: CUstream, what: &str) -> Result<Destination> {
    admit_any(context, stream, what, true)
}

/// The same for an event's record or a wait, which is no work that a break could miss.
pub(super) fn admit_order(context: &Context, stream: CUstream, what: &str) -> Result<Destination> {
    admit_any(context, stream, what, false)
}

#[inline]
fn admit_any(context: &Context, stream: CUstream, what: &str, is_work: bool) -> Result<Destination> {
    if context.entry().has_open_captures() {
        return find(context, stream, what, is_work);
    }
    if live_break::is_beside(stream) {
        live_break::operation_on(context.entry().address(), stream, what, is_work, OUTSIDE.get() > 0)?;
    }
    Ok(Destination::Device)
}

#[cold]
fn find(context: &Context, stream: CUstream, what: &str, is_work: bool) -> Result<Destination> {
    let entry = context.entry();
    if let Some(own) = capture_state::own_on(entry.address()) {
        if own.knows(stream) || takes_part(context, stream, &own)? {
            return Ok(Destination::Capture(own));
        }
        if OUTSIDE.get() == 0 {
            let (operation, stream, segment) = (what.to_owned(), stream as usize, own.segment());
            return Err(Misuse::OutsideTheCapture { operation, stream, segment }.into());
        }
    }
    match capture_with(context, stream)? {
        Some(capture) => Ok(Destination::Capture(capture)),
        None => {
            if live_break::is_beside(stream) {
                live_break::operation_on(context.entry().address(), stream, what, is_work, OUTSIDE.get() > 0)?;
            }
            Ok(Destination::Device)
        }
    }
}

/// The open capture of the crate that a stream takes part in, whoever drew it in.
pub(super) fn capture_with(context: &Context, stream: CUstream) -> Result<Option<Arc<CaptureState>>> {
    let entry = context.entry();
    if !entry.has_open_captures() {
        return Ok(None);
    }
    if let Some(capture) = entry.capture_with(stream) {
        return Ok(Some(capture));
    }
    // A library may have drawn it in, unseen.
    if is_legacy(stream) || capture_state::capture_number(context.driver(), stream)?.is_none() {
        return Ok(None);
    }
    for capture in entry.open_captures() {
        if takes_part(context, stream, &capture)? {
            return Ok(Some(capture));
        }
    }
    Ok(None)
}

/// Whether the driver says that a stream takes part in a capture.
fn takes_part(context: &Context, stream: CUstream, capture: &CaptureState) -> Result<bool> {
    if is_legacy(stream) {
        return Ok(false);
    }
    let driver = context.driver();
    let Some(number) = capture_state::capture_number(driver, stream)? else { return Ok(false) };
    Ok(capture_state::capture_number(driver, capture.stream())? == Some(number))
}

/// The legacy stream is never captured, and to ask the driver about it may end captures of blocking streams.
fn is_legacy(stream: CUstream) -> bool {
    matches!(stream as usize, 0 | 1)
}

impl Destination {
    /// Keeps what the operation refers to for as long as its graph can be launched. To be done before the driver has the operation: the capture may be ended
    /// by another thread at any time.
    #[inline]
    pub(crate) fn keep(&self, what: impl FnOnce() -> KeepAlive) {
        if let Destination::Capture(capture) = self {
            capture.keep(&what());
        }
    }

    /// The same, unless it was made in the recording that the capture belongs to.
    #[inline]
    pub(crate) fn keep_unless_own(&self, made_in: Option<RecordingId>, what: impl FnOnce() -> KeepAlive) {
        if let Destination::Capture(capture) = self
            && made_in != Some(capture.recording())
        {
            capture.keep(&what());
        }
    }

    /// The driver has taken the operation.
    #[inline]
    pub(crate) fn done(&self, stream: CUstream, kind: NodeKind) {
        if let Destination::Capture(capture) = self {
            capture.count(stream, kind);
        }
    }

    /// What an event that was just recorded on the stream stands for.
    pub(super) fn mark(&self, stream: CUstream) -> EventMark {
        match self {
            Destination::Capture(capture) => capture.mark(stream),
            Destination::Device => live_break::mark(stream),
        }
    }

    /// A stream waits for an event, by an operation that goes here.
    pub(super) fn waited(&self, waiter: CUstream, mark: &EventMark) {
        match self {
            Destination::Capture(capture) => capture.waited(waiter, mark),
            // What is meant to be beside the break is not drawn in.
            Destination::Device if OUTSIDE.get() == 0 => live_break::waited(waiter, mark),
            Destination::Device => {}
        }
    }
}

/// Where a stream's wait for an event goes.
///
/// # Errors
/// [`Misuse::EventFromSegment`] and [`Misuse::EventFromOutside`], which the driver would answer with codes that say little, or by ending a capture, and
/// [`Misuse::OutsideTheCapture`].
pub(super) fn admit_wait(context: &Context, stream: CUstream, mark: &EventMark) -> Result<Destination> {
    if mark.capture == 0 {
        return match admit_order(context, stream, "a wait for an event")? {
            Destination::Capture(_) => Err(Misuse::EventFromOutside.into()),
            device => Ok(device),
        };
    }
    let from = context.entry().capture_by_serial(mark.capture).ok_or(Misuse::EventFromSegment)?;
    let own = capture_state::own_on(context.entry().address());
    let is_anothers = own.is_some_and(|own| !Arc::ptr_eq(&own, &from));
    match capture_with(context, stream)? {
        Some(capture) if !Arc::ptr_eq(&capture, &from) => Err(Misuse::EventFromSegment.into()),
        None if is_anothers => Err(Misuse::EventFromSegment.into()),
        _ => Ok(Destination::Capture(from)),
    }
}

impl Context {
    /// Keeps a block of a recording whose tensor is gone until the branches of the capture that is open are joined: `false` where it can return at once.
    #[inline]
    pub(crate) fn park_block(&self, recording: RecordingId, block: impl FnOnce() -> KeepAlive) -> bool {
        self.entry().capture_of_recording(recording).is_some_and(|capture| capture.park(block))
    }
}
