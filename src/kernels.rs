//! The crate's own kernels as data: their PTX, their parameters, and how a launch of them is laid out. `csrc/kernels.cu` is the other side.
//!
//! Nothing here allocates or knows a driver: replay builds these parameters for every break.

use std::ffi::CStr;

/// PTX for every driver from CUDA 12.0 on, made from `csrc/kernels.cu` by `scripts/ptx.py`.
pub(crate) const PTX: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("../csrc/kernels.ptx"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the PTX holds a NUL"),
    };

/// The scrub's name in the module. It takes one [`ScrubParameters`]; the grid's y is the tensor.
pub(crate) const SCRUB: &CStr = c"bcg_scrub";

/// The landing's name in the module. It takes one [`LandParameters`].
pub(crate) const LAND: &CStr = c"bcg_land";

#[cfg(feature = "reference-driver")]
crate::reference::host_kernels! {
    /// The same kernels compiled for the host, for the reference driver.
    pub(crate) HOST:
    "bcg_scrub" => bcg_host_bcg_scrub,
    "bcg_land" => bcg_host_bcg_land,
}

/// The most tensors that one scrub launch takes.
pub(crate) const SCRUB_TENSORS: usize = 24;

const RANK: usize = crate::tensor::MAX_RANK;
const THREADS: u32 = 256;
/// Threads loop over what is left, so that a launch never has more blocks than this in x.
const MAX_BLOCKS: u64 = 4096;

/// Where a tensor lies: lengths and strides in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorDesc<'a> {
    pub(crate) address: u64,
    pub(crate) element_size: u32,
    pub(crate) shape: &'a [usize],
    pub(crate) strides: &'a [usize],
}

/// Blocks in the grid and threads in a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Geometry {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ScrubTensor {
    address: u64,
    units: u64,
    lengths: [u64; RANK],
    strides: [u64; RANK],
    unit: u32,
    rank: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ScrubParameters {
    tensors: [ScrubTensor; SCRUB_TENSORS],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct LandParameters {
    to: u64,
    from: u64,
    copied: u64,
    zero_from: u64,
    zero_to: u64,
    lengths: [u64; RANK],
    to_strides: [u64; RANK],
    from_strides: [u64; RANK],
    unit: u32,
    rank: u32,
}

// A kernel's parameters are at most 4 KiB.
const _: () = assert!(size_of::<ScrubParameters>() <= 4096 && size_of::<LandParameters>() <= 4096);

/// A scrub ready to be launched.
pub(crate) struct ScrubLaunch<'a> {
    pub(crate) parameters: &'a ScrubParameters,
    pub(crate) geometry: Geometry,
}

/// A landing ready to be launched.
pub(crate) struct LandLaunch {
    pub(crate) parameters: LandParameters,
    pub(crate) geometry: Geometry,
}

/// Tensors whose padded tails one launch scrubs.
pub(crate) struct ScrubBatch {
    rows: usize,
    count: usize,
    most_units: u64,
    parameters: ScrubParameters,
}

impl ScrubBatch {
    /// For tails that begin at row `rows`.
    pub(crate) fn new(rows: usize) -> ScrubBatch {
        let none = ScrubTensor { address: 0, units: 0, lengths: [0; RANK], strides: [0; RANK], unit: 1, rank: 0 };
        ScrubBatch { rows, count: 0, most_units: 0, parameters: ScrubParameters { tensors: [none; SCRUB_TENSORS] } }
    }

    /// Adds a tensor that has more rows. False when the batch is full.
    pub(crate) fn add(&mut self, tensor: &TensorDesc<'_>) -> bool {
        let Some(place) = self.parameters.tensors.get_mut(self.count) else { return false };
        let mut space = Space::new(tensor.element_size, tensor.shape, [tensor.strides]);
        let skipped = self.rows as u64 * space.dimensions[0].strides[0];
        let address = tensor.address + skipped;
        space.dimensions[0].length -= self.rows as u64;
        space.simplify([address]);
        *place = ScrubTensor {
            address,
            units: space.units(),
            lengths: space.lengths(),
            strides: space.strides(0),
            unit: space.unit,
            rank: space.rank as u32,
        };
        self.most_units = self.most_units.max(place.units);
        self.count += 1;
        true
    }

    /// The launch, if there is anything to scrub.
    pub(crate) fn launch(&self) -> Option<ScrubLaunch<'_>> {
        (self.most_units > 0).then(|| ScrubLaunch {
            parameters: &self.parameters,
            geometry: geometry(self.most_units, self.count as u32),
        })
    }
}

