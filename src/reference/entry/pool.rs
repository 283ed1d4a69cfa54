//! Stream-ordered memory pools.

use super::{as_pointer, entries, put};
use crate::reference::capture::Target;
use crate::reference::first_fit::{FirstFit, round_up};
use crate::reference::graph::Payload;
use crate::reference::handles::{OutBlock, Pool};
use crate::reference::ids::{Handle, new_handle};
use crate::reference::memory::{Kind, Region};
use crate::reference::state::{Outcome, State};
use crate::reference::work::Work;
use crate::sys::{
    CUdeviceptr, CUmemLocation, CUmemLocationType, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUresult,
    CUstream, location_parts, max_size,
};
use core::ffi::{c_int, c_void};

/// Blocks are of multiples of this many bytes, and at such addresses.
const BLOCK_BYTES: usize = 512;
/// Slabs are of multiples of this many.
const SLAB_BYTES: usize = 2 << 20;

impl State {
    pub(super) fn new_pool(&mut self, device: usize, max: usize) -> Handle {
        let handle = new_handle();
        let max = if max == 0 { self.devices[device].total } else { max };
        let pool = Pool {
            device,
            max,
            threshold: 0,
            free: FirstFit::default(),
            out: Default::default(),
            reserved: 0,
            reserved_high: 0,
            used: 0,
            used_high: 0,
            returning: Vec::new(),
            destroyed: false,
        };
        self.pools.insert(handle, pool);
        handle
    }

