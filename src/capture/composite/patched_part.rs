//! A patched break: its operation, and its body, which is what the operation enqueues, recorded anew for each replay.
//!
//! There are two ways to record a body. Kernel launches that go through the crate are *listed* as data, without a call of the driver; a body of such
//! launches alone is compared value by value with what an exec has. Any other work (a library's launch, a copy, a fork to another stream) needs a
//! stream capture, and such a body is *captured* as a graph. Launches are listed with a capture open on the stream, so that other work goes into that,
//! and is found when it ends: then the body is captured from there on.

use crate::capture::breaks::step::BreakStep;
use crate::capture::forward::allocator::Allocator;
use crate::capture::forward::frame::{self, Frame};
use crate::capture::forward::scratch::Scratch;
use crate::capture::options::EagerOptions;
use crate::driver::capture_state::{BodyCapture, CaptureState};
use crate::driver::launch_list::LaunchList;
use crate::driver::open_capture::{Captured, Failed, OpenCapture};
use crate::driver::{Graph, KeepAlive, Stream, is_module, keep};
use crate::error::{Error, Misuse, Result};
use crate::pool::PoolHandle;
use crate::sys::CUresult;
use std::sync::Arc;

/// What a body is recorded with.
#[derive(Clone, Copy)]
pub(crate) struct BodyParams<'a> {
    /// Where bodies are recorded: nothing is ever run on it.
    pub(crate) stream: &'a Stream,
    /// Of the captures in which they are recorded, one after another.
    pub(crate) state: &'a Arc<CaptureState>,
    /// What the break is told.
    pub(crate) valid_rows: Option<usize>,
    /// Where its handoffs' padded tail begins.
    pub(crate) scrub_from: Option<usize>,
    pub(crate) pool: &'a PoolHandle,
}

/// A patched break.
pub(crate) struct PatchedPart<'env> {
    pub(crate) step: BreakStep<'env>,
    scratch: Arc<Scratch>,
    /// Whether its launches are listed; for good no longer once it has enqueued anything else.
    lists_launches: bool,
    /// Of this replay, until it is part of an exec.
    body: Option<Body>,
    /// What the body in the exec refers to.
    kept: Vec<KeepAlive>,
    /// Modules of earlier bodies: a driver may look at a node's former function when it gets another one.
    modules: Vec<KeepAlive>,
    /// Room for the next body.
    spare: BodyCapture,
}

/// A body that was recorded.
struct Body {
    work: Work,
    kept: Vec<KeepAlive>,
}

/// What a body enqueues.
pub(super) enum Work {
    /// Kernel launches of the crate's, one after another.
    Launches(LaunchList),
    /// Anything.
    Graph(Graph),
}

impl BodyParams<'_> {
    /// Opens a capture to record in.
    pub(super) fn open(&self) -> Result<OpenCapture> {
        OpenCapture::body(self.stream, self.state)
    }
}

