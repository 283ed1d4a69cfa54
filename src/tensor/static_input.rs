//! Static inputs: buffers at the addresses that captures read, with a rule for what the padded tail holds.

use super::dtype::{DType, Element, bytes_of};
use super::owned::Tensor;
use crate::driver::{Context, Stream};
use crate::error::{Result, TensorError};

/// What the rows after the real ones hold. There is no default: a pad of zero is a live slot to one kernel and a division by zero to another.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum Tail<T> {
    /// This value in every element: zero, a length of one, a dummy slot, -1 where kernels skip it.
    Value(T),
    /// Whatever an earlier batch left there.
    LeftAlone,
}

/// A buffer that captures read at a fixed address: `[rows, ..]`, filled with a batch before each replay.
#[derive(Debug)]
pub struct StaticInput<T> {
    name: &'static str,
    tensor: Tensor,
    tail: Tail<T>,
}

impl<T: Element> StaticInput<T> {
    /// A buffer for the largest bucket, `shape` in elements with the rows first, of undefined content. The name is for errors.
    ///
    /// # Errors
    /// [`TensorError::Layout`], and what the driver returns.
    pub fn new(context: &Context, name: &'static str, shape: &[usize], tail: Tail<T>) -> Result<StaticInput<T>> {
        Ok(StaticInput { name, tensor: Tensor::allocate(context, T::DTYPE, shape)?, tail })
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
        match self.tail {
            Tail::LeftAlone => self.copy(stream, values)?,
            Tail::Value(value) => {
                let mut padded = values.to_vec();
                padded.resize(bucket * row, value);
                self.copy(stream, &padded)?;
            }
        }
        Ok(rows)
    }

    fn copy(&self, stream: &Stream, values: &[T]) -> Result<()> {
        // SAFETY: no more than the buffer has, checked by the caller; the buffer is contiguous and live.
        unsafe { stream.copy_host_to_device(self.tensor.address(), bytes_of(values)) }
    }
}