    fn pool(&mut self, pool: CUmemoryPool) -> Outcome<&mut Pool> {
        let found = self.pools.get_mut(&(pool as usize)).filter(|pool| !pool.destroyed);
        found.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// The device that a location names.
    fn located(&self, location: CUmemLocation) -> Outcome<usize> {
        let (kind, id) = location_parts(location);
        if kind != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        self.device(id).map_err(|_| CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    /// Takes a block for a stream, from a free block of the same stream or from a new slab: its address.
    fn take_block(&mut self, handle: Handle, stream: Handle, bytes: usize) -> Outcome<u64> {
        let State { pools, tasks, .. } = self;
        let pool = pools.get_mut(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let Pool { returning, free, .. } = pool;
        returning.retain(|&(task, address, bytes)| {
            let is_back = !tasks.is_pending(task);
            if is_back {
                free.give(address, bytes);
            }
            !is_back
        });
        if let Some(address) = free.take(stream, bytes) {
            return Ok(address);
        }
        let slab_bytes = round_up(bytes, SLAB_BYTES).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let (device, left) = (pool.device, pool.max.saturating_sub(pool.reserved));
        if slab_bytes > left {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        self.charge(device, slab_bytes)?;
        let Some(address) = self.memory.back(slab_bytes) else {
            self.refund(device, slab_bytes);
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        };
        let pool = self.pools.get_mut(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        pool.free.add_slab(stream, address, slab_bytes);
        pool.reserved += slab_bytes;
        pool.reserved_high = pool.reserved_high.max(pool.reserved);
        pool.free.take(stream, bytes).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }

    fn allocate_from(&mut self, handle: Handle, bytes: usize, target: Target) -> Outcome<u64> {
        let context = self.context_of(target);
        let Target::Stream(stream) = target else { return self.allocate_on_stream(handle, bytes, target, context) };
        if self.capture_of(target).is_none() {
            return self.allocate_on_stream(handle, bytes, target, stream);
        }
        // In a capture it is a node: the graph gets addresses of its own.
        let address = self.memory.back(bytes).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let region = Region { bytes, kind: Kind::GraphNode(context) };
        self.add_captured(stream, Payload::Alloc { address, region })?;
        Ok(address)
    }

    fn allocate_on_stream(&mut self, handle: Handle, bytes: usize, target: Target, key: Handle) -> Outcome<u64> {
        self.unsafe_call()?;
        let context = self.context_of(target);
        self.healthy(context)?;
        let block_bytes = round_up(bytes, BLOCK_BYTES).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let address = self.take_block(handle, key, block_bytes)?;
        let region = Region { bytes, kind: Kind::Pool(context) };
        self.submit_live(target, Work::Open { address, region })?;
        let pool = self.pools.get_mut(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        pool.out.insert(address, OutBlock { bytes: block_bytes, stream: key, context });
        pool.used += block_bytes;
        pool.used_high = pool.used_high.max(pool.used);
        self.pool_of.insert(address, handle);
        Ok(address)
    }

    /// The allocation that an address is in: of a pool's from the call on, whatever its stream has done.
    pub(super) fn allocation(&self, address: u64) -> Option<(u64, Region)> {
        let of_pools = || {
            let mut blocks = self.pools.values().flat_map(|pool| &pool.out);
            let (&start, block) =
                blocks.find(|(start, block)| (**start..**start + block.bytes as u64).contains(&address))?;
            Some((start, Region { bytes: block.bytes, kind: Kind::Pool(block.context) }))
        };
        self.memory.region(address).or_else(of_pools)
    }

    fn free_on_stream(&mut self, address: u64, target: Target) -> Outcome {
        if let (Target::Stream(stream), Some(_)) = (target, self.capture_of(target)) {
            let of_graph = self.graphs.values().flat_map(|graph| &graph.nodes).any(
                |node| matches!(node.payload, Payload::Alloc { address: node_address, .. } if node_address == address),
            );
            if !of_graph {
                // Memory from outside the capture; the capture survives and the memory is not freed.
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            return self.add_captured(stream, Payload::Free { address }).map(drop);
        }
        self.unsafe_call()?;
        let key = match target {
            Target::Stream(stream) => stream,
            Target::Legacy(context) => context,
        };
        let Some(handle) = self.pool_of.get(&address).copied() else {
            return self.free_of_graph(address, target);
        };
        let task = self.submit_live(target, Work::Close { address })?;
        self.pool_of.remove(&address);
        let pool = self.pools.get_mut(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let block = pool.out.remove(&address).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        pool.used -= block.bytes;
        if block.stream == key {
            // Later work of the same stream comes after the free.
            pool.free.give(address, block.bytes);
        } else {
            pool.returning.push((task, address, block.bytes));
        }
        if pool.destroyed && pool.out.is_empty() {
            self.drop_pool(handle);
        }
        Ok(())
    }

    /// Frees what a launch of a graph has allocated.
    fn free_of_graph(&mut self, address: u64, target: Target) -> Outcome {
        match self.memory.region(address) {
            Some((start, Region { kind: Kind::GraphNode(_), .. })) if start == address => {
                self.submit_live(target, Work::Close { address })?;
                for exec in self.execs.values_mut() {
                    let mine = exec.nodes.iter().any(
                        |node| matches!(node.payload, Payload::Alloc { address: node_address, .. } if node_address == address),
                    );
                    if mine {
                        exec.holds_memory = false;
                    }
                }
                Ok(())
            }
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn drop_pool(&mut self, handle: Handle) {
        let Some(pool) = self.pools.remove(&handle) else { return };
        for (address, bytes) in pool.free.slabs() {
            self.memory.unback(address);
            self.refund(pool.device, bytes);
        }
    }

    /// What a synchronisation does: pools give back the slabs beyond their threshold that nothing uses.
    pub(super) fn release_unused(&mut self) {
        if !self.tasks.is_idle() {
            return;
        }
        let handles: Vec<Handle> = self.pools.keys().copied().collect();
        for handle in handles {
            let threshold = self.pools.get(&handle).map_or(u64::MAX, |pool| pool.threshold);
            self.shrink(handle, usize::try_from(threshold).unwrap_or(usize::MAX));
        }
    }

    /// Whether all frees of a pool's memory have been carried out.
    fn is_settled(&self, handle: Handle) -> bool {
        let Some(pool) = self.pools.get(&handle) else { return true };
        let slabs: Vec<(u64, usize)> = pool.free.slabs().collect();
        let is_of_pool =
            |address: u64| slabs.iter().any(|&(start, bytes)| (start..start + bytes as u64).contains(&address));
        let is_freed = |work: &Work| matches!(work, Work::Close { address } if is_of_pool(*address)).then_some(());
        self.tasks.find(is_freed).is_none()
    }

    /// Gives back free slabs as long as more than `keep` bytes are reserved.
    fn shrink(&mut self, handle: Handle, keep: usize) {
        let Some(pool) = self.pools.get_mut(&handle) else { return };
        for (_, address, bytes) in std::mem::take(&mut pool.returning) {
            pool.free.give(address, bytes);
        }
        let mut gone = Vec::new();
        while pool.reserved > keep
            && let Some((address, bytes)) = pool.free.take_free_slab()
        {
            pool.reserved -= bytes;
            gone.push((address, bytes));
        }
        let device = pool.device;
        for (address, bytes) in gone {
            self.memory.unback(address);
            self.refund(device, bytes);
        }
    }
}

entries! {
    fn cuMemPoolCreate(state, pool: *mut CUmemoryPool, props: *const CUmemPoolProps) {
        state.unsafe_call()?;
        if pool.is_null() || props.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if !state.options.memory_pools {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        // SAFETY: not null, so the caller gives valid properties.
        let props = unsafe { &*props };
        let device = state.located(props.location)?;
        let handle = state.new_pool(device, max_size(props));
        // SAFETY: not null, so the caller gives a valid place.
        unsafe { put(pool, as_pointer(handle)) }
    }

    fn cuMemPoolDestroy(state, pool: CUmemoryPool) {
        state.unsafe_call()?;
        let found = state.pool(pool)?;
        if found.out.is_empty() {
            let tasks = state.tasks.of_context(None);
            state.wait_for(&tasks);
            state.drop_pool(pool as usize);
        } else {
            // It goes with its last block.
            found.destroyed = true;
        }
        Ok(())
    }

    fn cuMemPoolGetAttribute(state, pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void) {
        use CUmemPool_attribute as Attribute;
        state.unsafe_call()?;
        let pool = state.pool(pool)?;
        let wide = match attribute {
            Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => pool.threshold,
            Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => pool.reserved as u64,
            Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => pool.reserved_high as u64,
            Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT => pool.used as u64,
            Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH => pool.used_high as u64,
            // The reuse policies are on.
            // SAFETY: the caller gives null or a place for an int.
            _ if attribute.0 < 4 => return unsafe { put(value.cast::<c_int>(), 1) },
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        };
        // SAFETY: the caller gives null or a place for a 64-bit integer.
        unsafe { put(value.cast::<u64>(), wide) }
    }

    fn cuMemPoolSetAttribute(state, pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void) {
        use CUmemPool_attribute as Attribute;
        state.unsafe_call()?;
        let pool = state.pool(pool)?;
        if value.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        match attribute {
            // SAFETY: not null, so the caller gives a 64-bit integer.
            Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => pool.threshold = unsafe { value.cast::<u64>().read() },
            Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => pool.reserved_high = pool.reserved,
            Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH => pool.used_high = pool.used,
            _ if attribute.0 < 4 => {}
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    fn cuMemPoolTrimTo(state, pool: CUmemoryPool, keep: usize) {
        state.unsafe_call()?;
        state.pool(pool)?;
        if state.is_settled(pool as usize) {
            state.shrink(pool as usize, keep);
        }
        Ok(())
    }

    fn cuMemAllocFromPoolAsync(state, address: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream) {
        let target = state.target(stream)?;
        state.pool(pool)?;
        if bytes == 0 || address.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let found = state.allocate_from(pool as usize, bytes, target)?;
        // SAFETY: not null, so the caller gives a valid place.
        unsafe { put(address, found) }
    }

    fn cuMemFreeAsync(state, address: CUdeviceptr, stream: CUstream) {
        let target = state.target(stream)?;
        state.free_on_stream(address, target)
    }
}
