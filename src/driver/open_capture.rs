//! The capture window: what the crate knows on the capturing thread while a segment is open.
//!
//! 1. A thread has at most one window. It is opened by `cuStreamBeginCapture` and closed by `cuStreamEndCapture`, on the same thread.
//! 2. Between the two, drops on the context are queued, and whatever a launch or copy refers to is kept alive by the segment.
//! 3. Every way out closes it: [`OpenCapture`] ends the capture when it drops.

use super::capture_mode::CaptureMode;
use super::context::Context;
use super::event::Event;
use super::launch_list::LaunchList;
use super::recording_id::RecordingId;
use super::stream::Stream;
use crate::error::{Misuse, Result};
use crate::kernels::LaunchConfig;
use crate::sys::{CUfunction, CUgraph, CUresult, CUstreamCaptureStatus, CallError, first_failure};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a segment's graph refers to and must keep alive.
pub(crate) type KeepAlive = Arc<dyn Any + Send + Sync>;

struct State {
    stream: Stream,
    serial: u64,
    /// The recording that the segment belongs to.
    recording: Option<RecordingId>,
    /// How many operations of the crate went into the segment so far.
    operations: usize,
    kept: Vec<KeepAlive>,
    /// The operation at which another stream was last drawn into the capture.
    forked_at: Option<usize>,
    /// Where kernel launches are noted instead of enqueued.
    noted: Option<LaunchList>,
}

impl State {
    fn new(stream: &Stream, serial: u64, recording: Option<RecordingId>) -> State {
        State {
            stream: stream.clone(),
            serial,
            recording,
            operations: 0,
            kept: Vec::new(),
            forked_at: None,
            noted: None,
        }
    }
}

/// What one body of own launches was, as data, and what those launches refer to.
#[derive(Default)]
pub(crate) struct BodyCapture {
    pub(crate) noted: LaunchList,
    pub(crate) kept: Vec<KeepAlive>,
}

thread_local! {
    /// Whether there is one: what launches on the hot path look at.
    static IS_OPEN: Cell<bool> = const { Cell::new(false) };
    static OPEN: RefCell<Option<State>> = const { RefCell::new(None) };
}

static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);

/// An open segment of this thread.
pub(crate) struct OpenCapture {
    stream: Stream,
    closed: bool,
    /// The end must be on the thread that began.
    _thread: PhantomData<*const ()>,
}

/// What came of a segment.
pub(crate) struct Captured {
    /// The graph; the caller destroys it.
    pub(crate) graph: CUgraph,
    pub(crate) kept: Vec<KeepAlive>,
    pub(crate) operations: usize,
}

/// Why a segment could not be ended well.
pub(crate) struct Failed {
    /// What ending the capture returned.
    pub(crate) end: CallError,
    /// The first call that failed since the segment began, as far as it went through the crate.
    pub(crate) first: Option<CallError>,
    pub(crate) operations: usize,
    pub(crate) forked_at: Option<usize>,
}

impl OpenCapture {
    /// Opens a segment on the stream
    /// ([`cuStreamBeginCapture`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html)).
    pub(crate) fn open(stream: &Stream, mode: CaptureMode, recording: RecordingId) -> Result<OpenCapture> {
        let context = stream.context();
        if is_open() {
            return Err(Misuse::NestedCapture.into());
        }
        first_failure::clear();
        context.capture_opens();
        // SAFETY: a live stream.
        let begun = unsafe { context.driver().cuStreamBeginCapture_v2(stream.as_raw(), mode.as_raw()) };
        if let Err(error) = begun {
            context.capture_closed();
            return Err(error.into());
        }
        let serial = NEXT_SERIAL.fetch_add(1, Ordering::Relaxed);
        let state = State::new(stream, serial, Some(recording));
        OPEN.with_borrow_mut(|open| *open = Some(state));
        IS_OPEN.set(true);
        Ok(OpenCapture { stream: stream.clone(), closed: false, _thread: PhantomData })
    }

    /// Ends the segment ([`cuStreamEndCapture`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html)).
    pub(crate) fn close(mut self) -> Result<Captured, Failed> {
        let (graph, state) = self.end();
        match graph {
            Ok(graph) => Ok(Captured { graph, kept: state.kept, operations: state.operations }),
            Err(end) => {
                let first = first_failure::get().filter(|first| *first != end);
                Err(Failed { end, first, operations: state.operations, forked_at: state.forked_at })
            }
        }
    }

