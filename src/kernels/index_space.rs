//! Tensors as an index space of units: the bytes that one thread moves at once.

/// The most dimensions: `BCG_RANK`.
pub(super) const RANK: usize = 8;

/// Where a tensor lies; lengths and strides in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorDesc<'a> {
    address: u64,
    element_size: u32,
    shape: &'a [usize],
    strides: &'a [usize],
}

impl<'a> TensorDesc<'a> {
    /// `None` for more than 8 dimensions, another number of strides, an element size that is not 1, 2, 4, 8 or 16 or that does not divide the
    /// address, and a layout that reaches past the end of the address space.
    pub(crate) fn new(
        address: u64,
        element_size: u32,
        shape: &'a [usize],
        strides: &'a [usize],
    ) -> Option<TensorDesc<'a>> {
        let sizes = element_size.is_power_of_two() && element_size <= 16;
        if shape.len() > RANK || shape.len() != strides.len() || !sizes {
            return None;
        }
        let size = u64::from(element_size);
        let (mut elements, mut end) = (1_u64, address.checked_add(size)?);
        for (&length, &stride) in shape.iter().zip(strides) {
            elements = elements.checked_mul(length as u64)?;
            let reach = (length.max(1) as u64 - 1).checked_mul(stride as u64)?;
            end = end.checked_add(reach.checked_mul(size)?)?;
        }
        // Counted in bytes too, since elements of a broadcast may be more than the memory they lie in.
        elements.checked_mul(size)?;
        address.is_multiple_of(size).then_some(TensorDesc { address, element_size, shape, strides })
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Length of the leading dimension; 1 for a scalar.
    pub(super) fn rows(&self) -> u64 {
        self.shape.first().map_or(1, |&rows| rows as u64)
    }
}

/// `bcg_space`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct RawSpace {
    pub(super) rows: u64,
    pub(super) row_units: u64,
    pub(super) lengths: [u64; RANK - 1],
    pub(super) inner: u32,
    pub(super) unit_bytes: u32,
}

impl RawSpace {
    pub(super) const EMPTY: RawSpace =
        RawSpace { rows: 0, row_units: 0, lengths: [0; RANK - 1], inner: 0, unit_bytes: 1 };
}

/// `bcg_place`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct RawPlace {
    pub(super) address: u64,
    pub(super) strides: [u64; RANK],
}

impl RawPlace {
    pub(super) const EMPTY: RawPlace = RawPlace { address: 0, strides: [0; RANK] };
}

/// One dimension of `N` tensors that are walked together.
#[derive(Clone, Copy)]
struct Dimension<const N: usize> {
    /// In elements, at last in units.
    length: u64,
    /// In bytes.
    strides: [u64; N],
}

impl<const N: usize> Dimension<N> {
    /// The strides of the dimension that steps over exactly this one.
    fn next_strides(&self) -> [u64; N] {
        self.strides.map(|stride| self.length.wrapping_mul(stride))
    }
}

/// `N` tensors of one row shape, walked together: rows, and within a row the inner dimensions.
struct Space<const N: usize> {
    rows: u64,
    outer_strides: [u64; N],
    inner: [Dimension<N>; RANK - 1],
    rank: usize,
    unit: u64,
}

