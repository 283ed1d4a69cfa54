//! Runs of a batch: eagerly, and as replays that show each part that has run.

use super::observation::{Copies, Keeper, Observation};
use super::options::VerifyOptions;
use crate::capture::breaks::step::Ran;
use crate::capture::capture::BreakableCapture;
use crate::capture::options::EagerOptions;
use crate::capture::program::Step;
use crate::capture::replay::{run, run_observed};
use crate::capture::scope::{Scope, eager_observed};
use crate::driver::Stream;
use crate::error::{Misuse, Result};
use crate::pool::{CapturePool, PoolHandle};
use crate::tensor::Tensor;
use std::rc::Rc;

/// A capture, and all that runs of its two batches need.
pub(super) struct Runs<'v, 'env, B, F> {
    pub(super) capture: &'v mut BreakableCapture<'env>,
    pub(super) pool: CapturePool,
    pub(super) stream: &'v Stream,
    pub(super) options: &'v VerifyOptions,
    pub(super) batch: B,
    pub(super) forward: F,
}

/// What a replay shows.
#[derive(Clone, Copy)]
pub(super) enum Shown<'s, 'env> {
    /// A part that has run.
    Part(Ran<'s, 'env>),
    /// All has run.
    End,
}

/// What is in the static inputs when a batch runs.
#[derive(Clone, Copy)]
pub(super) enum Inputs<'i> {
    /// What filling in the batch leaves there, with zeros in the padded tails before.
    Clean,
    /// What filling in the batch leaves there after another batch's, where that is known.
    After(Option<&'i [Tensor]>),
    /// These.
    Given(&'i [&'i Tensor]),
}

