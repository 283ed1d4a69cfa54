//! Builds the program: ends a segment, runs and records the break, opens the next segment.

use super::ambient::{self, Frame, Kind, Source};
use super::breaks::{Break, BreakOptions, Outputs};
use super::capture::CaptureExecution;
use super::program::{BreakStep, Operation, Program, Step};
use crate::driver::window::{Failed, Window};
use crate::driver::{CaptureMode, Graph, GraphExec, InstantiateFlags, Stream};
use crate::error::{Error, Result};
use crate::pool::PoolHandle;
use crate::pool::trace::Role;
use crate::pool::tracer::Tracer;
use crate::sys::{CUresult, CallError};
use crate::tensor::padding::{check_landing, land};
use crate::tensor::{Place, Tensor};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

/// A recording under way.
pub(crate) struct Recorder<'env> {
    pub(super) number: u64,
    pub(super) pool: PoolHandle,
    pub(super) stream: Stream,
    pub(super) source: Source,
    pub(super) mode: CaptureMode,
    pub(super) execution: CaptureExecution,
    pub(super) flags: InstantiateFlags,
    building: RefCell<Building<'env>>,
}

struct Building<'env> {
    /// The open segment.
    window: Option<Window>,
    program: Program<'env>,
    /// The operations of the segment that was ended last.
    operations: usize,
    /// The operations of a trace's breaks.
    traced: Vec<Operation<'env>>,
    /// A break or a segment has failed: whatever the forward makes of that, the recording is lost.
    failed: bool,
}

impl<'env> Recorder<'env> {
    pub(super) fn new(
        number: u64,
        pool: PoolHandle,
        stream: Stream,
        source: Source,
        mode: CaptureMode,
        execution: CaptureExecution,
        flags: InstantiateFlags,
    ) -> Self {
        let building =
            Building { window: None, program: Program::default(), operations: 0, traced: Vec::new(), failed: false };
        Recorder { number, pool, stream, source, mode, execution, flags, building: RefCell::new(building) }
    }

    /// Runs a forward as a recording does, without capturing: what it asks of the pool is written down.
    pub(super) fn tracing(pool: PoolHandle, stream: Stream, number: u64, tracer: Arc<Tracer>) -> Self {
        let source = Source::Traced(tracer);
        Recorder::new(number, pool, stream, source, Default::default(), Default::default(), Default::default())
    }

    /// What writes the trace, if this is one.
    fn tracer(&self) -> Option<&Arc<Tracer>> {
        match &self.source {
            Source::Traced(tracer) => Some(tracer),
            Source::Blocks(_) => None,
        }
    }

    /// Opens a segment.
    pub(super) fn open_segment(&self) -> Result<()> {
        if self.tracer().is_some() {
            return Ok(());
        }
        let window = Window::open(&self.stream, self.mode, self.number)?;
        self.building.borrow_mut().window = Some(window);
        Ok(())
    }

    /// Ends the open segment and makes a step of it, unless it has no nodes.
    pub(super) fn end_segment(&self) -> Result<()> {
        if self.tracer().is_some() {
            return Ok(());
        }
        let (window, index) = {
            let mut building = self.building.borrow_mut();
            (building.window.take(), building.program.segments)
        };
        let Some(window) = window else { return Err(Error::Poisoned) };
        let ended = self.make_segment(window);
        let mut building = self.building.borrow_mut();
        match ended {
            Ok(None) => {}
            Ok(Some((exec, nodes))) => building.program.steps.push(Step::Segment { exec, index, nodes }),
            Err(error) => {
                building.failed = true;
                return Err(error);
            }
        }
        building.program.segments += 1;
        Ok(())
    }

    fn make_segment(&self, window: Window) -> Result<Option<(GraphExec, usize)>> {
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
        let graph = unsafe { Graph::from_raw(self.stream.context(), captured.graph) };
        let nodes = graph.node_counts()?;
        if nodes.memory > 0 {
            return Err(Error::MemoryNodes { count: nodes.memory });
        }
        self.building.borrow_mut().program.nodes += nodes;
        self.pool.settle()?;
        if nodes.total() == 0 {
            return Ok(None);
        }
        let exec = GraphExec::new(&graph, self.flags)?;
        if self.execution == CaptureExecution::RunThrough {
            // SAFETY: the recording keeps what the graph refers to, and the pool's memory is live.
            unsafe { exec.launch(&self.stream)? };
        }
        Ok(Some((exec, nodes.total())))
    }

