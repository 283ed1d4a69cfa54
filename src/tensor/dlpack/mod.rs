//! Tensors as DLPack views that own nothing: other libraries see the memory in place, and the view's deleter frees the description only.
//!
//! [DLPack](https://dmlc.github.io/dlpack/latest/) is the ABI by which array libraries hand tensors to each other. It has two forms, and a
//! [`DlpackView`] is one or the other: [`ManagedTensor`] (for a capsule named `dltensor`) and [`ManagedTensorVersioned`] (for one named
//! `dltensor_versioned`). `csrc/weak_ref.c` makes and frees them.
//!
//! - `abi`: the structures that both sides read.

mod abi;
#[cfg(test)]
mod tests;

pub use abi::{DlDataType, DlDevice, DlTensor, ManagedTensor, ManagedTensorVersioned};

use super::layout::MAX_RANK;
use super::owned::{Location, Tensor};
use std::fmt;
use std::ptr::NonNull;

unsafe extern "C" {
    #[link_name = concat!(env!("BREAKABLE_CUDA_GRAPH_HOST_SYMBOLS"), "describe")]
    fn describe(source: *const DlTensor) -> *mut ManagedTensor;
    #[link_name = concat!(env!("BREAKABLE_CUDA_GRAPH_HOST_SYMBOLS"), "describe_versioned")]
    fn describe_versioned(source: *const DlTensor) -> *mut ManagedTensorVersioned;
}

/// Unnameable outside: there are the two forms and no others.
mod sealed {
    /// One of DLPack's two forms.
    pub trait Form: Sized {
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

use sealed::Form;

macro_rules! form {
    ($form:ty, $describe:ident) => {
        impl Form for $form {
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
struct Description<'a> {
    /// The memory's address.
    address: u64,
    /// Of the first element, from there.
    byte_offset: u64,
    /// Where the memory is.
    device: DlDevice,
    /// The element type.
    data_type: DlDataType,
    /// Length of each dimension.
    shape: &'a [i64],
    /// Distance between neighbours in each dimension.
    strides: &'a [i64],
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
            (Location::Device, Some(context)) => {
                DlDevice { kind: DlDevice::CUDA, id: context.device().ordinal() as i32 }
            }
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
