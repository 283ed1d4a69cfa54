//! How a reference driver is to behave.

use crate::kernels::host::HostKernel;
use crate::sys::{CUresult, Call};

/// How a reference driver is to behave.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The CUDA version that it claims, as `1000 * major + 10 * minor`. Calls that are newer are missing.
    pub version: i32,
    /// How many devices it has.
    pub devices: usize,
    /// Bytes of memory of each device.
    pub device_memory: usize,
    /// Draws the order in which work runs.
    pub seed: u64,
    /// Calls that it lacks beside those that are newer than its version.
    pub missing: Vec<Call>,
    /// Whether its devices have stream-ordered memory pools.
    pub memory_pools: bool,
    /// What `cuInit` returns.
    pub init: CUresult,
    /// Host functions for kernels by name, beside those of the crate.
    pub kernels: Vec<(String, HostKernel)>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            version: 13_000,
            devices: 1,
            device_memory: 2 << 30,
            seed: 1,
            missing: Vec::new(),
            memory_pools: true,
            init: CUresult::CUDA_SUCCESS,
            kernels: Vec::new(),
        }
    }
}

impl Options {
    /// With this CUDA version, as `1000 * major + 10 * minor`.
    #[must_use]
    pub fn version(mut self, version: i32) -> Self {
        self.version = version;
        self
    }

    /// With this many devices.
    #[must_use]
    pub fn devices(mut self, devices: usize) -> Self {
        self.devices = devices;
        self
    }

    /// With this many bytes of memory a device.
    #[must_use]
    pub fn device_memory(mut self, bytes: usize) -> Self {
        self.device_memory = bytes;
        self
    }

    /// With this seed for the order in which work runs.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Without this call.
    #[must_use]
    pub fn missing(mut self, call: Call) -> Self {
        self.missing.push(call);
        self
    }

    /// With or without stream-ordered memory pools.
    #[must_use]
    pub fn memory_pools(mut self, supported: bool) -> Self {
        self.memory_pools = supported;
        self
    }

    /// With another result of `cuInit`.
    #[must_use]
    pub fn init(mut self, code: CUresult) -> Self {
        self.init = code;
        self
    }

    /// With a host function for the kernel of this name.
    ///
    /// ```
    /// use breakable_cuda_graph::driver::{Device, LaunchConfig, Module, Stream};
    /// use breakable_cuda_graph::reference::Options;
    /// use breakable_cuda_graph::{Driver, Tensor};
    /// use std::ffi::c_void;
    ///
    /// /// `double(int *x, unsigned count)`: the work of a whole grid.
    /// unsafe extern "C" fn double(_: *const LaunchConfig, arguments: *const *mut c_void) {
    ///     // SAFETY: two arguments of these types, and a pointer to as many elements.
    ///     let values = unsafe {
    ///         let (x, count) = (*(*arguments).cast::<*mut i32>(), *(*arguments.add(1)).cast::<u32>());
    ///         std::slice::from_raw_parts_mut(x, count as usize)
    ///     };
    ///     values.iter_mut().for_each(|value| *value *= 2);
    /// }
    ///
    /// let driver = Driver::reference_with(Options::default().kernel("double", double))?;
    /// let context = Device::get(&driver, 0)?.primary_context()?;
    /// let stream = Stream::new(&context)?;
    /// // The same PTX is what a device runs.
    /// let ptx = c".version 8.0\n.target sm_70\n.visible .entry double(.param .u64 x, .param .u32 count) { ret; }";
    /// let kernel = Module::load_ptx(&context, ptx)?.kernel("double")?;
    /// let x = Tensor::from_slice(&stream, &[1, 2, 3], &[3])?;
    /// // SAFETY: the arguments are the kernel's, and it stays in the tensor.
    /// unsafe { kernel.launch(&stream, LaunchConfig::for_elements(3), &[(&x).into(), 3_u32.into()])? };
    /// assert_eq!(x.read::<i32>(&stream)?, [2, 4, 6]);
    /// # Ok::<(), breakable_cuda_graph::Error>(())
    /// ```
    #[must_use]
    pub fn kernel(mut self, name: impl Into<String>, function: HostKernel) -> Self {
        self.kernels.push((name.into(), function));
        self
    }
}
