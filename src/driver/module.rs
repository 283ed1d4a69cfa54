//! Modules and their kernels.

use super::capture_state::{self, NodeKind};
use super::context::Context;
use super::deferred_drop::Destroy;
use super::keep_alive::KeepAlive;
use super::launch;
use super::launch_list::{MAX_PARAMETER_BYTES, MAX_PARAMETERS};
use super::operation::{self, Destination};
use super::stream::Stream;
use crate::error::{Error, KernelError, Misuse, ModuleLoadError, Result};
use crate::kernels::LaunchConfig;
use crate::sys::{
    CUfunction, CUfunction_attribute, CUjit_option, CUmodule, CUresult, Call, CallError, Driver, first_failure,
};
use core::ffi::{c_uint, c_void};
use std::ffi::{CStr, CString};
use std::fmt;
use std::sync::Arc;

/// A loaded module. Cheap to clone; it is unloaded when the last clone, the last of its kernels and the last graph that launches one of them
/// are gone, and no capture is open.
#[derive(Clone)]
pub struct Module {
    inner: Arc<ModuleInner>,
}

struct ModuleInner {
    context: Context,
    raw: CUmodule,
    borrowed: bool,
}

// SAFETY: the driver synchronises modules (T2 of `docs/DESIGN.md`).
unsafe impl Send for ModuleInner {}
// SAFETY: likewise.
unsafe impl Sync for ModuleInner {}

/// A kernel of a module. Cheap to clone; it keeps its module.
#[derive(Clone)]
pub struct Kernel {
    module: KeepAlive,
    context: Context,
    raw: CUfunction,
    name: Arc<str>,
    /// The parameters' sizes in bytes. `None`: the driver doesn't tell, or there are more than a launch takes.
    sizes: Option<Arc<[usize]>>,
}

// SAFETY: the driver synchronises functions (T2 of `docs/DESIGN.md`); the rest is never changed.
unsafe impl Send for Kernel {}
// SAFETY: likewise.
unsafe impl Sync for Kernel {}

