//! [`Tensor`].

use super::dtype::{DType, Element};
use super::layout::Layout;
use super::storage::{Hold, PoolMemory, Storage};
use crate::driver::{Context, DeviceBuffer, capture_state};
use crate::error::{Error, Misuse, Result, TensorError};
use std::fmt;
use std::sync::Arc;

/// Where a tensor's bytes lie.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Location {
    /// In device memory.
    Device,
    /// In host memory.
    Host,
}

/// A tensor: typed, strided elements in memory that it shares with its clones and views. The memory is given back with the last of them.
///
/// Its content is the device's business: cloning and viewing cost no copy and no driver call.
///
/// ```
/// # use breakable_cuda_graph::driver::{Device, Stream};
/// # use breakable_cuda_graph::Driver;
/// # let context = Device::get(&Driver::reference()?, 0)?.primary_context()?;
/// # let stream = Stream::new(&context)?;
/// # use breakable_cuda_graph::{DType, Tensor};
/// let matrix = Tensor::from_slice(&stream, &[1, 2, 3, 4, 5, 6], &[2, 3])?;
/// let column = matrix.narrow(1, 1, 1)?; // A view: no byte is copied.
/// assert_eq!((column.shape(), column.strides(), column.dtype()), (&[2, 1][..], &[3, 1][..], DType::I32));
/// assert_eq!(column.read::<i32>(&stream)?, [2, 5]);
/// # Ok::<(), breakable_cuda_graph::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    storage: Arc<Storage>,
    /// In bytes.
    offset: usize,
    dtype: DType,
    layout: Layout,
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensor")
            .field("dtype", &self.dtype)
            .field("shape", &self.shape())
            .field("strides", &self.strides())
            .field("address", &format_args!("{:#x}", self.address()))
            .finish()
    }
}

impl Tensor {
    /// A row-major tensor of undefined content in memory of its own
    /// ([`cuMemAlloc`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html)), for what lives long: weights and static inputs. A forward's
    /// own tensors come from [`empty`](crate::empty).
    ///
    /// # Errors
    /// [`Misuse::AllocateInSegment`](crate::Misuse::AllocateInSegment) while a segment is open on this thread, [`TensorError::Layout`], and what the driver
    /// returns.
    #[doc(alias = "cuMemAlloc")]
    pub fn allocate(context: &Context, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        if capture_state::is_in_segment() {
            return Err(Misuse::AllocateInSegment.into());
        }
        let layout = Layout::contiguous(shape)?;
        let buffer = DeviceBuffer::new(context, layout.elements() * dtype.size())?;
        Ok(Tensor::of_storage(Storage::of_buffer(buffer), dtype, layout))
    }

    /// A tensor in a buffer, from its start.
    ///
    /// # Errors
    /// [`TensorError::OutOfRange`] when the layout reaches past the buffer, and [`TensorError::Misaligned`] when the buffer's address is no multiple of
    /// the element size.
    pub fn from_buffer(buffer: DeviceBuffer, dtype: DType, layout: Layout) -> Result<Tensor> {
        let end = layout.extent() * dtype.size();
        if end > buffer.bytes() {
            return Err(TensorError::OutOfRange { what: "buffer", end, length: buffer.bytes() }.into());
        }
        if !buffer.address().is_multiple_of(dtype.size() as u64) {
            return Err(TensorError::Misaligned { what: "the buffer", address: buffer.address(), dtype }.into());
        }
        Ok(Tensor::of_storage(Storage::of_buffer(buffer), dtype, layout))
    }

    /// A row-major tensor in host memory.
    ///
    /// # Errors
    /// [`TensorError::Shape`] when there are more or fewer values than the shape has elements.
    pub fn host<T: Element>(values: &[T], shape: &[usize]) -> Result<Tensor> {
        let layout = Layout::contiguous(shape)?;
        if values.len() != layout.elements() {
            return Err(TensorError::Shape {
                what: "host tensor",
                expected: format!("{} elements", values.len()),
                got: Box::new(layout),
            }
            .into());
        }
        let bytes = super::dtype::bytes_of(values);
        let mut memory = vec![0_u64; bytes.len().div_ceil(8).max(1)].into_boxed_slice();
        super::dtype::bytes_of_mut(&mut memory)[..bytes.len()].copy_from_slice(bytes);
        Ok(Tensor::of_storage(Storage::of_host(memory, bytes.len()), T::DTYPE, layout))
    }

    pub(crate) fn of_storage(storage: Storage, dtype: DType, layout: Layout) -> Tensor {
        Tensor { storage: Arc::new(storage), offset: 0, dtype, layout }
    }

