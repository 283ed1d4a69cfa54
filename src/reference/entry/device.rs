//! The driver and its devices.

use super::{entries, put};
use crate::reference::handles::Context;
use crate::reference::ids::{Handle, new_handle};
use crate::reference::state::{Outcome, State};
use crate::sys::{CUcontext, CUdevice, CUdevice_attribute, CUmemoryPool, CUresult, CUuuid, code_name, zeroed};
use core::ffi::{c_char, c_int, c_uint};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::OnceLock;

/// Names of codes as C strings that live for ever, as the driver's do.
fn c_name(code: CUresult) -> Option<&'static std::ffi::CStr> {
    static NAMES: OnceLock<HashMap<u32, CString>> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let codes = (0..1000).filter_map(|code| Some((code, CString::new(code_name(CUresult(code))?).ok()?)));
        codes.collect()
    });
    names.get(&code.0).map(CString::as_c_str)
}

impl State {
    pub(super) fn device(&self, device: CUdevice) -> Outcome<usize> {
        if !self.initialised {
            return Err(CUresult::CUDA_ERROR_NOT_INITIALIZED);
        }
        usize::try_from(device).ok().filter(|&at| at < self.devices.len()).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    /// Everything that was made in a context goes with it.
    fn destroy_context(&mut self, context: Handle) {
        let tasks = self.tasks.of_context(Some(context));
        self.wait_for(&tasks);
        let captures: Vec<_> = self
            .captures
            .iter()
            .filter(|(_, capture)| self.streams.get(&capture.origin).is_some_and(|stream| stream.context == context))
            .map(|(id, capture)| (*id, capture.graph))
            .collect();
        for (id, graph) in captures {
            self.forget_capture(id);
            self.remove_graph(graph);
        }
        self.streams.retain(|_, stream| stream.context != context);
        self.events.retain(|_, event| event.context != context);
        self.modules.retain(|_, module| module.context != context);
        let State { functions, modules, .. } = self;
        functions.retain(|_, function| modules.contains_key(&function.module));
        let execs = self.execs.values().filter(|exec| exec.context == context).map(|exec| exec.bytes).sum::<usize>();
        self.execs.retain(|_, exec| exec.context != context);
        if let Some(device) = self.contexts.get(&context).map(|context| context.device) {
            let (_, bytes) = self.memory.open_regions(|kind| kind == crate::reference::memory::Kind::Device(context));
            self.devices[device].used = self.devices[device].used.saturating_sub(bytes + execs);
        }
        self.memory.close_context(context);
        self.contexts.remove(&context);
    }
}

entries! {
    fn cuInit(state, flags: c_uint) {
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if state.options.init != CUresult::CUDA_SUCCESS {
            return Err(state.options.init);
        }
        if state.devices.is_empty() {
            return Err(CUresult::CUDA_ERROR_NO_DEVICE);
        }
        state.initialised = true;
        Ok(())
    }

    fn cuDriverGetVersion(state, version: *mut c_int) {
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(version, state.options.version) }
    }

    fn cuGetErrorString(_state, code: CUresult, text: *mut *const c_char) {
        let found = c_name(code);
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(text, found.map_or(core::ptr::null(), |name| name.as_ptr()))? };
        found.map(drop).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    fn cuDeviceGet(state, device: *mut CUdevice, ordinal: c_int) {
        state.device(ordinal)?;
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(device, ordinal) }
    }

    fn cuDeviceGetCount(state, count: *mut c_int) {
        if !state.initialised {
            return Err(CUresult::CUDA_ERROR_NOT_INITIALIZED);
        }
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(count, state.devices.len() as c_int) }
    }

    fn cuDeviceGetName(state, name: *mut c_char, length: c_int, device: CUdevice) {
        let text = format!("reference device {}", state.device(device)?);
        if name.is_null() || length <= 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let bytes = &text.as_bytes()[..text.len().min(length as usize - 1)];
        // SAFETY: the caller gives a buffer of this length; the text and its NUL fit.
        unsafe {
            name.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            name.add(bytes.len()).write(0);
        }
        Ok(())
    }

    fn cuDeviceGetAttribute(state, value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice) {
        use CUdevice_attribute as Attribute;
        state.device(device)?;
        let answer = match attribute {
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK => 1024,
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK => 48 << 10,
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => 227 << 10,
            Attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH | Attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH => 1,
            Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE => 32,
            Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => 1,
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => 9,
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => 0,
            Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING => 1,
            Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED => 1,
            Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED => c_int::from(state.options.memory_pools),
            _ => 0,
        };
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(value, answer) }
    }

    fn cuDeviceTotalMem_v2(state, bytes: *mut usize, device: CUdevice) {
        let device = state.device(device)?;
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(bytes, state.devices[device].total) }
    }

    fn cuDeviceGetUuid_v2(state, uuid: *mut CUuuid, device: CUdevice) {
        let device = state.device(device)?;
        let mut found: CUuuid = zeroed();
        found.bytes[0] = device as c_char;
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(uuid, found) }
    }

    fn cuDeviceCanAccessPeer(state, can: *mut c_int, device: CUdevice, peer: CUdevice) {
        let different = state.device(device)? != state.device(peer)?;
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(can, c_int::from(different)) }
    }

    fn cuDeviceGetDefaultMemPool(state, pool: *mut CUmemoryPool, device: CUdevice) {
        let device = state.device(device)?;
        if !state.options.memory_pools {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let handle = match state.devices[device].default_pool {
            Some(handle) => handle,
            None => {
                let handle = state.new_pool(device, 0);
                state.devices[device].default_pool = Some(handle);
                handle
            }
        };
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(pool, super::as_pointer(handle)) }
    }

    fn cuDevicePrimaryCtxRetain(state, context: *mut CUcontext, device: CUdevice) {
        let device = state.device(device)?;
        let (handle, uses) = match state.devices[device].primary {
            Some((handle, uses)) => (handle, uses + 1),
            None => {
                let (handle, id) = (new_handle(), state.next_id());
                state.contexts.insert(handle, Context { device, legacy_tail: None, sticky: None, id });
                (handle, 1)
            }
        };
        state.devices[device].primary = Some((handle, uses));
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(context, super::as_pointer(handle)) }
    }

    fn cuDevicePrimaryCtxRelease_v2(state, device: CUdevice) {
        let device = state.device(device)?;
        match state.devices[device].primary {
            None => Err(CUresult::CUDA_ERROR_INVALID_CONTEXT),
            Some((handle, 1)) => {
                state.devices[device].primary = None;
                state.destroy_context(handle);
                Ok(())
            }
            Some((handle, uses)) => {
                state.devices[device].primary = Some((handle, uses - 1));
                Ok(())
            }
        }
    }

}
