//! The comparison: whether two tensors differ in any bit.

use super::index_space::{RawPlace, RawSpace, TensorDesc, index_space};
use super::{LaunchConfig, PARAMETER_SPACE};

/// `bcg_compare_parameters`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct CompareParameters {
    flag: u64,
    space: RawSpace,
    left: RawPlace,
    right: RawPlace,
}

const _: () = assert!(size_of::<CompareParameters>() == 232);
const _: () = assert!(size_of::<CompareParameters>() <= PARAMETER_SPACE);

/// A comparison ready to be launched.
pub(crate) struct CompareLaunch {
    pub(crate) parameters: CompareParameters,
    pub(crate) config: LaunchConfig,
}

/// The comparison of two tensors of one shape and element size, which makes the 32-bit integer at the device address `flag` 1 where they differ. `None` where
/// there are no elements.
pub(crate) fn comparison(left: &TensorDesc<'_>, right: &TensorDesc<'_>, flag: u64) -> Option<CompareLaunch> {
    let (space, [left, right]) = index_space([left, right]);
    let units = space.rows * space.row_units;
    let parameters = CompareParameters { flag, space, left, right };
    (units > 0).then(|| CompareLaunch { parameters, config: LaunchConfig::looping(units, 1) })
}
