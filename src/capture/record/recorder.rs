//! Builds the program: ends a segment, runs and records the break, opens the next segment.

use crate::capture::breaks::{Break, BreakKind, BreakOptions, Outputs};
use crate::capture::capture::{CaptureExecution, CaptureOptions};
use crate::capture::composite::scratch::{self, Scratch};
use crate::capture::composite::{Composite, CompositeOptions, Part, PatchedPart, Recording, SegmentPart};
use crate::capture::forward::frame::{self, Frame, Kind, Source};
use crate::capture::program::{BreakStep, Operation, Program, Step};
use crate::driver::open_capture::{Failed, OpenCapture};
use crate::driver::{CaptureMode, Graph, GraphExec, InstantiateFlags, RecordingId, Stream};
use crate::error::{Error, Misuse, Result, TensorError};
use crate::memory::trace::Role;
use crate::pool::PoolHandle;
use crate::pool::tracer::Tracer;
use crate::sys::{CUresult, CallError};
use crate::tensor::padding::{check_landing, land};
use crate::tensor::{DType, Location, Tensor};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

/// A recording under way.
pub(crate) struct Recorder<'env> {
    pub(crate) number: RecordingId,
    pub(crate) pool: PoolHandle,
    pub(crate) stream: Stream,
    pub(crate) source: Source,
    pub(crate) mode: CaptureMode,
    pub(crate) execution: CaptureExecution,
    pub(crate) composites: CompositeOptions,
    early_launch_divisor: usize,
    memset_as_kernel: bool,
    building: RefCell<Building<'env>>,
}

struct Building<'env> {
    /// The open segment.
    window: Option<OpenCapture>,
    program: Program<'env>,
    /// What came since the last live break, while it waits for what follows.
    parts: Vec<Part<'env>>,
    /// The operations of the segment that was ended last.
    operations: usize,
    /// The operations of a trace's breaks.
    traced: Vec<Operation<'env>>,
    /// A break or a segment has failed: whatever the forward makes of that, the recording is lost.
    failed: bool,
}

impl<'env> Recorder<'env> {
    pub(crate) fn new(
        number: RecordingId,
        pool: PoolHandle,
        stream: Stream,
        source: Source,
        options: &CaptureOptions,
    ) -> Result<Self> {
        let CaptureOptions {
            mode,
            execution,
            instantiate: flags,
            max_recorded_shapes,
            max_recorded_configs,
            share_execs: share,
            early_launch_divisor,
            memset_as_kernel,
            ..
        } = *options;
        let max_shapes = max_recorded_shapes.max(1);
        // A shared exec is another capture's in between: it does not stay as it is.
        let max_configs = if share { 1 } else { max_recorded_configs.max(1) };
        let priority =
            if flags.contains(InstantiateFlags::USE_NODE_PRIORITY) { Some(stream.priority()?) } else { None };
        let composites = CompositeOptions { flags, priority, max_shapes, max_configs, share, place: 0 };
        let building = Building {
            window: None,
            program: Program::default(),
            parts: Vec::new(),
            operations: 0,
            traced: Vec::new(),
            failed: false,
        };
        Ok(Recorder {
            number,
            pool,
            stream,
            source,
            mode,
            execution,
            composites,
            early_launch_divisor,
            memset_as_kernel,
            building: RefCell::new(building),
        })
    }

    /// Runs a forward as a recording does, without capturing: what it asks of the pool is written down.
    pub(crate) fn tracing(pool: PoolHandle, stream: Stream, number: RecordingId, tracer: Arc<Tracer>) -> Result<Self> {
        let source = Source::Traced(tracer);
        Recorder::new(number, pool, stream, source, &CaptureOptions::default())
    }

    /// What writes the trace, if this is one.
    fn tracer(&self) -> Option<&Arc<Tracer>> {
        match &self.source {
            Source::Traced(tracer) => Some(tracer),
            Source::Blocks(_) => None,
        }
    }

    /// Opens a segment.
    pub(crate) fn open_segment(&self) -> Result<()> {
        if self.tracer().is_some() {
            return Ok(());
        }
        let window = OpenCapture::open(&self.stream, self.mode, self.number)?;
        self.building.borrow_mut().window = Some(window);
        Ok(())
    }

    /// Ends the open segment and makes a step of it, or a part of a composite, unless it has no nodes.
    pub(crate) fn end_segment(&self, next: Next) -> Result<()> {
        if self.tracer().is_some() {
            return Ok(());
        }
        let (window, index, alone) = {
            let mut building = self.building.borrow_mut();
            let alone = building.parts.is_empty() && next != Next::Patched && !self.composites.share;
            (building.window.take(), building.program.segments, alone)
        };
        let Some(window) = window else { return Err(Misuse::Poisoned.into()) };
        let ended = self.make_segment(window, index, alone).and_then(|made| {
            self.building.borrow_mut().parts.extend(made.map(Part::Segment));
            if next == Next::Patched { Ok(()) } else { self.close_composite() }
        });
        let mut building = self.building.borrow_mut();
        if let Err(error) = ended {
            building.failed = true;
            return Err(error);
        }
        building.program.segments += 1;
        Ok(())
    }

