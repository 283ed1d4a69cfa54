//! A patched break and its body: what its operation enqueues, recorded anew for each replay.
//!
//! There are two ways to record a body. Kernel launches that go through the crate are *noted* as data, without a call of the driver; a body of such
//! launches alone is compared value by value with what an exec has. Any other work (a library's launch, a copy, a fork to another stream) needs a
//! stream capture, and such a body is *captured* as a graph. LaunchRecorder are taken with a capture open on the stream, so that other work goes into that, and is
//! found when it ends: then the body is captured from there on.

use super::scratch::Scratch;
use crate::capture::forward::frame::{self, Frame, Kind};
use crate::capture::program::BreakStep;
use crate::capture::record::recorder::why_segment_failed;
use crate::driver::launch_list::LaunchList;
use crate::driver::open_capture::{BodyCapture, Failed, KeepAlive, OpenCapture, keep};
use crate::driver::{CaptureMode, Graph, RecordingId, Stream, is_module};
use crate::error::{Error, Misuse, Result};
use crate::pool::PoolHandle;
use crate::sys::CUresult;
use std::sync::Arc;

/// What a body is recorded with.
#[derive(Clone, Copy)]
pub(crate) struct Recording<'a> {
    /// Where bodies are recorded: nothing is ever run on it.
    pub(crate) side: &'a Stream,
    pub(crate) valid_rows: Option<usize>,
    pub(crate) pool: &'a PoolHandle,
}

pub(crate) struct PatchedPart<'env> {
    pub(crate) step: BreakStep<'env>,
    scratch: Arc<Scratch>,
    recording: RecordingId,
    /// Whether its launches are noted; for good no longer once it has enqueued anything else.
    pub(crate) notes: bool,
    /// Of this replay, until it is part of an exec.
    pub(crate) body: Option<Body>,
    /// What the body in the exec refers to.
    kept: Vec<KeepAlive>,
    /// Modules of earlier bodies: a driver may look at a node's former function when it gets another one.
    modules: Vec<KeepAlive>,
    /// Room for the next body.
    spare: BodyCapture,
}

/// A body that was recorded.
pub(crate) struct Body {
    pub(crate) work: Work,
    kept: Vec<KeepAlive>,
}

pub(crate) enum Work {
    /// Kernel launches of the crate's, one after another.
    Launches(LaunchList),
    /// Anything.
    Graph(Graph),
}

