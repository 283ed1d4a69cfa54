//! A model with its static inputs: what the runner, its captures and its plans run.

use super::declared::Declared;
use super::error::PrefillError;
use super::inputs::{Inputs, Saved};
use super::model::{Batch, InputData, PrefillModel};
use super::spec::{OutputSpec, check_outputs};
use crate::capture::{EagerOptions, Scope, active_forward, eager_with};
use crate::driver::{Context, Stream};
use crate::error::Result;
use crate::pool::CapturePool;
use crate::tensor::Tensor;

/// A model, what it takes and gives, and its static inputs once there are some.
pub(super) struct ModelForward<'m, M: PrefillModel> {
    model: &'m M,
    declared: Declared,
    outputs: Vec<OutputSpec>,
    inputs: Option<Inputs>,
    context: Context,
}

impl<'m, M: PrefillModel> ModelForward<'m, M> {
    pub(super) fn new(model: &'m M, context: &Context) -> Result<Self> {
        let declared = Declared::new(model.inputs())?;
        let outputs = model.outputs();
        outputs.iter().try_for_each(OutputSpec::check)?;
        Ok(ModelForward { model, declared, outputs, inputs: None, context: context.clone() })
    }

    pub(super) fn model(&self) -> &'m M {
        self.model
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn declared(&self) -> &Declared {
        &self.declared
    }

    pub(super) fn outputs(&self) -> &[OutputSpec] {
        &self.outputs
    }

    pub(super) fn inputs(&self) -> Option<&Inputs> {
        self.inputs.as_ref()
    }

    /// Drops the static inputs.
    pub(super) fn drop_inputs(&mut self) {
        self.inputs = None;
    }

    /// Whether a batch gives what was declared, on a stream of the context.
    pub(super) fn check(&self, stream: &Stream, batch: &Batch<'_, M::Context>) -> Result<()> {
        self.context.expect_same(stream.context(), "stream")?;
        self.declared.check(&self.context, batch.inputs, batch.rows)
    }

    /// Makes the static inputs for so many rows, unless they are there.
    pub(super) fn make_inputs(&mut self, stream: &Stream, capacity: usize) -> Result<()> {
        if self.inputs.is_none() {
            self.inputs = Some(Inputs::new(&self.declared, stream, capacity)?);
        }
        Ok(())
    }

    /// Writes a batch's data and its padded tail into the static inputs, or, without data, the tail alone.
    pub(super) fn fill(
        &mut self,
        stream: &Stream,
        data: Option<&[InputData<'_>]>,
        rows: usize,
        bucket: usize,
    ) -> Result<()> {
        let not_there = || PrefillError::NotCaptured { bucket };
        self.inputs.as_mut().ok_or_else(not_there)?.fill(&self.declared, stream, data, rows, bucket)
    }

    /// The static inputs of a bucket, filled.
    pub(super) fn filled(
        &mut self,
        stream: &Stream,
        data: Option<&[InputData<'_>]>,
        rows: usize,
        bucket: usize,
    ) -> Result<Vec<Tensor>> {
        self.fill(stream, data, rows, bucket)?;
        self.inputs.as_ref().map_or(Ok(Vec::new()), |inputs| inputs.for_rows(&self.declared, bucket))
    }

    /// A copy of what fills that come don't write anew for this batch: see [`Inputs::save`].
    pub(super) fn save(
        &self,
        pool: &CapturePool,
        stream: &Stream,
        data: &[InputData<'_>],
        bucket: usize,
    ) -> Result<Saved> {
        match &self.inputs {
            Some(inputs) => inputs.save(&self.declared, pool.handle(), stream, data, bucket),
            None => Ok(Saved::default()),
        }
    }

    /// The forward, with outputs of so many rows as declared.
    pub(super) fn run(&self, scope: &Scope<'_, 'm>, inputs: &[Tensor], rows: usize) -> Result<Vec<Tensor>> {
        let outputs = self.model.forward(scope, inputs)?;
        check_outputs(&self.outputs, &outputs, rows)?;
        for (spec, output) in self.outputs.iter().zip(&outputs).filter(|(spec, _)| spec.scrub) {
            // The break leaves the output where it is; its landing makes the padded rows zero.
            let rows_first = output.transpose(0, spec.axis)?;
            let name = format!("scrub {}", spec.name);
            scope.break_here(name, rows_first.clone(), [&rows_first], |b| b.input(0).cloned())?;
        }
        Ok(outputs)
    }

    /// A warm-up with what a dummy batch fills the inputs with: no row is valid.
    pub(super) fn warm_up(&self, pool: &CapturePool, stream: &Stream, inputs: &[Tensor], rows: usize) -> Result<()> {
        let options = EagerOptions::default().valid_rows(0).bucket(rows).warm_up();
        eager_with(pool, stream, options, |scope| self.run(scope, inputs, rows)).map(drop)
    }

    /// A checked batch, eagerly in so many rows: in the static inputs, where these have room, or else in the batch's own rows. Breaks are told the
    /// valid rows, and what they return is scrubbed where there is padding.
    pub(super) fn eagerly(
        &mut self,
        pool: &CapturePool,
        stream: &Stream,
        batch: &Batch<'_, M::Context>,
        padded: usize,
    ) -> Result<Vec<Tensor>> {
        let has_room = self.inputs.as_ref().is_some_and(|inputs| padded <= inputs.capacity());
        let inputs = if has_room {
            self.filled(stream, Some(batch.inputs), batch.rows, padded)?
        } else {
            self.declared.temporary(pool.handle(), stream, batch.inputs, batch.rows, padded)?
        };
        let options = EagerOptions { bucket: Some(padded), ..EagerOptions::default().valid_rows(batch.rows) };
        let run = || eager_with(pool, stream, options, |scope| self.run(scope, &inputs, padded));
        active_forward(batch.context, run)
    }
}
