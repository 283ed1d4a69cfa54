//! The call that launches a kernel.

use super::stream::Stream;
use crate::kernels::{LaunchAttributes, LaunchConfig};
use crate::sys::{CUfunction, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchConfig, CallError, zeroed};
use core::ffi::{c_int, c_uint, c_void};

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
    if !config.attributes.is_empty() {
        // SAFETY: as the caller says.
        return unsafe { enqueue_with_attributes(function, config, stream, arguments) };
    }
    let LaunchConfig { grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes, .. } = config;
    let (driver, stream, extra) = (stream.context().driver(), stream.as_raw(), core::ptr::null_mut());
    // SAFETY: as the caller says.
    unsafe {
        driver.cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared_bytes, stream, arguments.as_mut_ptr(), extra)
    }
}

/// The same with attributes ([`cuLaunchKernelEx`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EXEC.html)).
///
/// # Safety
/// As for [`enqueue`].
#[cold]
unsafe fn enqueue_with_attributes(
    function: CUfunction,
    config: LaunchConfig,
    stream: &Stream,
    arguments: &mut [*mut c_void],
) -> Result<(), CallError> {
    let (mut list, count) = attributes(&config.attributes);
    let mut launch: CUlaunchConfig = zeroed();
    [launch.gridDimX, launch.gridDimY, launch.gridDimZ] = config.grid;
    [launch.blockDimX, launch.blockDimY, launch.blockDimZ] = config.block;
    launch.sharedMemBytes = config.shared_bytes;
    launch.hStream = stream.as_raw();
    (launch.attrs, launch.numAttrs) = (list.as_mut_ptr(), count as c_uint);
    let driver = stream.context().driver();
    // SAFETY: as the caller says; the list lives through the call and holds as many attributes as the structure says.
    unsafe { driver.cuLaunchKernelEx(&launch, function, arguments.as_mut_ptr(), core::ptr::null_mut()) }
}

/// The attributes as the driver takes them, and how many there are.
fn attributes(asked: &LaunchAttributes) -> ([CUlaunchAttribute; 3], usize) {
    const YES: c_int = 1;
    let mut list = [zeroed::<CUlaunchAttribute>(); 3];
    let mut count = 0;
    if let Some([x, y, z]) = asked.cluster() {
        let attribute = &mut list[count];
        attribute.id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        (attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z) = (x, y, z);
        count += 1;
    }
    if asked.is_cooperative() {
        list[count].id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        list[count].value.cooperative = YES;
        count += 1;
    }
    if asked.is_programmatic() {
        list[count].id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        list[count].value.programmaticStreamSerializationAllowed = YES;
        count += 1;
    }
    (list, count)
}
