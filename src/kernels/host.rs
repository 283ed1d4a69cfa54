//! Host functions that stand for kernels.

use super::LaunchConfig;
use core::ffi::c_void;

/// A host function that does the work of a whole grid of the kernel that it stands for. `arguments[i]` points to the value of the kernel's parameter `i`.
pub type HostKernel = unsafe extern "C" fn(geometry: *const LaunchConfig, arguments: *const *mut c_void);

/// Declares the host functions that `csrc/host.c` defines, and lists them by the kernels' names.
macro_rules! host_kernels {
    ($(#[$doc:meta])* $visibility:vis $list:ident: $($kernel:ident),* $(,)?) => {
        unsafe extern "C" {
            $(
                #[link_name = concat!(env!("BREAKABLE_CUDA_GRAPH_HOST_SYMBOLS"), stringify!($kernel))]
                fn $kernel(geometry: *const $crate::kernels::LaunchConfig, arguments: *const *mut core::ffi::c_void);
            )*
        }

        $(#[$doc])*
        $visibility const $list: &[(&str, $crate::kernels::host::HostKernel)] = &[$((stringify!($kernel), $kernel)),*];
    };
}
pub(crate) use host_kernels;
