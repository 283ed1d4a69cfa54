//! What a model takes and gives: names, element types, shapes, and what padded tails hold.

use super::error::PrefillError;
use crate::error::{Result, TensorError};
use crate::tensor::{DType, TailPattern, TailRule, Tensor};

/// Whether a dimension of a tensor is the batch's rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LeadingDim {
    /// `[rows, ..]`, or with the rows at another place ([`InputSpec::rows_at`]): as long as the bucket, or as the batch where it runs eagerly.
    Rows,
    /// The same shape for every batch.
    Fixed,
    /// The number of the batch's valid rows, which the runner writes: see [`InputSpec::valid_rows`].
    ValidRows,
}

/// A static input: a buffer that captures read at a fixed address.
///
/// ```
/// use breakable_cuda_graph::DType;
/// use breakable_cuda_graph::prefill::{InputSpec, TailRule};
///
/// let inputs = [
///     InputSpec::rows("ids", DType::I32, &[]).tail(TailRule::Zero),
///     InputSpec::rows("slots", DType::I64, &[]).tail(TailRule::DummySlot(-1)), // Kernels skip these rows.
///     InputSpec::rows("lengths", DType::I32, &[]).tail(TailRule::from(1_i32)),
///     InputSpec::fixed("rotary", DType::F32, &[4096, 64]),
/// ];
/// assert_eq!(inputs[0].shape_of(128), [128]);
/// assert_eq!(inputs[3].shape_of(128), [4096, 64]);
/// ```
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct InputSpec {
    /// For errors and reports.
    pub name: &'static str,
    /// The element type.
    pub dtype: DType,
    /// The shape, without the rows where it has them.
    pub shape: Vec<usize>,
    /// Whether it has rows.
    pub leading: LeadingDim,
    /// Which dimension of the whole shape the rows are: the first, 0, by default.
    pub axis: usize,
    /// What the padded tail holds. Needed where it has rows.
    pub tail: Option<TailRule>,
}

impl InputSpec {
    /// `[rows, row_shape..]`, which must be given a tail rule.
    pub fn rows(name: &'static str, dtype: DType, row_shape: &[usize]) -> InputSpec {
        InputSpec { name, dtype, shape: row_shape.to_vec(), leading: LeadingDim::Rows, axis: 0, tail: None }
    }

    /// Of this shape for every batch. Each batch gives it anew, and the runner stages it in the stream's order: the way for metadata that breaks and
    /// segments read on the device (page tables, offsets, lengths of requests), which then need no memory of the batch's own to outlive its replay.
    pub fn fixed(name: &'static str, dtype: DType, shape: &[usize]) -> InputSpec {
        InputSpec { name, dtype, shape: shape.to_vec(), leading: LeadingDim::Fixed, axis: 0, tail: None }
    }

    /// One `i32`, shape `[1]`, that holds the number of valid rows of the batch that runs: 0 in warm-ups and captures. Batches don't give it; kernels of
    /// segments read it to leave padded rows out.
    ///
    /// ```
    /// use breakable_cuda_graph::prefill::InputSpec;
    ///
    /// assert_eq!(InputSpec::valid_rows("rows").shape_of(128), [1]);
    /// ```
    pub fn valid_rows(name: &'static str) -> InputSpec {
        InputSpec { name, dtype: DType::I32, shape: vec![1], leading: LeadingDim::ValidRows, axis: 0, tail: None }
    }

    /// With the rows at this dimension of the whole shape. The forward is given a row-major tensor of the bucket's shape, which begins where the buffer
    /// does.
    ///
    /// ```
    /// use breakable_cuda_graph::DType;
    /// use breakable_cuda_graph::prefill::{InputSpec, TailRule};
    ///
    /// let heads = InputSpec::rows("q", DType::F32, &[8, 64]).rows_at(1).tail(TailRule::Zero);
    /// assert_eq!(heads.shape_of(128), [8, 128, 64]);
    /// ```
    #[must_use]
    pub fn rows_at(mut self, axis: usize) -> InputSpec {
        self.axis = axis;
        self
    }

    /// With this rule for the padded tail.
    #[must_use]
    pub fn tail(mut self, rule: TailRule) -> InputSpec {
        self.tail = Some(rule);
        self
    }

    /// Its shape in a batch of this many rows.
    pub fn shape_of(&self, rows: usize) -> Vec<usize> {
        shape_of(self.leading, self.axis, &self.shape, rows)
    }

    /// Whether this is its shape in a batch of this many rows. Nothing is allocated.
    pub(super) fn is_shape_of(&self, shape: &[usize], rows: usize) -> bool {
        if self.leading != LeadingDim::Rows {
            return shape == self.shape;
        }
        let Some((before, [length, after @ ..])) = shape.split_at_checked(self.axis) else { return false };
        let split = self.shape.split_at_checked(self.axis);
        *length == rows && split.is_some_and(|own| own == (before, after))
    }

    /// How often a run of rows occurs in it, and the bytes of one row in a run; or once, and all its bytes, where it has no rows.
    pub(super) fn runs(&self) -> Runs {
        let (outer, inner) = match self.leading {
            LeadingDim::Rows => self.shape.split_at_checked(self.axis).unwrap_or((&[], &self.shape)),
            LeadingDim::Fixed | LeadingDim::ValidRows => (&[][..], &self.shape[..]),
        };
        let product =
            |lengths: &[usize]| lengths.iter().fold(1, |product: usize, length| product.saturating_mul(*length));
        Runs { count: product(outer), unit: product(inner).saturating_mul(self.dtype.size()) }
    }

