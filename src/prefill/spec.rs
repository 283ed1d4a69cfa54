//! What a model takes and gives: names, element types, shapes, and what padded tails hold.

use super::error::PrefillError;
use crate::tensor::{DType, Element, Tensor};

/// Whether a tensor's leading dimension is the batch's rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeadingDim {
    /// `[rows, ..]`: as long as the bucket, or as the batch where it runs eagerly.
    Rows,
    /// The same shape for every batch.
    Fixed,
}

/// What an input's rows after the real ones hold. There is no default: a pad of zero is a live slot to one kernel and a division by zero to another.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum TailRule {
    /// Zero bytes.
    Zero,
    /// This value in every element.
    Value(Scalar),
    /// This index in every element: a slot that no request owns, or one that kernels skip. For integer inputs.
    DummySlot(i64),
    /// Whatever an earlier batch left there.
    LeftAlone,
}

/// A value of some element type.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scalar {
    dtype: DType,
    bytes: [u8; 8],
}

impl<T: Element> From<T> for Scalar {
    fn from(value: T) -> Scalar {
        let mut bytes = [0; 8];
        bytes[..size_of::<T>()].copy_from_slice(crate::tensor::bytes_of(&[value]));
        Scalar { dtype: T::DTYPE, bytes }
    }
}

/// A static input: a buffer that captures read at a fixed address.
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
    pub(super) fn tail_element(&self) -> Result<Option<Pattern>, PrefillError> {
        let unfit = |reason| PrefillError::UnfitTail { input: self.name, dtype: self.dtype, reason };
        let rule = match (self.leading, self.tail) {
            (LeadingDim::Fixed, None) => return Ok(None),
            (LeadingDim::Fixed, Some(_)) => return Err(unfit("an input without rows has no padded tail")),
            (LeadingDim::Rows, None) => return Err(PrefillError::NoTailRule { input: self.name }),
            (LeadingDim::Rows, Some(rule)) => rule,
        };
        let size = self.dtype.size();
        match rule {
            TailRule::LeftAlone => Ok(None),
            TailRule::Zero => Ok(Some(Pattern { bytes: [0; 8], size })),
            TailRule::Value(value) if value.dtype == self.dtype => Ok(Some(Pattern { bytes: value.bytes, size })),
            TailRule::Value(_) => Err(unfit("the value is of another element type")),
            TailRule::DummySlot(slot) => {
                let bytes = slot.to_le_bytes();
                let fits = match self.dtype {
                    DType::I8 => i8::try_from(slot).is_ok(),
                    DType::I16 => i16::try_from(slot).is_ok(),
                    DType::I32 => i32::try_from(slot).is_ok(),
                    DType::I64 => true,
                    DType::U8 => u8::try_from(slot).is_ok(),
                    DType::U16 => u16::try_from(slot).is_ok(),
                    DType::U32 => u32::try_from(slot).is_ok(),
                    DType::U64 => u64::try_from(slot).is_ok(),
                    _ => return Err(unfit("a slot is an index, and the input is not of an integer type")),
                };
                if fits { Ok(Some(Pattern { bytes, size })) } else { Err(unfit("the slot is out of the type's range")) }
            }
        }
    }
}

/// One element's bytes, little endian as on every machine that CUDA runs on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern {
    bytes: [u8; 8],
    size: usize,
}

impl Pattern {
    /// Writes it over and over.
    pub(super) fn repeat(&self, into: &mut [u8]) {
        let element = &self.bytes[..self.size];
        if element.iter().all(|byte| *byte == element[0]) {
            into.fill(element[0]);
            return;
        }
        into.chunks_exact_mut(self.size).for_each(|place| place.copy_from_slice(element));
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
pub(super) fn check_outputs(specs: &[OutputSpec], outputs: &[Tensor], rows: usize) -> Result<(), PrefillError> {
    if specs.len() != outputs.len() {
        return Err(PrefillError::OutputCount { expected: specs.len(), got: outputs.len() });
    }
    for (spec, output) in specs.iter().zip(outputs) {
        let shape = shape_of(spec.leading, &spec.shape, rows);
        if output.dtype() != spec.dtype || output.shape() != shape {
            return Err(PrefillError::Output {
                output: spec.name,
                expected: format!("{} {shape:?}", spec.dtype),
                got: format!("{} {:?}", output.dtype(), output.shape()),
            });
        }
    }
    Ok(())
}

fn shape_of(leading: LeadingDim, shape: &[usize], rows: usize) -> Vec<usize> {
    let rows = (leading == LeadingDim::Rows).then_some(rows);
    rows.into_iter().chain(shape.iter().copied()).collect()
}
