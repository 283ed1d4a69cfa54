//! The structures of the DLPack ABI. `csrc/weak_ref.c` has the same.

use crate::tensor::DType;
use core::ffi::c_void;

/// A device, as DLPack names it (`DLDevice`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct DlDevice {
    /// [`CPU`](DlDevice::CPU) or [`CUDA`](DlDevice::CUDA), among others.
    pub kind: i32,
    /// The device's ordinal.
    pub id: i32,
}

impl DlDevice {
    /// Host memory.
    pub const CPU: i32 = 1;
    /// Memory of a CUDA device.
    pub const CUDA: i32 = 2;
}

/// An element type, as DLPack names it (`DLDataType`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct DlDataType {
    /// The kind of number.
    pub code: u8,
    /// Bits of one number.
    pub bits: u8,
    /// Numbers in an element: 1, but for vector types.
    pub lanes: u16,
}

impl From<DType> for DlDataType {
    fn from(dtype: DType) -> DlDataType {
        let code = match dtype {
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => 0,
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => 1,
            DType::F16 | DType::F32 | DType::F64 => 2,
            DType::BF16 => 4,
            DType::Bool => 6,
            // The form without infinities (e4m3fn), which is what engines mean by it.
            DType::F8E4M3 => 10,
            DType::F8E5M2 => 12,
        };
        DlDataType { code, bits: 8 * dtype.size() as u8, lanes: 1 }
    }
}

/// A tensor, as DLPack describes it (`DLTensor`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DlTensor {
    /// The memory's address; null for a tensor without elements.
    pub data: *mut c_void,
    /// Where the memory is.
    pub device: DlDevice,
    /// Number of dimensions.
    pub rank: i32,
    /// The element type.
    pub data_type: DlDataType,
    /// Length of each dimension.
    pub shape: *mut i64,
    /// Distance between neighbours in each dimension, in elements. Never null here, unless there is no dimension.
    pub strides: *mut i64,
    /// Of the first element, from `data`.
    pub byte_offset: u64,
}

/// The form without a version (`DLManagedTensor`).
#[derive(Debug)]
#[repr(C)]
pub struct ManagedTensor {
    /// The tensor.
    pub tensor: DlTensor,
    /// The producer's own: null here.
    pub owner: *mut c_void,
    /// To be called once, by whoever is last to use it.
    pub deleter: Option<unsafe extern "C" fn(*mut ManagedTensor)>,
}

/// The form that tells its version (`DLManagedTensorVersioned`).
#[derive(Debug)]
#[repr(C)]
pub struct ManagedTensorVersioned {
    /// The ABI's major version: 1.
    pub major: u32,
    /// Its minor version: that of the newest element type which a tensor can have.
    pub minor: u32,
    /// The producer's own: null here.
    pub owner: *mut c_void,
    /// To be called once, by whoever is last to use it.
    pub deleter: Option<unsafe extern "C" fn(*mut ManagedTensorVersioned)>,
    /// Bit 0: read-only; bit 1: a copy. Neither here.
    pub flags: u64,
    /// The tensor.
    pub tensor: DlTensor,
}

// On a 64-bit machine, as in tests/dlpack/descriptions.c.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(
    size_of::<DlTensor>() == 48 && size_of::<ManagedTensor>() == 64 && size_of::<ManagedTensorVersioned>() == 80
);
