//! The crate's own kernels, loaded once for each context.

use super::capture_mode::relaxed;
use super::capture_state::{self, NodeKind};
use super::context::Context;
use super::deferred_drop::Destroy;
use super::launch;
use super::launch_list::LaunchList;
use super::module::{self, find_function};
use super::operation;
use super::registry::BuiltinKernels;
use super::stream::Stream;
use crate::error::Result;
use crate::kernels::{self, LaunchConfig};
use crate::sys::{CUdeviceptr, CUfunction};
use core::ffi::c_void;

impl Context {
    /// The crate's own kernels on this context, loaded at the first call.
    #[inline]
    pub(crate) fn builtin_kernels(&self) -> Result<&BuiltinKernels> {
        match self.kernels().get() {
            Some(kernels) => Ok(kernels),
            None => self.find_builtin_kernels(),
        }
    }

    #[cold]
    fn find_builtin_kernels(&self) -> Result<&BuiltinKernels> {
        let kernels = match self.entry().kernels() {
            Some(kernels) => kernels,
            None => self.entry().keep_kernels(self.driver(), load(self)?),
        };
        Ok(self.kernels().get_or_init(|| kernels))
    }
}

fn load(context: &Context) -> Result<BuiltinKernels> {
    let driver = context.driver();
    let _bound = context.bind()?;
    let _relaxed = relaxed(driver)?;
    // SAFETY: NUL-terminated PTX text; the context is current.
    let module = unsafe { module::load(driver, kernels::PTX.as_ptr().cast())? };
    let found = find_function(driver, module, kernels::SCRUB).and_then(|scrub| {
        let land = find_function(driver, module, kernels::LAND)?;
        let compare = find_function(driver, module, kernels::COMPARE)?;
        Ok(BuiltinKernels { module, scrub, land, compare })
    });
    if found.is_err() {
        context.destroy(Destroy::Module(module));
    }
    Ok(found?)
}

impl BuiltinKernels {
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

    /// Launches the comparison.
    ///
    /// # Safety
    /// The parameters name device memory that is valid whenever the work runs.
    pub(crate) unsafe fn compare(&self, stream: &Stream, launch: &kernels::CompareLaunch) -> Result<()> {
        // SAFETY: the kernel takes this one structure; the caller vouches for the addresses in it.
        unsafe { launch_one(self.compare, stream, launch.config, &launch.parameters) }
    }

    /// One launch that makes bytes from an address on zero: a landing without valid rows. Nothing where there are none.
    pub(super) fn zeroing(&self, address: CUdeviceptr, bytes: usize) -> Option<LaunchList> {
        let (shape, strides) = ([bytes], [1]);
        let place = kernels::TensorDesc::new(address, 1, &shape, &strides)?;
        let launch = kernels::landing(&place, &place, 0)?;
        let mut launches = LaunchList::default();
        launches.begin(self.land, launch.config);
        // SAFETY: a structure of whole words, without padding.
        launches.parameter(unsafe { bytes_of(&launch.parameters) });
        Some(launches)
    }
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
    // SAFETY: the caller's structure has no padding.
    let bytes = unsafe { bytes_of(parameters) };
    let recorded = capture_state::record_launch(stream.as_raw(), |launches| {
        launches.begin(function, config);
        launches.parameter(bytes);
    });
    if !recorded {
        let to = operation::admit(stream.context(), stream.as_raw(), "a landing, scrub or comparison")?;
        let mut arguments: [*mut c_void; 1] = [core::ptr::from_ref(parameters).cast_mut().cast()];
        // SAFETY: a function of the stream's context and its one argument; the caller vouches for the memory.
        unsafe { launch::enqueue(function, config, stream, &mut arguments)? };
        to.done(stream.as_raw(), NodeKind::Kernel);
    }
    Ok(())
}
