//! The library's own kernels as data: their PTX, their parameters, and the geometry of a launch. `csrc/kernels.cu` is the other side.
//!
//! - `index_space`: tensors as an index space of units, with dimensions merged and the widest unit that fits.
//! - `scrub`: the parameters of the padding scrub. `landing`: those of the landing. `comparison`: those of the comparison.
//!
//! Pure functions of plain data. Nothing here allocates or knows a driver: a replay builds a landing for every break.

mod comparison;
#[cfg(feature = "reference-driver")]
pub(crate) mod host;
mod index_space;
mod landing;
mod launch_config;
mod scrub;
#[cfg(all(test, feature = "reference-driver"))]
mod tests;

pub(crate) use comparison::{CompareLaunch, comparison};
pub(crate) use index_space::TensorDesc;
pub(crate) use landing::{LandLaunch, landing};
pub use launch_config::{LaunchAttributes, LaunchConfig};
pub(crate) use scrub::{SCRUB_TENSORS, ScrubBatch, ScrubLaunch};

use std::ffi::CStr;

/// PTX for every driver from CUDA 12.0 on, made from `csrc/kernels.cu` by `scripts/ptx.py`.
pub(crate) const PTX: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("../../csrc/kernels.ptx"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the PTX holds a NUL"),
    };

/// The scrub's name in the module. It takes one [`ScrubParameters`](scrub::ScrubParameters); the grid's y is the tensor.
pub(crate) const SCRUB: &CStr = c"bcg_scrub";

/// The landing's name in the module. It takes one [`LandParameters`](landing::LandParameters).
pub(crate) const LAND: &CStr = c"bcg_land";

/// The comparison's name in the module. It takes one [`CompareParameters`](comparison::CompareParameters).
pub(crate) const COMPARE: &CStr = c"bcg_compare";

#[cfg(feature = "reference-driver")]
host::host_kernels! {
    /// The same kernels compiled for the host.
    pub(crate) HOST:
    bcg_scrub,
    bcg_land,
    bcg_compare,
}

/// How many leading rows are valid. The rows after them are the padded tail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ValidRows {
    /// This many, frozen in a recorded launch.
    Count(usize),
    /// As many as the 32-bit signed integer at this device address says when the kernel runs; below zero is none. A recorded launch reads it
    /// anew on every replay.
    #[cfg_attr(
        not(all(test, feature = "reference-driver")),
        expect(dead_code, reason = "for scrubs inside segments, which no caller records yet")
    )]
    At(u64),
}

impl From<usize> for ValidRows {
    fn from(rows: usize) -> ValidRows {
        ValidRows::Count(rows)
    }
}

/// [`ValidRows`] as kernels take it: `bcg_valid_rows`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct RawValidRows {
    count: u64,
    /// 0 where the count counts.
    at: u64,
}

impl ValidRows {
    fn raw(self) -> RawValidRows {
        match self {
            ValidRows::Count(rows) => RawValidRows { count: rows as u64, at: 0 },
            ValidRows::At(at) => RawValidRows { count: 0, at },
        }
    }

    /// The fewest rows that there may turn out to be: what the grid is made for.
    fn fewest(self) -> u64 {
        self.raw().count
    }
}

/// The most bytes of parameters that a kernel may have.
const PARAMETER_SPACE: usize = 4096;
