//! Fields that not every header has under the same name, read and written by offset: the number of a memory location, which CUDA 13.2 put into a
//! union, and the limit of a memory pool, which CUDA 12.2 put into reserved bytes.

use super::bindings::{CUmemLocation, CUmemLocationType, CUmemPoolProps};
use core::ffi::c_int;
use core::mem::offset_of;

const _: () = assert!(size_of::<CUmemLocation>() == 8 && align_of::<CUmemLocation>() == 4);

/// The memory of a device. From CUDA 13.2 on the header keeps the number in a union, at the same place: it is written by offset.
pub(crate) fn device_location(device: c_int) -> CUmemLocation {
    let parts: [u32; 2] = [CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE.0, device.cast_unsigned()];
    // SAFETY: both are plain 8 bytes: an enum of 32 bits, then the number.
    unsafe { core::mem::transmute::<[u32; 2], CUmemLocation>(parts) }
}

/// The kind and the number of a location.
#[cfg(feature = "reference-driver")]
pub(crate) fn location_parts(location: CUmemLocation) -> (CUmemLocationType, c_int) {
    // SAFETY: plain 8 bytes, as above.
    let [kind, id] = unsafe { core::mem::transmute::<CUmemLocation, [u32; 2]>(location) };
    (CUmemLocationType(kind), id.cast_signed())
}

/// The driver that knows the limit first; older ones want zeros in its place.
const MAX_SIZE_SINCE: i32 = 12_020;

/// Where the limit is. Headers before CUDA 12.2 have reserved bytes there, so it is written by offset.
const MAX_SIZE_OFFSET: usize = offset_of!(CUmemPoolProps, win32SecurityAttributes) + size_of::<usize>();

const _: () = assert!(
    MAX_SIZE_OFFSET == 24 && size_of::<CUmemPoolProps>() == 88 && align_of::<CUmemPoolProps>() == align_of::<usize>()
);

/// Sets the most bytes that a pool may hold, if a driver of this CUDA version knows such a limit.
pub(crate) fn set_max_size(props: &mut CUmemPoolProps, version: i32, bytes: usize) {
    if version >= MAX_SIZE_SINCE {
        // SAFETY: the offset lies within the structure and is aligned for a `usize`, as asserted above.
        unsafe { (&raw mut *props).byte_add(MAX_SIZE_OFFSET).cast::<usize>().write(bytes) }
    }
}

/// The most bytes that a pool may hold; 0 where none was set.
#[cfg(feature = "reference-driver")]
pub(crate) fn max_size(props: &CUmemPoolProps) -> usize {
    // SAFETY: as above; plain bytes that were initialised with the structure.
    unsafe { (&raw const *props).byte_add(MAX_SIZE_OFFSET).cast::<usize>().read() }
}

#[cfg(all(test, feature = "reference-driver"))]
mod tests {
    use super::*;

    #[test]
    fn a_location_names_its_device() {
        for device in [0, 1, 7] {
            let parts = location_parts(device_location(device));
            assert_eq!(parts, (CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, device));
        }
    }

    #[test]
    fn the_limit_is_set_where_the_driver_knows_it() {
        let zero: CUmemPoolProps = super::super::zeroed();
        for (version, expected) in [(12_000, 0), (12_010, 0), (12_020, 1 << 33), (13_000, 1 << 33)] {
            let mut props = zero;
            set_max_size(&mut props, version, 1 << 33);
            assert_eq!(max_size(&props), expected, "{version}");
        }
    }
}
