//! Host data in and out of tensors, always in the order of a stream.

use super::dtype::{Element, bytes_of, bytes_of_mut};
use super::owned::{Location, Tensor};
use super::padding::land;
use crate::driver::{Context, Stream};
use crate::error::{Result, TensorError};

impl Tensor {
    /// A device tensor with these values, in memory of its own. Waits for the copy.
    ///
    /// # Errors
    /// [`TensorError::Shape`] when there are more or fewer values than elements, and what the driver returns.
    pub fn from_slice<T: Element>(stream: &Stream, values: &[T], shape: &[usize]) -> Result<Tensor> {
        let tensor = Tensor::allocate(stream.context(), T::DTYPE, shape)?;
        tensor.write(stream, values)?;
        Ok(tensor)
    }

    /// A device tensor of zeros, in memory of its own. The memset is enqueued on the stream.
    ///
    /// # Errors
    /// What the driver returns.
    pub fn zeros(stream: &Stream, dtype: super::DType, shape: &[usize]) -> Result<Tensor> {
        let tensor = Tensor::allocate(stream.context(), dtype, shape)?;
        tensor.fill_bytes(stream, 0)?;
        Ok(tensor)
    }

    /// Writes all elements, in row-major order, after the work that is on the stream, and waits for it.
    ///
    /// # Errors
    /// [`TensorError::DType`], [`TensorError::Shape`] when there are more or fewer values than elements or the tensor is not contiguous,
    /// [`Misuse::HostMemoryInSegment`](crate::Misuse::HostMemoryInSegment) while a segment is open, and what the driver returns.
    pub fn write<T: Element>(&self, stream: &Stream, values: &[T]) -> Result<()> {
        self.expect_dtype::<T>("write")?;
        self.device_context("the tensor to write")?.expect_same(stream.context(), "stream")?;
        if values.len() != self.elements() || !self.layout().is_contiguous() {
            let expected = format!("a contiguous tensor of {} elements", values.len());
            return Err(TensorError::Shape { what: "write", expected, got: Box::new(*self.layout()) }.into());
        }
        let _in_use = self.storage().enter()?;
        self.storage().used_on(stream)?;
        // SAFETY: the tensor's storage is live and reaches as far as its layout, checked when it was made.
        unsafe { stream.copy_host_to_device(self.address(), bytes_of(values)) }
    }

    /// All elements in row-major order, after the work that is on the stream. Waits for it.
    ///
    /// # Errors
    /// [`TensorError::DType`], [`TensorError::HostMemory`], [`Misuse::HostMemoryInSegment`](crate::Misuse::HostMemoryInSegment) while a segment is open,
    /// [`Misuse::PoolReleased`](crate::Misuse::PoolReleased), [`Misuse::ReplayFailed`](crate::Misuse::ReplayFailed) for a result of a capture whose latest
    /// replay failed, and what the driver returns.
    pub fn read<T: Element>(&self, stream: &Stream) -> Result<Vec<T>> {
        self.expect_dtype::<T>("read")?;
        let mut span = Vec::new();
        match self.place() {
            Location::Device => {
                self.device_context("the tensor to read")?.expect_same(stream.context(), "stream")?;
                let _in_use = self.storage().enter()?;
                self.storage().expect_readable()?;
                self.storage().used_on(stream)?;
                self.reserve(&mut span, self.layout().extent())?;
                // SAFETY: every bit pattern is a value of an element, zeros too.
                span.resize(self.layout().extent(), unsafe { core::mem::zeroed::<T>() });
                // SAFETY: the storage is live and reaches as far as the layout.
                unsafe { stream.copy_device_to_host(bytes_of_mut(&mut span), self.address())? };
            }
            Location::Host => self.append_host(&mut span)?,
        }
        self.in_order(span)
    }

    /// Appends what a host tensor's layout reaches over. The element type is the tensor's.
    fn append_host<T: Element>(&self, span: &mut Vec<T>) -> Result<()> {
        self.reserve(span, self.layout().extent())?;
        let first = self.storage().host().wrapping_add(self.offset()).cast::<T>();
        // SAFETY: host storage is initialised, aligned to 8 bytes, and reaches as far as the layout; nothing writes it.
        span.extend_from_slice(unsafe { core::slice::from_raw_parts(first, self.layout().extent()) });
        Ok(())
    }

    /// The elements in row-major order, of those that the layout reaches over.
    fn in_order<T: Element>(&self, span: Vec<T>) -> Result<Vec<T>> {
        if self.layout().is_contiguous() {
            return Ok(span);
        }
        let mut values = Vec::new();
        self.reserve(&mut values, self.elements())?;
        self.layout().for_each_offset(|offset| values.push(span[offset]));
        Ok(values)
    }

