//! The first run of a break, between two segments.

use super::recorder::{Next, Recorder};
use crate::capture::breaks::options::{BreakKind, BreakOptions};
use crate::capture::breaks::outputs::{Outputs, gather_all, visit_in_order};
use crate::capture::breaks::step::{BreakStep, Operation, expect_joined};
use crate::capture::breaks::view::Break;
use crate::capture::composite::PoolExecs;
use crate::capture::composite::patched_part::{BodyParams, PatchedPart};
use crate::capture::forward::allocator::Allocator;
use crate::capture::forward::frame::{self, Frame};
use crate::capture::forward::scratch::{self, Scratch};
use crate::driver::capture_state::CaptureState;
use crate::error::{Error, Misuse, Result, TensorError};
use crate::memory::Role;
use crate::pool::tracer::Tracer;
use crate::tensor::padding::{check_landing, land};
use crate::tensor::{DType, Location, Tensor};

impl<'env> Recorder<'env> {
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
        self.expect_whole()?;
        let patched = match options.kind {
            BreakKind::Inline => return self.run_inline(&options, &inputs, into.as_ref(), &mut operation),
            BreakKind::Patched => true,
            BreakKind::Live => false,
        };
        self.end_segment(if patched { Next::PatchedBreak } else { Next::Other })?;
        // The temporaries of a patched break are measured: it will have as much scratch.
        let measure = patched.then(Tracer::new);
        let allocator = match measure.as_ref().or(self.tracer()) {
            Some(tracer) => Allocator::TracedScratch(tracer.clone()),
            None => Allocator::StreamOrdered,
        };
        let ran = self.run_first(&options, &inputs, into.as_ref(), allocator, &mut operation);
        let outputs = self.lost_unless_ran(&options.name, ran)?;
        let scratch = self.lost_unless(self.scratch(&options, measure.as_deref()))?;
        let operation: Operation<'env> = Box::new(move |this, visit| visit_in_order(operation(this)?, visit));
        if self.tracer().is_some() {
            self.push_traced(operation);
        } else {
            let held = |tensor: &Tensor| self.hold(tensor);
            let step = BreakStep {
                options,
                index: self.next_break(),
                operation,
                inputs: inputs.iter().map(|input| input.as_ref().map(held)).collect(),
                handoffs: outputs.iter().map(held).collect(),
            };
            if patched {
                self.lost_unless(self.add_patched(step, scratch.as_ref()))?;
            } else {
                self.push_live(step);
            }
        }
        self.lost_unless(self.open_segment())?;
        self.lost_unless(gather_all(outputs))
    }

    /// The first run of a break, with handoffs made of what it returns.
    fn run_first<O, F>(
        &self,
        options: &BreakOptions,
        inputs: &[Option<Tensor>],
        into: Option<&Tensor>,
        allocator: Allocator,
        operation: &mut F,
    ) -> Result<Vec<Tensor>>
    where
        O: Outputs,
        F: FnMut(&Break<'_>) -> Result<O>,
    {
        let (stream, pool, padding) = (self.stream.clone(), self.pool.clone(), self.frame().padding);
        let _frame = frame::enter(Frame { allocator, stream, pool, recorder: None, padding, observer: None });
        if let Some(into) = into {
            options.expect_rows(self.bucket, 0, into)?;
        }
        let handoffs = into.map_or(&[][..], std::slice::from_ref);
        let this = Break::new(&options.name, &self.stream, inputs, handoffs, self.valid_rows);
        let valid_in_handoff = self.valid_rows.filter(|_| options.leading_dimension_is_rows);
        let sides = self.stream.enter_live_break();
        let mut outputs = Vec::new();
        visit_in_order(operation(&this)?, &mut |index, result| {
            let handoff = match into {
                Some(handoff) if index == 0 => {
                    handoff.set_handoff();
                    handoff.clone()
                }
                Some(_) => return Err(Misuse::OutputCount { expected: 1, got: index + 1 }.into()),
                None => {
                    result.device_context("break's result")?;
                    options.expect_rows(self.bucket, index, &result)?;
                    let (dtype, shape) = (result.dtype(), result.shape());
                    let handoff = self.allocator.empty(&self.pool, &self.stream, Role::Handoff, dtype, shape)?;
                    handoff.set_name(&options.name);
                    handoff
                }
            };
            self.pool.settle()?;
            check_landing(&result, &handoff)?;
            land(&self.stream, &result, &handoff, valid_in_handoff)?;
            outputs.push(handoff);
            Ok(())
        })?;
        expect_joined(&sides)?;
        match into {
            Some(_) if outputs.is_empty() => Err(Misuse::OutputCount { expected: 1, got: 0 }.into()),
            _ => Ok(outputs),
        }
    }

    /// The scratch of a patched break: as much of the pool as its temporaries took together.
    fn scratch(&self, options: &BreakOptions, measure: Option<&Tracer>) -> Result<Option<Tensor>> {
        let Some(measure) = measure else { return Ok(None) };
        let requests = measure.finish();
        let mut sizes = requests.requests().iter().map(|request| scratch::rounded(request.bytes));
        let too_large = TensorError::Layout {
            reason: "a break's temporaries are larger than memory: take smaller ones, or the same one again",
        };
        let bytes = sizes.try_fold(0_usize, |sum, bytes| sum.checked_add(bytes?)).ok_or(too_large)?;
        if bytes == 0 {
            return Ok(None);
        }
        let region = self.allocator.empty(&self.pool, &self.stream, Role::Intermediate, DType::U8, &[bytes])?;
        region.set_name(&format!("{}.scratch", options.name));
        Ok(Some(region))
    }

    /// Records a patched break's body for the first time.
    fn add_patched(&self, step: BreakStep<'env>, region: Option<&Tensor>) -> Result<()> {
        let body_stream = PoolExecs::of(&self.pool)?.body_stream(self.stream.context(), &self.stream)?;
        let scratch = Scratch::new(region, self.stream.context(), self.id, self.pool.retain_mapping());
        let (name, index) = (step.options.name.to_string(), step.index);
        let mut part = PatchedPart::new(step, scratch);
        let state = CaptureState::new(body_stream.as_raw(), self.id, self.next_segment());
        // No row is scrubbed: the body that scrubs is recorded by the first replay that has padding.
        let (valid_rows, scrub_from, pool) = (self.valid_rows, None, &self.pool);
        let with = BodyParams { stream: &body_stream, state: &state, valid_rows, scrub_from, pool };
        // More scratch than the time before: what it takes is not known then.
        part.record(with).map_err(|error| match error {
            Error::ScratchExceeded { .. } => Error::NotPatchable { name, index, source: Box::new(error) },
            other => other,
        })?;
        self.push_patched(part);
        Ok(())
    }

    /// What a break holds of a tensor. Memory that this recording took from the pool is written anew by its own segments and landings on every
    /// replay, before the break: there the block is not held, only the pool. Everything else is held.
    fn hold(&self, tensor: &Tensor) -> Tensor {
        if tensor.storage().recording != Some(self.id) || tensor.place() == Location::Host {
            return tensor.clone();
        }
        tensor.unheld(self.pool.retain_mapping())
    }
}