/// The landing of `from` in `to`, which has the same trailing shape and no fewer rows: rows below `valid` that `from` has are copied, rows from
/// `valid` to before `until` are zeroed. `None` when there is nothing to do.
pub(crate) fn landing(from: &TensorDesc<'_>, to: &TensorDesc<'_>, valid: usize, until: usize) -> Option<LandLaunch> {
    let mut space = Space::new(to.element_size, to.shape, [to.strides, from.strides]);
    let rows = space.dimensions[0].length;
    space.simplify([to.address, from.address]);
    // Units of a row: the outermost dimension may have been merged with others, never split.
    let per_row = if rows == 0 { 0 } else { space.units() / rows };
    let source_rows = from.shape.first().map_or(1, |&rows| rows as u64);
    let (valid, until) = (valid as u64, (until as u64).min(rows));
    let copied = valid.min(source_rows).min(rows) * per_row;
    let (zero_from, zero_to) = (valid.min(until) * per_row, until * per_row);
    let end = if zero_from < zero_to { zero_to.max(copied) } else { copied };
    (end > 0).then(|| LandLaunch {
        parameters: LandParameters {
            to: to.address,
            from: from.address,
            copied,
            zero_from,
            zero_to: if zero_from < zero_to { zero_to } else { 0 },
            lengths: space.lengths(),
            to_strides: space.strides(0),
            from_strides: space.strides(1),
            unit: space.unit,
            rank: space.rank as u32,
        },
        geometry: geometry(end, 1),
    })
}

fn geometry(units: u64, tensors: u32) -> Geometry {
    let blocks = units.div_ceil(u64::from(THREADS)).clamp(1, MAX_BLOCKS) as u32;
    Geometry { grid: [blocks, tensors, 1], block: [THREADS, 1, 1] }
}

/// A row-major index space over `N` tensors of one shape: lengths in units, strides in bytes, outermost dimension first.
struct Space<const N: usize> {
    dimensions: [Dimension<N>; RANK],
    rank: usize,
    /// Bytes that one thread moves at once.
    unit: u32,
}

#[derive(Clone, Copy)]
struct Dimension<const N: usize> {
    length: u64,
    strides: [u64; N],
}

impl<const N: usize> Space<N> {
    fn new(element_size: u32, shape: &[usize], strides: [&[usize]; N]) -> Space<N> {
        let mut dimensions = [Dimension { length: 1, strides: [u64::from(element_size); N] }; RANK];
        for (at, dimension) in dimensions.iter_mut().enumerate().take(shape.len()) {
            dimension.length = shape[at] as u64;
            dimension.strides = strides.map(|strides| strides[at] as u64 * u64::from(element_size));
        }
        Space { dimensions, rank: shape.len().max(1), unit: element_size }
    }

    /// Merges dimensions that are one in all tensors, and then takes the widest unit that addresses and strides allow.
    fn simplify(&mut self, addresses: [u64; N]) {
        // A dimension of length 1 takes part in nothing, but the outermost stays: it is counted in rows.
        let mut kept = 1;
        for at in 1..self.rank {
            if self.dimensions[at].length != 1 {
                self.dimensions[kept] = self.dimensions[at];
                kept += 1;
            }
        }
        self.rank = kept;
        // Inner ones first: the outer of two neighbours steps over exactly the inner one.
        let mut at = self.rank - 1;
        while at > 0 {
            let (outer, inner) = (self.dimensions[at - 1], self.dimensions[at]);
            let one = (0..N).all(|tensor| outer.strides[tensor] == inner.length * inner.strides[tensor]);
            if one || outer.length == 1 {
                self.dimensions[at - 1] = Dimension { length: outer.length * inner.length, strides: inner.strides };
                self.dimensions.copy_within(at + 1..self.rank, at);
                self.rank -= 1;
            }
            at -= 1;
        }
        self.widen(addresses);
    }

    fn widen(&mut self, addresses: [u64; N]) {
        let element = u64::from(self.unit);
        let inner = self.dimensions[self.rank - 1];
        if inner.strides.iter().any(|&stride| stride != element) {
            return;
        }
        for unit in [16, 8, 4, 2] {
            if unit <= element {
                return;
            }
            let outer = &self.dimensions[..self.rank - 1];
            let divides = (inner.length * element).is_multiple_of(unit)
                && addresses.iter().all(|address| address.is_multiple_of(unit))
                && outer.iter().all(|dimension| dimension.strides.iter().all(|stride| stride.is_multiple_of(unit)));
            if divides {
                let innermost = &mut self.dimensions[self.rank - 1];
                *innermost = Dimension { length: inner.length * element / unit, strides: [unit; N] };
                self.unit = unit as u32;
                return;
            }
        }
    }

    fn units(&self) -> u64 {
        self.dimensions[..self.rank].iter().map(|dimension| dimension.length).product()
    }

    fn lengths(&self) -> [u64; RANK] {
        self.dimensions.map(|dimension| dimension.length)
    }

    fn strides(&self, tensor: usize) -> [u64; RANK] {
        self.dimensions.map(|dimension| dimension.strides[tensor])
    }
}
