//! Modules, functions and launches.

use super::{as_pointer, entries, put};
use crate::kernels::{LaunchAttributes, LaunchConfig};
use crate::reference::handles::{Function, Module};
use crate::reference::ids::{Handle, new_handle};
use crate::reference::ptx;
use crate::reference::state::{Outcome, State};
use crate::reference::work::{Arguments, Launch, Work};
use crate::sys::{
    CUfunction, CUfunction_attribute, CUjit_option, CUlaunchAttributeID, CUlaunchConfig, CUmodule, CUresult, CUstream,
};
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ffi::CString;
use std::sync::Arc;

/// Threads of a block, and blocks of a grid in each direction, at most.
const MAX_THREADS: u64 = 1024;
const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
/// `CUDA_ERROR_INVALID_CLUSTER_SIZE`, by its number: not every header has the name.
const INVALID_CLUSTER_SIZE: CUresult = CUresult(912);
/// Blocks of a cluster at most, and what fits on the device at once.
const MAX_CLUSTER: u64 = 8;
const RESIDENT_THREADS: u64 = 2048;
const RESIDENT_BLOCKS: u64 = 32;

impl State {
    /// Loads PTX. `log`: gets the reason why it is none.
    fn load(&mut self, text: &str, log: &mut String) -> Outcome<Handle> {
        let context = self.current()?;
        self.healthy(context)?;
        let entries = ptx::entries(text).map_err(|error| {
            *log = error.to_string();
            if error.is_newer { CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION } else { CUresult::CUDA_ERROR_INVALID_PTX }
        })?;
        let module = new_handle();
        let mut functions = Vec::new();
        for entry in entries {
            let host = self.kernels.get(&entry.name).copied();
            let name = CString::new(entry.name.clone()).map_err(|_| CUresult::CUDA_ERROR_INVALID_PTX)?;
            let (parameters, threads) = (entry.parameters, entry.threads);
            let function = Function { module, name, host, parameters, threads, max_dynamic_shared: 48 << 10 };
            functions.push((entry.name, function));
        }
        let mut names = std::collections::HashMap::new();
        for (name, function) in functions {
            let handle = new_handle();
            self.functions.insert(handle, function);
            names.insert(name, handle);
        }
        self.modules.insert(module, Module { context, functions: names });
        Ok(module)
    }

