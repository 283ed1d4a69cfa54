//! Weak references: the same address, shape, strides and element type, and no ownership.

use super::dtype::DType;
use super::layout::Layout;
use super::owned::{Location, Tensor};
use super::storage::Storage;
use crate::error::{Error, Misuse, Result};
use std::fmt;
use std::sync::Weak;

/// A tensor's place without its ownership: the block behind it returns to its pool as if this did not exist. It carries the block's identity,
/// so a reference to a block that was given back is [`Misuse::StaleReference`] and never another tensor's bytes.
#[derive(Clone)]
pub struct WeakTensor {
    storage: Weak<Storage>,
    address: u64,
    offset: usize,
    dtype: DType,
    layout: Layout,
}

impl fmt::Debug for WeakTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakTensor")
            .field("address", &format_args!("{:#x}", self.address))
            .field("layout", &self.layout)
            .field("live", &self.is_live())
            .finish()
    }
}

impl WeakTensor {
    /// The address of the first element.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape and strides.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether the block is still its own.
    pub fn is_live(&self) -> bool {
        self.storage.strong_count() > 0
    }

    /// The tensor, which owns the block again together with the others.
    ///
    /// # Errors
    /// [`Misuse::StaleReference`] when the block was given back.
    pub fn upgrade(&self) -> Result<Tensor> {
        let storage = self.storage.upgrade().ok_or(Error::Misuse(Misuse::StaleReference))?;
        Ok(Tensor::of_parts(storage, self.offset, self.dtype, self.layout))
    }
}

/// What [`weak_ref`] makes of a tensor.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WeakRef {
    /// A device tensor's place.
    Weak(WeakTensor),
    /// A host tensor comes back as it is.
    Host(Tensor),
}

impl WeakRef {
    /// The tensor.
    ///
    /// # Errors
    /// [`Misuse::StaleReference`] when the block was given back.
    pub fn upgrade(&self) -> Result<Tensor> {
        match self {
            WeakRef::Weak(weak) => weak.upgrade(),
            WeakRef::Host(tensor) => Ok(tensor.clone()),
        }
    }

    /// The weak form, for a device tensor.
    pub fn as_weak(&self) -> Option<&WeakTensor> {
        match self {
            WeakRef::Weak(weak) => Some(weak),
            WeakRef::Host(_) => None,
        }
    }
}

/// A weak reference to a device tensor; a host tensor, or none, comes back as it is. No byte is copied and no driver call made.
///
/// ```
/// # use breakable_cuda_graph::driver::{Device, Stream};
/// # use breakable_cuda_graph::Driver;
/// # let context = Device::get(&Driver::reference()?, 0)?.primary_context()?;
/// # let stream = Stream::new(&context)?;
/// # use breakable_cuda_graph::{Tensor, weak_ref};
/// let tensor = Tensor::from_slice(&stream, &[1, 2], &[2])?;
/// let weak = weak_ref(&tensor).expect("it is there");
/// assert_eq!(weak.upgrade()?.address(), tensor.address());
/// drop(tensor);
/// assert!(weak.upgrade().is_err()); // It owns nothing.
/// assert!(weak_ref(None).is_none());
/// # Ok::<(), breakable_cuda_graph::Error>(())
/// ```
pub fn weak_ref<'a>(tensor: impl Into<Option<&'a Tensor>>) -> Option<WeakRef> {
    tensor.into().map(|tensor| match tensor.place() {
        Location::Host => WeakRef::Host(tensor.clone()),
        Location::Device => WeakRef::Weak(tensor.downgrade()),
    })
}

impl Tensor {
    /// A weak reference to this tensor.
    pub fn downgrade(&self) -> WeakTensor {
        WeakTensor {
            storage: self.storage().downgrade(),
            address: self.address(),
            offset: self.offset(),
            dtype: self.dtype(),
            layout: *self.layout(),
        }
    }
}
