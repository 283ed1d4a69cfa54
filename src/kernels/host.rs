//! Host functions that stand for kernels.

use core::ffi::c_void;

/// A launch's geometry, as it is passed to a host function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Geometry {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: u32,
}

/// A host function that does the work of a whole grid. `arguments[i]` points to the value of the kernel's parameter `i`.
pub type HostKernel = unsafe extern "C" fn(geometry: *const Geometry, arguments: *const *mut c_void);

/// Declares the host functions that `csrc/host.c` defines, and lists them by the kernels' names.
macro_rules! host_kernels {
    ($(#[$doc:meta])* $visibility:vis $list:ident: $($kernel:ident),* $(,)?) => {
        unsafe extern "C" {
            $(
                #[link_name = concat!(env!("BREAKABLE_CUDA_GRAPH_HOST_SYMBOLS"), stringify!($kernel))]
                fn $kernel(geometry: *const $crate::kernels::host::Geometry, arguments: *const *mut core::ffi::c_void);
            )*
        }

        $(#[$doc])*
        $visibility const $list: &[(&str, $crate::kernels::host::HostKernel)] = &[$((stringify!($kernel), $kernel)),*];
    };
}
pub(crate) use host_kernels;