/// Where a kernel's parameter lies in its parameter space, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ParameterInfo {
    /// From the start of the parameter space.
    pub offset: usize,
    /// Its size.
    pub size: usize,
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module").field("raw", &self.inner.raw).finish_non_exhaustive()
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Module {
    /// Loads PTX text ([`cuModuleLoadDataEx`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MODULE.html)). The driver compiles
    /// it for its device; do it before capturing.
    ///
    /// # Errors
    /// [`Error::ModuleLoad`](crate::Error::ModuleLoad) with the text of the driver's compiler: `CUDA_ERROR_INVALID_PTX`,
    /// `CUDA_ERROR_UNSUPPORTED_PTX_VERSION` and the like.
    #[doc(alias = "cuModuleLoadDataEx")]
    pub fn load_ptx(context: &Context, ptx: &CStr) -> Result<Module> {
        // SAFETY: NUL-terminated PTX text.
        unsafe { Module::load_image(context, ptx.as_ptr().cast()) }
    }

    /// Loads a cubin or fat binary image.
    ///
    /// # Errors
    /// [`Error::ModuleLoad`](crate::Error::ModuleLoad).
    ///
    /// # Safety
    /// `image` points to a whole image of a kind that `cuModuleLoadData` takes.
    pub unsafe fn load_image(context: &Context, image: *const c_void) -> Result<Module> {
        let _bound = context.bind()?;
        // SAFETY: the caller vouches for the image; the context is current.
        let raw = unsafe { load(context.driver(), image)? };
        Ok(Module { inner: Arc::new(ModuleInner { context: context.clone(), raw, borrowed: false }) })
    }

    /// Takes over a foreign module and unloads it in the end.
    ///
    /// # Safety
    /// `raw` is a module of this context that nobody else unloads.
    pub unsafe fn from_raw(context: &Context, raw: CUmodule) -> Module {
        Module { inner: Arc::new(ModuleInner { context: context.clone(), raw, borrowed: false }) }
    }

    /// Uses a foreign module.
    ///
    /// # Safety
    /// `raw` is a module of this context, and stays one for as long as this value, its kernels or captures of them live.
    pub unsafe fn borrow_raw(context: &Context, raw: CUmodule) -> Module {
        Module { inner: Arc::new(ModuleInner { context: context.clone(), raw, borrowed: true }) }
    }

    /// The driver's handle. It stays valid as long as this value or a clone lives.
    pub fn as_raw(&self) -> CUmodule {
        self.inner.raw
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The kernel of this name ([`cuModuleGetFunction`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MODULE.html)). With lazy
    /// loading the driver would load its code at the first launch, under the context's lock and waiting for running work; here that is done
    /// now (`cuFuncLoad`, where the driver has it).
    ///
    /// # Errors
    /// [`Error::Kernel`](crate::Error::Kernel) for a name that the module lacks, with those that it has; [`Misuse::NoHostKernel`] for a kernel that the reference driver can't run, and what else
    /// the driver returns.
    #[doc(alias = "cuModuleGetFunction", alias = "cuFuncLoad")]
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let context = self.context();
        let text = CString::new(name).map_err(|_| Error::Misuse(Misuse::BadName { name: name.to_owned() }))?;
        let _bound = context.bind()?;
        let raw = match find_function(context.driver(), self.inner.raw, &text) {
            Err(error) if error.code() == CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU && context.driver().is_reference() => {
                return Err(Misuse::NoHostKernel { kernel: name.to_owned() }.into());
            }
            Ok(found) => found,
            Err(error) => {
                let available = kernel_names(context.driver(), self.inner.raw);
                return Err(Error::Kernel(Box::new(KernelError { kernel: name.to_owned(), available, error })));
            }
        };
        let mut kernel =
            Kernel { module: self.inner.clone(), context: context.clone(), raw, name: name.into(), sizes: None };
        if context.driver().supports(Call::cuFuncGetParamInfo) {
            let parameters = kernel.parameters()?;
            let bytes = parameters.last().map_or(0, |last| last.offset + last.size);
            let sizes: Arc<[usize]> = parameters.iter().map(|parameter| parameter.size).collect();
            kernel.sizes = Some(sizes).filter(|sizes| sizes.len() <= MAX_PARAMETERS && bytes <= MAX_PARAMETER_BYTES);
        }
        Ok(kernel)
    }
}

/// The text that a driver's compiler gives at most, in bytes.
const LOG_BYTES: usize = 8 << 10;

