//! The limit of a memory pool.

use super::bindings::CUmemPoolProps;
use core::mem::offset_of;

/// The driver that knows the limit first; older ones want zeros in its place.
const SINCE: i32 = 12_020;

/// Where the limit is. Headers before CUDA 12.2 have reserved bytes there, so it is written by offset.
const OFFSET: usize = offset_of!(CUmemPoolProps, win32SecurityAttributes) + size_of::<usize>();

const _: () =
    assert!(OFFSET == 24 && size_of::<CUmemPoolProps>() == 88 && align_of::<CUmemPoolProps>() == align_of::<usize>());

/// Sets the most bytes that a pool may hold, if a driver of this CUDA version knows such a limit.
pub(crate) fn set_max_size(props: &mut CUmemPoolProps, version: i32, bytes: usize) {
    if version >= SINCE {
        // SAFETY: the offset lies within the structure and is aligned for a `usize`, as asserted above.
        unsafe { (&raw mut *props).byte_add(OFFSET).cast::<usize>().write(bytes) }
    }
}

/// The most bytes that a pool may hold; 0 where none was set.
#[cfg(feature = "reference-driver")]
pub(crate) fn max_size(props: &CUmemPoolProps) -> usize {
    // SAFETY: as above; plain bytes that were initialised with the structure.
    unsafe { (&raw const *props).byte_add(OFFSET).cast::<usize>().read() }
}

#[cfg(all(test, feature = "reference-driver"))]
mod tests {
    use super::{CUmemPoolProps, max_size, set_max_size};

    #[test]
    fn the_limit_is_set_where_the_driver_knows_it() {
        // SAFETY: a plain structure of integers and pointers.
        let zero: CUmemPoolProps = unsafe { core::mem::zeroed() };
        for (version, expected) in [(12_000, 0), (12_010, 0), (12_020, 1 << 33), (13_000, 1 << 33)] {
            let mut props = zero;
            set_max_size(&mut props, version, 1 << 33);
            assert_eq!(max_size(&props), expected, "{version}");
        }
    }
}
