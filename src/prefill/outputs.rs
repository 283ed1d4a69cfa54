//! What a batch gave.

use super::spec::{LeadingDim, OutputSpec};
use crate::driver::stream_order::order_after;
use crate::driver::{Event, Stream, live_break};
use crate::error::{Result, TensorError};
use crate::pool::CapturePool;
use crate::tensor::{Element, Tensor};
use std::borrow::Cow;

/// A batch's outputs. They borrow the runner, so that no later batch of it can overwrite them while they are held; a replay of another capture of the
/// same pool is noticed when they are asked for.
///
/// The outputs are ready in the order of the stream that the batch ran on.
#[derive(Debug)]
#[must_use = "the outputs are there until the next batch"]
pub struct BatchOutputs<'r> {
    specs: &'r [OutputSpec],
    outputs: Cow<'r, [Tensor]>,
    rows: usize,
    bucket: Option<usize>,
    pool: &'r CapturePool,
    stream: Stream,
    /// The replay's number in the pool. `None` for an eager batch, whose outputs are its own.
    replay: Option<u64>,
}

impl<'r> BatchOutputs<'r> {
    /// Of a batch that was replayed: views of where its replay leaves them.
    pub(super) fn replayed(
        specs: &'r [OutputSpec],
        outputs: &'r [Tensor],
        rows: usize,
        bucket: usize,
        pool: &'r CapturePool,
        (stream, replay): (&Stream, u64),
    ) -> BatchOutputs<'r> {
        let outputs = Cow::Borrowed(outputs);
        BatchOutputs { specs, outputs, rows, bucket: Some(bucket), pool, stream: stream.clone(), replay: Some(replay) }
    }

    /// Of a batch that ran eagerly, or did not run for lack of rows.
    pub(super) fn eager(
        specs: &'r [OutputSpec],
        outputs: Vec<Tensor>,
        rows: usize,
        pool: &'r CapturePool,
        stream: &Stream,
    ) -> BatchOutputs<'r> {
        BatchOutputs {
            specs,
            outputs: Cow::Owned(outputs),
            rows,
            bucket: None,
            pool,
            stream: stream.clone(),
            replay: None,
        }
    }

    /// Valid rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The bucket that was replayed; `None` where the batch ran eagerly.
    pub fn bucket(&self) -> Option<usize> {
        self.bucket
    }

    /// Outputs. None where the batch had no rows and so did not run.
    pub fn len(&self) -> usize {
        self.outputs.len()
    }

    /// Whether there are no outputs.
    pub fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }

    /// The pool, for eager work on the outputs.
    pub fn pool(&self) -> &CapturePool {
        self.pool
    }

    /// Whether the outputs are still this batch's.
    ///
    /// # Errors
    /// [`Misuse::OutputsOverwritten`](crate::Misuse::OutputsOverwritten) after a later replay of the same pool.
    pub fn check(&self) -> Result<()> {
        self.replay.map_or(Ok(()), |number| self.pool.handle().expect_latest(number))
    }

    /// The stream that the batch ran on.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Makes later work on another stream wait for the batch
    /// ([`cuStreamWaitEvent`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html)): the outputs can be used there.
    ///
    /// # Errors
    /// As for [`check`](BatchOutputs::check); [`Misuse::ContextMismatch`](crate::Misuse::ContextMismatch),
    /// [`Misuse::CaptureInProgress`](crate::Misuse::CaptureInProgress), and what the driver returns.
    #[doc(alias = "cuStreamWaitEvent")]
    pub fn wait_on(&self, stream: &Stream) -> Result<()> {
        self.check()?;
        if *stream == self.stream {
            return Ok(());
        }
        self.pool.context().expect_same(stream.context(), "stream")?;
        order_after(stream, &self.stream, &Event::new(self.pool.context())?)
    }

    /// An output, its rows the valid ones. Of a batch that was replayed it is a view of memory that the next batch writes: a clone outlives these
    /// results, what it shows does not.
    ///
    /// # Errors
    /// [`Misuse::OutputsOverwritten`](crate::Misuse::OutputsOverwritten) after a later replay of the same pool; [`TensorError::OutOfRange`].
    pub fn tensor(&self, index: usize) -> Result<Tensor> {
        let (output, spec) = self.find(index)?;
        match spec.leading {
            LeadingDim::Rows if spec.axis == 0 => Ok(output.leading_rows(self.rows)),
            LeadingDim::Rows => output.narrow(spec.axis, 0, self.rows),
            LeadingDim::Fixed | LeadingDim::ValidRows => Ok(output.clone()),
        }
    }

    /// An output with all rows of the bucket, or of the batch where it ran unpadded. What its padded rows hold is undefined, unless the model asks for zeros
    /// ([`OutputSpec::scrubbed`](super::OutputSpec::scrubbed)).
    ///
    /// # Errors
    /// As for [`tensor`](BatchOutputs::tensor).
    pub fn padded(&self, index: usize) -> Result<Tensor> {
        self.find(index).map(|(output, _)| output.clone())
    }

    fn find(&self, index: usize) -> Result<(&Tensor, &OutputSpec)> {
        self.check()?;
        let found = self.outputs.get(index).zip(self.specs.get(index));
        found.ok_or_else(|| {
            let (end, length) = (index.saturating_add(1), self.outputs.len());
            TensorError::OutOfRange { what: "outputs", end, length }.into()
        })
    }

    /// An output's values in row-major order, read on any stream of the context: after the batch, and checked again after the copy. Waits for it.
    ///
    /// # Errors
    /// As for [`tensor`](BatchOutputs::tensor), [`wait_on`](BatchOutputs::wait_on) and [`Tensor::read`].
    pub fn read<T: Element>(&self, index: usize, stream: &Stream) -> Result<Vec<T>> {
        let output = self.tensor(index)?;
        let _alone = live_break::suspend();
        self.wait_on(stream)?;
        let values = output.read(stream)?;
        // A replay that began meanwhile may have written while this was copied.
        self.check()?;
        Ok(values)
    }
}
