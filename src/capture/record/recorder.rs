//! The recorder of a forward: it opens and ends segments, and makes steps of what came.

use crate::capture::breaks::step::{BreakStep, Operation};
use crate::capture::composite::part::{Part, SegmentPart};
use crate::capture::composite::patched_part::PatchedPart;
use crate::capture::composite::{self, CompositeOptions};
use crate::capture::forward::allocator::Allocator;
use crate::capture::forward::frame::{self, Frame, RecorderAddress};
use crate::capture::options::{CaptureExecution, CaptureOptions, EagerOptions};
use crate::capture::program::{Program, Step};
use crate::driver::open_capture::OpenCapture;
use crate::driver::{GraphExec, InstantiateFlags, RecordingId, Stream};
use crate::error::{Error, Misuse, Result};
use crate::pool::PoolHandle;
use crate::pool::tracer::Tracer;
use crate::sys::CallError;
use std::cell::RefCell;
use std::sync::Arc;

/// Records a forward, or traces it as a recording would be: then nothing is captured.
pub(crate) struct Recorder<'env> {
    pub(super) id: RecordingId,
    pub(super) pool: PoolHandle,
    pub(super) stream: Stream,
    pub(super) allocator: Allocator,
    /// What breaks are told, and where their handoffs' padded tail begins.
    pub(super) valid_rows: Option<usize>,
    /// The leading dimension that handoffs must have, where it is set.
    pub(super) bucket: Option<usize>,
    /// Whether it is a trace of a warm-up.
    warm_up: bool,
    execution: CaptureExecution,
    composites: CompositeOptions,
    building: RefCell<Building<'env>>,
}

#[derive(Default)]
struct Building<'env> {
    /// The open segment.
    segment: Option<OpenCapture>,
    program: Program<'env>,
    /// What came since the last live break, while it waits for what follows.
    parts: Vec<Part<'env>>,
    /// The operations of each segment that was ended.
    operations: Vec<usize>,
    /// The operations of a trace's breaks: what they have taken by move lives as long as a capture would.
    traced: Vec<Operation<'env>>,
    /// A break or a segment has failed: whatever the forward makes of that, the recording is lost.
    failed: bool,
}

/// What follows a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// A patched break: the segment becomes part of a composite graph.
    PatchedBreak,
    /// A live break, or the end.
    Other,
}

/// Where a recording is: a segment that is open or was ended last, and the operations that went into it so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Position {
    pub(crate) segment: usize,
    pub(crate) operation: usize,
}

