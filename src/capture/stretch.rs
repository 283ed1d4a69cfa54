//! A stretch: the segments and recorded breaks between two live breaks, as one exec.
//!
//! Segments and the bodies of recorded breaks are children of one graph. On a replay each body is recorded anew, on a side stream, and put in its
//! child's place in the exec if it differs from what is there; then the exec is launched once. Where a body has other nodes than the exec, the
//! driver refuses to patch it; another exec of the same stretch, made for bodies of that shape, is used, or made. Above a bound on such execs, and where a
//! body asks for more scratch than it did at capture, the stretch is launched piece by piece, with its breaks live.
//!
//! Invariants:
//! 1. A variant is launched only after each of its bodies is known to be the one that was recorded for this replay: patched in, or equal in all that a
//!    launch takes.
//! 2. What the current bodies refer to is kept until the next ones have taken their place, and given back after the last launch.

use super::ambient::{self, Frame, Kind};
use super::program::BreakStep;
use super::recorder::why_segment_failed;
use super::scratch::Scratch;
use crate::driver::graph::Node;
use crate::driver::window::{Digest, Kept, Window};
use crate::driver::{CaptureMode, Graph, GraphExec, InstantiateFlags, Stream};
use crate::error::{Error, Result};
use crate::pool::PoolHandle;
use crate::sys::{CUgraphNodeType, CUresult};
use std::sync::Arc;

/// What recorded breaks cost and saved, as plain data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RecordedStats {
    /// Bodies that were put in the place of others.
    pub patched: u64,
    /// Bodies that were equal to what the exec had.
    pub unchanged: u64,
    /// Execs made because bodies had other nodes than any exec there was; the first of each stretch is not counted.
    pub rebuilt: u64,
    /// Replays of a stretch that were launched piece by piece.
    pub fell_back: u64,
    /// Execs there are.
    pub execs: usize,
}

impl std::ops::AddAssign for RecordedStats {
    fn add_assign(&mut self, other: RecordedStats) {
        self.patched += other.patched;
        self.unchanged += other.unchanged;
        self.rebuilt += other.rebuilt;
        self.fell_back += other.fell_back;
        self.execs += other.execs;
    }
}

/// A part of a stretch.
pub(super) enum Piece<'env> {
    /// A segment that has nodes.
    Segment(SegmentPiece),
    /// A recorded break.
    Recorded(RecordedPiece<'env>),
}

pub(super) struct SegmentPiece {
    pub(super) graph: Graph,
    pub(super) index: usize,
    pub(super) nodes: usize,
    /// Made when it is launched alone.
    pub(super) exec: Option<GraphExec>,
}

pub(super) struct RecordedPiece<'env> {
    pub(super) step: BreakStep<'env>,
    scratch: Arc<Scratch>,
    recording: u64,
    /// Of this replay, until it is part of an exec.
    body: Option<Body>,
    /// What the body in the exec refers to.
    kept: Vec<Kept>,
}

/// A body that was recorded.
struct Body {
    graph: Graph,
    /// Where the crate has seen all that the nodes take.
    digest: Option<Digest>,
    kept: Vec<Kept>,
}

pub(super) struct Stretch<'env> {
    pieces: Vec<Piece<'env>>,
    variants: Vec<Variant>,
    /// The variant that was launched last.
    current: usize,
    side: Stream,
    flags: InstantiateFlags,
    max_variants: usize,
    stats: RecordedStats,
    /// What earlier bodies referred to, to be let go of after the replay.
    retired: Vec<Kept>,
}

/// An exec for bodies of certain shapes.
struct Variant {
    exec: GraphExec,
    /// Holds the nodes.
    _graph: Graph,
    slots: Vec<Slot>,
}

/// A body's place in a variant.
struct Slot {
    node: Node,
    shape: Vec<CUgraphNodeType>,
    /// Of the body that is in it.
    digest: Option<Digest>,
}

