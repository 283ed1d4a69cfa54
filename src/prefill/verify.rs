//! A bucket's capture compared with the eager forward.

use super::capture_set::Captured;
use super::error::PrefillError;
use super::forward::ModelForward;
use super::model::{Batch, PrefillModel};
use super::spec::LeadingDim;
use crate::capture::{Verified, VerifyOptions, active_forward};
use crate::driver::Stream;
use crate::error::Result;
use crate::tensor::Tensor;
use std::cell::RefCell;

/// Verifies a bucket's capture with two checked batches.
///
/// # Errors
/// As for [`BreakableCapture::verify`](crate::BreakableCapture::verify).
pub(super) fn verify<'m, M: PrefillModel>(
    captured: &mut Captured<'m>,
    forward: &mut ModelForward<'m, M>,
    stream: &Stream,
    bucket: usize,
    batches: [&Batch<'_, M::Context>; 2],
    mut options: VerifyOptions,
) -> Result<Verified> {
    // The stream comes after whatever still reads the inputs elsewhere.
    let [first, second] = batches;
    let inputs = forward.filled(stream, Some(first.inputs), first.rows, bucket)?;
    options = options.valid_rows([first.rows, second.rows]);
    for (spec, input) in forward.declared().specs().iter().zip(&inputs) {
        options = match spec.leading {
            LeadingDim::Rows => options.input(spec.name, &input.transpose(0, spec.axis)?),
            LeadingDim::Fixed | LeadingDim::ValidRows => options.fixed_input(spec.name, input),
        };
    }
    let recorded = rows_first(forward, captured.outputs.clone())?;
    for (spec, output) in forward.outputs().iter().zip(&recorded) {
        options = match spec.leading {
            LeadingDim::Rows => options.output(spec.name, output),
            LeadingDim::Fixed | LeadingDim::ValidRows => options.fixed_output(spec.name, output),
        };
    }
    let forward = RefCell::new(forward);
    captured.capture.verify(
        stream,
        &options,
        |batch, run| {
            let Some(batch) = batches.get(batch) else {
                return Err(PrefillError::NotCaptured { bucket }.into());
            };
            forward.borrow_mut().fill(stream, Some(batch.inputs), batch.rows, bucket)?;
            active_forward(batch.context, run)
        },
        |scope| {
            let forward = forward.borrow();
            rows_first(&forward, forward.run(scope, &inputs, bucket)?)
        },
    )
}

/// Outputs with their rows as the leading dimension.
fn rows_first<M: PrefillModel>(forward: &ModelForward<'_, M>, outputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
    forward.outputs().iter().zip(outputs).map(|(spec, output)| output.transpose(0, spec.axis)).collect()
}
