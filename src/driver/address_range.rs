//! Addresses that stay, with memory mapped under them that comes and goes.

use super::capture_mode::relaxed;
use super::context::Context;
use super::deferred_drop::Destroy;
use crate::error::{Error, Result};
use crate::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationProp,
    CUmemAllocationType, device_location, first_failure, zeroed,
};
use std::fmt;

/// A range of device addresses ([`cuMemAddressReserve`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html)) under which memory is
/// mapped in chunks. The memory can be given back and taken again, at the same addresses: what refers to them stays valid.
pub(crate) struct AddressRange {
    context: Context,
    address: CUdeviceptr,
    bytes: usize,
    granularity: usize,
    /// Ascending, without overlap.
    chunks: Vec<Chunk>,
}

#[derive(Clone, Copy, Debug)]
struct Chunk {
    offset: usize,
    bytes: usize,
    memory: Memory,
}

/// What is under a chunk's addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Memory {
    Mapped,
    Unmapped,
    /// Unmapping failed, and may have done its work all the same.
    Unsure,
}

impl fmt::Debug for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressRange")
            .field("address", &format_args!("{:#x}", self.address))
            .field("bytes", &self.bytes)
            .field("chunks", &self.chunks.len())
            .field("mapped", &self.mapped())
            .finish_non_exhaustive()
    }
}

impl AddressRange {
    /// The context.
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Reserves addresses, rounded up to the device's granularity. No memory is taken.
    ///
    /// # Errors
    /// What the driver returns.
    pub(crate) fn reserve(context: &Context, bytes: usize) -> Result<AddressRange> {
        let driver = context.driver();
        let _bound = context.bind()?;
        let properties = properties(context);
        let mut granularity = 0;
        // SAFETY: a valid place and filled properties.
        unsafe {
            driver.cuMemGetAllocationGranularity(
                &mut granularity,
                &properties,
                CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM,
            )?;
        }
        let granularity = granularity.max(1);
        let bytes = bytes.max(1).checked_next_multiple_of(granularity).unwrap_or(usize::MAX - granularity + 1);
        let mut address = 0;
        // SAFETY: a valid place; no alignment and no address are asked for.
        unsafe { driver.cuMemAddressReserve(&mut address, bytes, 0, 0, 0)? };
        Ok(AddressRange { context: context.clone(), address, bytes, granularity, chunks: Vec::new() })
    }

    /// Bytes of memory under it now.
    pub(crate) fn mapped(&self) -> usize {
        self.chunks.iter().filter(|chunk| chunk.memory != Memory::Unmapped).map(|chunk| chunk.bytes).sum()
    }

    /// Takes memory (`cuMemCreate`, [`cuMemMap`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html), `cuMemSetAccess`) at the lowest
    /// addresses of the range that are free, and gives the first of them. Its content is undefined. `None` where the range has no room.
    ///
    /// # Errors
    /// What the driver returns; the range is as before.
    pub(crate) fn map(&mut self, bytes: usize) -> Result<Option<CUdeviceptr>> {
        let Some(bytes) = bytes.max(1).checked_next_multiple_of(self.granularity) else { return Ok(None) };
        let (mut offset, mut place) = (0, 0);
        for chunk in &self.chunks {
            if chunk.offset - offset >= bytes {
                break;
            }
            offset = chunk.offset + chunk.bytes;
            place += 1;
        }
        if self.bytes - offset < bytes {
            return Ok(None);
        }
        self.map_at(offset, bytes)?;
        self.chunks.insert(place, Chunk { offset, bytes, memory: Memory::Mapped });
        Ok(Some(self.address + offset as u64))
    }