/// The index space of tensors that have the row shape of the first, with the first's rows, and their places in it.
///
/// The widest unit is taken that divides a row, the addresses and all strides. Neighbouring dimensions that are one in every tensor are
/// merged, so that tensors without gaps have no inner dimension, whatever their rank.
pub(super) fn index_space<const N: usize>(tensors: [&TensorDesc<'_>; N]) -> (RawSpace, [RawPlace; N]) {
    let mut space = Space::new(tensors);
    let row_elements: u64 = space.dimensions().iter().map(|dimension| dimension.length).product();
    if space.rows == 0 || row_elements == 0 {
        return (RawSpace::EMPTY, [RawPlace::EMPTY; N]);
    }
    space.merge_inner();
    // The stride between rows is never used where there is but one: any will do, and this one merges.
    if let Some(outermost) = space.dimensions().first() {
        let merging = outermost.next_strides();
        for (at, tensor) in tensors.iter().enumerate() {
            if tensor.rows() <= 1 {
                space.outer_strides[at] = merging[at];
            }
        }
    }
    space.widen(tensors.map(TensorDesc::address));
    let row_units = space.dimensions().iter().map(|dimension| dimension.length).product();
    space.merge_rows();
    space.raw(row_units, tensors.map(TensorDesc::address))
}

impl<const N: usize> Space<N> {
    fn new(tensors: [&TensorDesc<'_>; N]) -> Space<N> {
        let size = u64::from(tensors.first().map_or(1, |tensor| tensor.element_size));
        let strides =
            |at: usize| tensors.map(|tensor| tensor.strides.get(at).map_or(size, |&stride| stride as u64 * size));
        let mut inner = [Dimension { length: 1, strides: [0; N] }; RANK - 1];
        let mut rank = 0;
        let shape = tensors.first().map_or(&[][..], |tensor| tensor.shape);
        for (at, &length) in shape.iter().enumerate().skip(1) {
            // A dimension of length 1 has no neighbours.
            if length != 1 {
                inner[rank] = Dimension { length: length as u64, strides: strides(at) };
                rank += 1;
            }
        }
        let rows = tensors.first().map_or(0, |tensor| tensor.rows());
        Space { rows, outer_strides: strides(0), inner, rank, unit: size }
    }

    fn dimensions(&self) -> &[Dimension<N>] {
        &self.inner[..self.rank]
    }

    /// Merges neighbours among the inner dimensions where the outer one steps over exactly the inner one, in every tensor.
    fn merge_inner(&mut self) {
        let mut kept = 0;
        for at in 1..self.rank {
            let (outer, inner) = (self.inner[kept], self.inner[at]);
            if outer.strides == inner.next_strides() {
                self.inner[kept] = Dimension { length: outer.length * inner.length, strides: inner.strides };
            } else {
                kept += 1;
                self.inner[kept] = inner;
            }
        }
        self.rank = self.rank.min(kept + 1);
    }

    /// Takes the widest unit: a row is a whole number of them, and none is crossed by a row's or a dimension's beginning.
    fn widen(&mut self, addresses: [u64; N]) {
        let Some((innermost, others)) = self.inner[..self.rank].split_last_mut() else { return };
        if innermost.strides != [self.unit; N] {
            return;
        }
        let bytes = innermost.length * self.unit;
        let strides = others.iter().flat_map(|dimension| dimension.strides).chain(self.outer_strides);
        let bits = strides.chain(addresses).fold(bytes, |bits, value| bits | value);
        // The largest power of two that divides them all.
        let unit = 1 << bits.trailing_zeros().min(4);
        if unit > self.unit {
            *innermost = Dimension { length: bytes / unit, strides: [unit; N] };
            self.unit = unit;
        }
    }

    /// Merges the rows with the dimensions inside them where these lie without gaps. A row stays `row_units` long.
    fn merge_rows(&mut self) {
        while let Some(outermost) = self.dimensions().first().copied() {
            if self.outer_strides != outermost.next_strides() {
                return;
            }
            self.outer_strides = outermost.strides;
            self.inner.copy_within(1.., 0);
            self.rank -= 1;
        }
    }

    fn raw(&self, row_units: u64, addresses: [u64; N]) -> (RawSpace, [RawPlace; N]) {
        let mut space = RawSpace {
            rows: self.rows,
            row_units,
            inner: self.rank as u32,
            unit_bytes: self.unit as u32,
            ..RawSpace::EMPTY
        };
        let mut places = addresses.map(|address| RawPlace { address, ..RawPlace::EMPTY });
        for (place, stride) in places.iter_mut().zip(self.outer_strides) {
            place.strides[0] = stride;
        }
        for (at, dimension) in self.dimensions().iter().enumerate() {
            space.lengths[at] = dimension.length;
            for (place, stride) in places.iter_mut().zip(dimension.strides) {
                place.strides[at + 1] = stride;
            }
        }
        (space, places)
    }
}
