//! Tensors as DLPack views that own nothing: other libraries see the memory in place, and the view's deleter frees the description only.
//!
//! [DLPack](https://dmlc.github.io/dlpack/latest/) is the ABI by which array libraries hand tensors to each other. It has two forms, and a
//! [`DlpackView`] is one or the other: [`ManagedTensor`] (for a capsule named `dltensor`) and [`ManagedTensorVersioned`] (for one named
//! `dltensor_versioned`). `csrc/weak_ref.c` makes and frees them.

use super::dtype::DType;
use super::layout::MAX_RANK;
use super::owned::{Place, Tensor};
use crate::error::{Error, Result};
use core::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;

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

unsafe extern "C" {
    #[link_name = concat!(env!("BREAKABLE_CUDA_GRAPH_HOST_SYMBOLS"), "describe")]
    fn describe(source: *const DlTensor) -> *mut ManagedTensor;
    #[link_name = concat!(env!("BREAKABLE_CUDA_GRAPH_HOST_SYMBOLS"), "describe_versioned")]
    fn describe_versioned(source: *const DlTensor) -> *mut ManagedTensorVersioned;
}

mod sealed {
    pub trait Sealed: Sized {
        /// A copy of the description, with its shape and strides; null when there is no memory.
        ///
        /// # Safety
        /// `shape` and `strides` of `source` point to `rank` numbers.
        unsafe fn copy(source: &super::DlTensor) -> *mut Self;
        fn tensor(&self) -> &super::DlTensor;
        /// Calls the deleter.
        ///
        /// # Safety
        /// `this` came from `copy`, and is not used again.
        unsafe fn delete(this: *mut Self);
    }
}

/// One of DLPack's two forms: [`ManagedTensor`] or [`ManagedTensorVersioned`].
pub trait Form: sealed::Sealed {}

macro_rules! form {
    ($form:ty, $describe:ident) => {
        impl Form for $form {}

        impl sealed::Sealed for $form {
            unsafe fn copy(source: &DlTensor) -> *mut $form {
                // SAFETY: the caller vouches for the shape and the strides.
                unsafe { $describe(source) }
            }

            fn tensor(&self) -> &DlTensor {
                &self.tensor
            }

            unsafe fn delete(this: *mut $form) {
                // SAFETY: the caller vouches that it lives.
                if let Some(deleter) = unsafe { (*this).deleter } {
                    // SAFETY: the deleter of this very description, called for the last time.
                    unsafe { deleter(this) };
                }
            }
        }
    };
}

form!(ManagedTensor, describe);
form!(ManagedTensorVersioned, describe_versioned);

/// Memory to be described, whoever owns it. Lengths and strides in elements.
#[derive(Clone, Copy, Debug)]
pub struct Description<'a> {
    /// The memory's address.
    pub address: u64,
    /// Of the first element, from there.
    pub byte_offset: u64,
    /// Where the memory is.
    pub device: DlDevice,
    /// The element type.
    pub data_type: DlDataType,
    /// Length of each dimension.
    pub shape: &'a [i64],
    /// Distance between neighbours in each dimension.
    pub strides: &'a [i64],
}

/// A DLPack description of memory that it does not own. Dropping it, or its deleter, frees the description.
///
/// Nothing keeps the memory: whoever reads through a view must know that the tensor still lives, as with any weak reference.
pub struct DlpackView<F: Form = ManagedTensor> {
    raw: NonNull<F>,
}

// SAFETY: a description is plain data under one owner, and its deleter may be called from any thread.
unsafe impl<F: Form> Send for DlpackView<F> {}
// SAFETY: a shared view only reads the description.
unsafe impl<F: Form> Sync for DlpackView<F> {}

impl<F: Form> fmt::Debug for DlpackView<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DlpackView").field(self.tensor()).finish()
    }
}