/// Loads an image into the current context, with the compiler's text if that fails.
///
/// # Safety
/// `image` points to a whole image of a kind that `cuModuleLoadData` takes.
pub(super) unsafe fn load(driver: &Driver, image: *const c_void) -> Result<CUmodule> {
    let mut log = vec![0_u8; LOG_BYTES];
    let mut options = [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The second value is a number in the place of a pointer.
    let mut values = [log.as_mut_ptr().cast::<c_void>(), core::ptr::without_provenance_mut(LOG_BYTES)];
    let (options_list, values_list) = (options.as_mut_ptr(), values.as_mut_ptr());
    let mut raw = core::ptr::null_mut();
    // SAFETY: the caller vouches for the image and the context; as many options as values, and a buffer of the size that they say.
    let loaded =
        unsafe { driver.cuModuleLoadDataEx(&mut raw, image, options.len() as c_uint, options_list, values_list) };
    loaded.map(|()| raw).map_err(|error| {
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
        let log = String::from_utf8_lossy(&log[..end]).trim().to_owned();
        Error::ModuleLoad(Box::new(ModuleLoadError { error, log }))
    })
}

/// The names of a module's kernels, where the driver tells.
fn kernel_names(driver: &Driver, module: CUmodule) -> Option<Vec<String>> {
    let mut names = first_failure::untouched(|| -> Result<Vec<String>, CallError> {
        let mut count = 0;
        // SAFETY: a live module and a valid place.
        unsafe { driver.cuModuleGetFunctionCount(&mut count, module)? };
        let mut functions = vec![core::ptr::null_mut(); count as usize];
        // SAFETY: a live module, and as many places as are said.
        unsafe { driver.cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, module)? };
        let name = |function: &CUfunction| {
            let mut text = core::ptr::null();
            // SAFETY: a function of a live module, and a valid place.
            unsafe { driver.cuFuncGetName(&mut text, *function)? };
            // SAFETY: on success the driver gives a name that ends in NUL and lives as long as the function.
            Ok(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        functions.iter().map(name).collect()
    })
    .ok()?;
    names.sort_unstable();
    Some(names)
}

/// The function of this name in a live module of the current context, with its code loaded where the driver has the call for it.
pub(super) fn find_function(driver: &Driver, module: CUmodule, name: &CStr) -> Result<CUfunction, CallError> {
    let mut function = core::ptr::null_mut();
    // SAFETY: a live module, a NUL-terminated name, a valid place.
    unsafe { driver.cuModuleGetFunction(&mut function, module, name.as_ptr())? };
    if driver.supports(Call::cuFuncLoad) {
        // SAFETY: a function just found.
        unsafe { driver.cuFuncLoad(function)? };
    }
    Ok(function)
}

impl Drop for ModuleInner {
    fn drop(&mut self) {
        if !self.borrowed {
            self.context.destroy(Destroy::Module(self.raw));
        }
    }
}

impl Kernel {
    /// The driver's handle. It stays valid as long as this value or its module lives.
    pub fn as_raw(&self) -> CUfunction {
        self.raw
    }

    /// Its name in the module.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Offset and size of each parameter
    /// ([`cuFuncGetParamInfo`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EXEC.html), from CUDA 12.4 on).
    ///
    /// # Errors
    /// [`CallError::Unsupported`](crate::sys::CallError::Unsupported) on an older driver, and what the driver returns.
    #[doc(alias = "cuFuncGetParamInfo")]
    pub fn parameters(&self) -> Result<Vec<ParameterInfo>> {
        let driver = self.context.driver();
        let _bound = self.context.bind()?;
        let mut found = Vec::new();
        if !driver.supports(Call::cuFuncGetParamInfo) {
            // For the error that says so.
            // SAFETY: the call does not reach the driver.
            unsafe { driver.cuFuncGetParamInfo(self.raw, 0, core::ptr::null_mut(), core::ptr::null_mut())? };
        }
        let is_past_the_last = |error: &CallError| error.code() == CUresult::CUDA_ERROR_INVALID_VALUE;
        loop {
            let (mut offset, mut size) = (0, 0);
            let told = first_failure::unless(is_past_the_last, || {
                // SAFETY: a live function and two valid places.
                unsafe { driver.cuFuncGetParamInfo(self.raw, found.len(), &mut offset, &mut size) }
            })?;
            match told {
                Some(()) => found.push(ParameterInfo { offset, size }),
                None => return Ok(found),
            }
        }
    }

    /// Lets launches of this kernel have so many bytes of dynamic shared memory for each block: without it no more than 48 KiB
    /// ([`cuFuncSetAttribute`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EXEC.html) of
    /// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`). To be called before the kernel is launched or recorded; it is the kernel's in its module, for all its
    /// clones. A launch that asks for more than this gets `CUDA_ERROR_INVALID_VALUE`.
    ///
    /// # Errors
    /// [`CallError::Unsupported`](crate::sys::CallError::Unsupported) where the driver lacks the call, and what the driver returns: `CUDA_ERROR_INVALID_VALUE` for more
    /// than a block of the device can have (227 KiB on compute capability 9.0) beside the kernel's static shared memory.
    #[doc(alias = "cuFuncSetAttribute", alias = "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES")]
    pub fn allow_shared_bytes(&self, bytes: u32) -> Result<()> {
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // More than the driver's number holds is more than any device has.
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        let _bound = self.context.bind()?;
        // SAFETY: a live function of the current context.
        unsafe { self.context.driver().cuFuncSetAttribute(self.raw, attribute, bytes)? };
        Ok(())
    }

    /// Launches the kernel with pointers to its arguments
    /// ([`cuLaunchKernel`, and `cuLaunchKernelEx` for a launch with attributes](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EXEC.html)). The driver
    /// copies the arguments before it returns. In a segment the launch is recorded with these arguments, and the segment keeps the module.
    ///
    /// # Errors
    /// [`ContextMismatch`](crate::Misuse::ContextMismatch) when stream and kernel belong to different contexts, [`Misuse::ArgumentCount`],
    /// [`Misuse::OutsideTheCapture`] on a stream beside the segment that this thread has open,
    /// [`CallError::Unsupported`](crate::sys::CallError::Unsupported) for attributes where the driver lacks the call, and what the driver returns.
    ///
    /// # Safety
    /// `arguments` holds one pointer for each parameter of the kernel, to a value of its type, whose padding is initialised too. What the kernel
    /// reads and writes through pointers among them is valid device memory whenever the work runs; for a recorded launch, at every replay.
    #[inline]
    #[doc(alias = "cuLaunchKernel", alias = "cuLaunchKernelEx")]
    pub unsafe fn launch_raw(
        &self,
        stream: &Stream,
        config: LaunchConfig,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        self.context.expect_same(stream.context(), "stream")?;
        self.expect_count(arguments.len())?;
        // SAFETY: as the caller says.
        unsafe {
            if capture_state::is_open() && config.attributes.is_empty() && self.record(stream, config, arguments) {
                return Ok(());
            }
            self.enqueue(stream, &self.admit(stream)?, config, arguments)
        }
    }

    /// Lists a launch, where launches are listed and the parameters' sizes are known. `false`: it is to be enqueued.
    ///
    /// # Safety
    /// As for [`launch_raw`](Kernel::launch_raw).
    unsafe fn record(&self, stream: &Stream, config: LaunchConfig, arguments: &[*mut c_void]) -> bool {
        let Some(sizes) = &self.sizes else { return false };
        capture_state::record_launch(stream.as_raw(), |launches| {
            launches.begin(self.raw, config);
            for (argument, size) in arguments.iter().zip(sizes.iter()) {
                // SAFETY: the caller's pointer to a value of the parameter's size.
                launches.parameter(unsafe { core::slice::from_raw_parts(argument.cast::<u8>(), *size) });
            }
            launches.keep(&self.module);
        })
    }

    /// Launches the kernel on a stream of its own context. `to`: where that goes.
    ///
    /// # Safety
    /// As for [`launch_raw`](Kernel::launch_raw).
    #[inline]
    pub(crate) unsafe fn enqueue(
        &self,
        stream: &Stream,
        to: &Destination,
        config: LaunchConfig,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        // SAFETY: a live function on a stream of its context; the caller vouches for the arguments.
        unsafe { launch::enqueue(self.raw, config, stream, arguments)? };
        to.done(stream.as_raw(), NodeKind::Kernel);
        Ok(())
    }

    /// Finds where a launch on a stream goes, which keeps the module.
    ///
    /// # Errors
    /// [`Misuse::OutsideTheCapture`].
    #[inline]
    pub(crate) fn admit(&self, stream: &Stream) -> Result<Destination> {
        let to = operation::admit(&self.context, stream.as_raw(), &self.name)?;
        to.keep(|| self.module.clone());
        Ok(to)
    }

    /// What a launch of it refers to.
    pub(crate) fn kept(&self) -> &KeepAlive {
        &self.module
    }

    /// The parameters' sizes in bytes, where the driver tells and a launch takes as many.
    #[inline]
    pub(crate) fn parameter_sizes(&self) -> Option<&[usize]> {
        self.sizes.as_deref()
    }

    /// Refuses another number of arguments than there are parameters, where that is known.
    #[inline]
    pub(crate) fn expect_count(&self, given: usize) -> Result<()> {
        match &self.sizes {
            Some(sizes) if sizes.len() != given => {
                Err(Misuse::ArgumentCount { kernel: self.name.to_string(), expected: sizes.len(), given }.into())
            }
            _ => Ok(()),
        }
    }
}

/// Whether what is kept is a module.
pub(crate) fn is_module(kept: &KeepAlive) -> bool {
    kept.is::<ModuleInner>()
}
