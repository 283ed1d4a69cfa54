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
use std::sync::{Arc, Weak};

/// A range of device addresses ([`cuMemAddressReserve`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html)) under which memory is
/// mapped in chunks. The memory can be given back and taken again, at the same addresses: what refers to them stays valid.
pub(crate) struct AddressRange {
    context: Context,
    address: CUdeviceptr,
    bytes: usize,
    granularity: usize,
    /// Ascending, without overlap.
    chunks: Vec<Chunk>,
    /// Offsets and sizes of what was given back. As long as its token lives something may still be mapped there: the drop waits for an open capture.
    leaving: Vec<(usize, usize, Weak<()>)>,
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
        Ok(AddressRange {
            context: context.clone(),
            address,
            bytes,
            granularity,
            chunks: Vec::new(),
            leaving: Vec::new(),
        })
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
        self.leaving.retain(|(_, _, mapped)| mapped.strong_count() > 0);
        let leaving = self.leaving.iter().map(|(offset, bytes, _)| (*offset, *bytes));
        let mut taken: Vec<_> = self.chunks.iter().map(|chunk| (chunk.offset, chunk.bytes)).chain(leaving).collect();
        taken.sort_unstable();
        let mut offset = 0;
        for (start, length) in taken {
            if start - offset >= bytes {
                break;
            }
            offset = start + length;
        }
        if self.bytes - offset < bytes {
            return Ok(None);
        }
        self.map_at(offset, bytes)?;
        let place = self.chunks.partition_point(|chunk| chunk.offset < offset);
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
        (chunk.memory != Memory::Unmapped).then(|| {
            let mapped = Arc::new(());
            self.leaving.push((chunk.offset, chunk.bytes, Arc::downgrade(&mapped)));
            Mapping { context: self.context.clone(), address, bytes: chunk.bytes, mapped }
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
        let _relaxed = relaxed(self.context.driver())?;
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
    /// What the driver returns.
    pub(crate) fn map_again(&mut self) -> Result<()> {
        let context = self.context.clone();
        let _bound = context.bind()?;
        let missing = |chunk: &Chunk| chunk.memory != Memory::Mapped;
        let missing: Vec<usize> = (0..self.chunks.len()).filter(|&index| missing(&self.chunks[index])).collect();
        for (done, &index) in missing.iter().enumerate() {
            if self.chunks[index].memory == Memory::Unsure {
                self.unmap_unused(index);
                // Where there is nothing to unmap that fails.
                self.chunks[index].memory = Memory::Unmapped;
            }
            let Chunk { offset, bytes, .. } = self.chunks[index];
            if let Err(error) = self.map_at(offset, bytes) {
                missing[..done].iter().for_each(|&index| self.unmap_unused(index));
                return Err(error);
            }
            self.chunks[index].memory = Memory::Mapped;
        }
        Ok(())
    }

    /// Unmaps a chunk of which nothing is in use. The error that led to it is the one to tell.
    fn unmap_unused(&mut self, index: usize) {
        let Chunk { offset, bytes, .. } = self.chunks[index];
        let driver = self.context.driver();
        let unmapped = first_failure::untouched(|| {
            let _relaxed = relaxed(driver)?;
            // SAFETY: addresses of this range, of which nothing is in use.
            unsafe { driver.cuMemUnmap(self.address + offset as u64, bytes)? };
            Ok::<_, Error>(())
        });
        self.chunks[index].memory = if unmapped.is_ok() { Memory::Unmapped } else { Memory::Unsure };
    }
}

/// A chunk on its way back to the device. The addresses stay reserved.
pub(crate) struct Mapping {
    context: Context,
    address: CUdeviceptr,
    bytes: usize,
    /// Lives until it has been carried out.
    mapped: Arc<()>,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.context.destroy(Destroy::Mapping(self.address, self.bytes, self.mapped.clone()));
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        for chunk in self.chunks.iter().filter(|chunk| chunk.memory != Memory::Unmapped) {
            let address = self.address + chunk.offset as u64;
            self.context.destroy(Destroy::Mapping(address, chunk.bytes, Arc::default()));
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