    /// Runs a break and records it. `into`: where its one result is to land, for `break_here`.
    pub(super) fn add_break<O, F>(
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
            return Err(Error::Poisoned);
        }
        self.end_segment()?;
        let ran = self.run_first(&options, &inputs, into.as_ref(), &mut operation);
        let outputs = match ran {
            Ok(outputs) => outputs,
            Err(error) => {
                let index = self.building.borrow().program.breaks;
                self.building.borrow_mut().failed = true;
                return Err(Error::Break { name: options.name.into_owned(), index, source: Box::new(error) });
            }
        };
        let held = |tensor: &Tensor| self.hold(tensor);
        if self.tracer().is_some() {
            // What the operation has taken by move lives as long as a capture would.
            self.building.borrow_mut().traced.push(Box::new(move |this, visit| operation(this)?.visit(visit)));
        } else {
            let mut building = self.building.borrow_mut();
            let step = BreakStep {
                options,
                index: building.program.breaks,
                operation: Box::new(move |this, visit| operation(this)?.visit(visit)),
                inputs: inputs.iter().map(|input| input.as_ref().map(held)).collect(),
                handoffs: outputs.iter().map(held).collect(),
            };
            building.program.breaks += 1;
            building.program.steps.push(Step::Break(step));
        }
        if let Err(error) = self.open_segment() {
            self.building.borrow_mut().failed = true;
            return Err(error);
        }
        let expected = outputs.len();
        let mut handoffs = outputs.into_iter();
        O::gather(&mut || handoffs.next()).ok_or(Error::OutputCount { expected, got: 0 })
    }

    /// The first run of a break, with handoffs made of what it returns.
    fn run_first<O, F>(
        &self,
        options: &BreakOptions,
        inputs: &[Option<Tensor>],
        into: Option<&Tensor>,
        operation: &mut F,
    ) -> Result<Vec<Tensor>>
    where
        O: Outputs,
        F: FnMut(&Break<'_>) -> Result<O>,
    {
        let kind = Kind::Eager(self.tracer().cloned());
        let frame = Frame { kind, stream: self.stream.clone(), pool: self.pool.clone() };
        let _frame = ambient::enter(frame);
        let handoffs: Vec<Tensor> = into.into_iter().cloned().collect();
        let this = Break {
            name: &options.name,
            stream: &self.stream,
            inputs,
            handoffs: &handoffs,
            valid_rows: None,
            depth: ambient::depth(),
            _thread: PhantomData,
        };
        let mut outputs = Vec::new();
        operation(&this)?.visit(&mut |index, result| {
            let handoff = match into {
                Some(handoff) if index == 0 => {
                    handoff.set_handoff();
                    handoff.clone()
                }
                Some(_) => return Err(Error::OutputCount { expected: 1, got: index + 1 }),
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
            Some(_) if outputs.is_empty() => Err(Error::OutputCount { expected: 1, got: 0 }),
            _ => Ok(outputs),
        }
    }

    /// What a break holds of a tensor. Memory that this recording took from the pool is written anew by its own segments and landings on every
    /// replay, before the break: there the block is not held, only the pool. Everything else is held.
    fn hold(&self, tensor: &Tensor) -> Tensor {
        let storage = tensor.storage();
        if storage.recording != self.number || tensor.place() == Place::Host {
            return tensor.clone();
        }
        tensor.unheld(self.pool.as_kept())
    }

    /// Ends the last segment and hands the program over.
    pub(super) fn finish(&self) -> Result<Program<'env>> {
        if self.building.borrow().failed {
            return Err(Error::Poisoned);
        }
        self.end_segment()?;
        Ok(std::mem::take(&mut self.building.borrow_mut().program))
    }

    /// Discards everything: ends an open segment, destroys what was made. Returns what failed in doing so.
    pub(super) fn discard(&self) -> Vec<CallError> {
        let (window, program) = {
            let mut building = self.building.borrow_mut();
            building.failed = true;
            (building.window.take(), std::mem::take(&mut building.program))
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
        drop(program);
        notes
    }

    /// The segment that is open or was ended last, and its operations so far.
    pub(super) fn place(&self) -> (usize, usize) {
        let building = self.building.borrow();
        let open = building.window.as_ref().map(Window::operations);
        (building.program.segments, open.unwrap_or(building.operations))
    }
}

fn why_segment_failed(failed: &Failed) -> Error {
    match (failed.end.code(), failed.forked_at) {
        (CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED, forked_at) => {
            Error::UnjoinedWork { forked_at: forked_at.unwrap_or(0) }
        }
        _ => failed.first.unwrap_or(failed.end).into(),
    }
}
