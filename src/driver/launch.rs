//! The call that launches a kernel.

use super::stream::Stream;
use crate::kernels::LaunchConfig;
use crate::sys::{CUfunction, CallError};
use core::ffi::c_void;

/// Launches a function ([`cuLaunchKernel`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EXEC.html)). The driver copies the arguments.
///
/// # Safety
/// The function lives and is of the stream's context; `arguments` has one pointer for each of its parameters, to a value of its type, and what the
/// kernel reads and writes is valid whenever the work runs.
#[inline]
pub(super) unsafe fn enqueue(
    function: CUfunction,
    config: LaunchConfig,
    stream: &Stream,
    arguments: &mut [*mut c_void],
) -> Result<(), CallError> {
    let LaunchConfig { grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes } = config;
    let (driver, stream, extra) = (stream.context().driver(), stream.as_raw(), core::ptr::null_mut());
    // SAFETY: as the caller says.
    unsafe {
        driver.cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared_bytes, stream, arguments.as_mut_ptr(), extra)
    }
}