    /// The tail's element as bytes, in the input's element type; `None`: the tail is left alone.
    ///
    /// # Errors
    /// [`PrefillError::NoTailRule`] and [`TensorError::UnfitTail`].
    pub(super) fn tail_pattern(&self) -> Result<Option<TailPattern>> {
        let unfit = |reason| TensorError::UnfitTail { input: self.name, dtype: self.dtype, reason };
        if self.axis > 0 && (self.leading != LeadingDim::Rows || self.axis > self.shape.len()) {
            return Err(PrefillError::Axis { tensor: self.name, axis: self.axis, rank: self.shape.len() }.into());
        }
        match (self.leading, self.tail) {
            (LeadingDim::Fixed | LeadingDim::ValidRows, None) => Ok(None),
            (LeadingDim::Fixed | LeadingDim::ValidRows, Some(_)) => {
                Err(unfit("an input without rows has no padded tail").into())
            }
            (LeadingDim::Rows, None) => Err(PrefillError::NoTailRule { input: self.name }.into()),
            (LeadingDim::Rows, Some(rule)) => Ok(rule.pattern(self.dtype).map_err(unfit)?),
        }
    }
}

/// See [`InputSpec::runs`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Runs {
    pub(super) count: usize,
    pub(super) unit: usize,
}

/// An output of the forward.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct OutputSpec {
    /// For errors and reports.
    pub name: &'static str,
    /// The element type.
    pub dtype: DType,
    /// The shape, without the rows where it has them.
    pub shape: Vec<usize>,
    /// Whether it has rows: then results are sliced to the valid ones.
    pub leading: LeadingDim,
    /// Which dimension of the whole shape the rows are: the first, 0, by default.
    pub axis: usize,
    /// Whether its padded rows are zero after each batch.
    pub scrub: bool,
}

impl OutputSpec {
    /// `[rows, row_shape..]`.
    pub fn rows(name: &'static str, dtype: DType, row_shape: &[usize]) -> OutputSpec {
        OutputSpec { name, dtype, shape: row_shape.to_vec(), leading: LeadingDim::Rows, axis: 0, scrub: false }
    }

    /// Of this shape for every batch.
    pub fn fixed(name: &'static str, dtype: DType, shape: &[usize]) -> OutputSpec {
        OutputSpec { name, dtype, shape: shape.to_vec(), leading: LeadingDim::Fixed, axis: 0, scrub: false }
    }

    /// With the rows at this dimension of the whole shape.
    #[must_use]
    pub fn rows_at(mut self, axis: usize) -> OutputSpec {
        self.axis = axis;
        self
    }

    /// With its padded rows made zero, for who reads the whole bucket ([`BatchOutputs::padded`](super::BatchOutputs::padded)): by a break at the end of
    /// the forward, in place, one launch for each such output of a padded batch.
    #[must_use]
    pub fn scrubbed(mut self) -> OutputSpec {
        self.scrub = true;
        self
    }

    /// Its shape in a batch of this many rows.
    pub fn shape_of(&self, rows: usize) -> Vec<usize> {
        shape_of(self.leading, self.axis, &self.shape, rows)
    }

    /// # Errors
    /// [`PrefillError::Axis`].
    pub(super) fn check(&self) -> Result<()> {
        let has_rows = self.leading == LeadingDim::Rows;
        if self.leading == LeadingDim::ValidRows || (self.scrub && !has_rows) {
            return Err(PrefillError::NoRows { output: self.name }.into());
        }
        if self.axis > 0 && (!has_rows || self.axis > self.shape.len()) {
            return Err(PrefillError::Axis { tensor: self.name, axis: self.axis, rank: self.shape.len() }.into());
        }
        Ok(())
    }
}

/// The inputs of a forward that takes so many, for the head of [`forward`](super::PrefillModel::forward).
///
/// ```
/// # use breakable_cuda_graph::{Result, Tensor, prefill::expect_inputs};
/// # fn forward(inputs: &[Tensor]) -> Result<Vec<Tensor>> {
/// let [ids, positions] = expect_inputs(inputs)?;
/// # Ok(vec![ids.clone(), positions.clone()])
/// # }
/// assert!(forward(&[]).unwrap_err().to_string().contains("takes 2 inputs"));
/// ```
///
/// # Errors
/// [`PrefillError::ForwardInputs`] where there are more or fewer.
pub fn expect_inputs<const N: usize>(inputs: &[Tensor]) -> Result<&[Tensor; N]> {
    inputs.try_into().map_err(|_| PrefillError::ForwardInputs { expected: N, got: inputs.len() }.into())
}

/// Whether a forward returned what the model declares.
pub(super) fn check_outputs(specs: &[OutputSpec], outputs: &[Tensor], rows: usize) -> Result<()> {
    if specs.len() != outputs.len() {
        return Err(PrefillError::OutputCount { expected: specs.len(), got: outputs.len() }.into());
    }
    for (spec, output) in specs.iter().zip(outputs) {
        let shape = spec.shape_of(rows);
        if output.dtype() != spec.dtype || output.shape() != shape {
            return Err(PrefillError::Output {
                output: spec.name,
                expected: format!("{} {shape:?}", spec.dtype),
                got: format!("{} {:?}", output.dtype(), output.shape()),
            }
            .into());
        }
    }
    Ok(())
}

fn shape_of(leading: LeadingDim, axis: usize, shape: &[usize], rows: usize) -> Vec<usize> {
    let mut whole = shape.to_vec();
    if leading == LeadingDim::Rows {
        whole.insert(axis.min(shape.len()), rows);
    }
    whole
}