impl<'env> RecordedPiece<'env> {
    pub(super) fn new(step: BreakStep<'env>, scratch: Arc<Scratch>, recording: u64) -> RecordedPiece<'env> {
        RecordedPiece { step, scratch, recording, body: None, kept: Vec::new() }
    }

    /// Records the body. [`Error::ScratchExceeded`] where it asked for more scratch than there is, whatever it made of that.
    pub(super) fn record(&mut self, side: &Stream, valid_rows: Option<usize>, pool: &PoolHandle) -> Result<()> {
        self.body = None;
        self.scratch.reset();
        let window = Window::open(side, CaptureMode::Relaxed, self.recording)?;
        let ran = {
            let frame = Frame { kind: Kind::Body(self.scratch.clone()), stream: side.clone(), pool: pool.clone() };
            let _frame = ambient::enter(frame);
            self.step.run(side, valid_rows)
        };
        let closed = window.close();
        if let Some(exceeded) = self.scratch.exceeded() {
            if let Ok(captured) = closed {
                // SAFETY: the capture that ended has handed the graph over.
                drop(unsafe { Graph::from_raw(side.context(), captured.graph) });
            }
            return Err(exceeded);
        }
        let captured = match (ran, closed) {
            (Ok(()), Ok(captured)) => captured,
            (ran, closed) => {
                if let Ok(captured) = &closed {
                    // SAFETY: likewise.
                    drop(unsafe { Graph::from_raw(side.context(), captured.graph) });
                }
                let why = closed.err().map(|failed| why_segment_failed(&failed));
                return Err(self.failed(ran.err(), why));
            }
        };
        // SAFETY: likewise.
        let graph = unsafe { Graph::from_raw(side.context(), captured.graph) };
        let digest = (graph.len()? == captured.digest.seen).then_some(captured.digest);
        // The crate's own calls make no memory nodes.
        if digest.is_none() {
            let count = graph.node_counts()?.memory;
            if count > 0 {
                return Err(self.failed(Some(Error::MemoryNodes { count }), None));
            }
        }
        self.body = Some(Body { graph, digest, kept: captured.kept });
        Ok(())
    }

    /// `ran`: what the operation returned; `closed`: what ending its capture did.
    #[cold]
    fn failed(&self, ran: Option<Error>, closed: Option<Error>) -> Error {
        let (name, index) = (self.step.options.name.to_string(), self.step.index);
        let live = ran.iter().chain(&closed).any(is_for_live_breaks);
        // What the operation returned came first.
        let source = Box::new(ran.or(closed).unwrap_or(Error::Poisoned));
        if live { Error::NotRecordable { name, index, source } } else { Error::Break { name, index, source } }
    }
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
        // The codes of calls that an open capture forbids.
        Error::Call(call) => (CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.0
            ..=CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD.0)
            .contains(&call.code().0),
        _ => false,
    }
}