    /// How many operations went into it so far.
    pub(crate) fn operations(&self) -> usize {
        OPEN.with_borrow(|open| open.as_ref().map_or(0, |state| state.operations))
    }

    /// From now on kernel launches on the window's stream are noted in the section, and not enqueued.
    pub(crate) fn begin_body(&self, section: BodyCapture) {
        OPEN.with_borrow_mut(|open| {
            if let Some(state) = open {
                state.noted = Some(section.noted);
                state.kept = section.kept;
            }
        });
    }

    /// Ends the section, and gives what is in it.
    pub(crate) fn end_body(&self) -> BodyCapture {
        OPEN.with_borrow_mut(|open| {
            open.as_mut().map_or_else(BodyCapture::default, |state| BodyCapture {
                noted: state.noted.take().unwrap_or_default(),
                kept: std::mem::take(&mut state.kept),
            })
        })
    }

    fn end(&mut self) -> (Result<CUgraph, CallError>, State) {
        self.closed = true;
        let context = self.stream.context();
        let mut graph = core::ptr::null_mut();
        // SAFETY: a live stream and a valid place.
        let ended = unsafe { context.driver().cuStreamEndCapture(self.stream.as_raw(), &mut graph) };
        IS_OPEN.set(false);
        let state = OPEN.with_borrow_mut(Option::take).unwrap_or_else(|| State::new(&self.stream, 0, None));
        context.capture_closed();
        let graph = match ended {
            Ok(()) if graph.is_null() => Err(CallError::Failed {
                call: crate::sys::Call::cuStreamEndCapture,
                code: CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            }),
            Ok(()) => Ok(graph),
            Err(error) => {
                destroy_if_any(context, graph);
                Err(error)
            }
        };
        (graph, state)
    }
}

/// A failing end gives a null graph; should it ever give one all the same, it is not leaked.
fn destroy_if_any(context: &Context, graph: CUgraph) {
    if !graph.is_null() {
        context.destroy(super::deferred_drop::Destroy::Graph(graph));
    }
}

impl Drop for OpenCapture {
    fn drop(&mut self) {
        if !self.closed {
            let (graph, _state) = self.end();
            destroy_if_any(self.stream.context(), graph.unwrap_or(core::ptr::null_mut()));
        }
    }
}

/// Whether this thread has a segment open.
#[inline]
pub(crate) fn is_open() -> bool {
    IS_OPEN.get()
}

/// Counts an operation that goes into the open segment, if there is one; and keeps what it refers to.
#[inline]
pub(crate) fn operation(keep: impl FnOnce(&mut Vec<KeepAlive>)) {
    if is_open() {
        note_operation(keep);
    }
}

fn note_operation(keep: impl FnOnce(&mut Vec<KeepAlive>)) {
    OPEN.with_borrow_mut(|open| {
        if let Some(state) = open {
            state.operations += 1;
            keep(&mut state.kept);
        }
    });
}

/// Whether kernel launches on the stream are taken as data now.
#[inline]
pub(crate) fn records_launches(stream: &Stream) -> bool {
    is_open() && OPEN.with_borrow_mut(|open| LaunchRecorder::of(open, stream).is_some())
}