    /// Sets every byte of a contiguous tensor, in the stream's order. In a segment it is recorded.
    ///
    /// # Errors
    /// [`TensorError::Shape`] for a tensor that is not contiguous, and what the driver returns.
    pub fn fill_bytes(&self, stream: &Stream, value: u8) -> Result<()> {
        self.device_context("the tensor to fill")?.expect_same(stream.context(), "stream")?;
        if !self.layout().is_contiguous() {
            return Err(TensorError::Shape {
                what: "fill",
                expected: "a contiguous tensor".into(),
                got: Box::new(*self.layout()),
            }
            .into());
        }
        let _in_use = self.storage().enter()?;
        self.used_in(stream, "a memset")?;
        // SAFETY: the storage is live and reaches as far as the layout; a segment keeps it.
        unsafe { stream.fill_bytes(self.address(), value, self.extent_bytes()) }
    }

    /// Copies another device tensor's values into this one, in the stream's order, by the crate's own kernel: both of one shape and element type, with
    /// any strides. In a segment it is recorded, and the segment keeps both. A tensor copied to its own place is left as it is.
    ///
    /// # Errors
    /// [`TensorError::DType`], [`TensorError::Shape`] for another shape, [`TensorError::Overlap`] where they share some of their memory,
    /// [`TensorError::SharedElements`] where this one is a broadcast,
    /// [`TensorError::Location`] for a host tensor, [`Misuse::ContextMismatch`](crate::Misuse::ContextMismatch), and what the driver returns.
    ///
    /// ```
    /// # use breakable_cuda_graph::{DType, Driver, Tensor, driver::{Device, Stream}};
    /// # let context = Device::get(&Driver::reference()?, 0)?.primary_context()?;
    /// # let stream = Stream::new(&context)?;
    /// let matrix = Tensor::from_slice(&stream, &[1_i32, 2, 3, 4, 5, 6], &[2, 3])?;
    /// let transposed = Tensor::zeros(&stream, DType::I32, &[3, 2])?;
    /// transposed.copy_from(&stream, &matrix.transpose(0, 1)?)?;
    /// assert_eq!(transposed.read::<i32>(&stream)?, [1, 4, 2, 5, 3, 6]);
    /// # Ok::<(), breakable_cuda_graph::Error>(())
    /// ```
    pub fn copy_from(&self, stream: &Stream, source: &Tensor) -> Result<()> {
        if source.shape() != self.shape() {
            let expected = format!("the target's {:?}", self.shape());
            return Err(TensorError::Shape { what: "copy", expected, got: Box::new(*source.layout()) }.into());
        }
        source.expect_on(stream.context(), "the tensor to copy")?;
        source.storage().expect_readable()?;
        self.expect_on(stream.context(), "the tensor to copy to")?;
        land(stream, source, self, None)
    }

    /// Room for so many elements: of a broadcast there may be more than of memory.
    fn reserve<T>(&self, values: &mut Vec<T>, elements: usize) -> Result<()> {
        let none = TensorError::HostMemory { elements, dtype: self.dtype() };
        values.try_reserve_exact(elements).map_err(|_| none.into())
    }

    fn expect_dtype<T: Element>(&self, what: &'static str) -> Result<()> {
        if self.dtype() == T::DTYPE {
            return Ok(());
        }
        Err(TensorError::DType { what, expected: self.dtype(), got: T::DTYPE }.into())
    }

    /// Checks that a tensor is of this context, in device memory.
    pub(crate) fn expect_on(&self, context: &Context, what: &'static str) -> Result<()> {
        context.expect_same(self.device_context(what)?, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values<T: Element>(tensor: &Tensor) -> Vec<T> {
        let mut span = Vec::new();
        tensor.append_host(&mut span).and_then(|()| tensor.in_order(span)).expect("there is memory")
    }

    /// Also under Miri: the memory is read where a clone, a view or another thread finds it, however often its owner has moved.
    #[test]
    fn host_tensors_are_read_through_clones_views_and_threads() {
        let whole = Tensor::host(&[1_i16, 2, 3, 4, 5, 6, 7], &[7]).expect("a tensor");
        let part = whole.narrow(0, 1, 6).and_then(|part| part.reshape(&[2, 3])).expect("a view");
        let turned = part.transpose(0, 1).expect("a view");
        let moved = Box::new(part.clone());
        assert_eq!(values::<i16>(&whole), [1, 2, 3, 4, 5, 6, 7]);
        drop(whole);
        assert_eq!(values::<i16>(&moved), [2, 3, 4, 5, 6, 7]);
        assert_eq!(values::<i16>(&turned), [2, 5, 3, 6, 4, 7]);
        let there = std::thread::spawn(move || values::<i16>(&turned)).join().expect("no panic");
        assert_eq!(there, [2, 5, 3, 6, 4, 7]);
        drop((moved, part));
        let none = Tensor::host::<f64>(&[], &[3, 0]).expect("a tensor");
        assert_eq!(values::<f64>(&none), [0.0; 0]);
        let last = none.narrow(0, 3, 0).expect("nothing");
        assert_eq!(values::<f64>(&last), [0.0; 0]);
    }
}
