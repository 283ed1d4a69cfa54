//! The static inputs: one buffer each, large enough for the largest bucket, and pinned staging through which batches and tails reach them without
//! a wait.

use super::declared::{Declared, DeclaredInput, Extent, Source, copy_runs};
use super::error::PrefillError;
use super::model::InputData;
use super::spec::{InputSpec, LeadingDim};
use crate::driver::stream_order::StreamOrder;
use crate::driver::{Event, PinnedBuffer, Stream};
use crate::error::{Misuse, Result};
use crate::pool::PoolHandle;
use crate::tensor::Tensor;
use std::sync::Arc;

/// Where inputs start in the staging, in bytes.
const ALIGNMENT: usize = 256;
/// Batches that can be on their way at once; filling one more waits for the first.
const SLOTS: usize = 2;

/// The buffers.
pub(super) struct Inputs {
    tensors: Vec<Tensor>,
    /// Rows that they have room for.
    capacity: usize,
    /// Where each starts in a slot.
    starts: Vec<usize>,
    slots: [Slot; SLOTS],
    next: usize,
    /// The streams of batches, of which the last may still read the buffers.
    order: StreamOrder,
}

struct Slot {
    staging: Arc<PinnedBuffer>,
    /// After the copies from it.
    done: Event,
    used: bool,
}

