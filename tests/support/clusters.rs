//! A kernel that tells how large its clusters are, on both drivers.

use breakable_cuda_graph::Driver;
use breakable_cuda_graph::driver::{Context, Kernel, Module};
use core::ffi::CStr;

/// `cluster_blocks(unsigned *out)` writes how many blocks its cluster has in x, and nothing for blocks but the first.
const PTX: &CStr = c".version 8.0
.target sm_90
.address_size 64
.visible .entry cluster_blocks(.param .u64 out) {
    .reg .pred %p<2>;
    .reg .u32 %r<4>;
    .reg .u64 %d<3>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    or.b32 %r1, %r1, %r2;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 ret;
    griddepcontrol.wait;
    mov.u32 %r3, %cluster_nctaid.x;
    ld.param.u64 %d1, [out];
    cvta.to.global.u64 %d2, %d1;
    st.global.u32 [%d2], %r3;
    ret;
}
";

#[cfg(not(feature = "driver-tests"))]
unsafe extern "C" fn cluster_blocks(
    config: *const breakable_cuda_graph::driver::LaunchConfig,
    arguments: *const *mut core::ffi::c_void,
) {
    // SAFETY: the launch's geometry and its one argument, the address of a number.
    unsafe {
        let [x, ..] = (*config).attributes.cluster().unwrap_or([1; 3]);
        (*(*arguments).cast::<*mut u32>()).write(x);
    }
}

/// The driver under test, which knows the kernel.
#[cfg(feature = "driver-tests")]
pub fn driver() -> Driver {
    super::driver()
}

/// The driver under test, which knows the kernel.
#[cfg(not(feature = "driver-tests"))]
pub fn driver() -> Driver {
    Driver::reference_with(options()).expect("it loads")
}

#[cfg(not(feature = "driver-tests"))]
pub fn options() -> breakable_cuda_graph::reference::Options {
    super::demo::options().kernel("cluster_blocks", cluster_blocks)
}

/// The kernel. It takes a device of compute capability 9.0 or later.
pub fn kernel(context: &Context) -> Kernel {
    Module::load_ptx(context, PTX).and_then(|module| module.kernel("cluster_blocks")).expect("compute capability 9.0")
}