impl<'env> Recorder<'env> {
    /// A recording with blocks of the pool.
    pub(crate) fn new(pool: &PoolHandle, stream: &Stream, options: &CaptureOptions) -> Result<Recorder<'env>> {
        let recording = RecordingId::next();
        let allocator = Allocator::Blocks { key: pool.key_of(stream)?, recording };
        Recorder::with_allocator(recording, allocator, pool, stream, options)
    }

    /// Runs a forward as a recording does, without capturing: what it asks of the pool is written down.
    pub(crate) fn tracing(
        pool: &PoolHandle,
        stream: &Stream,
        tracer: &Arc<Tracer>,
        padding: EagerOptions,
    ) -> Result<Recorder<'env>> {
        let recording = RecordingId::next();
        let allocator = Allocator::TracedBlocks { tracer: tracer.clone(), recording };
        let EagerOptions { valid_rows, bucket, warm_up } = padding;
        let options = CaptureOptions { valid_rows, bucket, ..CaptureOptions::default() };
        let recorder = Recorder::with_allocator(recording, allocator, pool, stream, &options)?;
        Ok(Recorder { warm_up, ..recorder })
    }

    fn with_allocator(
        id: RecordingId,
        allocator: Allocator,
        pool: &PoolHandle,
        stream: &Stream,
        options: &CaptureOptions,
    ) -> Result<Recorder<'env>> {
        let graph = options.graph;
        let has_priorities = graph.instantiate.contains(InstantiateFlags::USE_NODE_PRIORITY);
        let priority = if has_priorities { Some(stream.priority()?) } else { None };
        Ok(Recorder {
            id,
            pool: pool.clone(),
            stream: stream.clone(),
            allocator,
            valid_rows: options.told_rows(),
            bucket: options.bucket,
            warm_up: false,
            execution: options.execution,
            composites: CompositeOptions { graph, priority },
            building: RefCell::default(),
        })
    }

    /// The frame in which the forward runs. The recorder must outlive it.
    pub(crate) fn frame(&self) -> Frame {
        Frame {
            allocator: self.allocator.clone(),
            stream: self.stream.clone(),
            pool: self.pool.clone(),
            recorder: Some(self.address()),
            padding: EagerOptions { warm_up: self.warm_up, ..EagerOptions::default() },
            observer: None,
        }
    }

    fn address(&self) -> RecorderAddress {
        RecorderAddress(core::ptr::from_ref(self).cast())
    }

    /// Whether this is what records on the calling thread now: not in breaks.
    pub(crate) fn is_active(&self) -> bool {
        frame::recorder() == Some(self.address())
    }

    /// What writes the trace, if this is one.
    pub(super) fn tracer(&self) -> Option<&Arc<Tracer>> {
        match &self.allocator {
            Allocator::TracedBlocks { tracer, .. } => Some(tracer),
            _ => None,
        }
    }

    /// Opens a segment.
    pub(super) fn open_segment(&self) -> Result<()> {
        if self.tracer().is_some() {
            return Ok(());
        }
        let place = self.building.borrow().program.segments;
        let segment = OpenCapture::segment(&self.stream, self.composites.graph.mode, self.id, place)?;
        self.building.borrow_mut().segment = Some(segment);
        Ok(())
    }

    /// Ends the open segment and makes a step of it, or a part of a composite graph, unless it has no nodes.
    pub(super) fn end_segment(&self, next: Next) -> Result<()> {
        if self.tracer().is_some() {
            return Ok(());
        }
        let ended = self.make_segment(next).and_then(|made| {
            self.building.borrow_mut().parts.extend(made.map(Part::Segment));
            if next == Next::PatchedBreak { Ok(()) } else { self.make_steps() }
        });
        self.lost_unless(ended)?;
        self.building.borrow_mut().program.segments += 1;
        Ok(())
    }

    fn make_segment(&self, next: Next) -> Result<Option<SegmentPart>> {
        let (segment, index, alone) = {
            let mut building = self.building.borrow_mut();
            let alone = building.parts.is_empty() && next == Next::Other && !self.composites.graph.share_execs;
            (building.segment.take(), building.program.segments, alone)
        };
        let captured = match segment.ok_or(Misuse::Poisoned)?.close() {
            Ok(captured) => captured,
            Err(failed) => {
                self.building.borrow_mut().operations.push(failed.operations);
                return Err(failed.into());
            }
        };
        let mut nodes = captured.graph.node_counts()?;
        let all = captured.expect_all(&nodes);
        {
            let mut building = self.building.borrow_mut();
            building.operations.push(captured.operations);
            building.program.kept.extend(captured.kept);
        }
        all?;
        let mut graph = captured.graph;
        if nodes.memory > 0 {
            return Err(Misuse::MemoryNodes { count: nodes.memory }.into());
        }
        if nodes.memsets > 0 && self.composites.graph.memset_as_kernel {
            let replaced = graph.memset_as_kernel(self.composites.priority)?;
            nodes.memsets -= replaced;
            nodes.kernels += replaced;
        }
        self.building.borrow_mut().program.nodes += nodes;
        self.pool.settle()?;
        if nodes.total() == 0 {
            return Ok(None);
        }
        let mut part = SegmentPart { graph, index, nodes: nodes.total(), exec: None };
        let runs = self.execution == CaptureExecution::RunThrough;
        if alone || runs {
            let exec = part.exec_alone(self.composites.graph.instantiate, &self.stream)?;
            if runs {
                // SAFETY: the recording keeps what the graph refers to, and the pool's memory is live.
                unsafe { exec.launch(&self.stream)? };
            }
        }
        Ok(Some(part))
    }

    /// Makes steps of what came since the last live break.
    fn make_steps(&self) -> Result<()> {
        let (parts, place) = {
            let mut building = self.building.borrow_mut();
            (std::mem::take(&mut building.parts), building.program.steps.len())
        };
        let graph = self.composites.graph;
        if graph.share_execs || parts.iter().any(|part| matches!(part, Part::Patched(_))) {
            let made = composite::build(parts, self.composites, (self.id, place), &self.pool, &self.stream)?;
            self.building.borrow_mut().program.steps.extend(made.into_iter().map(Step::Composite));
            return Ok(());
        }
        for part in parts {
            if let Part::Segment(SegmentPart { graph: segment, index, nodes, exec }) = part {
                let make = || GraphExec::measured(&segment, nodes, graph.instantiate, &self.stream);
                let exec = exec.map_or_else(make, Ok).map_err(|error| Error::segment(index, error))?;
                self.building.borrow_mut().program.steps.push(Step::Segment { exec, index, nodes });
            }
        }
        Ok(())
    }

    /// The place of the next segment among the recording's segments.
    pub(super) fn next_segment(&self) -> usize {
        self.building.borrow().program.segments
    }

    /// The place of the next break among the recording's breaks.
    pub(super) fn next_break(&self) -> usize {
        self.building.borrow().program.breaks
    }

    /// Adds a live break.
    pub(super) fn push_live(&self, step: BreakStep<'env>) {
        let mut building = self.building.borrow_mut();
        building.program.steps.push(Step::Break(step));
        building.program.breaks += 1;
    }

    /// Adds a patched break whose body has been recorded.
    pub(super) fn push_patched(&self, part: PatchedPart<'env>) {
        let mut building = self.building.borrow_mut();
        building.parts.push(Part::Patched(Box::new(part)));
        building.program.breaks += 1;
    }

    /// Keeps the operation of a trace's break.
    pub(super) fn push_traced(&self, operation: Operation<'env>) {
        self.building.borrow_mut().traced.push(operation);
    }

    /// Fails where something of the recording has failed before.
    pub(super) fn expect_whole(&self) -> Result<()> {
        if self.building.borrow().failed { Err(Misuse::Poisoned.into()) } else { Ok(()) }
    }

    /// Where this failed, whatever the forward makes of it, the recording is lost.
    pub(super) fn lost_unless<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|_| self.building.borrow_mut().failed = true)
    }

    /// The same for a break, whose error this becomes.
    pub(super) fn lost_unless_ran<T>(&self, name: &str, ran: Result<T>) -> Result<T> {
        let index = self.next_break();
        let failed = |error| Error::Break { name: name.to_owned(), index, source: Box::new(error) };
        self.lost_unless(ran.map_err(failed))
    }

    /// Ends the last segment and hands the program over.
    pub(crate) fn finish(&self) -> Result<Program<'env>> {
        self.expect_whole()?;
        self.end_segment(Next::Other)?;
        Ok(std::mem::take(&mut self.building.borrow_mut().program))
    }

    /// Ends the open segment, if there is one, of a recording that is lost. Returns what failed in doing so.
    pub(super) fn end_open_segment(&self) -> Option<CallError> {
        let segment = {
            let mut building = self.building.borrow_mut();
            building.failed = true;
            building.segment.take()
        };
        let failed = match segment?.close() {
            Ok(captured) => {
                self.building.borrow_mut().program.kept.extend(captured.kept);
                return None;
            }
            Err(failed) => failed,
        };
        self.building.borrow_mut().operations.push(failed.operations);
        Some(failed.end)
    }

    fn take_made(&self) -> (Program<'env>, Vec<Part<'env>>) {
        let mut building = self.building.borrow_mut();
        (std::mem::take(&mut building.program), std::mem::take(&mut building.parts))
    }

    /// Destroys what was made. Nothing of it runs any more.
    pub(super) fn discard(&self) {
        let (mut program, parts) = self.take_made();
        let kept = program.take_kept();
        program.steps.clear();
        drop(parts);
        drop(kept);
    }

    /// Gives up what was made, which may still run.
    pub(super) fn leak(&self) {
        std::mem::forget(self.take_made());
    }

    /// Where the recording is.
    pub(crate) fn position(&self) -> Position {
        let building = self.building.borrow();
        let open = building.segment.as_ref().map(OpenCapture::operations);
        let last = || building.operations.last().copied().unwrap_or(0);
        Position { segment: building.program.segments, operation: open.unwrap_or_else(last) }
    }

    /// The end of a segment.
    pub(crate) fn end_of(&self, segment: usize) -> Position {
        Position { segment, operation: self.building.borrow().operations.get(segment).copied().unwrap_or(0) }
    }
}
