//! Contexts.

use super::{as_pointer, entries, put};
use crate::sys::{CUcontext, CUdevice, CUresult};
use core::ffi::{c_int, c_ulonglong};

/// The priorities that streams can have.
pub(super) const LEAST_PRIORITY: i32 = 0;
pub(super) const GREATEST_PRIORITY: i32 = -5;

entries! {
    fn cuCtxGetCurrent(state, context: *mut CUcontext) {
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(context, state.current_or_none().map_or(core::ptr::null_mut(), as_pointer)) }
    }

    fn cuCtxSetCurrent(state, context: CUcontext) {
        if context.is_null() {
            state.set_current(None);
            return Ok(());
        }
        if !state.contexts.contains_key(&(context as usize)) {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        state.set_current(Some(context as usize));
        Ok(())
    }

    fn cuCtxGetDevice(state, device: *mut CUdevice) {
        let context = state.current()?;
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(device, state.contexts[&context].device as CUdevice) }
    }

    fn cuCtxGetId(state, context: CUcontext, id: *mut c_ulonglong) {
        let context = if context.is_null() { state.current()? } else { context as usize };
        let found = state.contexts.get(&context).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?.id;
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(id, found) }
    }

    fn cuCtxSynchronize(state) {
        let context = state.current()?;
        // Whatever the mode, it would have to wait for what is being captured.
        let mut capturing = false;
        for capture in state.captures.values_mut() {
            if state.streams.get(&capture.origin).is_some_and(|stream| stream.context == context) {
                capture.invalidated = true;
                capturing = true;
            }
        }
        if capturing {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let tasks = state.tasks.of_context(Some(context));
        state.wait_for(&tasks);
        state.release_unused();
        state.healthy(context)
    }

    fn cuCtxGetStreamPriorityRange(state, least: *mut c_int, greatest: *mut c_int) {
        state.current()?;
        // SAFETY: the caller gives null or valid places.
        unsafe {
            put(least, LEAST_PRIORITY)?;
            put(greatest, GREATEST_PRIORITY)
        }
    }
}
