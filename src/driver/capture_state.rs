//! What is known of an open capture, by the driver's handles alone: with the context's entry, where every thread sees it ([`CaptureState`]), and with
//! the thread that opened it, whose launches into a body are listed without a lock.

use super::event_mark::EventMark;
use super::forks::Forks;
use super::keep_alive::{KeepAlive, KeptSet, keep};
use super::launch_list::LaunchList;
use super::recording_id::RecordingId;
use crate::error::{Misuse, Result};
use crate::kernels::LaunchConfig;
use crate::sys::{CUfunction, CUstream, CUstreamCaptureStatus, Call, Driver, cuuint64_t};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An open capture, as every thread sees it.
pub(crate) struct CaptureState {
    stream: CUstream,
    /// Another one each time that it opens.
    serial: AtomicU64,
    /// The recording that it belongs to.
    recording: RecordingId,
    /// Its place among the recording's segments.
    segment: usize,
    /// How many operations of the crate went into it so far.
    operations: AtomicUsize,
    /// The operation at which another stream was last drawn into it, or [`NEVER`].
    forked_at: AtomicUsize,
    /// An event that was recorded on the stream right before, of a segment's capture: what there was to do then can be waited for while it is open.
    before: Option<KeepAlive>,
    inside: Mutex<Inside>,
}

/// What a capture has come to so far.
#[derive(Default)]
struct Inside {
    /// What its nodes refer to.
    kept: KeptSet,
    /// What kind of node each operation makes.
    nodes: Vec<NodeKind>,
    /// The streams that were drawn in.
    forks: Forks,
    /// Blocks of the recording whose tensors are gone, and which another branch may still use: they return when all branches are joined.
    parked: Vec<KeepAlive>,
    /// What is used on streams of which the crate knows nothing: until the end.
    until_the_end: Vec<KeepAlive>,
    /// How many blocks of the recording have been returned so far.
    returned: u64,
}

/// What kind of node an operation makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NodeKind {
    Kernel,
    Copy,
    Memset,
    /// An edge, or a node that is not counted.
    Other,
}

const NEVER: usize = usize::MAX;

// SAFETY: the driver synchronises streams (T2 of `docs/DESIGN.md`); the rest is behind a lock or atomic.
unsafe impl Send for CaptureState {}
// SAFETY: likewise.
unsafe impl Sync for CaptureState {}

impl CaptureState {
    pub(crate) fn new(stream: CUstream, recording: RecordingId, segment: usize) -> Arc<CaptureState> {
        CaptureState::after(stream, recording, segment, None)
    }

