//! Memory at reserved addresses.

use super::{entries, put};
use crate::reference::handles::{Mapping, Physical, Reservation};
use crate::reference::memory::{Kind, Region};
use crate::reference::state::{Outcome, State};
use crate::reference::work::{CopyEnd, Work};
use crate::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemLocationType, CUresult, location_parts,
};
use core::ffi::c_ulonglong;

/// What sizes and addresses are multiples of.
const GRANULARITY: usize = 2 << 20;

impl State {
    /// The reservation that holds a range.
    fn reservation(&mut self, address: u64, bytes: usize) -> Outcome<(u64, &mut Reservation)> {
        let found = self.reservations.range_mut(..=address).next_back();
        found
            .map(|(start, reservation)| (*start, reservation))
            .filter(|(start, reservation)| address + bytes as u64 <= start + reservation.bytes as u64)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// What waits to run and uses a range, as far as its addresses tell.
    fn user_of(&self, address: u64, bytes: usize) -> Option<&'static str> {
        let end = address + bytes as u64;
        let touches = |start: u64, length: usize| start < end && address < start.saturating_add(length.max(1) as u64);
        let end_touches = |end: &CopyEnd, bytes: usize| matches!(end, CopyEnd::Device(at) if touches(*at, bytes));
        self.tasks.find(|work| match work {
            Work::Kernel(launch) => {
                launch.arguments.possible_addresses().any(|word| touches(word, 1)).then_some("a kernel")
            }
            Work::Copy { to, from, bytes } => {
                (end_touches(to, *bytes) || end_touches(from, *bytes)).then_some("a copy")
            }
            Work::Fill { address, width, count, .. } => touches(*address, width * count).then_some("a memset"),
            _ => None,
        })
    }

    /// One user of physical memory less.
    fn unuse(&mut self, handle: u64) {
        let Some(physical) = self.physical.get_mut(&handle) else { return };
        physical.uses -= 1;
        if physical.uses == 0 {
            let (device, bytes) = (physical.device, physical.bytes);
            self.physical.remove(&handle);
            self.refund(device, bytes);
        }
    }
}

entries! {
    fn cuMemGetAllocationGranularity(state, granularity: *mut usize, prop: *const CUmemAllocationProp, _option: CUmemAllocationGranularity_flags) {
        if prop.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, so the caller gives valid properties.
        let (kind, id) = location_parts(unsafe { (*prop).location });
        if kind != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        state.device(id)?;
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(granularity, GRANULARITY) }
    }

    fn cuMemAddressReserve(state, address: *mut CUdeviceptr, bytes: usize, _alignment: usize, _hint: CUdeviceptr, flags: c_ulonglong) {
        if address.is_null() || bytes == 0 || !bytes.is_multiple_of(GRANULARITY) || flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // Backed from the start: what is mapped decides what may be used.
        let found = state.memory.back(bytes).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        state.reservations.insert(found, Reservation { bytes, mappings: Default::default() });
        // SAFETY: not null, so the caller gives a valid place.
        unsafe { put(address, found) }
    }

    fn cuMemAddressFree(state, address: CUdeviceptr, bytes: usize) {
        match state.reservations.get(&address) {
            Some(reservation) if reservation.bytes == bytes && reservation.mappings.is_empty() => {
                state.reservations.remove(&address);
                state.memory.unback(address);
                Ok(())
            }
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn cuMemCreate(state, handle: *mut CUmemGenericAllocationHandle, bytes: usize, prop: *const CUmemAllocationProp, _flags: c_ulonglong) {
        if handle.is_null() || prop.is_null() || bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, so the caller gives valid properties.
        let (_, id) = location_parts(unsafe { (*prop).location });
        let device = state.device(id)?;
        state.charge(device, bytes)?;
        let made = state.next_id();
        state.physical.insert(made, Physical { device, bytes, uses: 1 });
        // SAFETY: not null, so the caller gives a valid place.
        unsafe { put(handle, made) }
    }

    fn cuMemRelease(state, handle: CUmemGenericAllocationHandle) {
        if !state.physical.contains_key(&handle) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        state.unuse(handle);
        Ok(())
    }

    fn cuMemMap(state, address: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong) {
        let whole = state.physical.get(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?.bytes;
        if offset != 0 || flags != 0 || bytes != whole {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let (start, reservation) = state.reservation(address, bytes)?;
        let at = address - start;
        let overlaps = reservation.mappings.iter().any(|(&other, mapping)| at < other + mapping.bytes as u64 && other < at + bytes as u64);
        if overlaps {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        reservation.mappings.insert(at, Mapping { bytes, physical: handle, accessible: false });
        if let Some(physical) = state.physical.get_mut(&handle) {
            physical.uses += 1;
        }
        Ok(())
    }

    fn cuMemUnmap(state, address: CUdeviceptr, bytes: usize) {
        // It waits for nothing: work that uses the range finds nothing there when it runs, and is told of here, whatever order the seed draws.
        let (start, reservation) = state.reservation(address, bytes)?;
        let (first, end) = (address - start, address - start + bytes as u64);
        let inside: Vec<(u64, Mapping)> = reservation.mappings.range(first..end).map(|(at, mapping)| (*at, *mapping)).collect();
        if inside.iter().map(|(_, mapping)| mapping.bytes).sum::<usize>() != bytes {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if let Some(user) = state.user_of(address, bytes) {
            state.diagnostics.push(format!(
                "{bytes} bytes at {address:#x} were unmapped while {user} that uses them had not run: wait for it before"
            ));
        }
        for (at, mapping) in inside {
            reservation_of(state, start).remove(&at);
            if mapping.accessible {
                state.memory.close(start + at);
            }
            state.unuse(mapping.physical);
        }
        Ok(())
    }

    fn cuMemSetAccess(state, address: CUdeviceptr, bytes: usize, list: *const CUmemAccessDesc, count: usize) {
        let context = state.current_or_none().unwrap_or(0);
        if list.is_null() || count == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller gives an array of this length.
        let flags = unsafe { (*list).flags };
        let (start, reservation) = state.reservation(address, bytes)?;
        let (first, end) = (address - start, address - start + bytes as u64);
        let usable = flags == CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let mut changed = Vec::new();
        for (&at, mapping) in reservation.mappings.range_mut(first..end) {
            if mapping.accessible != usable {
                mapping.accessible = usable;
                changed.push((start + at, mapping.bytes));
            }
        }
        for (address, bytes) in changed {
            if usable {
                state.memory.open(address, Region { bytes, kind: Kind::Mapped(context) });
            } else {
                state.memory.close(address);
            }
        }
        Ok(())
    }
}

fn reservation_of(state: &mut State, start: u64) -> &mut std::collections::BTreeMap<u64, Mapping> {
    &mut state
        .reservations
        .entry(start)
        .or_insert_with(|| Reservation { bytes: 0, mappings: Default::default() })
        .mappings
}