impl<'env, 'f, B, F> Runs<'_, 'env, B, F>
where
    B: FnMut(usize, &mut dyn FnMut() -> Result<()>) -> Result<()>,
    F: FnMut(&Scope<'_, 'f>) -> Result<Vec<Tensor>>,
{
    pub(super) fn handle(&self) -> &PoolHandle {
        self.pool.handle()
    }

    /// Whether there are patched breaks, so that a replay part by part is another than one as usual.
    pub(super) fn has_patched(&mut self) -> bool {
        self.capture.steps_mut().iter().any(|step| matches!(step, Step::Composite(_)))
    }

    /// Does some work with a batch filled in and its context published.
    fn with_batch<T>(
        &mut self,
        batch: usize,
        inputs: Inputs<'_>,
        work: impl FnOnce(&mut BreakableCapture<'env>, &mut F, Vec<Tensor>) -> Result<T>,
    ) -> Result<T> {
        let (stream, options) = (self.stream, self.options);
        match inputs {
            Inputs::Clean => {
                for input in &options.inputs {
                    if let Some(tail) = VerifyOptions::tail_of(input, options.valid_rows[batch]) {
                        crate::tensor::scrub_padding_tail(stream, 0, [&tail])?;
                    }
                }
            }
            Inputs::After(Some(before)) => write(stream, options, before.iter())?,
            Inputs::After(None) | Inputs::Given(_) => {}
        }
        let copies = Copies { pool: self.pool.handle(), stream, inputs: true };
        let (capture, forward) = (&mut *self.capture, &mut self.forward);
        let (mut work, mut made, mut runs) = (Some(work), None, 0);
        (self.batch)(batch, &mut || {
            runs += 1;
            let Some(work) = work.take() else { return Err(Misuse::VerifyRuns { runs }.into()) };
            if let Inputs::Given(given) = inputs {
                write(stream, options, given.iter().copied())?;
            }
            let filled = copies.of_all(options.inputs.iter().map(|input| &input.tensor))?;
            made = Some(work(capture, forward, filled)?);
            Ok(())
        })?;
        made.ok_or_else(|| Misuse::VerifyRuns { runs }.into())
    }

    /// The inputs as filling in a batch leaves them.
    pub(super) fn filled(&mut self, batch: usize) -> Result<Vec<Tensor>> {
        self.with_batch(batch, Inputs::Clean, |_, _, filled| Ok(filled))
    }

    /// Runs the forward eagerly.
    pub(super) fn eager(&mut self, batch: usize, inputs: Inputs<'_>, keep_inputs: bool) -> Result<Observation> {
        let (stream, pool, options) = (self.stream, self.pool.clone(), self.options);
        self.with_batch(batch, inputs, |capture, forward, filled| {
            let keeper = Rc::new(Keeper::new(pool.handle(), keep_inputs));
            let (valid_rows, bucket) = (options.valid_rows[batch], capture.options().bucket);
            let eager = EagerOptions { valid_rows, bucket, ..EagerOptions::default() };
            let outputs = eager_observed(&pool, stream, eager, Some(keeper.clone()), forward)?;
            let (recorded, eager) = (options.outputs.len(), outputs.len());
            if recorded != eager {
                return Err(Misuse::VerifyOutputs { recorded, eager }.into());
            }
            let copies = Copies { pool: pool.handle(), stream, inputs: keep_inputs };
            let outputs = copies.of_all(outputs.iter())?;
            Ok(Observation { breaks: keeper.take(), outputs, filled })
        })
    }

    /// Replays a batch part by part, and shows each, and the end, with the inputs as they were before. Gives these.
    pub(super) fn replay_in_parts(
        &mut self,
        batch: usize,
        inputs: Inputs<'_>,
        mut see: impl FnMut(Shown<'_, 'env>, &[Tensor]) -> Result<()>,
    ) -> Result<Vec<Tensor>> {
        let (stream, valid_rows) = (self.stream, self.options.valid_rows[batch]);
        self.with_batch(batch, inputs, |capture, _, filled| {
            let replayed = capture.replay_by(stream, |steps, pool, replaced| {
                let mut ran = |part: Ran<'_, 'env>| see(Shown::Part(part), &filled);
                run_observed(steps, stream, valid_rows, pool, replaced, &mut ran)
            })?;
            replayed.check()?;
            see(Shown::End, &filled)?;
            Ok(filled)
        })
    }

    /// Replays a batch as usual, and does something while the results are there.
    pub(super) fn replay_together<T>(
        &mut self,
        batch: usize,
        inputs: Inputs<'_>,
        then: impl FnOnce(Vec<Tensor>) -> Result<T>,
    ) -> Result<T> {
        let (stream, valid_rows) = (self.stream, self.options.valid_rows[batch]);
        self.with_batch(batch, inputs, |capture, _, filled| {
            let replayed =
                capture.replay_by(stream, |steps, pool, replaced| run(steps, stream, valid_rows, pool, replaced))?;
            replayed.check()?;
            then(filled)
        })
    }

    /// Replays a batch part by part, and keeps all that it makes.
    pub(super) fn replay_kept(&mut self, batch: usize, inputs: Inputs<'_>) -> Result<Observation> {
        let (stream, pool, options) = (self.stream, self.pool.clone(), self.options);
        let copies = Copies { pool: pool.handle(), stream, inputs: true };
        let (mut breaks, mut outputs) = (Vec::new(), Vec::new());
        let filled = self.replay_in_parts(batch, inputs, |shown, _| {
            match shown {
                Shown::Part(Ran::Segment(_)) => {}
                Shown::Part(Ran::Break(step)) => {
                    breaks.push(copies.of_break(&step.options, &step.inputs, &step.handoffs)?);
                }
                Shown::End => outputs = copies.of_all(options.outputs.iter().map(|output| &output.tensor))?,
            }
            Ok(())
        })?;
        Ok(Observation { breaks, outputs, filled })
    }
}

/// Writes all static inputs.
fn write<'t>(stream: &Stream, options: &VerifyOptions, values: impl Iterator<Item = &'t Tensor>) -> Result<()> {
    options.inputs.iter().zip(values).try_for_each(|(input, value)| input.tensor.copy_from(stream, value))
}