    /// After an event that was just recorded on the stream.
    pub(super) fn after(
        stream: CUstream,
        recording: RecordingId,
        segment: usize,
        before: Option<KeepAlive>,
    ) -> Arc<CaptureState> {
        Arc::new(CaptureState {
            before,
            stream,
            serial: AtomicU64::new(0),
            recording,
            segment,
            operations: AtomicUsize::new(0),
            forked_at: AtomicUsize::new(NEVER),
            inside: Mutex::default(),
        })
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is about to open: what was known of the last time it did goes.
    pub(super) fn begin(&self) {
        static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);
        self.serial.store(NEXT_SERIAL.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        self.operations.store(0, Ordering::Relaxed);
        self.forked_at.store(NEVER, Ordering::Relaxed);
        let left = {
            let mut inside = self.inside();
            inside.nodes.clear();
            inside.forks.clear();
            let Inside { kept, parked, until_the_end, .. } = &mut *inside;
            (kept.take(), std::mem::take(parked), std::mem::take(until_the_end))
        };
        drop(left);
    }

    /// Its number among all that were ever opened, from 1.
    pub(super) fn serial(&self) -> u64 {
        self.serial.load(Ordering::Relaxed)
    }

    /// The stream that was captured first.
    pub(super) fn stream(&self) -> CUstream {
        self.stream
    }

    /// The event that was recorded on its stream right before, if one was.
    pub(super) fn before(&self) -> Option<&KeepAlive> {
        self.before.as_ref()
    }

    /// The recording that it belongs to.
    pub(super) fn recording(&self) -> RecordingId {
        self.recording
    }

    /// Its place among the recording's segments.
    pub(super) fn segment(&self) -> usize {
        self.segment
    }

    /// How many operations of the crate went into it so far.
    pub(super) fn operations(&self) -> usize {
        self.operations.load(Ordering::Relaxed)
    }

    /// The operation at which another stream was last drawn into it.
    pub(super) fn forked_at(&self) -> Option<usize> {
        Some(self.forked_at.load(Ordering::Relaxed)).filter(|at| *at != NEVER)
    }

    /// A stream that was drawn into it and is not joined.
    pub(super) fn unjoined(&self) -> Option<CUstream> {
        self.inside().forks.unjoined()
    }

    /// Takes what its nodes refer to.
    pub(super) fn take_kept(&self) -> Vec<KeepAlive> {
        self.inside().kept.take()
    }

    /// The capture has ended: blocks that waited for a join return.
    pub(super) fn return_parked(&self) {
        let left = {
            let mut inside = self.inside();
            inside.forks.clear();
            (std::mem::take(&mut inside.parked), std::mem::take(&mut inside.until_the_end))
        };
        // Each takes its pool's lock.
        drop(left);
    }

    /// Whether the stream is its own, or one of which the crate knows that it was drawn in.
    pub(super) fn knows(&self, stream: CUstream) -> bool {
        self.stream == stream || self.inside().forks.has(stream)
    }

    /// Keeps something for as long as the graph can be launched.
    pub(super) fn keep(&self, what: &KeepAlive) {
        self.inside().kept.keep(what);
    }

    /// An operation went into it, on this stream.
    pub(super) fn count(&self, stream: CUstream, kind: NodeKind) {
        self.operations.fetch_add(1, Ordering::Relaxed);
        let mut inside = self.inside();
        inside.nodes.push(kind);
        if stream != self.stream {
            inside.forks.operation_on(stream);
        }
    }

    /// The first operation, counted from 0, that made no node, where a graph has so many nodes of each kind that stand for operations.
    pub(super) fn first_missing(&self, kernels: usize, copies: usize, memsets: usize) -> Option<usize> {
        let mut left = [kernels, copies, memsets];
        self.inside().nodes.iter().position(|kind| {
            let left = match kind {
                NodeKind::Kernel => &mut left[0],
                NodeKind::Copy => &mut left[1],
                NodeKind::Memset => &mut left[2],
                NodeKind::Other => return false,
            };
            let missing = *left == 0;
            *left = left.saturating_sub(1);
            missing
        })
    }

    /// What an event that is recorded on one of its streams now stands for.
    pub(super) fn mark(&self, stream: CUstream) -> EventMark {
        let inside = self.inside();
        EventMark {
            capture: self.serial(),
            stream: stream as usize,
            position: inside.forks.position(stream),
            returned: inside.returned,
            live_break: 0,
        }
    }

    /// Whether blocks of the recording were returned since the event was recorded, so that what is drawn in by it might be given one that an operation
    /// before still uses.
    pub(super) fn is_stale(&self, waiter: CUstream, mark: &EventMark) -> bool {
        waiter != self.stream && self.inside().returned != mark.returned
    }

    /// A stream waits for an event of this capture.
    pub(super) fn waited(&self, waiter: CUstream, mark: &EventMark) {
        if waiter != self.stream {
            self.forked_at.store(self.operations(), Ordering::Relaxed);
        }
        let parked = {
            let mut inside = self.inside();
            inside.forks.waited(waiter, self.stream, (mark.stream as CUstream, mark.position));
            if inside.forks.unjoined().is_some() {
                return;
            }
            inside.returned += 1;
            std::mem::take(&mut inside.parked)
        };
        drop(parked);
    }

    /// A tensor of the recording is gone. While a branch is not joined its block is kept back: `false` where there is none.
    pub(super) fn park(&self, block: impl FnOnce() -> KeepAlive) -> bool {
        let mut inside = self.inside();
        if inside.forks.unjoined().is_none() {
            inside.returned += 1;
            return false;
        }
        inside.parked.push(block());
        true
    }

    /// Work that the crate doesn't see uses something on a stream: it is kept until that is joined, where the crate has seen it drawn in, and until the
    /// end otherwise.
    pub(crate) fn used_on(&self, stream: CUstream, what: KeepAlive) {
        let mut inside = self.inside();
        if stream == self.stream {
            return;
        }
        if inside.forks.has(stream) {
            inside.forks.operation_on(stream);
            inside.parked.push(what);
        } else {
            inside.until_the_end.push(what);
        }
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
    /// The address of its context's entry.
    context: usize,
    kind: CaptureKind,
    /// Where kernel launches are listed instead of enqueued.
    body: Option<BodyCapture>,
}

thread_local! {
    /// Whether there is one: what launches on the hot path look at.
    static IS_OPEN: Cell<bool> = const { Cell::new(false) };
    static OWN: RefCell<Option<Own>> = const { RefCell::new(None) };
}

/// Looks at the thread's capture. There is none where the thread is ending and has taken this down already.
fn with_own<R>(look: impl FnOnce(&mut Option<Own>) -> R) -> Option<R> {
    OWN.try_with(|own| look(&mut own.borrow_mut())).ok()
}

/// Whether this thread has a segment open.
#[inline]
pub(crate) fn is_open() -> bool {
    IS_OPEN.get()
}

/// Whether what this thread does now goes into a segment, and not into the body of a patched break.
pub(crate) fn is_in_segment() -> bool {
    is_open() && with_own(|own| own.as_ref().is_some_and(|own| own.kind == CaptureKind::Segment)).unwrap_or(false)
}

/// The capture that this thread has open on the context whose entry has this address.
pub(super) fn own_on(context: usize) -> Option<Arc<CaptureState>> {
    if !is_open() {
        return None;
    }
    with_own(|own| own.as_ref().filter(|own| own.context == context).map(|own| own.capture.clone())).flatten()
}

/// The calling thread has opened this capture, on the context whose entry has this address.
pub(super) fn set_own(capture: Arc<CaptureState>, context: usize, kind: CaptureKind) {
    with_own(|own| *own = Some(Own { capture, context, kind, body: None }));
    IS_OPEN.set(true);
}

/// The calling thread's capture has ended.
pub(super) fn clear_own() {
    IS_OPEN.set(false);
    // What is kept drops after the borrow has ended: a drop may look here.
    drop(with_own(Option::take));
}

/// From now on kernel launches on the captured stream are listed in the body, and not enqueued.
pub(super) fn begin_body(body: BodyCapture) {
    with_own(|own| {
        if let Some(own) = own {
            own.body = Some(body);
        }
    });
}

/// Ends the body, and gives what is in it.
pub(super) fn end_body() -> BodyCapture {
    with_own(|own| own.as_mut().and_then(|own| own.body.take())).flatten().unwrap_or_default()
}

/// Lists a launch on the stream as data, where launches are listed: `record` adds it. `false`: it is to be enqueued.
#[inline]
pub(crate) fn record_launch(stream: CUstream, record: impl FnOnce(&mut LaunchRecorder<'_>)) -> bool {
    is_open() && record_if_listed(stream, record)
}

fn record_if_listed(stream: CUstream, record: impl FnOnce(&mut LaunchRecorder<'_>)) -> bool {
    with_own(|own| {
        let Some(mut recorder) = LaunchRecorder::of(own, stream) else { return false };
        record(&mut recorder);
        true
    })
    .unwrap_or(false)
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

/// Keeps something for the open segment of this thread, if there is one, unless it was made in the recording that the segment belongs to.
#[inline]
pub(crate) fn keep_in_segment(made_in: Option<RecordingId>, what: impl FnOnce() -> KeepAlive) {
    if is_open() {
        with_own(|own| {
            let Some(own) = own.as_mut().filter(|own| made_in != Some(own.capture.recording)) else { return };
            match &mut own.body {
                Some(body) => keep(&mut body.kept, &what()),
                None => own.capture.keep(&what()),
            }
        });
    }
}

/// Keeps something for the body that is listed on this stream. `false`: none is.
pub(crate) fn keep_if_listed(stream: CUstream, made_in: Option<RecordingId>, what: impl FnOnce() -> KeepAlive) -> bool {
    is_open()
        && with_own(|own| {
            let Some(mut recorder) = LaunchRecorder::of(own, stream) else { return false };
            recorder.keep_unless_own(made_in, what);
            true
        })
        .unwrap_or(false)
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

/// The driver's number of the capture that a stream takes part in
/// ([`cuStreamGetCaptureInfo`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html)). `Some(0)`: in one, and the driver has no such call.
pub(super) fn capture_number(driver: &Driver, stream: CUstream) -> Result<Option<u64>> {
    if !is_captured(driver, stream)? {
        return Ok(None);
    }
    if !driver.supports(Call::cuStreamGetCaptureInfo_v2) {
        return Ok(Some(0));
    }
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let mut number: cuuint64_t = 0;
    let none = core::ptr::null_mut();
    // SAFETY: a live stream, as the caller says, and valid places; nothing else is asked for.
    unsafe {
        driver.cuStreamGetCaptureInfo_v2(
            stream,
            &mut status,
            &mut number,
            none,
            core::ptr::null_mut(),
            core::ptr::null_mut(),
        )?;
    }
    Ok(Some(number))
}
