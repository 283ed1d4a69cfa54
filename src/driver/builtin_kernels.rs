//! The crate's own kernels, loaded once for each context.

use super::capture_mode::relaxed;
use super::context::Context;
use super::deferred_drop::Destroy;
use super::launch_list::LaunchList;
use super::open_capture;
use super::stream::Stream;
use crate::error::Result;
use crate::kernels;
use crate::kernels::LaunchConfig;
use crate::sys::{CUdeviceptr, CUfunction, CUmodule, Call, CallError, Driver};
use core::ffi::c_void;
use std::ffi::CStr;

/// The loaded module and its kernels. Owned by its [`Context`], which unloads it, so it holds no context itself.
#[derive(Clone, Copy)]
pub(crate) struct BuiltinKernels {
    module: CUmodule,
    scrub: CUfunction,
    land: CUfunction,
}

// SAFETY: modules and functions may be used from any thread.
unsafe impl Send for BuiltinKernels {}
// SAFETY: likewise.
unsafe impl Sync for BuiltinKernels {}

impl BuiltinKernels {
    pub(super) fn load(context: &Context) -> Result<BuiltinKernels> {
        let driver = context.driver();
        let _bound = context.bind()?;
        let _relaxed = relaxed(driver)?;
        let mut module = core::ptr::null_mut();
        let none = core::ptr::null_mut();
        // SAFETY: NUL-terminated PTX text; no options; the context is current.
        unsafe {
            driver.cuModuleLoadDataEx(&mut module, kernels::PTX.as_ptr().cast(), 0, none, core::ptr::null_mut())?;
        }
        let found = find(driver, module, kernels::SCRUB).and_then(|scrub| {
            let land = find(driver, module, kernels::LAND)?;
            Ok(BuiltinKernels { module, scrub, land })
        });
        if found.is_err() {
            context.destroy(Destroy::Module(module));
        }
        Ok(found?)
    }

    pub(super) fn same(&self, other: &BuiltinKernels) -> bool {
        self.module == other.module
    }

    pub(super) fn destroy(&self) -> Destroy {
        Destroy::Module(self.module)
    }

    /// Launches the padding scrub.
    ///
    /// # Safety
    /// The parameters name device memory that is valid whenever the work runs.
    pub(crate) unsafe fn scrub(&self, stream: &Stream, launch: &kernels::ScrubLaunch) -> Result<()> {
        // SAFETY: the kernel takes this one structure; the caller vouches for the addresses in it.
        unsafe { launch_one(self.scrub, stream, launch.config, launch.parameters) }
    }

    /// Launches the landing.
    ///
    /// # Safety
    /// The parameters name device memory that is valid whenever the work runs.
    pub(crate) unsafe fn land(&self, stream: &Stream, launch: &kernels::LandLaunch) -> Result<()> {
        // SAFETY: the kernel takes this one structure; the caller vouches for the addresses in it.
        unsafe { launch_one(self.land, stream, launch.config, &launch.parameters) }
    }

    /// One launch that makes bytes from an address on zero: a landing without valid rows. Nothing where there are none.
    pub(super) fn zeroing(&self, address: CUdeviceptr, bytes: usize) -> Option<LaunchList> {
        let (shape, strides) = ([bytes], [1]);
        let place = kernels::TensorDesc::new(address, 1, &shape, &strides)?;
        let launch = kernels::landing(&place, &place, 0)?;
        let mut noted = LaunchList::default();
        noted.begin(self.land, launch.config);
        // SAFETY: a structure of whole words, without padding.
        noted.parameter(unsafe { bytes_of(&launch.parameters) });
        Some(noted)
    }
}

fn find(driver: &Driver, module: CUmodule, name: &CStr) -> Result<CUfunction, CallError> {
    let mut function = core::ptr::null_mut();
    // SAFETY: a live module, a NUL-terminated name, a valid place.
    unsafe { driver.cuModuleGetFunction(&mut function, module, name.as_ptr())? };
    if driver.supports(Call::cuFuncLoad) {
        // SAFETY: a function just found.
        unsafe { driver.cuFuncLoad(function)? };
    }
    Ok(function)
}

/// A structure's bytes.
///
/// # Safety
/// It has no padding.
unsafe fn bytes_of<P>(structure: &P) -> &[u8] {
    // SAFETY: as many initialised bytes as it is large.
    unsafe { core::slice::from_raw_parts(core::ptr::from_ref(structure).cast(), size_of::<P>()) }
}

/// Launches a kernel that takes one structure.
///
/// # Safety
/// The kernel takes a structure of this type, without padding, and the memory that it names is valid whenever the work runs.
unsafe fn launch_one<P>(function: CUfunction, stream: &Stream, config: LaunchConfig, parameters: &P) -> Result<()> {
    let argument = core::ptr::from_ref(parameters);
    // SAFETY: the caller's structure has no padding.
    let bytes = unsafe { bytes_of(parameters) };
    let noted = open_capture::record_launch(stream, |notes| {
        notes.begin(function, config);
        notes.parameter(bytes);
    });
    if !noted {
        let LaunchConfig { grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes } = config;
        let mut arguments: [*mut c_void; 1] = [argument.cast_mut().cast()];
        let (driver, none) = (stream.context().driver(), core::ptr::null_mut());
        // SAFETY: live handles and one argument, which the driver copies; the caller vouches for the memory.
        unsafe {
            let (stream, arguments) = (stream.as_raw(), arguments.as_mut_ptr());
            driver.cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared_bytes, stream, arguments, none)?;
        }
        open_capture::operation(|_| {});
    }
    Ok(())
}