/// Takes a launch on the stream as data, where launches are taken so: `note` adds it to the notes. `false`: it is to be enqueued.
#[inline]
pub(crate) fn record_launch(stream: &Stream, note: impl FnOnce(&mut LaunchRecorder<'_>)) -> bool {
    is_open() && note_if_taken(stream, note)
}

fn note_if_taken(stream: &Stream, note: impl FnOnce(&mut LaunchRecorder<'_>)) -> bool {
    OPEN.with_borrow_mut(|open| {
        let Some(mut notes) = LaunchRecorder::of(open, stream) else { return false };
        *notes.operations += 1;
        note(&mut notes);
        true
    })
}

/// Where launches are taken as data, with what they refer to.
pub(crate) struct LaunchRecorder<'a> {
    noted: &'a mut LaunchList,
    kept: &'a mut Vec<KeepAlive>,
    operations: &'a mut usize,
    recording: Option<RecordingId>,
}

impl<'a> LaunchRecorder<'a> {
    fn of(open: &'a mut Option<State>, stream: &Stream) -> Option<LaunchRecorder<'a>> {
        let State { stream: own, noted, kept, operations, recording, .. } = open.as_mut()?;
        let noted = noted.as_mut().filter(|_| own == stream)?;
        Some(LaunchRecorder { noted, kept, operations, recording: *recording })
    }

    /// Begins a launch; its parameters follow.
    #[inline]
    pub(crate) fn begin(&mut self, function: CUfunction, config: LaunchConfig) {
        self.noted.begin(function, config);
    }

    /// Adds the next parameter's value.
    #[inline]
    pub(crate) fn parameter(&mut self, bytes: &[u8]) {
        self.noted.parameter(bytes);
    }

    /// Keeps what the launch refers to.
    #[inline]
    pub(crate) fn keep(&mut self, what: &KeepAlive) {
        keep(self.kept, what);
    }

    /// Keeps something, unless it was made in the recording that the notes are of.
    #[inline]
    pub(crate) fn keep_unless_own(&mut self, made_in: Option<RecordingId>, what: impl FnOnce() -> KeepAlive) {
        if made_in.is_none() || self.recording != made_in {
            keep(self.kept, &what());
        }
    }
}

/// Adds to what a segment keeps, unless it is there.
pub(crate) fn keep(kept: &mut Vec<KeepAlive>, what: &KeepAlive) {
    // The latest are the likeliest: a layer's weights are used in runs.
    if !kept.iter().rev().any(|held| Arc::ptr_eq(held, what)) {
        kept.push(what.clone());
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
    OPEN.with_borrow_mut(|open| {
        if let Some(state) = open.as_mut().filter(|state| made_in.is_none() || state.recording != made_in) {
            keep(&mut state.kept, &what());
        }
    });
}

/// Refuses a wait on the host while a segment is open: it would invalidate the capture (900).
pub(crate) fn refuse_synchronize(what: &'static str) -> Result<()> {
    if is_open() { Err(Misuse::SynchronizeWhileCapturing { what }.into()) } else { Ok(()) }
}

/// Whether the stream takes part in the open segment, as the driver sees it.
fn takes_part(stream: &Stream) -> Result<bool> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: a live stream and a valid place.
    unsafe { stream.context().driver().cuStreamIsCapturing(stream.as_raw(), &mut status)? };
    Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// The serial number of the open segment that the stream takes part in, or 0.
pub(super) fn segment_of(stream: &Stream) -> Result<u64> {
    match OPEN.with_borrow(|open| open.as_ref().map(|state| (state.serial, state.stream == *stream))) {
        None => Ok(0),
        Some((serial, true)) => Ok(serial),
        Some((serial, false)) => Ok(if takes_part(stream)? { serial } else { 0 }),
    }
}

/// Refuses waits that the driver would answer with a code that says little, or by invalidating the capture.
pub(super) fn check_wait(stream: &Stream, event: &Event) -> Result<()> {
    let open = OPEN.with_borrow(|open| open.as_ref().map(|state| state.serial)).unwrap_or(0);
    match (event.segment(), open) {
        (0, 0) => Ok(()),
        (0, _) if segment_of(stream)? != 0 => Err(Misuse::EventFromOutside.into()),
        (0, _) => Ok(()),
        (segment, open) if segment == open => Ok(()),
        _ => Err(Misuse::EventFromSegment.into()),
    }
}

/// LaunchRecorder that a stream was drawn into the open segment.
pub(super) fn mark_forked(stream: &Stream, event: &Event) {
    OPEN.with_borrow_mut(|open| {
        if let Some(state) = open
            && event.segment() == state.serial
            && state.stream != *stream
        {
            state.forked_at = Some(state.operations);
        }
    });
}

/// Refuses a query or a wait on the host for an event of a segment, and any while a segment is open.
pub(super) fn check_host_use(event: &Event) -> Result<()> {
    if event.segment() != 0 {
        return Err(Misuse::EventFromSegment.into());
    }
    refuse_synchronize("event")
}
