//! Static inputs: buffers at the addresses that captures read, with a rule for what the padded tail holds.

use super::dtype::{DType, Element, bytes_of};
use super::owned::Tensor;
use super::tail::{TailPattern, TailRule};
use crate::driver::{Context, Stream};
use crate::error::{Result, TensorError};
use std::marker::PhantomData;

/// A buffer that captures read at a fixed address: `[rows, ..]`, filled with a batch before each replay.
#[derive(Debug)]
pub struct StaticInput<T> {
    name: &'static str,
    tensor: Tensor,
    /// `None`: it is left alone.
    tail: Option<TailPattern>,
    _element: PhantomData<T>,
}

impl<T: Element> StaticInput<T> {
    /// A buffer for the largest bucket, `shape` in elements with the rows first, of undefined content. The name is for errors.
    ///
    /// # Errors
    /// [`TensorError::UnfitTail`], [`TensorError::Layout`], and what the driver returns.
    ///
    /// ```
    /// # use breakable_cuda_graph::{Driver, StaticInput, TailRule, driver::{Device, Stream}};
    /// # let context = Device::get(&Driver::reference()?, 0)?.primary_context()?;
    /// # let stream = Stream::new(&context)?;
    /// let lengths = StaticInput::<i32>::new(&context, "lengths", &[8], TailRule::from(1_i32))?;
    /// let captured = lengths.bucket(4); // What a capture for 4 rows reads.
    /// assert_eq!(lengths.fill(&stream, &[20, 30, 40], 4)?, 3);
    /// assert_eq!(captured.read::<i32>(&stream)?, [20, 30, 40, 1]);
    /// # Ok::<(), breakable_cuda_graph::Error>(())
    /// ```
    pub fn new(context: &Context, name: &'static str, shape: &[usize], tail: TailRule) -> Result<StaticInput<T>> {
        let unfit = |reason| TensorError::UnfitTail { input: name, dtype: T::DTYPE, reason };
        let tail = tail.pattern(T::DTYPE).map_err(unfit)?;
        Ok(StaticInput { name, tensor: Tensor::allocate(context, T::DTYPE, shape)?, tail, _element: PhantomData })
    }

    /// The whole buffer.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Its leading rows, for the capture of a bucket.
    pub fn bucket(&self, rows: usize) -> Tensor {
        self.tensor.leading_rows(rows)
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        T::DTYPE
    }

    /// Elements of a row.
    pub fn row_elements(&self) -> usize {
        self.tensor.shape().iter().skip(1).product()
    }

    /// Writes a batch into the leading rows of a bucket and its tail as declared, in one copy in the stream's order. Waits for it. Returns the
    /// number of valid rows.
    ///
    /// # Errors
    /// [`TensorError::TooManyRows`] for more rows than the bucket, or a bucket of more rows than the buffer, and [`TensorError::Shape`] for part of a row:
    /// before anything is copied. [`Misuse::HostMemoryInSegment`](crate::Misuse::HostMemoryInSegment) while a segment is open, and what the driver returns.
    pub fn fill(&self, stream: &Stream, values: &[T], bucket: usize) -> Result<usize> {
        let row = self.row_elements();
        let rows = values.len().checked_div(row).unwrap_or(0);
        if rows * row != values.len() {
            let expected = format!("whole rows of {row} elements for {}", self.name);
            return Err(
                TensorError::Shape { what: "static input", expected, got: Box::new(*self.tensor.layout()) }.into()
            );
        }
        for (rows, most) in [(bucket, self.tensor.rows()), (rows, bucket)] {
            if rows > most {
                return Err(TensorError::TooManyRows { input: self.name, rows, most }.into());
            }
        }
        self.tensor.expect_on(stream.context(), "static input")?;
        let valid = bytes_of(values);
        match &self.tail {
            None => self.copy(stream, valid)?,
            Some(tail) => {
                let mut padded = vec![0; bucket * row * size_of::<T>()];
                let (rows, rest) = padded.split_at_mut(valid.len());
                rows.copy_from_slice(valid);
                tail.repeat(rest);
                self.copy(stream, &padded)?;
            }
        }
        Ok(rows)
    }

    fn copy(&self, stream: &Stream, bytes: &[u8]) -> Result<()> {
        // SAFETY: no more than the buffer has, checked by the caller; the buffer is contiguous and live.
        unsafe { stream.copy_host_to_device(self.tensor.address(), bytes) }
    }
}