impl<F: Form> DlpackView<F> {
    /// A view of a tensor: its address, shape, strides and element type. No byte is copied and no driver call made. For a weak reference,
    /// [`upgrade`](super::WeakTensor::upgrade) it first.
    ///
    /// As in most libraries, the address is that of the first element and the byte offset is 0. A tensor without elements has a null address,
    /// as DLPack wants it.
    pub fn of(tensor: &Tensor) -> DlpackView<F> {
        let numbers = |lengths: &[usize]| {
            let mut numbers = [0_i64; MAX_RANK];
            // A layout reaches no further than memory, so lengths and strides that count fit.
            numbers.iter_mut().zip(lengths).for_each(|(number, &length)| *number = length as i64);
            numbers
        };
        let (shape, strides) = (numbers(tensor.shape()), numbers(tensor.strides()));
        let device = match (tensor.place(), tensor.context()) {
            (Place::Device, Some(context)) => DlDevice { kind: DlDevice::CUDA, id: context.device().ordinal() as i32 },
            _ => DlDevice { kind: DlDevice::CPU, id: 0 },
        };
        DlpackView::new(&Description {
            address: if tensor.elements() == 0 { 0 } else { tensor.address() },
            byte_offset: 0,
            device,
            data_type: tensor.dtype().into(),
            shape: &shape[..tensor.layout().rank()],
            strides: &strides[..tensor.layout().rank()],
        })
    }

    /// A view of memory that is no [`Tensor`].
    ///
    /// # Errors
    /// [`Error::Layout`] when there are not as many strides as dimensions.
    pub fn describe(description: &Description<'_>) -> Result<DlpackView<F>> {
        if description.shape.len() != description.strides.len() || i32::try_from(description.shape.len()).is_err() {
            return Err(Error::Layout { reason: "there must be as many strides as dimensions" });
        }
        Ok(DlpackView::new(description))
    }

    /// `description` has as many strides as dimensions.
    fn new(description: &Description<'_>) -> DlpackView<F> {
        let source = DlTensor {
            data: core::ptr::without_provenance_mut(description.address as usize),
            device: description.device,
            rank: description.shape.len() as i32,
            data_type: description.data_type,
            shape: description.shape.as_ptr().cast_mut(),
            strides: description.strides.as_ptr().cast_mut(),
            byte_offset: description.byte_offset,
        };
        // SAFETY: shape and strides are slices of that length, which are only read.
        let raw = unsafe { F::copy(&source) };
        match NonNull::new(raw) {
            Some(raw) => DlpackView { raw },
            None => std::alloc::handle_alloc_error(std::alloc::Layout::new::<F>()),
        }
    }

    /// The description.
    pub fn tensor(&self) -> &DlTensor {
        // SAFETY: this view owns the description, which lives until the view is gone.
        unsafe { self.raw.as_ref() }.tensor()
    }

    /// The raw form, to be put into a capsule or given to a library. Its new owner calls its deleter, once.
    pub fn into_raw(self) -> NonNull<F> {
        let raw = self.raw;
        core::mem::forget(self);
        raw
    }

    /// Takes a raw form back.
    ///
    /// # Safety
    /// `raw` came from [`into_raw`](DlpackView::into_raw), and nobody else uses it or calls its deleter.
    pub unsafe fn from_raw(raw: NonNull<F>) -> DlpackView<F> {
        DlpackView { raw }
    }
}