    fn function(&self, function: CUfunction) -> Outcome<&Function> {
        self.functions.get(&(function as usize)).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    /// Launches on a stream. `priority`: instead of the stream's.
    ///
    /// # Safety
    /// As for [`launch`](State::launch).
    unsafe fn launch_on(
        &mut self,
        stream: CUstream,
        function: CUfunction,
        geometry: LaunchConfig,
        priority: Option<i32>,
        (params, extra): (*const *mut c_void, *const *mut c_void),
    ) -> Outcome {
        let target = self.target(stream)?;
        let context = self.modules.get(&self.function(function)?.module).map(|module| module.context);
        if context != Some(self.context_of(target)) {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        // SAFETY: as the caller says.
        let mut launch = unsafe { self.launch(function, geometry, params, extra)? };
        launch.priority = priority.unwrap_or_else(|| self.priority_of(target));
        self.submit(target, Work::Kernel(launch))
    }

    /// A launch with its arguments copied.
    ///
    /// # Safety
    /// `params` is null, or points to a pointer for each parameter, to a value of its size.
    pub(super) unsafe fn launch(
        &self,
        function: CUfunction,
        geometry: LaunchConfig,
        params: *const *mut c_void,
        extra: *const *mut c_void,
    ) -> Outcome<Launch> {
        let found = self.function(function)?;
        let threads: u64 = geometry.block.iter().map(|&threads| u64::from(threads)).product();
        let fits = (1..=found.threads.limit().min(MAX_THREADS)).contains(&threads)
            && found.threads.exactly.is_none_or(|block| block == geometry.block)
            && geometry.grid.iter().zip(MAX_GRID).all(|(&blocks, most)| (1..=most).contains(&blocks))
            && geometry.shared_bytes <= found.max_dynamic_shared as u32;
        if !fits || !extra.is_null() || (params.is_null() && !found.parameters.is_empty()) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        attributes_fit(&geometry, threads)?;
        // SAFETY: as the caller says.
        let arguments = Arc::new(unsafe { Arguments::copy(&found.parameters, params) });
        let host = found.host.ok_or(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU)?;
        Ok(Launch { function: function as usize, host, geometry, arguments, priority: 0 })
    }
}

/// Refuses clusters that the grid is not made of, and a cooperative grid that is larger than the device.
fn attributes_fit(geometry: &LaunchConfig, threads: u64) -> Outcome {
    let product = |sizes: [u32; 3]| sizes.iter().map(|&size| u64::from(size)).product::<u64>();
    if let Some(cluster) = geometry.attributes.cluster() {
        let whole = cluster.iter().zip(geometry.grid).all(|(&blocks, grid)| blocks != 0 && grid.is_multiple_of(blocks));
        if !whole {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if product(cluster) > MAX_CLUSTER {
            return Err(INVALID_CLUSTER_SIZE);
        }
    }
    let room = (RESIDENT_THREADS / threads).min(RESIDENT_BLOCKS);
    if geometry.attributes.is_cooperative() && product(geometry.grid) > room {
        return Err(CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    }
    Ok(())
}

entries! {
    fn cuModuleLoadDataEx(state, module: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut CUjit_option, values: *mut *mut c_void) {
        if module.is_null() || image.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller gives PTX text that ends in NUL.
        let text = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy();
        let mut log = String::new();
        let loaded = state.load(&text, &mut log);
        // SAFETY: the caller gives as many options as values, each of its option's kind.
        unsafe { write_log(&log, count as usize, options, values)? };
        let handle = loaded?;
        // SAFETY: not null, so the caller gives a valid place.
        unsafe { put(module, as_pointer(handle)) }
    }

    fn cuModuleUnload(state, module: CUmodule) {
        if !state.modules.contains_key(&(module as usize)) {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        state.unsafe_call()?;
        let context = state.modules[&(module as usize)].context;
        let tasks = state.tasks.of_context(Some(context));
        state.wait_for(&tasks);
        state.modules.remove(&(module as usize));
        state.functions.retain(|_, function| function.module != module as usize);
        Ok(())
    }

    fn cuModuleGetFunction(state, function: *mut CUfunction, module: CUmodule, name: *const c_char) {
        let found = state.modules.get(&(module as usize)).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        if name.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller gives a name that ends in NUL.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let handle = *found.functions.get(&*name).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        if state.function(as_pointer(handle))?.host.is_none() {
            state.diagnostics.push(format!(
                "kernel `{name}` was asked for and has no host function: give one with `reference::Options::kernel(\"{name}\", ..)`"
            ));
            return Err(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
        }
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(function, as_pointer(handle)) }
    }

    fn cuModuleGetFunctionCount(state, count: *mut c_uint, module: CUmodule) {
        let found = state.modules.get(&(module as usize)).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(count, found.functions.len() as c_uint) }
    }

    fn cuModuleEnumerateFunctions(state, functions: *mut CUfunction, count: c_uint, module: CUmodule) {
        let found = state.modules.get(&(module as usize)).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        if functions.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        for (at, function) in found.functions.values().take(count as usize).enumerate() {
            // SAFETY: not null, so the caller gives an array of this length.
            unsafe { functions.add(at).write(as_pointer(*function)) };
        }
        Ok(())
    }

    fn cuFuncGetAttribute(state, value: *mut c_int, attribute: CUfunction_attribute, function: CUfunction) {
        use CUfunction_attribute as Attribute;
        let function = state.function(function)?;
        let answer = match attribute {
            Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => function.threads.limit().min(MAX_THREADS) as c_int,
            Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => function.max_dynamic_shared,
            Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS => 32,
            _ => 0,
        };
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(value, answer) }
    }

    fn cuFuncSetAttribute(state, function: CUfunction, attribute: CUfunction_attribute, value: c_int) {
        let found = state.functions.get_mut(&(function as usize)).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        if attribute == CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES {
            if !(0..=227 << 10).contains(&value) {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            found.max_dynamic_shared = value;
        }
        Ok(())
    }

    fn cuFuncGetName(state, name: *mut *const c_char, function: CUfunction) {
        let text = state.function(function)?.name.as_ptr();
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(name, text) }
    }

    fn cuFuncGetParamInfo(state, function: CUfunction, index: usize, offset: *mut usize, size: *mut usize) {
        let parameter = *state.function(function)?.parameters.get(index).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: the caller gives a valid place, and null or another one.
        unsafe {
            put(offset, parameter.offset)?;
            if !size.is_null() {
                size.write(parameter.size);
            }
        }
        Ok(())
    }

    fn cuFuncLoad(state, function: CUfunction) {
        state.function(function).map(drop)
    }

    fn cuLaunchKernelEx(state, config: *const CUlaunchConfig, function: CUfunction, params: *mut *mut c_void, extra: *mut *mut c_void) {
        if config.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, so the caller gives a configuration, with as many attributes as it says.
        let (config, (attributes, priority)) = unsafe { (&*config, asked(&*config)?) };
        let geometry = LaunchConfig {
            grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
            block: [config.blockDimX, config.blockDimY, config.blockDimZ],
            shared_bytes: config.sharedMemBytes,
            attributes,
        };
        // SAFETY: the caller vouches for the arguments.
        unsafe { state.launch_on(config.hStream, function, geometry, priority, (params, extra)) }
    }

    fn cuLaunchKernel(
        state,
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        stream: CUstream,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let geometry = LaunchConfig {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared_bytes: shared,
            attributes: LaunchAttributes::NONE,
        };
        // SAFETY: the caller vouches for the arguments.
        unsafe { state.launch_on(stream, function, geometry, None, (params, extra)) }
    }
}

/// Writes the compiler's text where the options of a load ask for it, and how much of it there is.
///
/// # Safety
/// There are as many options as values, each of its option's kind.
unsafe fn write_log(log: &str, count: usize, options: *const CUjit_option, values: *mut *mut c_void) -> Outcome {
    if count == 0 {
        return Ok(());
    }
    if options.is_null() || values.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so as the caller says.
    let (options, values) =
        unsafe { (core::slice::from_raw_parts(options, count), core::slice::from_raw_parts_mut(values, count)) };
    let place = |wanted| options.iter().position(|option| *option == wanted);
    let buffer = place(CUjit_option::CU_JIT_ERROR_LOG_BUFFER);
    let size = place(CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
    if let (Some(buffer), Some(size)) = (buffer, size) {
        let (to, room) = (values[buffer].cast::<u8>(), values[size] as usize);
        let length = log.len().min(room.saturating_sub(1));
        if !to.is_null() && room > 0 {
            // SAFETY: the buffer is as large as its option says; the text and its NUL fit.
            unsafe {
                to.copy_from_nonoverlapping(log.as_ptr(), length);
                to.add(length).write(0);
            }
        }
        values[size] = core::ptr::without_provenance_mut(length);
    }
    Ok(())
}

/// The attributes of a launch, and the priority if one is among them.
///
/// # Safety
/// The configuration's list is as long as it says.
unsafe fn asked(config: &CUlaunchConfig) -> Outcome<(LaunchAttributes, Option<i32>)> {
    let (mut found, mut priority) = (LaunchConfig::new([1; 3], [1; 3]), None);
    if config.numAttrs == 0 {
        return Ok((found.attributes, priority));
    }
    if config.attrs.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so as the caller says.
    for attribute in unsafe { core::slice::from_raw_parts(config.attrs, config.numAttrs as usize) } {
        // SAFETY: each value is that of its attribute: plain integers.
        unsafe {
            let value = &attribute.value;
            match attribute.id {
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_IGNORE => {}
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
                    let blocks = [value.clusterDim.x, value.clusterDim.y, value.clusterDim.z];
                    found = found.cluster(blocks);
                }
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE if value.cooperative != 0 => {
                    found = found.cooperative()
                }
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE => {}
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION => {
                    if value.programmaticStreamSerializationAllowed != 0 {
                        found = found.programmatic();
                    }
                }
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY => priority = Some(value.priority),
                _ => return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
            }
        }
    }
    Ok((found.attributes, priority))
}
