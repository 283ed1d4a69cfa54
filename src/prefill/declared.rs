//! A model's declared inputs, and whether a batch gives them.

use super::error::PrefillError;
use super::model::InputData;
use super::spec::{InputSpec, LeadingDim, Runs};
use crate::driver::{Context, Stream};
use crate::error::{Result, TensorError};
use crate::pool::PoolHandle;
use crate::tensor::{TailPattern, Tensor};

/// A model's declared inputs, checked.
pub(super) struct Declared {
    specs: Vec<InputSpec>,
    inputs: Vec<DeclaredInput>,
    /// How many of them batches give.
    given: usize,
}

/// What is known of an input beside what the model says.
pub(super) struct DeclaredInput {
    /// Which of a batch's data it is; `None`: the runner writes it.
    given: Option<usize>,
    tail: Option<TailPattern>,
    runs: Runs,
    has_rows: bool,
}

/// The runs of rows of one input in one bucket, in bytes. In the bucket's tensor each run takes `padded`, of which the first `valid` are a batch's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    pub(super) count: usize,
    pub(super) valid: usize,
    pub(super) padded: usize,
}

/// What one input is filled from.
#[derive(Clone, Copy)]
pub(super) enum Source<'b> {
    Data(InputData<'b>),
    /// The number of valid rows.
    ValidRows,
    /// Nothing: the input is left as it is, but for its tail.
    Nothing,
}

impl DeclaredInput {
    pub(super) fn tail(&self) -> Option<&TailPattern> {
        self.tail.as_ref()
    }

    /// What a batch, or none, gives for it.
    pub(super) fn source<'b>(&self, data: Option<&[InputData<'b>]>) -> Source<'b> {
        match (self.given, data) {
            (None, _) => Source::ValidRows,
            (Some(at), Some(data)) => data.get(at).map_or(Source::Nothing, |one| Source::Data(*one)),
            (Some(_), None) => Source::Nothing,
        }
    }

    /// Its bytes in a batch, of which there may be no data: then there are no valid rows, and an input without rows is left as it is.
    pub(super) fn extent(&self, source: Source<'_>, rows: usize, bucket: usize) -> Extent {
        let Runs { count, unit } = self.runs;
        let (valid, padded) = match (source, self.has_rows) {
            (Source::Nothing, false) => (0, 0),
            (Source::Nothing, true) => (0, unit.saturating_mul(bucket)),
            (_, true) => (unit.saturating_mul(rows), unit.saturating_mul(bucket)),
            (_, false) => (unit, unit),
        };
        Extent { count, valid, padded }
    }
}

impl Extent {
    /// Writes a batch's bytes, if there are any, and the tail, as the bucket's tensor has them.
    pub(super) fn stage(&self, valid: Option<&[u8]>, tail: Option<&TailPattern>, into: &mut [u8]) {
        for run in 0..self.count {
            let (rows, rest) = into[run * self.padded..][..self.padded].split_at_mut(self.valid);
            if let Some(valid) = valid {
                rows.copy_from_slice(&valid[run * self.valid..][..self.valid]);
            }
            if let Some(tail) = tail {
                tail.repeat(rest);
            }
        }
    }
}

impl Declared {
    pub(super) fn new(specs: Vec<InputSpec>) -> Result<Declared> {
        let mut given = 0;
        let mut inputs = Vec::with_capacity(specs.len());
        for spec in &specs {
            let is_given = spec.leading != LeadingDim::ValidRows;
            inputs.push(DeclaredInput {
                given: is_given.then_some(given),
                tail: spec.tail_pattern()?,
                runs: spec.runs(),
                has_rows: spec.leading == LeadingDim::Rows,
            });
            given += usize::from(is_given);
        }
        Ok(Declared { specs, inputs, given })
    }

    pub(super) fn specs(&self) -> &[InputSpec] {
        &self.specs
    }

    pub(super) fn inputs(&self) -> &[DeclaredInput] {
        &self.inputs
    }