impl<'env> Stretch<'env> {
    /// One exec of pieces whose bodies have been recorded.
    pub(super) fn new(
        pieces: Vec<Piece<'env>>,
        side: Stream,
        flags: InstantiateFlags,
        max_variants: usize,
        upload: &Stream,
    ) -> Result<Stretch<'env>> {
        let mut stretch = Stretch {
            pieces,
            variants: Vec::new(),
            current: 0,
            side,
            flags,
            max_variants: max_variants.max(1),
            stats: RecordedStats::default(),
            retired: Vec::new(),
        };
        let variant = stretch.make_variant()?;
        variant.exec.upload(upload)?;
        stretch.variants.push(variant);
        stretch.adopt_bodies();
        Ok(stretch)
    }

    pub(super) fn pieces(&self) -> &[Piece<'env>] {
        &self.pieces
    }

    pub(super) fn breaks(&self) -> impl Iterator<Item = &BreakStep<'env>> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Segment(_) => None,
            Piece::Recorded(recorded) => Some(&recorded.step),
        })
    }

    /// The exec that was launched last.
    pub(super) fn exec(&self) -> Option<&GraphExec> {
        self.variants.get(self.current).map(|variant| &variant.exec)
    }

    pub(super) fn stats(&self) -> RecordedStats {
        RecordedStats { execs: self.variants.len(), ..self.stats }
    }

    /// What may be let go of once the turn is over.
    pub(super) fn take_retired(&mut self, into: &mut Vec<Kept>) {
        into.append(&mut self.retired);
    }

    /// What the bodies that are in the exec refer to.
    pub(super) fn take_kept(&mut self, into: &mut Vec<Kept>) {
        self.take_retired(into);
        for piece in &mut self.pieces {
            if let Piece::Recorded(recorded) = piece {
                into.append(&mut recorded.kept);
            }
        }
    }

    /// Records the bodies, sees to it that an exec has them, and launches it.
    pub(super) fn run(&mut self, stream: &Stream, valid_rows: Option<usize>, pool: &PoolHandle) -> Result<()> {
        for piece in &mut self.pieces {
            if let Piece::Recorded(recorded) = piece {
                match recorded.record(&self.side, valid_rows, pool) {
                    Ok(()) => {}
                    Err(Error::ScratchExceeded { .. }) => return self.run_pieces(stream, valid_rows),
                    Err(error) => return Err(error),
                }
            }
        }
        if !self.fit()? {
            return self.run_pieces(stream, valid_rows);
        }
        self.adopt_bodies();
        // SAFETY: the program keeps what the segments refer to, this keeps what the bodies do, and their return waits for what is running.
        match unsafe { self.variants[self.current].exec.launch(stream) } {
            Ok(()) => Ok(()),
            Err(error) => Err(Error::Segment { index: self.first_segment(), source: Box::new(error) }),
        }
    }

    /// Makes a variant that has the recorded bodies the current one. `false`: there is none, and there are too many already.
    fn fit(&mut self) -> Result<bool> {
        if self.patch(self.current)? {
            return Ok(true);
        }
        let shapes = self.shapes()?;
        for index in 0..self.variants.len() {
            let same = self.variants[index].slots.iter().map(|slot| &slot.shape).eq(&shapes);
            if index != self.current && same && self.patch(index)? {
                self.current = index;
                return Ok(true);
            }
        }
        if self.variants.len() >= self.max_variants {
            return Ok(false);
        }
        let variant = self.make_variant()?;
        self.variants.push(variant);
        self.current = self.variants.len() - 1;
        self.stats.rebuilt += 1;
        Ok(true)
    }

    /// Puts the recorded bodies into a variant. `false`: one has other nodes. Those before it are in it then.
    fn patch(&mut self, index: usize) -> Result<bool> {
        let variant = &mut self.variants[index];
        for (slot, body) in variant.slots.iter_mut().zip(bodies(&self.pieces)) {
            if body.digest.is_some() && body.digest == slot.digest {
                self.stats.unchanged += 1;
                continue;
            }
            // Whatever comes of the call: the slot's body is not the one that its digest is of.
            slot.digest = None;
            // SAFETY: a child of the variant's own graph, which it holds.
            if !unsafe { variant.exec.patch(slot.node, &body.graph)? } {
                return Ok(false);
            }
            slot.digest = body.digest;
            self.stats.patched += 1;
        }
        Ok(true)
    }

    fn shapes(&self) -> Result<Vec<Vec<CUgraphNodeType>>> {
        bodies(&self.pieces).map(|body| body.graph.shape()).collect()
    }

    /// An exec of the segments and the recorded bodies.
    fn make_variant(&self) -> Result<Variant> {
        let mut graph = Graph::new(self.side.context())?;
        let (mut last, mut slots) = (None, Vec::new());
        for piece in &self.pieces {
            last = Some(match piece {
                Piece::Segment(segment) => graph.add_child(&segment.graph, last)?,
                Piece::Recorded(RecordedPiece { body: Some(body), .. }) => {
                    let node = graph.add_child(&body.graph, last)?;
                    slots.push(Slot { node, shape: body.graph.shape()?, digest: body.digest });
                    node
                }
                Piece::Recorded(_) => return Err(Error::Poisoned),
            });
        }
        let exec = GraphExec::new(&graph, self.flags)?;
        Ok(Variant { exec, _graph: graph, slots })
    }

    /// The recorded bodies are in the current variant: what they refer to takes the place of what the ones before did.
    fn adopt_bodies(&mut self) {
        for piece in &mut self.pieces {
            if let Piece::Recorded(recorded) = piece
                && let Some(body) = recorded.body.take()
            {
                let same = recorded.kept.len() == body.kept.len()
                    && recorded.kept.iter().zip(&body.kept).all(|(old, new)| Arc::ptr_eq(old, new));
                if !same {
                    self.retired.extend(std::mem::replace(&mut recorded.kept, body.kept));
                }
            }
        }
    }

    /// Launches segment by segment, with breaks live.
    #[cold]
    fn run_pieces(&mut self, stream: &Stream, valid_rows: Option<usize>) -> Result<()> {
        self.stats.fell_back += 1;
        for piece in &mut self.pieces {
            match piece {
                Piece::Segment(segment) => {
                    let exec = match &mut segment.exec {
                        Some(exec) => exec,
                        none => none.insert(GraphExec::new(&segment.graph, self.flags)?),
                    };
                    // SAFETY: the program keeps what the graph refers to, and its return waits for what is running.
                    if let Err(error) = unsafe { exec.launch(stream) } {
                        return Err(Error::Segment { index: segment.index, source: Box::new(error) });
                    }
                }
                Piece::Recorded(recorded) => {
                    recorded.body = None;
                    if let Err(error) = recorded.step.run(stream, valid_rows) {
                        let (name, index) = (recorded.step.options.name.to_string(), recorded.step.index);
                        return Err(Error::Break { name, index, source: Box::new(error) });
                    }
                }
            }
        }
        Ok(())
    }

    fn first_segment(&self) -> usize {
        self.pieces
            .iter()
            .find_map(|piece| match piece {
                Piece::Segment(segment) => Some(segment.index),
                Piece::Recorded(_) => None,
            })
            .unwrap_or(0)
    }
}

/// The bodies that were recorded, in order.
fn bodies<'p>(pieces: &'p [Piece<'_>]) -> impl Iterator<Item = &'p Body> {
    pieces.iter().filter_map(|piece| match piece {
        Piece::Recorded(recorded) => recorded.body.as_ref(),
        Piece::Segment(_) => None,
    })
}