    fn map_at(&self, offset: usize, bytes: usize) -> Result<()> {
        let driver = self.context.driver();
        let _bound = self.context.bind()?;
        let _relaxed = relaxed(driver)?;
        let properties = properties(&self.context);
        let mut access: CUmemAccessDesc = zeroed();
        access.location = device_location(self.context.device().as_raw());
        access.flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let address = self.address + offset as u64;
        let mut memory = 0;
        // SAFETY: valid places and filled descriptions; the addresses are this range's, and no other chunk has them. The handle is let go of once it
        // is mapped: the memory then lives until it is unmapped.
        unsafe {
            driver.cuMemCreate(&mut memory, bytes, &properties, 0)?;
            let mapped = driver.cuMemMap(address, bytes, 0, memory, 0);
            let released = driver.cuMemRelease(memory);
            mapped?;
            let usable = released.and_then(|()| driver.cuMemSetAccess(address, bytes, &access, 1));
            if let Err(error) = usable {
                // The first error is the one to tell.
                let _ = driver.cuMemUnmap(address, bytes);
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Takes one chunk out of the range. Its memory goes back to the device when the result drops; nothing may use it by then.
    pub(crate) fn forget(&mut self, address: CUdeviceptr) -> Option<Mapping> {
        let offset = usize::try_from(address.checked_sub(self.address)?).ok()?;
        let place = self.chunks.binary_search_by_key(&offset, |chunk| chunk.offset).ok()?;
        let chunk = self.chunks.remove(place);
        (chunk.memory != Memory::Unmapped).then(|| Mapping {
            context: self.context.clone(),
            address,
            bytes: chunk.bytes,
        })
    }

    /// Gives up the memory: it stays mapped.
    pub(crate) fn leak(&mut self) {
        self.chunks.clear();
        self.bytes = 0;
    }

    /// Gives all memory back to the device ([`cuMemUnmap`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html)) and keeps the addresses.
    /// Nothing that is on a stream may use it. What could not be unmapped stays mapped, and can be unmapped by another call.
    ///
    /// # Errors
    /// What the driver returns.
    pub(crate) fn unmap(&mut self) -> Result<()> {
        let _bound = self.context.bind()?;
        for chunk in self.chunks.iter_mut().filter(|chunk| chunk.memory == Memory::Mapped) {
            chunk.memory = Memory::Unsure;
            // SAFETY: a mapping of exactly these addresses.
            unsafe { self.context.driver().cuMemUnmap(self.address + chunk.offset as u64, chunk.bytes)? };
            chunk.memory = Memory::Unmapped;
        }
        Ok(())
    }

    /// Takes memory again for all chunks that have none. All of them or none.
    ///
    /// # Errors
    /// What the driver returns, with what is to be unmapped again: it is when that drops, which may run a caller's hook.
    pub(crate) fn map_again(&mut self) -> Result<(), (Error, Vec<Mapping>)> {
        let mut undone = Vec::new();
        self.map_missing(&mut undone).map_err(|error| (error, undone))
    }

    fn map_missing(&mut self, undone: &mut Vec<Mapping>) -> Result<()> {
        let _bound = self.context.bind()?;
        let missing = |chunk: &Chunk| chunk.memory != Memory::Mapped;
        let missing: Vec<usize> = (0..self.chunks.len()).filter(|&index| missing(&self.chunks[index])).collect();
        for (done, &index) in missing.iter().enumerate() {
            let Chunk { offset, bytes, memory } = self.chunks[index];
            if memory == Memory::Unsure {
                let address = self.address + offset as u64;
                // SAFETY: addresses of this range, of which nothing is in use. Where there is nothing to unmap it does nothing.
                let _ = first_failure::untouched(|| unsafe { self.context.driver().cuMemUnmap(address, bytes) });
                self.chunks[index].memory = Memory::Unmapped;
            }
            if let Err(error) = self.map_at(offset, bytes) {
                for &index in &missing[..done] {
                    let chunk = &mut self.chunks[index];
                    chunk.memory = Memory::Unmapped;
                    let (context, address) = (self.context.clone(), self.address + chunk.offset as u64);
                    undone.push(Mapping { context, address, bytes: chunk.bytes });
                }
                return Err(error);
            }
            self.chunks[index].memory = Memory::Mapped;
        }
        Ok(())
    }
}

/// A chunk on its way back to the device. The addresses stay reserved.
pub(crate) struct Mapping {
    context: Context,
    address: CUdeviceptr,
    bytes: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.context.destroy(Destroy::Mapping(self.address, self.bytes));
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        for chunk in self.chunks.iter().filter(|chunk| chunk.memory != Memory::Unmapped) {
            self.context.destroy(Destroy::Mapping(self.address + chunk.offset as u64, chunk.bytes));
        }
        if self.bytes > 0 {
            self.context.destroy(Destroy::Addresses(self.address, self.bytes));
        }
    }
}

/// Ordinary memory of the context's device.
fn properties(context: &Context) -> CUmemAllocationProp {
    let mut properties: CUmemAllocationProp = zeroed();
    properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = device_location(context.device().as_raw());
    properties
}
