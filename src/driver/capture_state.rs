//! What is known of an open capture, by the driver's handles alone: with the context's entry, where every thread sees it ([`CaptureState`]), and with
//! the thread that opened it, whose launches into a body are listed without a lock.

use super::keep_alive::{KeepAlive, keep};
use super::launch_list::LaunchList;
use super::recording_id::RecordingId;
use crate::error::{Misuse, Result};
use crate::kernels::LaunchConfig;
use crate::sys::{CUfunction, CUstream, CUstreamCaptureStatus, Driver};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// An open capture, as every thread sees it.
pub(crate) struct CaptureState {
    stream: CUstream,
    /// Another one each time that it opens.
    serial: AtomicU64,
    /// The recording that it belongs to.
    recording: RecordingId,
    /// How many operations of the crate went into it so far.
    operations: AtomicUsize,
    /// The operation at which another stream was last drawn into it, or [`NEVER`].
    forked_at: AtomicUsize,
    /// What its nodes refer to.
    kept: Mutex<Vec<KeepAlive>>,
}

const NEVER: usize = usize::MAX;

// SAFETY: the stream's handle is a name of a driver object; the rest is synchronised.
unsafe impl Send for CaptureState {}
// SAFETY: likewise.
unsafe impl Sync for CaptureState {}

impl CaptureState {
    pub(crate) fn new(stream: CUstream, recording: RecordingId) -> Arc<CaptureState> {
        Arc::new(CaptureState {
            stream,
            serial: AtomicU64::new(0),
            recording,
            operations: AtomicUsize::new(0),
            forked_at: AtomicUsize::new(NEVER),
            kept: Mutex::default(),
        })
    }

    /// It is about to open: what was known of the last time it did goes.
    pub(super) fn begin(&self) {
        static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);
        self.serial.store(NEXT_SERIAL.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        self.operations.store(0, Ordering::Relaxed);
        self.forked_at.store(NEVER, Ordering::Relaxed);
        self.with_kept(Vec::clear);
    }

    /// Its number among all that were ever opened, from 1.
    fn serial(&self) -> u64 {
        self.serial.load(Ordering::Relaxed)
    }

    /// The stream that was captured first.
    pub(super) fn stream(&self) -> CUstream {
        self.stream
    }

    /// How many operations of the crate went into it so far.
    pub(super) fn operations(&self) -> usize {
        self.operations.load(Ordering::Relaxed)
    }

    /// The operation at which another stream was last drawn into it.
    pub(super) fn forked_at(&self) -> Option<usize> {
        Some(self.forked_at.load(Ordering::Relaxed)).filter(|at| *at != NEVER)
    }

