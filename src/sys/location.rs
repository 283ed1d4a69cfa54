//! Naming a device as a memory location.

use super::bindings::{CUmemLocation, CUmemLocationType};
use core::ffi::c_int;

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

#[cfg(all(test, feature = "reference-driver"))]
mod tests {
    use super::{CUmemLocationType, device_location, location_parts};

    #[test]
    fn a_location_names_its_device() {
        for device in [0, 1, 7] {
            let parts = location_parts(device_location(device));
            assert_eq!(parts, (CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, device));
        }
    }
}
