//! The padding scrub: the padded tails of several tensors become zero in one launch.

use super::index_space::{RawPlace, RawSpace, TensorDesc, index_space};
use super::{LaunchConfig, PARAMETER_SPACE, RawValidRows, ValidRows};

/// The most tensors that one launch takes: `BCG_SCRUB_TENSORS`.
pub(crate) const SCRUB_TENSORS: usize = 16;

/// `bcg_scrub_tensor`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct ScrubTensor {
    space: RawSpace,
    place: RawPlace,
}

/// `bcg_scrub_parameters`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ScrubParameters {
    valid: RawValidRows,
    tensors: [ScrubTensor; SCRUB_TENSORS],
}

const _: () = assert!(size_of::<ScrubTensor>() == 152);
const _: () = assert!(size_of::<ScrubParameters>() == 16 + 152 * SCRUB_TENSORS);
const _: () = assert!(size_of::<ScrubParameters>() <= PARAMETER_SPACE);

/// A scrub ready to be launched.
pub(crate) struct ScrubLaunch<'a> {
    pub(crate) parameters: &'a ScrubParameters,
    pub(crate) config: LaunchConfig,
}

/// Tensors whose padded tails one launch scrubs.
pub(crate) struct ScrubBatch {
    valid: ValidRows,
    count: usize,
    /// Of the largest tail.
    units: u64,
    parameters: ScrubParameters,
}

impl ScrubBatch {
    /// For tails that begin at these rows.
    pub(crate) fn new(valid: impl Into<ValidRows>) -> ScrubBatch {
        let valid = valid.into();
        let none = ScrubTensor { space: RawSpace::EMPTY, place: RawPlace::EMPTY };
        let parameters = ScrubParameters { valid: valid.raw(), tensors: [none; SCRUB_TENSORS] };
        ScrubBatch { valid, count: 0, units: 0, parameters }
    }

    /// Adds a tensor, unless it has no tail. False, and nothing was added, when the batch is full.
    pub(crate) fn add(&mut self, tensor: &TensorDesc<'_>) -> bool {
        let (space, [place]) = index_space([tensor]);
        let units = space.rows.saturating_sub(self.valid.fewest()) * space.row_units;
        if units == 0 {
            return true;
        }
        let Some(free) = self.parameters.tensors.get_mut(self.count) else { return false };
        *free = ScrubTensor { space, place };
        self.units = self.units.max(units);
        self.count += 1;
        true
    }

    /// The launch, if there is anything to scrub.
    pub(crate) fn launch(&self) -> Option<ScrubLaunch<'_>> {
        let config = LaunchConfig::looping(self.units, self.count as u32);
        (self.count > 0).then_some(ScrubLaunch { parameters: &self.parameters, config })
    }
}
