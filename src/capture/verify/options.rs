//! What a capture is verified with, and what is said of one that is right.

use crate::tensor::Tensor;

/// What [`BreakableCapture::verify`](crate::BreakableCapture::verify) compares, and how closely.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct VerifyOptions {
    pub(super) inputs: Vec<Named>,
    pub(super) outputs: Vec<Named>,
    pub(super) valid_rows: [Option<usize>; 2],
    pub(super) tolerance: f64,
    pub(super) may_update_inputs: bool,
    pub(super) keeps_batches_apart: bool,
    /// Whether no run comes beside those of the comparison, so that all ranks run alike.
    pub(super) only_compares: bool,
}

/// A static input, or an output.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) name: String,
    pub(super) tensor: Tensor,
    /// Whether its leading dimension is rows, of which the batch's valid ones count.
    pub(super) rows: bool,
}

/// What [`BreakableCapture::verify`](crate::BreakableCapture::verify) has compared and found equal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Verified {
    /// Handoffs, of both batches together.
    pub handoffs: usize,
    /// Outputs, of both batches together.
    pub outputs: usize,
    /// Whether all were equal bit by bit; otherwise some were within the tolerance.
    pub bit_equal: bool,
}

impl VerifyOptions {
    /// Nothing yet: add the static inputs and the outputs.
    pub fn new() -> VerifyOptions {
        VerifyOptions::default()
    }

    /// With a static input whose leading dimension is rows, where it is now: the rows from the valid ones on are its padded tail.
    pub fn input(self, name: impl Into<String>, tensor: &Tensor) -> Self {
        self.with_input(name.into(), tensor, true)
    }

    /// With a static input without rows, such as metadata.
    pub fn fixed_input(self, name: impl Into<String>, tensor: &Tensor) -> Self {
        self.with_input(name.into(), tensor, false)
    }

    /// With an output of the recording, in the order in which the forward returns them; its leading dimension is rows.
    pub fn output(self, name: impl Into<String>, tensor: &Tensor) -> Self {
        self.with_output(name.into(), tensor, true)
    }

    /// With an output of the recording without rows: all of it counts.
    pub fn fixed_output(self, name: impl Into<String>, tensor: &Tensor) -> Self {
        self.with_output(name.into(), tensor, false)
    }

    /// With these valid rows of the two batches. Otherwise all rows are valid.
    pub fn valid_rows(mut self, rows: [usize; 2]) -> Self {
        self.valid_rows = rows.map(Some);
        self
    }

    /// With values taken for equal that differ by no more than this part of the larger one's size, or of 1 where both are smaller: for forwards with kernels
    /// that are not deterministic. 0 by default: bit by bit.
    pub fn tolerance(mut self, tolerance: f64) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// With inputs that the forward may write, as one that moves positions on.
    pub fn may_update_inputs(mut self) -> Self {
        self.may_update_inputs = true;
        self
    }

    /// With no run of one batch's context on the other's inputs, which tells some causes apart once a difference was found: for forwards that such a run would
    /// lead out of bounds.
    pub fn keep_batches_apart(mut self) -> Self {
        self.keeps_batches_apart = true;
        self
    }

    /// With no run that only looks for a cause.
    pub(crate) fn only_compare(mut self) -> Self {
        self.only_compares = true;
        self
    }

    fn with_input(mut self, name: String, tensor: &Tensor, rows: bool) -> Self {
        self.inputs.push(Named { name, tensor: tensor.clone(), rows });
        self
    }

    fn with_output(mut self, name: String, tensor: &Tensor, rows: bool) -> Self {
        self.outputs.push(Named { name, tensor: tensor.clone(), rows });
        self
    }

    /// The input's padded tail with so many valid rows, if it has one.
    pub(super) fn tail_of(input: &Named, valid_rows: Option<usize>) -> Option<Tensor> {
        let valid = valid_rows.filter(|_| input.rows && input.tensor.layout().rank() > 0)?;
        let rows = input.tensor.rows().checked_sub(valid).filter(|rows| *rows > 0)?;
        input.tensor.narrow(0, valid, rows).ok()
    }
}
