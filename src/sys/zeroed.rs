//! Structures of the driver that the crate fills: all zero first, so that a header with one more field is one more zero.

use super::bindings::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_MEMSET_NODE_PARAMS, CUgraphExecUpdateResultInfo,
    CUlaunchAttribute, CUlaunchConfig, CUmemAccessDesc, CUmemAllocationProp, CUmemPoolProps, CUuuid,
};

/// A structure of C of which all zeros is a value.
///
/// # Safety
/// It is made of integers, newtypes of integers, raw pointers, and arrays and unions of these.
pub(crate) unsafe trait Plain {}

macro_rules! plain {
    ($($structure:ty),* $(,)?) => {
        // SAFETY: each is declared by cuda.h of integers, enums (newtypes of integers here), pointers, and reserved bytes.
        $(unsafe impl Plain for $structure {})*
    };
}

plain!(
    CUDA_GRAPH_INSTANTIATE_PARAMS,
    CUDA_KERNEL_NODE_PARAMS,
    CUDA_MEMSET_NODE_PARAMS,
    CUgraphExecUpdateResultInfo,
    CUlaunchAttribute,
    CUlaunchConfig,
    CUmemAccessDesc,
    CUmemAllocationProp,
    CUmemPoolProps,
    CUuuid,
);

/// The structure with all bytes zero.
#[inline]
pub(crate) fn zeroed<T: Plain>() -> T {
    // SAFETY: the trait says that all zeros is a value.
    unsafe { core::mem::zeroed() }
}