    /// `alone`: it has an exec of its own.
    fn make_segment(&self, window: OpenCapture, index: usize, alone: bool) -> Result<Option<SegmentPart>> {
        let captured = match window.close() {
            Ok(captured) => captured,
            Err(failed) => {
                self.building.borrow_mut().operations = failed.operations;
                return Err(why_segment_failed(&failed));
            }
        };
        {
            let mut building = self.building.borrow_mut();
            building.operations = captured.operations;
            building.program.kept.extend(captured.kept);
        }
        // SAFETY: the capture that ended has handed the graph over.
        let mut graph = unsafe { Graph::from_raw(self.stream.context(), captured.graph) };
        let mut nodes = graph.node_counts()?;
        if nodes.memory > 0 {
            return Err(Misuse::MemoryNodes { count: nodes.memory }.into());
        }
        if nodes.memsets > 0 && self.memset_as_kernel {
            let replaced = graph.memset_as_kernel(self.composites.priority)?;
            nodes.memsets -= replaced;
            nodes.kernels += replaced;
        }
        self.building.borrow_mut().program.nodes += nodes;
        self.pool.settle()?;
        if nodes.total() == 0 {
            return Ok(None);
        }
        let runs = self.execution == CaptureExecution::RunThrough;
        let exec = if alone || runs { Some(GraphExec::new(&graph, self.composites.flags)?) } else { None };
        if let Some(exec) = exec.as_ref().filter(|_| runs) {
            // SAFETY: the recording keeps what the graph refers to, and the pool's memory is live.
            unsafe { exec.launch(&self.stream)? };
        }
        Ok(Some(SegmentPart { graph, index, nodes: nodes.total(), exec }))
    }

    /// Makes steps of what came since the last live break.
    fn close_composite(&self) -> Result<()> {
        let parts = std::mem::take(&mut self.building.borrow_mut().parts);
        let together = self.composites.share || parts.iter().any(|part| matches!(part, Part::Patched(_)));
        if together {
            let (lead, rest) = split(parts, self.early_launch_divisor);
            return [lead, rest].into_iter().filter(|parts| !parts.is_empty()).try_for_each(|parts| {
                let place = self.building.borrow().program.steps.len();
                let options = CompositeOptions { place, ..self.composites };
                let side = self.pool.recording_stream(&self.stream)?;
                let composite = Composite::new(parts, side, options, &self.pool, &self.stream)?;
                self.building.borrow_mut().program.steps.push(Step::Composite(composite));
                Ok(())
            });
        }
        for part in parts {
            if let Part::Segment(SegmentPart { graph, index, nodes, exec }) = part {
                let exec = exec.map_or_else(|| GraphExec::new(&graph, self.composites.flags), Ok)?;
                exec.upload(&self.stream)?;
                self.building.borrow_mut().program.steps.push(Step::Segment { exec, index, nodes });
            }
        }
        Ok(())
    }