impl<'env> PatchedPart<'env> {
    pub(crate) fn new(step: BreakStep<'env>, scratch: Arc<Scratch>, recording: RecordingId) -> PatchedPart<'env> {
        let (kept, modules) = (Vec::new(), Vec::new());
        PatchedPart { step, scratch, recording, notes: true, body: None, kept, modules, spare: BodyCapture::default() }
    }

    /// Opens a capture to record in.
    pub(crate) fn open(&self, with: Recording<'_>) -> Result<OpenCapture> {
        OpenCapture::open(with.side, CaptureMode::Relaxed, self.recording)
    }

    /// Records the body in a capture of its own. [`Error::ScratchExceeded`] where it asked for more scratch than there is, whatever it made of that.
    pub(crate) fn record(&mut self, with: Recording<'_>) -> Result<()> {
        if self.notes {
            let window = self.open(with)?;
            if let Err(error) = self.note(&window, with) {
                return Err(self.failed(Some(error), close(window, with.side).err()));
            }
            match close(window, with.side) {
                Ok((graph, _)) if graph.len()? == 0 => return Ok(()),
                Ok(_) => self.notes = false,
                Err(failed) => return Err(self.failed(None, Some(failed))),
            }
        }
        self.capture(with)
    }

    /// Runs the operation with its launches noted. What else it enqueues is in the window's capture.
    pub(crate) fn note(&mut self, window: &OpenCapture, with: Recording<'_>) -> Result<()> {
        let mut section = self.spare();
        section.noted.clear();
        section.kept.clear();
        window.begin_body(section);
        let ran = self.run(with);
        let BodyCapture { noted, kept } = window.end_body();
        self.body = Some(Body { work: Work::Launches(noted), kept });
        ran
    }

    /// Room for a body: what the last one had, if it is not in use.
    fn spare(&mut self) -> BodyCapture {
        match self.body.take() {
            Some(Body { work: Work::Launches(noted), kept }) => BodyCapture { noted, kept },
            _ => std::mem::take(&mut self.spare),
        }
    }

    /// Captures the body as a graph.
    pub(crate) fn capture(&mut self, with: Recording<'_>) -> Result<()> {
        self.body = None;
        let window = self.open(with)?;
        let ran = self.run(with);
        let (graph, kept) = match (ran, close(window, with.side)) {
            (Ok(()), Ok(captured)) => captured,
            (ran, closed) => return Err(self.failed(ran.err(), closed.err())),
        };
        let count = graph.node_counts()?.memory;
        if count > 0 {
            return Err(self.failed(Some(Error::Misuse(Misuse::MemoryNodes { count })), None));
        }
        self.body = Some(Body { work: Work::Graph(graph), kept });
        Ok(())
    }

    /// Runs the operation.
    fn run(&mut self, with: Recording<'_>) -> Result<()> {
        self.scratch.reset();
        let ran = {
            let frame =
                Frame { kind: Kind::Body(self.scratch.clone()), stream: with.side.clone(), pool: with.pool.clone() };
            let _frame = frame::enter(frame);
            self.step.run(with.side, with.valid_rows)
        };
        self.scratch.exceeded().map_or(ran, Err)
    }

    /// `ran`: what the operation returned; `closed`: what ending its capture did.
    #[cold]
    pub(crate) fn failed(&self, ran: Option<Error>, closed: Option<Failed>) -> Error {
        if let Some(exceeded @ Error::ScratchExceeded { .. }) = ran {
            return exceeded;
        }
        let closed = closed.map(|failed| why_segment_failed(&failed));
        let live = ran.iter().chain(&closed).any(is_for_live_breaks);
        // What the operation returned came first.
        let source = ran.or(closed).unwrap_or(Error::Misuse(Misuse::Poisoned));
        let (name, index) = (self.step.options.name.to_string(), self.step.index);
        if live { Error::NotPatchable { name, index, source: Box::new(source) } } else { self.step.failed(source) }
    }

    /// The body is in an exec: what it refers to takes the place of what the one before did, which goes to `replaced`.
    pub(crate) fn adopt(&mut self, replaced: &mut Vec<KeepAlive>) {
        let Some(Body { work, mut kept }) = self.body.take() else { return };
        let same = self.kept.len() == kept.len() && self.kept.iter().zip(&kept).all(|(old, new)| Arc::ptr_eq(old, new));
        if !same {
            std::mem::swap(&mut self.kept, &mut kept);
            for old in kept.drain(..) {
                if is_module(&old) { keep(&mut self.modules, &old) } else { replaced.push(old) }
            }
        }
        kept.clear();
        if let Work::Launches(noted) = work {
            self.spare = BodyCapture { noted, kept };
        }
    }

    /// Takes what the body in the exec refers to.
    pub(crate) fn take_kept(&mut self, into: &mut Vec<KeepAlive>) {
        into.append(&mut self.kept);
        into.append(&mut self.modules);
    }
}

/// Ends a capture, and gives its graph and what that refers to.
pub(crate) fn close(window: OpenCapture, side: &Stream) -> std::result::Result<(Graph, Vec<KeepAlive>), Failed> {
    let captured = window.close()?;
    // SAFETY: the capture that ended has handed the graph over.
    Ok((unsafe { Graph::from_raw(side.context(), captured.graph) }, captured.kept))
}

/// Whether the operation did what only a live break may do.
fn is_for_live_breaks(error: &Error) -> bool {
    match error {
        Error::Misuse(Misuse::SynchronizeWhileCapturing { .. })
        | Error::Misuse(Misuse::HostMemoryInSegment)
        | Error::Misuse(Misuse::MustBeBreak { .. })
        | Error::Misuse(Misuse::StreamIsCapturing { .. })
        | Error::Misuse(Misuse::MemoryNodes { .. })
        | Error::Misuse(Misuse::EventFromOutside)
        | Error::Misuse(Misuse::EventFromSegment)
        | Error::Misuse(Misuse::UnjoinedWork { .. })
        | Error::Misuse(Misuse::NestedCapture)
        | Error::Misuse(Misuse::ReplayWhileRecording) => true,
        Error::Call(call) => is_of_captures(call.code()),
        _ => false,
    }
}

/// Whether it is a code of calls that an open capture forbids.
pub(crate) fn is_of_captures(code: CUresult) -> bool {
    let codes = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.0..=CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD.0;
    codes.contains(&code.0)
}
