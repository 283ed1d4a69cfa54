//! The guard of an open capture: [`OpenCapture`].
//!
//! 1. A thread has at most one. It is opened by `cuStreamBeginCapture` and closed by `cuStreamEndCapture`, on the same thread.
//! 2. Between the two it stands in the entry of its context, where every thread sees it; drops on the context are queued, and whatever a launch or copy
//!    refers to is kept alive by the segment.
//! 3. Every way out closes it: the guard ends the capture when it drops.

use super::capture_mode::CaptureMode;
use super::capture_state::{self, BodyCapture, CaptureKind, CaptureState};
use super::deferred_drop::Destroy;
use super::event::Event;
use super::graph::{Graph, NodeCounts};
use super::keep_alive::KeepAlive;
use super::recording_id::RecordingId;
use super::stream::Stream;
use crate::error::{Error, Misuse, Result};
use crate::sys::{CUgraph, CUresult, Call, CallError, first_failure};
use std::marker::PhantomData;
use std::sync::Arc;

/// An open segment of this thread.
pub(crate) struct OpenCapture {
    stream: Stream,
    state: Arc<CaptureState>,
    closed: bool,
    /// The end must be on the thread that began.
    _thread: PhantomData<*const ()>,
}

/// What came of a segment.
pub(crate) struct Captured {
    pub(crate) graph: Graph,
    /// What its nodes refer to.
    pub(crate) kept: Vec<KeepAlive>,
    pub(crate) operations: usize,
    state: Arc<CaptureState>,
}

impl Captured {
    /// Fails where the graph has fewer nodes of some kind than operations of that kind went into the capture (rule 46). `nodes`: the graph's.
    pub(crate) fn expect_all(&self, nodes: &NodeCounts) -> Result<()> {
        match self.state.first_missing(nodes.kernels, nodes.copies, nodes.memsets) {
            None => Ok(()),
            Some(operation) => Err(Misuse::OperationNotRecorded { operation, segment: self.state.segment() }.into()),
        }
    }
}

/// Why a segment could not be ended well.
#[derive(Clone, Copy)]
pub(crate) struct Failed {
    /// What ending the capture returned.
    pub(crate) end: CallError,
    /// The first call that failed since the segment began, as far as it went through the crate.
    pub(crate) first: Option<CallError>,
    pub(crate) operations: usize,
    pub(crate) forked_at: Option<usize>,
    /// A stream that was not joined, where one is known.
    pub(crate) unjoined: Option<usize>,
}

impl From<Failed> for Error {
    /// What was wrong: work that was not joined, or the first call that failed.
    fn from(failed: Failed) -> Error {
        match failed.end.code() {
            CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED => {
                Misuse::UnjoinedWork { stream: failed.unjoined, forked_at: failed.forked_at.unwrap_or(0) }.into()
            }
            _ => failed.first.unwrap_or(failed.end).into(),
        }
    }
}

impl OpenCapture {
    /// Opens a segment on the stream
    /// ([`cuStreamBeginCapture`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html)).
    /// `place`: the segment's among those of the recording.
    pub(crate) fn segment(
        stream: &Stream,
        mode: CaptureMode,
        recording: RecordingId,
        place: usize,
    ) -> Result<OpenCapture> {
        if capture_state::is_open() {
            return Err(Misuse::NestedCapture.into());
        }
        let before = Event::new(stream.context())?;
        before.record(stream)?;
        let state = CaptureState::after(stream.as_raw(), recording, place, Some(Arc::new(before)));
        OpenCapture::open(stream, mode, &state, CaptureKind::Segment)
    }

    /// Opens the capture of a patched break's body on the stream. A body may do what a segment must not, as it is made anew for each launch. `state`: of
    /// this stream, and of no capture that is open; a replay has one for all its bodies, as making one would allocate.
    pub(crate) fn body(stream: &Stream, state: &Arc<CaptureState>) -> Result<OpenCapture> {
        OpenCapture::open(stream, CaptureMode::Relaxed, state, CaptureKind::Body)
    }

    fn open(stream: &Stream, mode: CaptureMode, state: &Arc<CaptureState>, kind: CaptureKind) -> Result<OpenCapture> {
        let context = stream.context();
        if capture_state::is_open() {
            return Err(Misuse::NestedCapture.into());
        }
        first_failure::clear();
        state.begin();
        context.entry().capture_opens(state);
        // SAFETY: a live stream.
        let begun = unsafe { context.driver().cuStreamBeginCapture_v2(stream.as_raw(), mode.as_raw()) };
        if let Err(error) = begun {
            context.entry().capture_closed(state);
            return Err(error.into());
        }
        capture_state::set_own(state.clone(), context.entry().address(), kind);
        Ok(OpenCapture { stream: stream.clone(), state: state.clone(), closed: false, _thread: PhantomData })
    }

    /// Ends the segment ([`cuStreamEndCapture`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html)).
    pub(crate) fn close(mut self) -> Result<Captured, Failed> {
        let unjoined = self.state.unjoined().map(|stream| stream as usize);
        let graph = self.end();
        let operations = self.operations();
        match graph {
            Ok(graph) => {
                // SAFETY: the capture that ended has handed the graph over.
                let graph = unsafe { Graph::from_raw(self.stream.context(), graph) };
                let (kept, state) = (self.state.take_kept(), self.state.clone());
                Ok(Captured { graph, kept, operations, state })
            }
            Err(end) => {
                let first = first_failure::get().filter(|first| *first != end);
                Err(Failed { end, first, operations, forked_at: self.state.forked_at(), unjoined })
            }
        }
    }

    /// How many operations went into it so far.
    pub(crate) fn operations(&self) -> usize {
        self.state.operations()
    }

    /// From now on kernel launches on the captured stream are listed in the body, and not enqueued.
    pub(crate) fn begin_body(&self, body: BodyCapture) {
        capture_state::begin_body(body);
    }

    /// Ends the body, and gives what is in it.
    pub(crate) fn end_body(&self) -> BodyCapture {
        capture_state::end_body()
    }

    fn end(&mut self) -> Result<CUgraph, CallError> {
        self.closed = true;
        let context = self.stream.context();
        let mut graph = core::ptr::null_mut();
        // SAFETY: a live stream and a valid place.
        let ended = unsafe { context.driver().cuStreamEndCapture(self.stream.as_raw(), &mut graph) };
        capture_state::clear_own();
        context.entry().capture_closed(&self.state);
        self.state.return_parked();
        match ended {
            Ok(()) if graph.is_null() => Err(CallError::Failed {
                call: Call::cuStreamEndCapture,
                code: CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            }),
            Ok(()) => Ok(graph),
            Err(error) => {
                self.destroy_if_any(graph);
                Err(error)
            }
        }
    }

    /// A failing end gives a null graph; should it ever give one all the same, it is not leaked.
    fn destroy_if_any(&self, graph: CUgraph) {
        if !graph.is_null() {
            self.stream.context().destroy(Destroy::Graph(graph));
        }
    }
}

impl Drop for OpenCapture {
    fn drop(&mut self) {
        if !self.closed {
            let graph = self.end();
            self.destroy_if_any(graph.unwrap_or(core::ptr::null_mut()));
        }
    }
}