    /// Runs a break and records it. `into`: where its one result is to land, for `break_here`.
    pub(crate) fn add_break<O, F>(
        &self,
        options: BreakOptions,
        inputs: Vec<Option<Tensor>>,
        into: Option<Tensor>,
        mut operation: F,
    ) -> Result<O>
    where
        O: Outputs,
        F: FnMut(&Break<'_>) -> Result<O> + Send + 'env,
    {
        if self.building.borrow().failed {
            return Err(Misuse::Poisoned.into());
        }
        let kind = options.kind;
        if kind == BreakKind::Inline {
            return self.run_inline(&options, &inputs, into.as_ref(), &mut operation);
        }
        let patched = kind == BreakKind::Patched;
        self.end_segment(if patched { Next::Patched } else { Next::Other })?;
        // The temporaries of a patched break are measured: it will have as much scratch.
        let measure = patched.then(Tracer::new);
        let tracer = measure.clone().or_else(|| self.tracer().cloned());
        let outputs = match self.run_first(&options, &inputs, into.as_ref(), tracer, &mut operation) {
            Ok(outputs) => outputs,
            Err(error) => {
                let index = self.building.borrow().program.breaks;
                self.building.borrow_mut().failed = true;
                return Err(Error::Break { name: options.name.into_owned(), index, source: Box::new(error) });
            }
        };
        let scratch = self.scratch(&options, measure.as_deref()).inspect_err(|_| self.fail())?;
        let held = |tensor: &Tensor| self.hold(tensor);
        if self.tracer().is_some() {
            // What the operation has taken by move lives as long as a capture would.
            self.building.borrow_mut().traced.push(Box::new(move |this, visit| operation(this)?.visit(visit)));
        } else {
            let step = BreakStep {
                options,
                index: self.building.borrow().program.breaks,
                operation: Box::new(move |this, visit| operation(this)?.visit(visit)),
                inputs: inputs.iter().map(|input| input.as_ref().map(held)).collect(),
                handoffs: outputs.iter().map(held).collect(),
            };
            if patched {
                self.add_patched(step, scratch.as_ref()).inspect_err(|_| self.fail())?;
            } else {
                self.building.borrow_mut().program.steps.push(Step::Break(step));
            }
            self.building.borrow_mut().program.breaks += 1;
        }
        self.open_segment().inspect_err(|_| self.fail())?;
        let expected = outputs.len();
        let mut handoffs = outputs.into_iter();
        O::gather(&mut || handoffs.next()).ok_or(Error::Misuse(Misuse::OutputCount { expected, got: 0 }))
    }

    /// Whatever the forward makes of it, the recording is lost.
    fn fail(&self) {
        self.building.borrow_mut().failed = true;
    }

    /// The scratch of a patched break: as much of the pool as its temporaries took together.
    fn scratch(&self, options: &BreakOptions, measure: Option<&Tracer>) -> Result<Option<Tensor>> {
        let Some(measure) = measure else { return Ok(None) };
        let requests = measure.finish();
        let mut sizes = requests.requests().iter().map(|request| scratch::rounded(request.bytes));
        let too_large = Error::Tensor(TensorError::Layout { reason: "a break's temporaries are larger than memory" });
        let bytes = sizes.try_fold(0_usize, |sum, bytes| sum.checked_add(bytes?)).ok_or(too_large)?;
        if bytes == 0 {
            return Ok(None);
        }
        let region =
            self.source.tensor(&self.pool, &self.stream, self.number, Role::Intermediate, DType::U8, &[bytes])?;
        region.set_name(&format!("{}.scratch", options.name));
        Ok(Some(region))
    }

    /// Records a break's body for the first time.
    fn add_patched(&self, step: BreakStep<'env>, region: Option<&Tensor>) -> Result<()> {
        let side = self.pool.recording_stream(&self.stream)?;
        let scratch = Scratch::new(region, self.stream.context(), self.number, self.pool.retain_mapping());
        let (name, index) = (step.options.name.to_string(), step.index);
        let mut part = PatchedPart::new(step, scratch, self.number);
        // More scratch than the time before: what it takes is not known then.
        part.record(Recording { side: &side, valid_rows: None, pool: &self.pool }).map_err(|error| match error {
            Error::ScratchExceeded { .. } => Error::NotPatchable { name, index, source: Box::new(error) },
            other => other,
        })?;
        self.building.borrow_mut().parts.push(Part::Patched(Box::new(part)));
        Ok(())
    }

    /// Runs an inline break: what it enqueues goes into the open segment.
    fn run_inline<O, F>(
        &self,
        options: &BreakOptions,
        inputs: &[Option<Tensor>],
        into: Option<&Tensor>,
        operation: &mut F,
    ) -> Result<O>
    where
        O: Outputs,
        F: FnMut(&Break<'_>) -> Result<O>,
    {
        let kind = Kind::Inline { number: self.number, source: self.source.clone() };
        let frame = frame::enter(Frame { kind, stream: self.stream.clone(), pool: self.pool.clone() });
        let handoffs: Vec<Tensor> = into.into_iter().cloned().collect();
        let ran = operation(&self.as_break(options, inputs, &handoffs)).and_then(|outputs| {
            let Some(into) = into else { return Ok(outputs) };
            let count = outputs.visit(&mut |index, result| match index {
                0 => land(&self.stream, &result, into, None),
                _ => Err(Misuse::OutputCount { expected: 1, got: index + 1 }.into()),
            })?;
            let mut once = Some(into.clone());
            O::gather(&mut || once.take()).ok_or(Error::Misuse(Misuse::OutputCount { expected: 1, got: count }))
        });
        drop(frame);
        ran.map_err(|error| {
            self.fail();
            let index = self.building.borrow().program.breaks;
            Error::Break { name: options.name.to_string(), index, source: Box::new(error) }
        })
    }

    /// What an operation is given at capture time.
    fn as_break<'b>(
        &'b self,
        options: &'b BreakOptions,
        inputs: &'b [Option<Tensor>],
        handoffs: &'b [Tensor],
    ) -> Break<'b> {
        let depth = frame::depth();
        let (name, stream) = (&*options.name, &self.stream);
        Break { name, stream, inputs, handoffs, valid_rows: None, depth, _thread: PhantomData }
    }

