//! Shape and strides.

use crate::error::{Error, Result, TensorError};
use std::fmt;

/// The most dimensions of a tensor.
pub const MAX_RANK: usize = 8;

/// The most elements, the furthest reach and the longest stride of a layout. Whatever the element type and the view, bytes then fit in 63 bits, so that sums
/// and products of a layout's numbers don't overflow.
const MOST: usize = isize::MAX as usize / 16;

/// Shape and strides of a tensor, both in elements. Plain data of fixed size: making a view allocates nothing.
#[derive(Clone, Copy)]
pub struct Layout {
    rank: usize,
    shape: [usize; MAX_RANK],
    strides: [usize; MAX_RANK],
}

/// So many elements along one more dimension.
fn checked_elements(elements: usize, length: usize) -> Result<usize> {
    let more = elements.checked_mul(length.max(1)).filter(|&elements| elements <= MOST);
    more.ok_or(Error::Tensor(TensorError::Layout {
        reason: "the shape has more elements than fit in memory: give a smaller one",
    }))
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
            return Err(TensorError::Layout { reason: "a tensor has at most 8 dimensions: make one of several" }.into());
        }
        let mut stride = 1_usize;
        for (at, &length) in shape.iter().enumerate().rev() {
            strides[at] = stride;
            stride = checked_elements(stride, length)?;
        }
        Layout::strided(shape, &strides[..shape.len()])
    }

    /// With these strides. Elements may overlap (a stride of 0 repeats), as in a broadcast: such a tensor can be read, and not be written
    /// ([`has_distinct_elements`](Layout::has_distinct_elements)).
    ///
    /// # Errors
    /// [`TensorError::Layout`] for more than [`MAX_RANK`] dimensions, for strides of another number than dimensions, for more elements than fit in memory
    /// even where they overlap, or for a stride or an extent that does not.
    pub fn strided(shape: &[usize], strides: &[usize]) -> Result<Layout> {
        if shape.len() > MAX_RANK {
            return Err(TensorError::Layout { reason: "a tensor has at most 8 dimensions: make one of several" }.into());
        }
        if shape.len() != strides.len() {
            return Err(TensorError::Layout {
                reason: "there must be as many strides as dimensions: give one for each",
            }
            .into());
        }
        let mut layout = Layout { rank: shape.len(), shape: [0; MAX_RANK], strides: [0; MAX_RANK] };
        layout.shape[..shape.len()].copy_from_slice(shape);
        layout.strides[..shape.len()].copy_from_slice(strides);
        // Without elements too, so that no view of part of it can overflow.
        let (mut extent, mut elements) = (1_usize, 1_usize);
        for (&length, &stride) in shape.iter().zip(strides) {
            elements = checked_elements(elements, length)?;
            extent = (length.max(1) - 1)
                .checked_mul(stride)
                .and_then(|reach| extent.checked_add(reach))
                .filter(|&extent| extent.max(stride) <= MOST)
                .ok_or(Error::Tensor(TensorError::Layout {
                    reason: "the layout reaches further than memory: give smaller sizes or strides",
                }))?;
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

    /// Whether no two elements share memory, so that each can be written: true where each dimension steps over all that the dimensions of smaller strides
    /// reach, as in every view of a row-major tensor. False for broadcasts, for sliding windows, and for dimensions that interleave.
    pub fn has_distinct_elements(&self) -> bool {
        if self.is_contiguous() {
            return true;
        }
        let mut order = [0; MAX_RANK];
        order.iter_mut().enumerate().for_each(|(at, dimension)| *dimension = at);
        let order = &mut order[..self.rank];
        order.sort_unstable_by_key(|&dimension| self.strides[dimension]);
        let mut reach = 0;
        order.iter().filter(|&&dimension| self.shape[dimension] > 1).all(|&dimension| {
            let (length, stride) = (self.shape[dimension], self.strides[dimension]);
            let steps_over = stride > reach;
            reach += (length - 1) * stride;
            steps_over
        })
    }

    /// The layout of part of one dimension, and how many elements further it starts: none where the part is empty.
    ///
    /// # Errors
    /// [`TensorError::OutOfRange`] for a range or a dimension that is not there.
    pub fn narrow(&self, dimension: usize, start: usize, length: usize) -> Result<(Layout, usize)> {
        let Some(&whole) = self.shape().get(dimension) else {
            return Err(TensorError::OutOfRange {
                what: "tensor's list of dimensions",
                end: dimension.saturating_add(1),
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
        Ok((layout, if length == 0 { 0 } else { start * self.strides[dimension] }))
    }

    /// The layout with two dimensions exchanged.
    ///
    /// # Errors
    /// [`TensorError::OutOfRange`] for a dimension that is not there.
    pub fn transpose(&self, a: usize, b: usize) -> Result<Layout> {
        if a.max(b) >= self.rank {
            let end = a.max(b).saturating_add(1);
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FAR: [usize; 7] = [0, 1, 2, 1 << 20, MOST, usize::MAX / 2, usize::MAX];

    /// The layout's own numbers, in numbers that can't overflow.
    fn expect_sound(layout: &Layout) {
        let product = layout.shape().iter().map(|&length| length as u128).product::<u128>();
        assert_eq!(layout.elements() as u128, product);
        let reach = layout.shape().iter().zip(layout.strides());
        let last = reach.map(|(&length, &stride)| (length as u128).saturating_sub(1) * stride as u128).sum::<u128>();
        assert_eq!(layout.extent() as u128, if product == 0 { 0 } else { last + 1 });
        assert!(layout.extent() <= MOST && layout.elements() <= MOST);
    }

    /// Offsets of all elements.
    fn offsets(layout: &Layout) -> Vec<usize> {
        let mut offsets = Vec::new();
        layout.for_each_offset(|offset| offsets.push(offset));
        offsets
    }

    #[test]
    fn counts_and_reaches_that_would_wrap_are_refused() {
        // 2^44 * 2^20 elements are 2^64, and lie in one byte.
        for (shape, strides) in [
            (&[1 << 44, 1 << 20][..], &[0, 1][..]),
            (&[1 << 32, 1 << 32, 0], &[0, 0, 0]),
            (&[usize::MAX], &[0]),
            (&[2, usize::MAX], &[usize::MAX, 0]),
            (&[1, 4], &[usize::MAX / 2, 1]),
            (&[0, 4], &[usize::MAX, 1]),
            (&[2], &[usize::MAX]),
        ] {
            let layout = Layout::strided(shape, strides);
            assert!(matches!(layout, Err(Error::Tensor(TensorError::Layout { .. }))), "{layout:?}");
        }
        for shape in [&[usize::MAX][..], &[1 << 32, 1 << 32], &[0, usize::MAX], &[MOST + 1], &[1; 9]] {
            let layout = Layout::contiguous(shape);
            assert!(matches!(layout, Err(Error::Tensor(TensorError::Layout { .. }))), "{layout:?}");
        }
        assert!(Layout::contiguous(&[MOST]).is_ok());
    }

    #[test]
    fn ranges_and_dimensions_that_are_not_there_are_refused() {
        let layout = Layout::contiguous(&[4, 6]).expect("a layout");
        for (dimension, start, length) in
            [(2, 0, 1), (usize::MAX, 0, 1), (0, 4, 1), (0, 0, 5), (0, usize::MAX, 1), (0, 1, usize::MAX), (1, 7, 0)]
        {
            let part = layout.narrow(dimension, start, length);
            assert!(matches!(part, Err(Error::Tensor(TensorError::OutOfRange { .. }))), "{part:?}");
        }
        for (a, b) in [(2, 0), (0, usize::MAX), (usize::MAX, usize::MAX)] {
            let exchanged = layout.transpose(a, b);
            assert!(matches!(exchanged, Err(Error::Tensor(TensorError::OutOfRange { .. }))), "{exchanged:?}");
        }
        assert_eq!(layout.narrow(0, 4, 0).expect("no rows").1, 0);
    }

    #[test]
    fn broadcasts_windows_and_interleaved_dimensions_share_memory() {
        let distinct = |shape: &[usize], strides: &[usize]| {
            Layout::strided(shape, strides).expect("a layout").has_distinct_elements()
        };
        assert!(!distinct(&[3], &[0]) && !distinct(&[2, 3], &[1, 1]) && !distinct(&[3, 4], &[0, 1]));
        assert!(!distinct(&[4, 2], &[2, 2]) && !distinct(&[2, 2, 2], &[1, 2, 3]));
        assert!(
            distinct(&[1, 4], &[0, 1])
                && distinct(&[3, 0], &[0, 0])
                && distinct(&[2, 3], &[1, 2])
                && distinct(&[], &[])
        );
    }

    proptest! {
        /// Whatever numbers come, a layout is refused or its numbers are right, and so are those of its views.
        #[test]
        fn any_numbers_make_a_sound_layout_or_none(
            dimensions in proptest::collection::vec((0..7_usize, 0..7_usize, 0..5_usize), 0..10),
            (at, start, length) in (0..11_usize, 0..7_usize, 0..7_usize),
        ) {
            let shape: Vec<usize> = dimensions.iter().map(|one| FAR[one.0].min(if one.2 > 0 { 5 } else { usize::MAX })).collect();
            let strides: Vec<usize> = dimensions.iter().map(|one| FAR[one.1]).collect();
            for layout in [Layout::strided(&shape, &strides), Layout::contiguous(&shape)].into_iter().flatten() {
                expect_sound(&layout);
                let _ = (layout.is_contiguous(), layout.has_distinct_elements());
                if let Ok((part, further)) = layout.narrow(at, FAR[start], FAR[length]) {
                    expect_sound(&part);
                    prop_assert!(part.elements() == 0 || further + part.extent() <= layout.extent());
                }
                if let Ok(exchanged) = layout.transpose(at, start) {
                    expect_sound(&exchanged);
                    prop_assert_eq!(exchanged.extent(), layout.extent());
                }
                let _ = layout.reshape(&shape).inspect(expect_sound);
                let _ = layout.reshape(&[FAR[length]]).inspect(expect_sound);
            }
        }

        /// Views address elements of what they are views of, and where elements are said to be distinct, no offset comes twice.
        #[test]
        fn views_stay_inside_and_distinct_elements_are(
            shape in proptest::collection::vec(0..5_usize, 0..5),
            moves in proptest::collection::vec((0..3_usize, 0..6_usize, 0..6_usize, 0..6_usize), 0..6),
            strides in proptest::collection::vec(0..9_usize, 5),
        ) {
            let whole = Layout::contiguous(&shape).expect("small");
            let inside: std::collections::HashSet<usize> = offsets(&whole).into_iter().collect();
            let (mut view, mut first) = (whole, 0);
            for (what, a, b, c) in moves {
                match what {
                    0 => {
                        if let Ok((part, further)) = view.narrow(a, b, c) {
                            (view, first) = (part, first + further);
                        }
                    }
                    1 => view = view.transpose(a, b).unwrap_or(view),
                    _ => view = view.reshape(&[view.elements()]).unwrap_or(view),
                }
                let seen = offsets(&view);
                prop_assert_eq!(seen.len(), view.elements());
                prop_assert!(seen.iter().all(|offset| inside.contains(&(first + offset))));
                prop_assert!(view.has_distinct_elements(), "{:?} of {:?}", view, whole);
            }
            let any = Layout::strided(&shape, &strides[..shape.len()]).expect("small");
            let seen = offsets(&any);
            let distinct: std::collections::HashSet<usize> = seen.iter().copied().collect();
            prop_assert!(!any.has_distinct_elements() || distinct.len() == seen.len(), "{:?}", any);
            prop_assert!(seen.iter().all(|&offset| offset < any.extent()));
        }
    }
}
