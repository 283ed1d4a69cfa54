//! What a model takes and gives: names, element types, shapes, and what padded tails hold.

use super::error::PrefillError;
use crate::error::{Result, TensorError};
use crate::tensor::{DType, TailPattern, TailRule, Tensor};

/// Whether a tensor's leading dimension is the batch's rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeadingDim {
    /// `[rows, ..]`: as long as the bucket, or as the batch where it runs eagerly.
    Rows,
    /// The same shape for every batch.
    Fixed,
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
    /// The shape, without the rows where they lead.
    pub shape: Vec<usize>,
    /// Whether rows lead.
    pub leading: LeadingDim,
    /// What the padded tail holds. Needed where rows lead.
    pub tail: Option<TailRule>,
}

impl InputSpec {
    /// `[rows, row_shape..]`, which must be given a tail rule.
    pub fn rows(name: &'static str, dtype: DType, row_shape: &[usize]) -> InputSpec {
        InputSpec { name, dtype, shape: row_shape.to_vec(), leading: LeadingDim::Rows, tail: None }
    }

    /// Of this shape for every batch.
    pub fn fixed(name: &'static str, dtype: DType, shape: &[usize]) -> InputSpec {
        InputSpec { name, dtype, shape: shape.to_vec(), leading: LeadingDim::Fixed, tail: None }
    }

    /// With this rule for the padded tail.
    #[must_use]
    pub fn tail(mut self, rule: TailRule) -> InputSpec {
        self.tail = Some(rule);
        self
    }

    /// Its shape in a batch of this many rows.
    pub fn shape_of(&self, rows: usize) -> Vec<usize> {
        shape_of(self.leading, &self.shape, rows)
    }

    /// Bytes of a row, or of the whole input where no rows lead.
    pub(super) fn unit_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }

    /// The tail's element as bytes, in the input's element type; `None`: the tail is left alone.
    ///
    /// # Errors
    /// [`PrefillError::NoTailRule`] and [`TensorError::UnfitTail`].
    pub(super) fn tail_pattern(&self) -> Result<Option<TailPattern>> {
        let unfit = |reason| TensorError::UnfitTail { input: self.name, dtype: self.dtype, reason };
        match (self.leading, self.tail) {
            (LeadingDim::Fixed, None) => Ok(None),
            (LeadingDim::Fixed, Some(_)) => Err(unfit("an input without rows has no padded tail").into()),
            (LeadingDim::Rows, None) => Err(PrefillError::NoTailRule { input: self.name }.into()),
            (LeadingDim::Rows, Some(rule)) => Ok(rule.pattern(self.dtype).map_err(unfit)?),
        }
    }
}

/// An output of the forward.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct OutputSpec {
    /// For errors and reports.
    pub name: &'static str,
    /// The element type.
    pub dtype: DType,
    /// The shape, without the rows where they lead.
    pub shape: Vec<usize>,
    /// Whether rows lead: then results are sliced to the valid rows.
    pub leading: LeadingDim,
}

impl OutputSpec {
    /// `[rows, row_shape..]`.
    pub fn rows(name: &'static str, dtype: DType, row_shape: &[usize]) -> OutputSpec {
        OutputSpec { name, dtype, shape: row_shape.to_vec(), leading: LeadingDim::Rows }
    }

    /// Of this shape for every batch.
    pub fn fixed(name: &'static str, dtype: DType, shape: &[usize]) -> OutputSpec {
        OutputSpec { name, dtype, shape: shape.to_vec(), leading: LeadingDim::Fixed }
    }
}

/// Whether a forward returned what the model declares.
pub(super) fn check_outputs(specs: &[OutputSpec], outputs: &[Tensor], rows: usize) -> Result<()> {
    if specs.len() != outputs.len() {
        return Err(PrefillError::OutputCount { expected: specs.len(), got: outputs.len() }.into());
    }
    for (spec, output) in specs.iter().zip(outputs) {
        let shape = shape_of(spec.leading, &spec.shape, rows);
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

fn shape_of(leading: LeadingDim, shape: &[usize], rows: usize) -> Vec<usize> {
    let rows = (leading == LeadingDim::Rows).then_some(rows);
    rows.into_iter().chain(shape.iter().copied()).collect()
}
