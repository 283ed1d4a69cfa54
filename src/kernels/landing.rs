//! The landing: a break's result is copied into its handoff, whose padded tail becomes zero in the same launch.

use super::index_space::{RawPlace, RawSpace, TensorDesc, index_space};
use super::{LaunchConfig, PARAMETER_SPACE, RawValidRows, ValidRows};

/// `bcg_land_parameters`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct LandParameters {
    valid: RawValidRows,
    pub(super) space: RawSpace,
    to: RawPlace,
    from: RawPlace,
    from_rows: u64,
}

const _: () = assert!(size_of::<LandParameters>() == 248);
const _: () = assert!(size_of::<LandParameters>() <= PARAMETER_SPACE);

/// A landing ready to be launched.
pub(crate) struct LandLaunch {
    pub(crate) parameters: LandParameters,
    pub(crate) config: LaunchConfig,
}

/// The landing of `from` in `to`, which has the same row shape and element size and no fewer rows; what `from` has beyond that is left out.
///
/// The valid rows that `from` has are copied, those that it lacks stay as they are, and all rows after the valid ones become zero. `None` when
/// there is nothing to do.
pub(crate) fn landing(from: &TensorDesc<'_>, to: &TensorDesc<'_>, valid: impl Into<ValidRows>) -> Option<LandLaunch> {
    let valid = valid.into();
    let (space, [to, place]) = index_space([to, from]);
    let from_rows = from.rows().min(space.rows);
    let rows = match valid {
        ValidRows::Count(_) => {
            let valid = valid.fewest().min(space.rows);
            valid.min(from_rows) + (space.rows - valid)
        }
        ValidRows::At(_) => space.rows,
    };
    let units = rows * space.row_units;
    let parameters = LandParameters { valid: valid.raw(), space, to, from: place, from_rows };
    (units > 0).then(|| LandLaunch { parameters, config: LaunchConfig::looping(units, 1) })
}