    /// The first run of a break, with handoffs made of what it returns.
    fn run_first<O, F>(
        &self,
        options: &BreakOptions,
        inputs: &[Option<Tensor>],
        into: Option<&Tensor>,
        tracer: Option<Arc<Tracer>>,
        operation: &mut F,
    ) -> Result<Vec<Tensor>>
    where
        O: Outputs,
        F: FnMut(&Break<'_>) -> Result<O>,
    {
        let frame = Frame { kind: Kind::Eager(tracer), stream: self.stream.clone(), pool: self.pool.clone() };
        let _frame = frame::enter(frame);
        let handoffs: Vec<Tensor> = into.into_iter().cloned().collect();
        let this = self.as_break(options, inputs, &handoffs);
        let mut outputs = Vec::new();
        operation(&this)?.visit(&mut |index, result| {
            let handoff = match into {
                Some(handoff) if index == 0 => {
                    handoff.set_handoff();
                    handoff.clone()
                }
                Some(_) => return Err(Misuse::OutputCount { expected: 1, got: index + 1 }.into()),
                None => {
                    result.device_context("break's result")?;
                    let (dtype, shape) = (result.dtype(), result.shape());
                    let handoff =
                        self.source.tensor(&self.pool, &self.stream, self.number, Role::Handoff, dtype, shape)?;
                    handoff.set_name(&options.name);
                    handoff
                }
            };
            self.pool.settle()?;
            check_landing(&result, &handoff)?;
            land(&self.stream, &result, &handoff, None)?;
            outputs.push(handoff);
            Ok(())
        })?;
        match into {
            Some(_) if outputs.is_empty() => Err(Misuse::OutputCount { expected: 1, got: 0 }.into()),
            _ => Ok(outputs),
        }
    }

    /// What a break holds of a tensor. Memory that this recording took from the pool is written anew by its own segments and landings on every
    /// replay, before the break: there the block is not held, only the pool. Everything else is held.
    fn hold(&self, tensor: &Tensor) -> Tensor {
        let storage = tensor.storage();
        if storage.recording != Some(self.number) || tensor.place() == Location::Host {
            return tensor.clone();
        }
        tensor.unheld(self.pool.retain_mapping())
    }

    /// Ends the last segment and hands the program over.
    pub(crate) fn finish(&self) -> Result<Program<'env>> {
        if self.building.borrow().failed {
            return Err(Misuse::Poisoned.into());
        }
        self.end_segment(Next::Other)?;
        Ok(std::mem::take(&mut self.building.borrow_mut().program))
    }

    /// Discards everything: ends an open segment, destroys what was made. Returns what failed in doing so.
    pub(crate) fn discard(&self) -> Vec<CallError> {
        let (window, program, parts) = {
            let mut building = self.building.borrow_mut();
            building.failed = true;
            (building.window.take(), std::mem::take(&mut building.program), std::mem::take(&mut building.parts))
        };
        let mut notes = Vec::new();
        if let Some(window) = window {
            match window.close() {
                // SAFETY: the capture that ended has handed the graph over.
                Ok(captured) => drop(unsafe { Graph::from_raw(self.stream.context(), captured.graph) }),
                Err(failed) => {
                    self.building.borrow_mut().operations = failed.operations;
                    notes.push(failed.end);
                }
            }
        }
        drop((parts, program));
        notes
    }

    /// The segment that is open or was ended last, and its operations so far.
    pub(crate) fn place(&self) -> (usize, usize) {
        let building = self.building.borrow();
        let open = building.window.as_ref().map(OpenCapture::operations);
        (building.program.segments, open.unwrap_or(building.operations))
    }
}

/// What follows a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// A patched break: the segment becomes part of a composite.
    Patched,
    /// A live break, or the end.
    Other,
}

/// The parts that are launched first: with one in `early_launch_divisor` of the patched breaks, and what comes before the next one. And the rest.
fn split(mut parts: Vec<Part<'_>>, early_launch_divisor: usize) -> (Vec<Part<'_>>, Vec<Part<'_>>) {
    let breaks = parts.iter().enumerate().filter(|(_, part)| matches!(part, Part::Patched(_)));
    let places: Vec<usize> = breaks.map(|(place, _)| place).collect();
    let lead = places.len().checked_div(early_launch_divisor).unwrap_or(0);
    let rest = match places.get(lead) {
        Some(&next) if lead > 0 => parts.split_off(next),
        _ => Vec::new(),
    };
    (parts, rest)
}

pub(crate) fn why_segment_failed(failed: &Failed) -> Error {
    match (failed.end.code(), failed.forked_at) {
        (CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED, forked_at) => {
            Error::Misuse(Misuse::UnjoinedWork { forked_at: forked_at.unwrap_or(0) })
        }
        _ => failed.first.unwrap_or(failed.end).into(),
    }
}
