//! Memory that is not stream-ordered, copies and memsets.

use super::{as_pointer, entries, put};
use crate::reference::capture::Target;
use crate::reference::ids::Handle;
use crate::reference::memory::{Kind, Region};
use crate::reference::state::{Outcome, State};
use crate::reference::work::{CopyEnd, Work};
use crate::sys::{CUcontext, CUdeviceptr, CUmemoryPool, CUmemorytype_enum, CUpointer_attribute, CUresult, CUstream};
use core::ffi::{c_int, c_uchar, c_uint, c_void};

impl State {
    /// Takes bytes from a device's budget.
    pub(super) fn charge(&mut self, device: usize, bytes: usize) -> Outcome {
        let device = &mut self.devices[device];
        if bytes > device.total - device.used {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        device.used += bytes;
        Ok(())
    }

    pub(super) fn refund(&mut self, device: usize, bytes: usize) {
        self.devices[device].used = self.devices[device].used.saturating_sub(bytes);
    }

    pub(super) fn device_of(&self, context: Handle) -> usize {
        self.contexts.get(&context).map_or(0, |context| context.device)
    }

    /// The end of a copy that a host pointer is: memory that the driver gave, or any other.
    fn host_place(&self, address: *const c_void) -> CopyEnd {
        let address = address as u64;
        if self.memory.region(address).is_some() { CopyEnd::Device(address) } else { CopyEnd::Host(address) }
    }

    fn is_pinned(&self, address: u64) -> bool {
        self.memory.region(address).is_some_and(|(_, region)| matches!(region.kind, Kind::Pinned(_)))
    }

    /// Where a copy from the host reads: pinned memory when the copy runs, pageable memory now. A node of a capture keeps the address.
    ///
    /// # Safety
    /// `from` is the start of `bytes` readable bytes.
    unsafe fn host_source(&self, target: Target, from: *const c_void, bytes: usize) -> CopyEnd {
        match self.host_place(from) {
            pinned @ CopyEnd::Device(_) => pinned,
            pageable if self.capture_of(target).is_some() => pageable,
            // SAFETY: as the caller says.
            _ => CopyEnd::Staged(unsafe { core::slice::from_raw_parts(from.cast::<u8>(), bytes) }.into()),
        }
    }

    fn fill(&mut self, address: u64, value: u32, width: usize, count: usize, stream: CUstream) -> Outcome {
        let target = self.target(stream)?;
        if !address.is_multiple_of(width as u64) || !self.memory.is_known(address) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        self.submit(target, Work::Fill { address, value, width, count })
    }
}

entries! {
    fn cuMemGetInfo_v2(state, free: *mut usize, total: *mut usize) {
        let context = state.current()?;
        let device = &state.devices[state.device_of(context)];
        // SAFETY: the caller gives null or valid places.
        unsafe {
            put(free, device.total - device.used)?;
            put(total, device.total)
        }
    }

    fn cuMemAlloc_v2(state, address: *mut CUdeviceptr, bytes: usize) {
        let context = state.current()?;
        state.unsafe_call()?;
        state.healthy(context)?;
        if bytes == 0 || address.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        state.charge(state.device_of(context), bytes)?;
        let found = state.memory.back(bytes).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        state.memory.open(found, Region { bytes, kind: Kind::Device(context) });
        // SAFETY: not null, so the caller gives a valid place.
        unsafe { put(address, found) }
    }

    fn cuMemFree_v2(state, address: CUdeviceptr) {
        if address == 0 {
            return Ok(());
        }
        state.unsafe_call()?;
        match state.memory.region(address) {
            Some((start, Region { kind: Kind::Device(context), bytes })) if start == address => {
                // It waits for the context's work.
                let tasks = state.tasks.of_context(Some(context));
                state.wait_for(&tasks);
                state.memory.close(address);
                state.memory.unback(address);
                state.refund(state.device_of(context), bytes);
                state.healthy(context)
            }
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn cuMemHostAlloc(state, address: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        let context = state.current()?;
        state.unsafe_call()?;
        if bytes == 0 || address.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let found = state.memory.back(bytes).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        state.memory.open(found, Region { bytes, kind: Kind::Pinned(context) });
        state.pinned.insert(found, bytes);
        // SAFETY: not null, so the caller gives a valid place.
        unsafe { put(address, core::ptr::with_exposed_provenance_mut(found as usize)) }
    }

    fn cuMemFreeHost(state, address: *mut c_void) {
        state.unsafe_call()?;
        let address = address as u64;
        state.pinned.remove(&address).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let tasks = state.tasks.of_context(None);
        state.wait_for(&tasks);
        state.memory.close(address);
        state.memory.unback(address);
        Ok(())
    }

    fn cuPointerGetAttribute(state, value: *mut c_void, attribute: CUpointer_attribute, address: CUdeviceptr) {
        use CUpointer_attribute as Attribute;
        let (start, region) = state.allocation(address).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let context = region.kind.context();
        let pinned = matches!(region.kind, Kind::Pinned(_));
        // SAFETY: the caller gives null or a place for a value of the attribute's type.
        unsafe {
            match attribute {
                Attribute::CU_POINTER_ATTRIBUTE_CONTEXT => put(value.cast::<CUcontext>(), as_pointer(context)),
                Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
                    let kind = if pinned { CUmemorytype_enum::CU_MEMORYTYPE_HOST } else { CUmemorytype_enum::CU_MEMORYTYPE_DEVICE };
                    put(value.cast::<c_uint>(), kind.0)
                }
                Attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER => put(value.cast::<CUdeviceptr>(), address),
                Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => put(value.cast::<c_int>(), state.device_of(context) as c_int),
                Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => put(value.cast::<CUdeviceptr>(), start),
                Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE => put(value.cast::<usize>(), region.bytes),
                Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => {
                    let pool = state.pool_of.get(&start).copied();
                    put(value.cast::<CUmemoryPool>(), pool.map_or(core::ptr::null_mut(), as_pointer))
                }
                _ => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
            }
        }
    }

    fn cuMemcpyHtoD_v2(state, to: CUdeviceptr, from: *const c_void, bytes: usize) {
        let target = Target::Legacy(state.current()?);
        // SAFETY: the caller vouches for the source. It is staged, and the transfer may still be pending when this returns.
        let from = unsafe { state.host_source(target, from, bytes) };
        let pinned = matches!(from, CopyEnd::Device(_));
        let task = state.submit_live(target, Work::Copy { to: CopyEnd::Device(to), from, bytes })?;
        if pinned {
            state.wait_for(&[task]);
        }
        state.healthy(state.context_of(target))
    }

    fn cuMemcpyDtoH_v2(state, to: *mut c_void, from: CUdeviceptr, bytes: usize) {
        let target = Target::Legacy(state.current()?);
        let to = state.host_place(to);
        let task = state.submit_live(target, Work::Copy { to, from: CopyEnd::Device(from), bytes })?;
        state.wait_for(&[task]);
        state.healthy(state.context_of(target))
    }

    fn cuMemcpyHtoDAsync_v2(state, to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream) {
        let target = state.target(stream)?;
        // SAFETY: the caller vouches for the source.
        let from = unsafe { state.host_source(target, from, bytes) };
        state.submit(target, Work::Copy { to: CopyEnd::Device(to), from, bytes })
    }

    fn cuMemcpyDtoHAsync_v2(state, to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        let target = state.target(stream)?;
        let captured = state.capture_of(target).is_some();
        let to = state.host_place(to);
        let pageable = matches!(to, CopyEnd::Host(_));
        state.submit(target, Work::Copy { to, from: CopyEnd::Device(from), bytes })?;
        if pageable && !captured {
            // Into pageable memory it is synchronous.
            let tails = state.tails(target);
            state.wait_for(&tails);
            state.healthy(state.context_of(target))?;
        }
        Ok(())
    }

    fn cuMemcpyDtoDAsync_v2(state, to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        let target = state.target(stream)?;
        if state.is_pinned(to) || state.is_pinned(from) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        state.submit(target, Work::Copy { to: CopyEnd::Device(to), from: CopyEnd::Device(from), bytes })
    }

    fn cuMemsetD8Async(state, address: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream) {
        state.fill(address, u32::from(value), 1, count, stream)
    }

    fn cuMemsetD32Async(state, address: CUdeviceptr, value: c_uint, count: usize, stream: CUstream) {
        state.fill(address, value, 4, count, stream)
    }
}