    /// Whether a batch gives what was declared. Nothing is allocated but for the error.
    pub(super) fn check(&self, context: &Context, data: &[InputData<'_>], rows: usize) -> Result<()> {
        if data.len() != self.given {
            return Err(PrefillError::InputCount { expected: self.given, got: data.len() }.into());
        }
        for (spec, input) in self.specs.iter().zip(&self.inputs) {
            let source = input.source(Some(data));
            let most = i32::MAX as usize;
            if matches!(source, Source::ValidRows) && rows > most {
                return Err(TensorError::TooManyRows { input: spec.name, rows, most }.into());
            }
            let Source::Data(one) = source else { continue };
            let Extent { count, valid, .. } = input.extent(source, rows, rows);
            let fits = match one {
                InputData::Host(host) => {
                    host.dtype == spec.dtype && count.checked_mul(valid).is_some_and(|bytes| bytes == host.bytes.len())
                }
                InputData::Device(tensor) => {
                    tensor.expect_on(context, "input")?;
                    tensor.dtype() == spec.dtype
                        && tensor.layout().is_contiguous()
                        && spec.is_shape_of(tensor.shape(), rows)
                }
            };
            if !fits {
                let got = match one {
                    InputData::Host(host) => format!("{} bytes of {}", host.bytes.len(), host.dtype),
                    InputData::Device(tensor) => format!("{} {}", tensor.dtype(), tensor.layout()),
                };
                let expected = format!("{} {:?}, row-major", spec.dtype, spec.shape_of(rows));
                return Err(PrefillError::Input { input: spec.name, rows, expected, got }.into());
            }
        }
        Ok(())
    }

    /// Tensors of a batch's own, for one that has no room in the static ones: of just its rows, or padded. The data is checked. A tail that is left alone in
    /// static inputs is zero.
    pub(super) fn temporary(
        &self,
        pool: &PoolHandle,
        stream: &Stream,
        data: &[InputData<'_>],
        rows: usize,
        padded: usize,
    ) -> Result<Vec<Tensor>> {
        let mut tensors = Vec::with_capacity(self.specs.len());
        for (spec, input) in self.specs.iter().zip(&self.inputs) {
            let source = input.source(Some(data));
            if let (Source::Data(InputData::Device(tensor)), true) = (source, padded == rows || !input.has_rows) {
                tensors.push(tensor.clone());
                continue;
            }
            let tensor = pool.temporary(stream, spec.dtype, &spec.shape_of(padded))?;
            let extent = input.extent(source, rows, padded);
            let mut staged = vec![0; extent.count * extent.padded];
            let count = i32::try_from(rows).unwrap_or(i32::MAX).to_le_bytes();
            let valid = match source {
                Source::Data(InputData::Host(host)) => Some(host.bytes),
                Source::ValidRows => Some(&count[..]),
                Source::Data(InputData::Device(_)) | Source::Nothing => None,
            };
            extent.stage(valid, input.tail(), &mut staged);
            // SAFETY: the tensor was made for as many bytes as were staged.
            unsafe { stream.copy_host_to_device(tensor.address(), &staged)? };
            if let Source::Data(InputData::Device(from)) = source {
                copy_runs(stream, extent, from, tensor.address())?;
            }
            tensors.push(tensor);
        }
        Ok(tensors)
    }
}

/// Copies a batch's rows to where the bucket's tensor has them, run by run.
pub(super) fn copy_runs(stream: &Stream, extent: Extent, from: &Tensor, to: u64) -> Result<()> {
    let Extent { count, valid, padded } = extent;
    let _in_use = from.storage().enter()?;
    from.used_in(stream, "a copy of an input")?;
    let runs = if valid == padded { 1 } else { count };
    let bytes = if valid == padded { count * valid } else { valid };
    for run in 0..runs {
        let (to, from) = (to + (run * padded) as u64, from.address() + (run * valid) as u64);
        // SAFETY: the data was checked to have these bytes, and the bucket's tensor has room for them.
        unsafe { stream.copy_device_to_device(to, from, bytes)? };
    }
    Ok(())
}