    /// Takes what its nodes refer to.
    pub(super) fn take_kept(&self) -> Vec<KeepAlive> {
        std::mem::take(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn with_kept(&self, add: impl FnOnce(&mut Vec<KeepAlive>)) {
        add(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// What one body of own launches was, as data, and what those launches refer to.
#[derive(Default)]
pub(crate) struct BodyCapture {
    pub(crate) launches: LaunchList,
    pub(crate) kept: Vec<KeepAlive>,
}

/// What a capture is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CaptureKind {
    /// A segment: a graph that is launched again and again.
    Segment,
    /// The body of a patched break, which is made anew for each launch.
    Body,
}

/// The capture that a thread has open.
struct Own {
    capture: Arc<CaptureState>,
    kind: CaptureKind,
    /// Where kernel launches are listed instead of enqueued.
    body: Option<BodyCapture>,
}

impl Own {
    fn with_kept(&mut self, add: impl FnOnce(&mut Vec<KeepAlive>)) {
        match &mut self.body {
            Some(body) => add(&mut body.kept),
            None => self.capture.with_kept(add),
        }
    }
}

thread_local! {
    /// Whether there is one: what launches on the hot path look at.
    static IS_OPEN: Cell<bool> = const { Cell::new(false) };
    static OWN: RefCell<Option<Own>> = const { RefCell::new(None) };
}

/// Whether this thread has a segment open.
#[inline]
pub(crate) fn is_open() -> bool {
    IS_OPEN.get()
}

/// Whether what this thread does now goes into a segment, and not into the body of a patched break.
pub(crate) fn is_in_segment() -> bool {
    is_open() && OWN.with_borrow(|own| own.as_ref().is_some_and(|own| own.kind == CaptureKind::Segment))
}

/// The calling thread has opened this capture.
pub(super) fn set_own(capture: Arc<CaptureState>, kind: CaptureKind) {
    OWN.with_borrow_mut(|own| *own = Some(Own { capture, kind, body: None }));
    IS_OPEN.set(true);
}

/// The calling thread's capture has ended.
pub(super) fn clear_own() {
    IS_OPEN.set(false);
    // What is kept drops after the borrow has ended: a drop may look here.
    drop(OWN.with_borrow_mut(Option::take));
}

/// From now on kernel launches on the captured stream are listed in the body, and not enqueued.
pub(super) fn begin_body(body: BodyCapture) {
    OWN.with_borrow_mut(|own| {
        if let Some(own) = own {
            own.body = Some(body);
        }
    });
}

/// Ends the body, and gives what is in it.
pub(super) fn end_body() -> BodyCapture {
    OWN.with_borrow_mut(|own| own.as_mut().and_then(|own| own.body.take())).unwrap_or_default()
}

/// Counts an operation that goes into the open segment, if there is one; and keeps what it refers to.
#[inline]
pub(crate) fn operation(refers_to: impl FnOnce(&mut Vec<KeepAlive>)) {
    if is_open() {
        count_operation(refers_to);
    }
}

fn count_operation(refers_to: impl FnOnce(&mut Vec<KeepAlive>)) {
    OWN.with_borrow_mut(|own| {
        if let Some(own) = own {
            own.capture.operations.fetch_add(1, Ordering::Relaxed);
            own.with_kept(refers_to);
        }
    });
}

/// Lists a launch on the stream as data, where launches are listed: `record` adds it. `false`: it is to be enqueued.
#[inline]
pub(crate) fn record_launch(stream: CUstream, record: impl FnOnce(&mut LaunchRecorder<'_>)) -> bool {
    is_open() && record_if_listed(stream, record)
}

fn record_if_listed(stream: CUstream, record: impl FnOnce(&mut LaunchRecorder<'_>)) -> bool {
    OWN.with_borrow_mut(|own| {
        let Some(mut recorder) = LaunchRecorder::of(own, stream) else { return false };
        record(&mut recorder);
        true
    })
}

/// Where launches are listed as data, with what they refer to.
pub(crate) struct LaunchRecorder<'a> {
    body: &'a mut BodyCapture,
    recording: RecordingId,
}

impl<'a> LaunchRecorder<'a> {
    fn of(own: &'a mut Option<Own>, stream: CUstream) -> Option<LaunchRecorder<'a>> {
        let Own { capture, body, .. } = own.as_mut()?;
        let body = body.as_mut().filter(|_| capture.stream == stream)?;
        Some(LaunchRecorder { body, recording: capture.recording })
    }

    /// Begins a launch; its parameters follow.
    #[inline]
    pub(crate) fn begin(&mut self, function: CUfunction, config: LaunchConfig) {
        self.body.launches.begin(function, config);
    }

    /// Adds the next parameter's value.
    #[inline]
    pub(crate) fn parameter(&mut self, bytes: &[u8]) {
        self.body.launches.parameter(bytes);
    }

    /// Keeps what the launch refers to.
    #[inline]
    pub(crate) fn keep(&mut self, what: &KeepAlive) {
        keep(&mut self.body.kept, what);
    }

    /// Keeps something, unless it was made in the recording that the body is of.
    #[inline]
    pub(crate) fn keep_unless_own(&mut self, made_in: Option<RecordingId>, what: impl FnOnce() -> KeepAlive) {
        if made_in != Some(self.recording) {
            keep(&mut self.body.kept, &what());
        }
    }
}

/// Keeps something for the open segment, if there is one, unless it was made in the recording that the segment belongs to.
#[inline]
pub(crate) fn keep_in_segment(made_in: Option<RecordingId>, what: impl FnOnce() -> KeepAlive) {
    if is_open() {
        keep_unless_own(made_in, what);
    }
}

fn keep_unless_own(made_in: Option<RecordingId>, what: impl FnOnce() -> KeepAlive) {
    OWN.with_borrow_mut(|own| {
        if let Some(own) = own.as_mut().filter(|own| made_in != Some(own.capture.recording)) {
            own.with_kept(|kept| keep(kept, &what()));
        }
    });
}

/// Refuses a wait on the host while a segment is open: it would invalidate the capture (900).
pub(crate) fn refuse_synchronize(what: &'static str) -> Result<()> {
    if is_open() { Err(Misuse::SynchronizeWhileCapturing { what }.into()) } else { Ok(()) }
}

/// Whether the driver captures the stream now, for whomever
/// ([`cuStreamIsCapturing`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html)). The caller vouches that it lives.
pub(super) fn is_captured(driver: &Driver, stream: CUstream) -> Result<bool> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: a live stream, as the caller says, and a valid place.
    unsafe { driver.cuStreamIsCapturing(stream, &mut status)? };
    Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// The serial number of this thread's open segment, if the stream takes part in it; 0 otherwise.
pub(super) fn segment_of(driver: &Driver, stream: CUstream) -> Result<u64> {
    let own = OWN.with_borrow(|own| own.as_ref().map(|own| (own.capture.serial(), own.capture.stream == stream)));
    match own {
        None => Ok(0),
        Some((serial, true)) => Ok(serial),
        Some((serial, false)) => Ok(if is_captured(driver, stream)? { serial } else { 0 }),
    }
}

/// Refuses waits that the driver would answer with a code that says little, or by invalidating the capture. `event`: the serial number of the segment
/// that the event was last recorded in, or 0.
pub(super) fn check_wait(driver: &Driver, stream: CUstream, event: u64) -> Result<()> {
    let open = OWN.with_borrow(|own| own.as_ref().map_or(0, |own| own.capture.serial()));
    match (event, open) {
        (0, 0) => Ok(()),
        (0, _) if segment_of(driver, stream)? != 0 => Err(Misuse::EventFromOutside.into()),
        (0, _) => Ok(()),
        (segment, open) if segment == open => Ok(()),
        _ => Err(Misuse::EventFromSegment.into()),
    }
}

/// Notes that a stream was drawn into the open segment, by a wait for an event of this segment.
pub(super) fn mark_forked(stream: CUstream, event: u64) {
    OWN.with_borrow(|own| {
        let capture = own.as_ref().map(|own| &own.capture);
        if let Some(capture) = capture.filter(|capture| event == capture.serial() && capture.stream != stream) {
            capture.forked_at.store(capture.operations(), Ordering::Relaxed);
        }
    });
}

/// Refuses a query or a wait on the host for an event of a segment, and any while a segment is open.
pub(super) fn check_host_use(event: u64) -> Result<()> {
    if event != 0 {
        return Err(Misuse::EventFromSegment.into());
    }
    refuse_synchronize("event")
}