impl<'env> PatchedPart<'env> {
    pub(crate) fn new(step: BreakStep<'env>, scratch: Arc<Scratch>) -> PatchedPart<'env> {
        let (kept, modules) = (Vec::new(), Vec::new());
        let (body, spare) = (None, BodyCapture::default());
        PatchedPart { step, scratch, lists_launches: true, body, kept, modules, spare }
    }

    /// What the body that was recorded for this replay enqueues.
    pub(super) fn work(&self) -> Option<&Work> {
        self.body.as_ref().map(|body| &body.work)
    }

    /// Whether its launches are listed, and so can be in a capture with others'.
    pub(super) fn lists_launches(&self) -> bool {
        self.lists_launches
    }

    /// Records the body in a capture of its own. [`Error::ScratchExceeded`] where it asked for more scratch than there is, whatever it made of that.
    pub(crate) fn record(&mut self, with: BodyParams<'_>) -> Result<()> {
        if self.lists_launches {
            let capture = with.open()?;
            if let Err(error) = self.list(&capture, with) {
                return Err(self.failed(Some(error), capture.close().err()));
            }
            match capture.close() {
                Ok(captured) if captured.graph.len()? == 0 => return Ok(()),
                Ok(_) => self.lists_launches = false,
                Err(failed) => return Err(self.failed(None, Some(failed))),
            }
        }
        self.capture(with)
    }

    /// Runs the operation with its launches listed. What else it enqueues is in the capture.
    pub(super) fn list(&mut self, capture: &OpenCapture, with: BodyParams<'_>) -> Result<()> {
        let mut body = self.spare();
        body.launches.clear();
        body.kept.clear();
        capture.begin_body(body);
        let ran = self.run(with);
        let BodyCapture { launches, kept } = capture.end_body();
        self.body = Some(Body { work: Work::Launches(launches), kept });
        ran
    }

    /// Room for a body: what the last one had, if it is not in use.
    fn spare(&mut self) -> BodyCapture {
        match self.body.take() {
            Some(Body { work: Work::Launches(launches), kept }) => BodyCapture { launches, kept },
            _ => std::mem::take(&mut self.spare),
        }
    }

    /// Captures the body as a graph.
    pub(super) fn capture(&mut self, with: BodyParams<'_>) -> Result<()> {
        self.body = None;
        let capture = with.open()?;
        let ran = self.run(with);
        let Captured { graph, kept, .. } = match (ran, capture.close()) {
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
    fn run(&mut self, with: BodyParams<'_>) -> Result<()> {
        let _active = self.scratch.activate();
        if self.scratch.is_held(1) {
            // A workspace that the operation keeps, say. With other temporaries it can run as it is.
            return Err(SCRATCH_IS_HELD);
        }
        self.scratch.reset();
        let ran = {
            let frame = Frame {
                allocator: Allocator::Scratch(self.scratch.clone()),
                stream: with.stream.clone(),
                pool: with.pool.clone(),
                recorder: None,
                padding: EagerOptions::default(),
                observer: None,
            };
            let _frame = frame::enter(frame);
            self.step.run_scrubbed(with.stream, with.valid_rows, with.scrub_from)
        };
        self.scratch.exceeded().map_or(ran, Err)
    }

    /// Runs the operation live, with ordinary temporaries.
    pub(super) fn run_live(&mut self, stream: &Stream, valid_rows: Option<usize>) -> Result<()> {
        let _active = self.scratch.activate();
        self.step.run(stream, valid_rows).map_err(|error| self.step.failed(error))
    }

    /// `ran`: what the operation returned; `closed`: what ending its capture did.
    #[cold]
    pub(super) fn failed(&self, ran: Option<Error>, closed: Option<Failed>) -> Error {
        if let Some(exceeded @ Error::ScratchExceeded { .. }) = ran {
            return exceeded;
        }
        let closed = closed.map(Error::from);
        let live = ran.iter().chain(&closed).any(is_for_live_breaks);
        // What the operation returned came first.
        let source = ran.or(closed).unwrap_or(Error::Internal("a body failed without an error"));
        let (name, index) = (self.step.options.name.to_string(), self.step.index);
        if live { Error::NotPatchable { name, index, source: Box::new(source) } } else { self.step.failed(source) }
    }

    /// The body is in an exec: what it refers to takes the place of what the one before did, which goes to `replaced`.
    pub(super) fn adopt(&mut self, replaced: &mut Vec<KeepAlive>) {
        let Some(Body { work, mut kept }) = self.body.take() else { return };
        let same = self.kept.len() == kept.len() && self.kept.iter().zip(&kept).all(|(old, new)| Arc::ptr_eq(old, new));
        if !same {
            std::mem::swap(&mut self.kept, &mut kept);
            for old in kept.drain(..) {
                if is_module(&old) { keep(&mut self.modules, &old) } else { replaced.push(old) }
            }
        }
        kept.clear();
        if let Work::Launches(launches) = work {
            self.spare = BodyCapture { launches, kept };
        }
    }

    /// Takes what the body in the exec refers to.
    pub(super) fn take_kept(&mut self, into: &mut Vec<KeepAlive>) {
        into.append(&mut self.kept);
        into.append(&mut self.modules);
    }
}

/// A tensor of the scratch is still held: nothing of it is given out until that is gone.
const SCRATCH_IS_HELD: Error = Error::ScratchExceeded { requested: 0, left: 0 };

/// Whether the operation did what only a live break may do.
fn is_for_live_breaks(error: &Error) -> bool {
    match error {
        Error::Misuse(
            Misuse::SynchronizeWhileCapturing { .. }
            | Misuse::HostMemoryInSegment
            | Misuse::MustBeBreak { .. }
            | Misuse::StreamIsCapturing { .. }
            | Misuse::MemoryNodes { .. }
            | Misuse::EventFromOutside
            | Misuse::EventFromSegment
            | Misuse::UnjoinedWork { .. }
            | Misuse::NestedCapture
            | Misuse::OutsideTheCapture { .. }
            | Misuse::ReplayWhileRecording,
        ) => true,
        Error::Call(_) | Error::ModuleLoad(_) | Error::Kernel(_) => {
            error.driver_call().is_some_and(|call| is_of_captures(call.code()))
        }
        _ => false,
    }
}

/// Whether it is a code of calls that an open capture forbids.
pub(super) fn is_of_captures(code: CUresult) -> bool {
    let codes = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.0..=CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD.0;
    codes.contains(&code.0)
}
