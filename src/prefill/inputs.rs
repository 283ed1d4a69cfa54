//! The static inputs: one buffer each, large enough for the largest bucket, and pinned staging through which batches and tails reach them without
//! a wait.

use super::error::PrefillError;
use super::model::InputData;
use super::spec::{InputSpec, LeadingDim};
use crate::driver::stream_order::StreamOrder;
use crate::driver::{Context, Event, PinnedBuffer, Stream};
use crate::error::{Misuse, Result};
use crate::pool::PoolHandle;
use crate::tensor::{TailPattern, Tensor};
use std::sync::Arc;

/// Where inputs start in the staging, in bytes.
const ALIGNMENT: usize = 256;
/// Batches that can be on their way at once; filling one more waits for the first.
const SLOTS: usize = 2;

/// A model's declared inputs, checked.
pub(super) struct Declared {
    specs: Vec<InputSpec>,
    tails: Vec<Option<TailPattern>>,
}

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

impl Declared {
    pub(super) fn new(specs: Vec<InputSpec>) -> Result<Declared> {
        let tails = specs.iter().map(InputSpec::tail_pattern).collect::<Result<_>>()?;
        Ok(Declared { specs, tails })
    }

    pub(super) fn specs(&self) -> &[InputSpec] {
        &self.specs
    }

    /// Whether a batch gives what was declared. Nothing is allocated but for the error.
    pub(super) fn check(&self, context: &Context, data: &[InputData<'_>], rows: usize) -> Result<()> {
        if data.len() != self.specs.len() {
            return Err(PrefillError::InputCount { expected: self.specs.len(), got: data.len() }.into());
        }
        for (spec, one) in self.specs.iter().zip(data) {
            let fits = match one {
                InputData::Host(host) => host.dtype == spec.dtype && host.bytes.len() == valid_bytes(spec, rows),
                InputData::Device(tensor) => {
                    tensor.expect_on(context, "input")?;
                    let lead = spec.leading == LeadingDim::Rows;
                    let (leading, rest) = tensor.shape().split_at(usize::from(lead).min(tensor.shape().len()));
                    tensor.dtype() == spec.dtype
                        && tensor.layout().is_contiguous()
                        && rest == spec.shape
                        && leading == &[rows][..usize::from(lead)]
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

    /// Tensors of just the batch's rows, for a batch that has no room in the static ones. The data is checked.
    pub(super) fn temporary(
        &self,
        pool: &PoolHandle,
        stream: &Stream,
        data: &[InputData<'_>],
        rows: usize,
    ) -> Result<Vec<Tensor>> {
        let mut tensors = Vec::with_capacity(self.specs.len());
        for (spec, one) in self.specs.iter().zip(data) {
            tensors.push(match one {
                InputData::Device(tensor) => (*tensor).clone(),
                InputData::Host(host) => {
                    let tensor = pool.temporary(stream, spec.dtype, &spec.shape_of(rows))?;
                    // SAFETY: the tensor was made for as many bytes as the checked data has.
                    unsafe { stream.copy_host_to_device(tensor.address(), host.bytes)? };
                    tensor
                }
            });
        }
        Ok(tensors)
    }
}

impl Inputs {
    /// Buffers of zeros for `capacity` rows, with staging.
    pub(super) fn new(declared: &Declared, stream: &Stream, capacity: usize) -> Result<Inputs> {
        let context = stream.context();
        let zeros = |spec: &InputSpec| Tensor::zeros(stream, spec.dtype, &spec.shape_of(capacity));
        let tensors = declared.specs.iter().map(zeros).collect::<Result<Vec<_>>>()?;
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
    pub(super) fn for_rows(&self, declared: &Declared, rows: usize) -> Vec<Tensor> {
        let cut = |(spec, tensor): (&InputSpec, &Tensor)| match spec.leading {
            LeadingDim::Rows => tensor.leading_rows(rows),
            LeadingDim::Fixed => tensor.clone(),
        };
        declared.specs.iter().zip(&self.tensors).map(cut).collect()
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
        for (at, (spec, tail)) in declared.specs.iter().zip(&declared.tails).enumerate() {
            let (valid, padded) = extent(spec, data.is_some(), rows, bucket);
            let place = &mut memory[self.starts[at]..][..padded];
            if let Some(InputData::Host(host)) = data.map(|data| &data[at]) {
                place[..valid].copy_from_slice(host.bytes);
            }
            if let Some(tail) = tail {
                tail.repeat(&mut place[valid..]);
            }
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
        for (at, (spec, tail)) in declared.specs.iter().zip(&declared.tails).enumerate() {
            let in_place = |one: &InputData<'_>| match one {
                InputData::Device(tensor) => tensor.overlaps(&self.tensors[at]),
                InputData::Host(_) => false,
            };
            let left_alone = spec.leading == LeadingDim::Rows && tail.is_none();
            if left_alone || data.iter().any(in_place) {
                let here = match spec.leading {
                    LeadingDim::Rows => self.tensors[at].leading_rows(bucket),
                    LeadingDim::Fixed => self.tensors[at].clone(),
                };
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
        for (at, (spec, tail)) in declared.specs.iter().zip(&declared.tails).enumerate() {
            let to = self.tensors[at].address();
            let (valid, padded) = extent(spec, data.is_some(), rows, bucket);
            let end = if tail.is_some() { padded } else { valid };
            let begin = match data.map(|data| &data[at]) {
                Some(InputData::Device(tensor)) => {
                    if tensor.address() != to {
                        // SAFETY: the data was checked to have these bytes, the buffer has room for the bucket.
                        unsafe { stream.copy_device_to_device(to, tensor.address(), valid)? };
                    }
                    valid
                }
                _ => 0,
            };
            let start = self.starts[at];
            // SAFETY: the buffer has room for the bucket; the staging is neither written nor dropped before the event of its slot.
            unsafe { stream.copy_pinned_to_device(to + begin as u64, staging, start + begin..start + end)? };
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

/// Bytes of an input in a batch of this many rows.
fn valid_bytes(spec: &InputSpec, rows: usize) -> usize {
    match spec.leading {
        LeadingDim::Rows => rows * spec.unit_bytes(),
        LeadingDim::Fixed => spec.unit_bytes(),
    }
}

/// Bytes of the valid rows and of the bucket's. Without data there are no valid rows, and fixed inputs are left as they are.
fn extent(spec: &InputSpec, has_data: bool, rows: usize, bucket: usize) -> (usize, usize) {
    match (has_data, spec.leading) {
        (true, _) => (valid_bytes(spec, rows), valid_bytes(spec, bucket)),
        (false, LeadingDim::Fixed) => (0, 0),
        (false, LeadingDim::Rows) => (0, valid_bytes(spec, bucket)),
    }
}