    pub(crate) fn of_parts(storage: Arc<Storage>, offset: usize, dtype: DType, layout: Layout) -> Tensor {
        Tensor { storage, offset, dtype, layout }
    }

    /// A view that does not hold the block of a capture pool that the tensor lies in, only the pool. Other tensors are cloned.
    pub(crate) fn unheld(&self, memory: Arc<dyn PoolMemory>) -> Tensor {
        match self.storage.hold {
            Hold::Block(_) => Tensor { storage: Arc::new(self.storage.unheld(memory)), ..self.clone() },
            _ => self.clone(),
        }
    }

    pub(crate) fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// The address of the first element.
    #[inline]
    pub fn address(&self) -> u64 {
        self.storage.address + self.offset as u64
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape and strides.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Length of each dimension.
    pub fn shape(&self) -> &[usize] {
        self.layout.shape()
    }

    /// Distance between neighbours in each dimension, in elements.
    pub fn strides(&self) -> &[usize] {
        self.layout.strides()
    }

    /// Length of the leading dimension; 1 for a scalar.
    pub fn rows(&self) -> usize {
        self.layout.rows()
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.layout.elements()
    }

    /// From the first byte to one past the last.
    pub fn extent_bytes(&self) -> usize {
        self.layout.extent() * self.dtype.size()
    }

    /// Where the bytes lie.
    pub fn place(&self) -> Location {
        if self.storage.context.is_some() { Location::Device } else { Location::Host }
    }

    /// The context, for a tensor in device memory.
    pub fn context(&self) -> Option<&Context> {
        self.storage.context.as_ref()
    }

    /// The context, or the error that says what was given.
    pub(crate) fn device_context(&self, what: &'static str) -> Result<&Context> {
        self.context().ok_or(Error::Tensor(TensorError::Location { what, expected: "device" }))
    }

    /// Names the tensor, for traces and the pictures made of them. Only tensors of a trace remember it.
    pub fn set_name(&self, name: &str) {
        if let Hold::Traced(_, observer) = &self.storage.hold {
            observer.set_name(name);
        }
    }

    /// Notes in a trace that a break's result lands here.
    pub(crate) fn set_handoff(&self) {
        if let Hold::Traced(_, observer) = &self.storage.hold {
            observer.set_handoff();
        }
    }

    /// Whether two tensors are the same place: address, element type, shape and strides.
    pub fn same_place(&self, other: &Tensor) -> bool {
        self.address() == other.address()
            && self.dtype == other.dtype
            && self.layout == other.layout
            && self.place() == other.place()
    }

    /// Whether two tensors are one object: they share their memory's ownership and are the same place.
    pub fn is_same(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage) && self.same_place(other)
    }

    /// Whether the byte ranges that the two reach over have a byte in common.
    pub(crate) fn overlaps(&self, other: &Tensor) -> bool {
        let range = |tensor: &Tensor| tensor.address()..tensor.address() + tensor.extent_bytes() as u64;
        let (a, b) = (range(self), range(other));
        self.place() == other.place() && !a.is_empty() && !b.is_empty() && a.start < b.end && b.start < a.end
    }

    fn view(&self, layout: Layout, elements_further: usize) -> Tensor {
        Tensor {
            storage: self.storage.clone(),
            offset: self.offset + elements_further * self.dtype.size(),
            dtype: self.dtype,
            layout,
        }
    }

    /// Part of one dimension, as a view.
    ///
    /// # Errors
    /// [`TensorError::OutOfRange`].
    pub fn narrow(&self, dimension: usize, start: usize, length: usize) -> Result<Tensor> {
        let (layout, further) = self.layout.narrow(dimension, start, length)?;
        Ok(self.view(layout, further))
    }

    /// The leading `rows` rows, as a view; the tensor itself where it has no more.
    pub fn leading_rows(&self, rows: usize) -> Tensor {
        if self.layout.rank() == 0 || rows >= self.rows() {
            return self.clone();
        }
        match self.layout.narrow(0, 0, rows) {
            Ok((layout, further)) => self.view(layout, further),
            Err(_) => self.clone(),
        }
    }

    /// Two dimensions exchanged, as a view.
    ///
    /// # Errors
    /// [`TensorError::OutOfRange`].
    pub fn transpose(&self, a: usize, b: usize) -> Result<Tensor> {
        Ok(self.view(self.layout.transpose(a, b)?, 0))
    }

    /// Another shape of the same elements, as a view.
    ///
    /// # Errors
    /// [`TensorError::Shape`] for another number of elements, or a tensor that is not contiguous.
    pub fn reshape(&self, shape: &[usize]) -> Result<Tensor> {
        Ok(self.view(self.layout.reshape(shape)?, 0))
    }
}