impl Inputs {
    /// Buffers of zeros for `capacity` rows, with staging.
    pub(super) fn new(declared: &Declared, stream: &Stream, capacity: usize) -> Result<Inputs> {
        let context = stream.context();
        let zeros = |spec: &InputSpec| Tensor::zeros(stream, spec.dtype, &spec.shape_of(capacity));
        let tensors = declared.specs().iter().map(zeros).collect::<Result<Vec<_>>>()?;
        let mut starts = Vec::new();
        let mut bytes = 0_usize;
        for tensor in &tensors {
            starts.push(bytes);
            bytes += tensor.extent_bytes().next_multiple_of(ALIGNMENT);
        }
        let slot = || -> Result<Slot> {
            let staging = Arc::new(PinnedBuffer::new(context, bytes)?);
            Ok(Slot { staging, done: Event::new(context)?, used: false })
        };
        let slots = [slot()?, slot()?];
        let mut order = StreamOrder::new(Event::new(context)?);
        // The zeros are on it.
        order.follow(stream)?;
        Ok(Inputs { tensors, capacity, starts, slots, next: 0, order })
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Pinned host memory.
    pub(super) fn staging_bytes(&self) -> usize {
        self.slots.iter().map(|slot| slot.staging.bytes()).sum()
    }

    pub(super) fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// What a forward of this many rows reads.
    pub(super) fn for_rows(&self, declared: &Declared, rows: usize) -> Result<Vec<Tensor>> {
        declared.specs().iter().zip(&self.tensors).map(|(spec, tensor)| view(spec, tensor, rows)).collect()
    }

    /// Writes a batch's valid rows, and its tail up to the bucket as declared, in the stream's order and after whatever still reads the buffers. The
    /// data is checked, or absent: then all rows are tail, and fixed inputs are left as they are.
    pub(super) fn fill(
        &mut self,
        declared: &Declared,
        stream: &Stream,
        data: Option<&[InputData<'_>]>,
        rows: usize,
        bucket: usize,
    ) -> Result<()> {
        debug_assert!(rows <= bucket && bucket <= self.capacity);
        for (at, ((spec, input), tensor)) in
            declared.specs().iter().zip(declared.inputs()).zip(&self.tensors).enumerate()
        {
            let source = input.source(data);
            let Source::Data(InputData::Device(given)) = source else { continue };
            let extent = input.extent(source, rows, bucket);
            let mut filled = declared.inputs().iter().zip(&self.tensors).take(at + 1);
            if filled.any(|(input, tensor)| overlaps_filled(given, input, tensor, data, rows, bucket)) {
                let expected = "memory elsewhere, or this static input's own rows where they are".to_owned();
                let got =
                    format!("{} {} that overlaps what is filled before it is copied", given.dtype(), given.layout());
                return Err(PrefillError::Input { input: spec.name, rows, expected, got }.into());
            }
            if extent.count > 1 && extent.valid != extent.padded && given.overlaps(tensor) {
                // In the bucket's tensor the runs lie further apart.
                let expected = format!(
                    "{} {:?} of the static input itself, or memory elsewhere",
                    spec.dtype,
                    spec.shape_of(bucket)
                );
                let got = format!("{} {}", given.dtype(), given.layout());
                return Err(PrefillError::Input { input: spec.name, rows, expected, got }.into());
            }
        }
        drop(self.order.follow(stream)?);
        let slot = &mut self.slots[self.next];
        if slot.used {
            slot.done.synchronize()?;
            slot.used = false;
        }
        let Some(staging) = Arc::get_mut(&mut slot.staging) else {
            // Nobody else is given the buffer: a segment keeps it only when it is captured, and fills are not.
            return Err(crate::Error::Misuse(Misuse::HostMemoryInSegment));
        };
        let memory = staging.as_mut_slice();
        let count = i32::try_from(rows).unwrap_or(i32::MAX).to_le_bytes();
        for (input, start) in declared.inputs().iter().zip(&self.starts) {
            let source = input.source(data);
            let extent = input.extent(source, rows, bucket);
            let valid = match source {
                Source::Data(InputData::Host(host)) => Some(host.bytes),
                Source::ValidRows => Some(&count[..]),
                Source::Data(InputData::Device(_)) | Source::Nothing => None,
            };
            extent.stage(valid, input.tail(), &mut memory[*start..][..extent.count * extent.padded]);
        }
        let staging = self.slots[self.next].staging.clone();
        let copied = self.copy(declared, stream, data, rows, bucket, &staging);
        drop(staging);
        let slot = &mut self.slots[self.next];
        match copied.and_then(|()| slot.done.record(stream)) {
            Ok(()) => slot.used = true,
            Err(error) => {
                // Copies may be on their way from staging that no event guards. The first error is the one to tell.
                let _ = stream.settle();
                return Err(error);
            }
        }
        self.next = (self.next + 1) % SLOTS;
        Ok(())
    }

    /// Copies of what a dummy batch overwrites in this bucket's rows, and filling in the batch does not bring back: rows that the batch has put in place
    /// itself, and tails that are left alone.
    pub(super) fn save(
        &self,
        declared: &Declared,
        pool: &PoolHandle,
        stream: &Stream,
        data: &[InputData<'_>],
        bucket: usize,
    ) -> Result<Saved> {
        let mut saved = Saved::default();
        for ((spec, input), tensor) in declared.specs().iter().zip(declared.inputs()).zip(&self.tensors) {
            let in_place = |one: &InputData<'_>| match one {
                InputData::Device(given) => given.overlaps(tensor),
                InputData::Host(_) => false,
            };
            let left_alone = spec.leading == LeadingDim::Rows && input.tail().is_none();
            if left_alone || data.iter().any(in_place) {
                let here = view(spec, tensor, bucket)?;
                let copy = pool.temporary(stream, here.dtype(), here.shape())?;
                copy.copy_from(stream, &here)?;
                saved.0.push((here, copy));
            }
        }
        Ok(saved)
    }

    fn copy(
        &self,
        declared: &Declared,
        stream: &Stream,
        data: Option<&[InputData<'_>]>,
        rows: usize,
        bucket: usize,
        staging: &Arc<PinnedBuffer>,
    ) -> Result<()> {
        for ((input, tensor), start) in declared.inputs().iter().zip(&self.tensors).zip(&self.starts) {
            let to = tensor.address();
            let source = input.source(data);
            let extent = input.extent(source, rows, bucket);
            let end = if input.tail().is_some() { extent.padded } else { extent.valid };
            let begin = match source {
                Source::Data(InputData::Device(given)) => {
                    if given.address() != to {
                        copy_runs(stream, extent, given, to)?;
                    }
                    extent.valid
                }
                _ => 0,
            };
            // Runs that are whole are one.
            let (runs, bytes) = if (begin, end) == (0, extent.padded) {
                (1, extent.count * extent.padded)
            } else {
                (extent.count, end - begin)
            };
            for run in 0..runs {
                let at = run * extent.padded + begin;
                // SAFETY: the buffer has room for the bucket; the staging is neither written nor dropped before the event of its slot.
                unsafe { stream.copy_pinned_to_device(to + at as u64, staging, start + at..start + at + bytes)? };
            }
        }
        Ok(())
    }
}

/// Copies of static inputs, each with its place.
#[derive(Default)]
pub(super) struct Saved(Vec<(Tensor, Tensor)>);

impl Saved {
    /// Puts back what was there.
    pub(super) fn put_back(&self, stream: &Stream) -> Result<()> {
        self.0.iter().try_for_each(|(place, copy)| place.copy_from(stream, copy))
    }
}

impl Drop for Inputs {
    /// Waits for copies that are on their way, as their staging goes.
    fn drop(&mut self) {
        if let Some(last) = self.order.last()
            && let Err(error) = last.settle()
        {
            last.context().report_in_drop("static inputs", &error);
        }
    }
}

/// Whether filling another input, or this one, writes what is to be copied from there: inputs are filled one after the other.
fn overlaps_filled(
    given: &Tensor,
    filled: &DeclaredInput,
    tensor: &Tensor,
    data: Option<&[InputData<'_>]>,
    rows: usize,
    bucket: usize,
) -> bool {
    let source = filled.source(data);
    let Extent { count, valid, padded } = filled.extent(source, rows, bucket);
    let in_place = matches!(source, Source::Data(InputData::Device(own)) if own.address() == tensor.address());
    let begin = if in_place { valid } else { 0 };
    let end = if filled.tail().is_some() { count * padded } else { (count * padded).saturating_sub(padded - valid) };
    let (from, to) = (tensor.address() + begin as u64, tensor.address() + end as u64);
    let read = given.address()..given.address() + given.extent_bytes() as u64;
    // Runs that are in place are whole, or refused.
    let writes = from < to && !(in_place && count > 1);
    writes && !read.is_empty() && read.start < to && from < read.end
}

/// What a forward of this many rows reads of an input: a row-major tensor at the buffer's beginning.
fn view(spec: &InputSpec, tensor: &Tensor, rows: usize) -> Result<Tensor> {
    match spec.leading {
        LeadingDim::Rows if spec.axis == 0 => Ok(tensor.leading_rows(rows)),
        LeadingDim::Rows => {
            let shape = spec.shape_of(rows);
            let elements = shape.iter().product();
            tensor.reshape(&[tensor.elements()])?.narrow(0, 0, elements)?.reshape(&shape)
        }
        LeadingDim::Fixed | LeadingDim::ValidRows => Ok(tensor.clone()),
    }
}