impl<F: Form> Drop for DlpackView<F> {
    fn drop(&mut self) {
        // SAFETY: this view owns the description, and this is its end.
        unsafe { F::delete(self.raw.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that a consumer reads.
    #[derive(PartialEq, Debug)]
    struct Seen {
        data: usize,
        device: DlDevice,
        data_type: DlDataType,
        shape: Vec<i64>,
        strides: Vec<i64>,
        byte_offset: u64,
    }

    fn read(tensor: &DlTensor) -> Seen {
        let list = |numbers: *mut i64| {
            // SAFETY: the description has `rank` of each.
            unsafe { core::slice::from_raw_parts(numbers, tensor.rank as usize) }.to_vec()
        };
        Seen {
            data: tensor.data.addr(),
            device: tensor.device,
            data_type: tensor.data_type,
            shape: list(tensor.shape),
            strides: list(tensor.strides),
            byte_offset: tensor.byte_offset,
        }
    }

    /// What both forms tell, which must be the same, after a way through a raw pointer.
    fn both(view: impl Fn() -> (DlpackView, DlpackView<ManagedTensorVersioned>)) -> Seen {
        let (plain, versioned) = view();
        let (plain, versioned) = (plain.into_raw(), versioned.into_raw());
        // SAFETY: just given up, and alive.
        let (p, v) = unsafe { (plain.as_ref(), versioned.as_ref()) };
        assert_eq!((v.major, v.minor, v.flags), (1, 1, 0));
        assert!(p.owner.is_null() && v.owner.is_null());
        let seen = read(&p.tensor);
        assert_eq!(seen, read(&v.tensor));
        let delete = (p.deleter.expect("a deleter"), v.deleter.expect("a deleter"));
        // SAFETY: their own deleters, called once.
        unsafe {
            delete.0(plain.as_ptr());
            delete.1(versioned.as_ptr());
        }
        seen
    }

    fn of(tensor: &Tensor) -> Seen {
        both(|| (DlpackView::of(tensor), DlpackView::of(tensor)))
    }

    #[test]
    fn a_view_has_the_tensors_place_shape_and_strides() {
        let whole = Tensor::host(&[0_i64; 60], &[3, 4, 5]).expect("a tensor");
        let view = whole.narrow(1, 1, 2).and_then(|part| part.transpose(0, 2)).expect("a view");
        let seen = of(&view);
        assert_eq!(seen.data as u64, whole.address() + 40);
        assert_eq!((seen.shape, seen.strides), (vec![5, 2, 3], vec![1, 5, 20]));
        assert_eq!((seen.device, seen.byte_offset), (DlDevice { kind: DlDevice::CPU, id: 0 }, 0));
        assert_eq!(seen.data_type, DlDataType { code: 0, bits: 64, lanes: 1 });
    }

    #[test]
    fn element_types_have_dlpacks_codes() {
        let code = |dtype| {
            let DlDataType { code, bits, lanes } = DlDataType::from(dtype);
            assert_eq!(lanes, 1);
            (code, bits)
        };
        let expected = [
            (DType::I8, (0, 8)),
            (DType::I16, (0, 16)),
            (DType::I32, (0, 32)),
            (DType::I64, (0, 64)),
            (DType::U8, (1, 8)),
            (DType::U16, (1, 16)),
            (DType::U32, (1, 32)),
            (DType::U64, (1, 64)),
            (DType::F16, (2, 16)),
            (DType::F32, (2, 32)),
            (DType::F64, (2, 64)),
            (DType::BF16, (4, 16)),
            (DType::Bool, (6, 8)),
            (DType::F8E4M3, (10, 8)),
            (DType::F8E5M2, (12, 8)),
        ];
        for (dtype, known) in expected {
            assert_eq!(code(dtype), known, "{dtype}");
        }
    }

    #[test]
    fn a_scalar_has_no_dimension() {
        let scalar = Tensor::host(&[1.0_f32], &[]).expect("a tensor");
        let seen = of(&scalar);
        assert_eq!((seen.data as u64, seen.shape, seen.strides), (scalar.address(), vec![], vec![]));
    }

    #[test]
    fn a_tensor_without_rows_has_a_null_address() {
        let none = Tensor::host::<u8>(&[], &[0, 7]).expect("a tensor");
        let seen = of(&none);
        assert_eq!((seen.data, seen.shape, seen.strides), (0, vec![0, 7], vec![7, 1]));
    }

    #[test]
    fn foreign_memory_is_described_as_given() {
        let description = Description {
            address: 0x7f00_0000_0000,
            byte_offset: 24,
            device: DlDevice { kind: DlDevice::CUDA, id: 3 },
            data_type: DlDataType { code: 2, bits: 16, lanes: 4 },
            shape: &[2, 9],
            strides: &[-9, 1],
        };
        let view = || DlpackView::describe(&description).expect("a view");
        let seen = both(|| (view(), DlpackView::describe(&description).expect("a view")));
        let expected = Seen {
            data: 0x7f00_0000_0000,
            device: description.device,
            data_type: description.data_type,
            shape: vec![2, 9],
            strides: vec![-9, 1],
            byte_offset: 24,
        };
        assert_eq!(seen, expected);
        let short = Description { strides: &[1], ..description };
        assert!(matches!(DlpackView::<ManagedTensor>::describe(&short), Err(Error::Layout { .. })));
    }

    #[test]
    fn a_view_taken_back_is_the_same() {
        let tensor = Tensor::host(&[1_u16, 2], &[2]).expect("a tensor");
        let raw = DlpackView::<ManagedTensorVersioned>::of(&tensor).into_raw();
        // SAFETY: given up in the line before.
        let view = unsafe { DlpackView::from_raw(raw) };
        assert_eq!(view.tensor().data.addr() as u64, tensor.address());
    }
}
