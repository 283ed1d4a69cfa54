//! Shape and strides.

use crate::error::{Error, Result, TensorError};
use std::fmt;

/// The most dimensions of a tensor.
pub const MAX_RANK: usize = 8;

/// Shape and strides of a tensor, both in elements. Plain data of fixed size: making a view allocates nothing.
#[derive(Clone, Copy)]
pub struct Layout {
    rank: usize,
    shape: [usize; MAX_RANK],
    strides: [usize; MAX_RANK],
}

impl PartialEq for Layout {
    fn eq(&self, other: &Layout) -> bool {
        self.shape() == other.shape() && self.strides() == other.strides()
    }
}

impl Eq for Layout {}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layout").field("shape", &self.shape()).field("strides", &self.strides()).finish()
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.shape())?;
        if self.is_contiguous() { Ok(()) } else { write!(f, " with strides {:?}", self.strides()) }
    }
}

impl Layout {
    /// Row-major without gaps.
    ///
    /// # Errors
    /// [`TensorError::Layout`] for more than [`MAX_RANK`] dimensions, or more elements than fit in memory.
    pub fn contiguous(shape: &[usize]) -> Result<Layout> {
        let mut strides = [0; MAX_RANK];
        if shape.len() > MAX_RANK {
            return Err(TensorError::Layout { reason: "a tensor has at most 8 dimensions" }.into());
        }
        let mut stride = 1_usize;
        for (at, &length) in shape.iter().enumerate().rev() {
            strides[at] = stride;
            stride = stride.checked_mul(length.max(1)).filter(|&elements| elements <= isize::MAX as usize / 16).ok_or(
                Error::Tensor(TensorError::Layout { reason: "the shape has more elements than fit in memory" }),
            )?;
        }
        Layout::strided(shape, &strides[..shape.len()])
    }

    /// With these strides. Elements may overlap (a stride of 0 repeats), as in a broadcast.
    ///
    /// # Errors
    /// [`TensorError::Layout`] for more than [`MAX_RANK`] dimensions, for strides of another number than dimensions, or for an extent that does not
    /// fit in memory.
    pub fn strided(shape: &[usize], strides: &[usize]) -> Result<Layout> {
        if shape.len() > MAX_RANK {
            return Err(TensorError::Layout { reason: "a tensor has at most 8 dimensions" }.into());
        }
        if shape.len() != strides.len() {
            return Err(TensorError::Layout { reason: "there must be as many strides as dimensions" }.into());
        }
        let mut layout = Layout { rank: shape.len(), shape: [0; MAX_RANK], strides: [0; MAX_RANK] };
        layout.shape[..shape.len()].copy_from_slice(shape);
        layout.strides[..shape.len()].copy_from_slice(strides);
        let mut extent = 1_usize;
        for (&length, &stride) in shape.iter().zip(strides) {
            extent = (length.max(1) - 1)
                .checked_mul(stride)
                .and_then(|reach| extent.checked_add(reach))
                .filter(|&elements| elements <= isize::MAX as usize / 16)
                .ok_or(Error::Tensor(TensorError::Layout { reason: "the layout reaches further than memory" }))?;
        }
        Ok(layout)
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Length of each dimension.
    pub fn shape(&self) -> &[usize] {
        &self.shape[..self.rank]
    }

    /// Distance between neighbours in each dimension, in elements.
    pub fn strides(&self) -> &[usize] {
        &self.strides[..self.rank]
    }

    /// Length of the leading dimension; 1 for a scalar.
    pub fn rows(&self) -> usize {
        self.shape().first().copied().unwrap_or(1)
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape().iter().product()
    }

    /// From the first element to one past the last, in elements; 0 without elements.
    pub fn extent(&self) -> usize {
        if self.elements() == 0 {
            return 0;
        }
        1 + self.shape().iter().zip(self.strides()).map(|(&length, &stride)| (length - 1) * stride).sum::<usize>()
    }

    /// Whether the elements lie in row-major order without gaps. Dimensions of length 1 don't count.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (&length, &stride) in self.shape().iter().zip(self.strides()).rev() {
            if length == 0 {
                return true;
            }
            if length != 1 {
                if stride != expected {
                    return false;
                }
                expected *= length;
            }
        }
        true
    }

    /// The layout of part of one dimension, and how many elements further it starts.
    ///
    /// # Errors
    /// [`TensorError::OutOfRange`] for a range or a dimension that is not there.
    pub fn narrow(&self, dimension: usize, start: usize, length: usize) -> Result<(Layout, usize)> {
        let Some(&whole) = self.shape().get(dimension) else {
            return Err(TensorError::OutOfRange {
                what: "tensor's list of dimensions",
                end: dimension + 1,
                length: self.rank,
            }
            .into());
        };
        let end = start.saturating_add(length);
        if end > whole {
            return Err(TensorError::OutOfRange { what: "tensor's dimension", end, length: whole }.into());
        }
        let mut layout = *self;
        layout.shape[dimension] = length;
        Ok((layout, start * self.strides[dimension]))
    }

    /// The layout with two dimensions exchanged.
    ///
    /// # Errors
    /// [`TensorError::OutOfRange`] for a dimension that is not there.
    pub fn transpose(&self, a: usize, b: usize) -> Result<Layout> {
        if a.max(b) >= self.rank {
            let end = a.max(b) + 1;
            return Err(TensorError::OutOfRange { what: "tensor's list of dimensions", end, length: self.rank }.into());
        }
        let mut layout = *self;
        layout.shape.swap(a, b);
        layout.strides.swap(a, b);
        Ok(layout)
    }

    /// The same elements in another shape.
    ///
    /// # Errors
    /// [`TensorError::Shape`] for another number of elements, or a layout that is not contiguous.
    pub fn reshape(&self, shape: &[usize]) -> Result<Layout> {
        let layout = Layout::contiguous(shape)?;
        if layout.elements() != self.elements() || !self.is_contiguous() {
            let expected = format!("a contiguous tensor of {} elements", layout.elements());
            return Err(TensorError::Shape { what: "reshape", expected, got: Box::new(*self) }.into());
        }
        Ok(layout)
    }

    /// Whether all dimensions but the leading one are the same.
    pub fn same_row_shape(&self, other: &Layout) -> bool {
        self.rank == other.rank && self.shape().get(1..) == other.shape().get(1..)
    }

    /// Calls `visit` with the offset of each element in row-major order.
    pub(crate) fn for_each_offset(&self, mut visit: impl FnMut(usize)) {
        if self.elements() == 0 {
            return;
        }
        let mut index = [0; MAX_RANK];
        loop {
            visit(index[..self.rank].iter().zip(self.strides()).map(|(i, stride)| i * stride).sum());
            let mut dimension = self.rank;
            loop {
                if dimension == 0 {
                    return;
                }
                dimension -= 1;
                index[dimension] += 1;
                if index[dimension] < self.shape[dimension] {
                    break;
                }
                index[dimension] = 0;
            }
        }
    }
}
