//! A recorded break and its body: what its operation enqueues, recorded anew for each replay.
//!
//! There are two ways to record a body. Kernel launches that go through the crate are *noted* as data, without a call of the driver; a body of such
//! launches alone is compared value by value with what an exec has. Any other work (a library's launch, a copy, a fork to another stream) needs a
//! stream capture, and such a body is *captured* as a graph. Notes are taken with a capture open on the stream, so that other work goes into that, and is
//! found when it ends: then the body is captured from there on.

use super::super::ambient::{self, Frame, Kind};
use super::super::program::BreakStep;
use super::super::recorder::why_segment_failed;
use super::scratch::Scratch;
use crate::driver::noted::Noted;
use crate::driver::window::{Failed, Kept, Section, Window, keep};
use crate::driver::{CaptureMode, Graph, Stream, is_module};
use crate::error::{Error, Result};
use crate::pool::PoolHandle;
use crate::sys::CUresult;
use std::sync::Arc;

/// What a body is recorded with.
#[derive(Clone, Copy)]
pub(in crate::capture) struct Recording<'a> {
    /// Where bodies are recorded: nothing is ever run on it.
    pub(in crate::capture) side: &'a Stream,
    pub(in crate::capture) valid_rows: Option<usize>,
    pub(in crate::capture) pool: &'a PoolHandle,
}

pub(in crate::capture) struct RecordedPiece<'env> {
    pub(in crate::capture) step: BreakStep<'env>,
    scratch: Arc<Scratch>,
    recording: u64,
    /// Whether its launches are noted; for good no longer once it has enqueued anything else.
    pub(super) notes: bool,
    /// Of this replay, until it is part of an exec.
    pub(super) body: Option<Body>,
    /// What the body in the exec refers to.
    kept: Vec<Kept>,
    /// Modules of earlier bodies: a driver may look at a node's former function when it gets another one.
    modules: Vec<Kept>,
    /// Room for the next body.
    spare: Section,
}

/// A body that was recorded.
pub(super) struct Body {
    pub(super) work: Work,
    kept: Vec<Kept>,
}

pub(super) enum Work {
    /// Kernel launches of the crate's, one after another.
    Launches(Noted),
    /// Anything.
    Graph(Graph),
}

impl<'env> RecordedPiece<'env> {
    pub(in crate::capture) fn new(step: BreakStep<'env>, scratch: Arc<Scratch>, recording: u64) -> RecordedPiece<'env> {
        let (kept, modules) = (Vec::new(), Vec::new());
        RecordedPiece { step, scratch, recording, notes: true, body: None, kept, modules, spare: Section::default() }
    }

    /// Opens a capture to record in.
    pub(super) fn open(&self, with: Recording<'_>) -> Result<Window> {
        Window::open(with.side, CaptureMode::Relaxed, self.recording)
    }

    /// Records the body in a capture of its own. [`Error::ScratchExceeded`] where it asked for more scratch than there is, whatever it made of that.
    pub(in crate::capture) fn record(&mut self, with: Recording<'_>) -> Result<()> {
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
    pub(super) fn note(&mut self, window: &Window, with: Recording<'_>) -> Result<()> {
        let mut section = self.spare();
        section.noted.clear();
        section.kept.clear();
        window.begin_section(section);
        let ran = self.run(with);
        let Section { noted, kept } = window.end_section();
        self.body = Some(Body { work: Work::Launches(noted), kept });
        ran
    }

    /// Room for a body: what the last one had, if it is not in use.
    fn spare(&mut self) -> Section {
        match self.body.take() {
            Some(Body { work: Work::Launches(noted), kept }) => Section { noted, kept },
            _ => std::mem::take(&mut self.spare),
        }
    }

    /// Captures the body as a graph.
    pub(super) fn capture(&mut self, with: Recording<'_>) -> Result<()> {
        self.body = None;
        let window = self.open(with)?;
        let ran = self.run(with);
        let (graph, kept) = match (ran, close(window, with.side)) {
            (Ok(()), Ok(captured)) => captured,
            (ran, closed) => return Err(self.failed(ran.err(), closed.err())),
        };
        let count = graph.node_counts()?.memory;
        if count > 0 {
            return Err(self.failed(Some(Error::MemoryNodes { count }), None));
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
            let _frame = ambient::enter(frame);
            self.step.run(with.side, with.valid_rows)
        };
        self.scratch.exceeded().map_or(ran, Err)
    }

    /// `ran`: what the operation returned; `closed`: what ending its capture did.
    #[cold]
    pub(super) fn failed(&self, ran: Option<Error>, closed: Option<Failed>) -> Error {
        if let Some(exceeded @ Error::ScratchExceeded { .. }) = ran {
            return exceeded;
        }
        let closed = closed.map(|failed| why_segment_failed(&failed));
        let live = ran.iter().chain(&closed).any(is_for_live_breaks);
        // What the operation returned came first.
        let source = ran.or(closed).unwrap_or(Error::Poisoned);
        let (name, index) = (self.step.options.name.to_string(), self.step.index);
        if live { Error::NotRecordable { name, index, source: Box::new(source) } } else { self.step.failed(source) }
    }

    /// The body is in an exec: what it refers to takes the place of what the one before did, which goes to `retired`.
    pub(super) fn adopt(&mut self, retired: &mut Vec<Kept>) {
        let Some(Body { work, mut kept }) = self.body.take() else { return };
        let same = self.kept.len() == kept.len() && self.kept.iter().zip(&kept).all(|(old, new)| Arc::ptr_eq(old, new));
        if !same {
            std::mem::swap(&mut self.kept, &mut kept);
            for old in kept.drain(..) {
                if is_module(&old) { keep(&mut self.modules, &old) } else { retired.push(old) }
            }
        }
        kept.clear();
        if let Work::Launches(noted) = work {
            self.spare = Section { noted, kept };
        }
    }

    /// Takes what the body in the exec refers to.
    pub(super) fn take_kept(&mut self, into: &mut Vec<Kept>) {
        into.append(&mut self.kept);
        into.append(&mut self.modules);
    }
}

/// Ends a capture, and gives its graph and what that refers to.
pub(super) fn close(window: Window, side: &Stream) -> std::result::Result<(Graph, Vec<Kept>), Failed> {
    let captured = window.close()?;
    // SAFETY: the capture that ended has handed the graph over.
    Ok((unsafe { Graph::from_raw(side.context(), captured.graph) }, captured.kept))
}

/// Whether the operation did what only a live break may do.
fn is_for_live_breaks(error: &Error) -> bool {
    match error {
        Error::SynchronizeWhileCapturing { .. }
        | Error::HostMemoryInSegment
        | Error::MustBeBreak { .. }
        | Error::StreamIsCapturing { .. }
        | Error::MemoryNodes { .. }
        | Error::EventFromOutside
        | Error::EventFromSegment
        | Error::UnjoinedWork { .. }
        | Error::NestedCapture
        | Error::ReplayWhileRecording => true,
        Error::Call(call) => is_of_captures(call.code()),
        _ => false,
    }
}

/// Whether it is a code of calls that an open capture forbids.
pub(super) fn is_of_captures(code: CUresult) -> bool {
    let codes = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.0..=CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD.0;
    codes.contains(&code.0)
}
