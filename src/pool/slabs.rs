//! The memory beneath a pool, in slabs.

use super::options::{Backing, PoolOptions};
use crate::driver::{
    AddressRange, Context, DeviceBuffer, Event, Mapping, MemoryPool, MemoryPoolOptions, Stream, trim_all,
};
use crate::error::Result;
use crate::memory::ids::SlabId;
use crate::memory::sizes::{SLAB_BYTES, round_up};

/// Where slabs come from.
pub(super) enum SlabSource {
    /// A memory pool, in the order of a stream of its own.
    Ordered {
        pool: MemoryPool,
        stream: Stream,
        /// Whether a slab was taken that the device may not have mapped yet.
        unsettled: bool,
    },
    /// Reserved addresses.
    Reserved(AddressRange),
}

/// A piece of device memory at addresses that stay.
pub(super) struct Slab {
    /// Its name in the arena; the planned range has none.
    pub(super) id: Option<SlabId>,
    pub(super) address: u64,
    pub(super) bytes: usize,
    /// Given back when this drops. `None`: a chunk of the reserved addresses.
    memory: Option<DeviceBuffer>,
}

impl SlabSource {
    pub(super) fn new(context: &Context, options: &PoolOptions) -> Result<SlabSource> {
        let limit = options.max_bytes.map(|bytes| round_up(bytes, SLAB_BYTES).unwrap_or(bytes));
        match options.backing {
            Backing::MemoryPool => {
                let mut pool_options = MemoryPoolOptions::default().keep_bytes(0);
                pool_options.max_bytes = limit;
                let pool = MemoryPool::with_options(context, pool_options)?;
                Ok(SlabSource::Ordered { pool, stream: Stream::new(context)?, unsettled: false })
            }
            Backing::ReservedAddresses => {
                let bytes = match limit {
                    // Addresses of memory that is on its way back are not given out again.
                    Some(bytes) => bytes.saturating_mul(2),
                    None => context.device().total_memory()?,
                };
                Ok(SlabSource::Reserved(AddressRange::reserve(context, bytes)?))
            }
        }
    }

    fn context(&self) -> &Context {
        match self {
            SlabSource::Ordered { pool, .. } => pool.context(),
            SlabSource::Reserved(range) => range.context(),
        }
    }

    /// Gives unused memory of the context's memory pools back to the device.
    pub(super) fn make_room(&self) {
        trim_all(self.context());
    }

    /// A slab of this size. `None` where the reserved addresses have no room for it.
    pub(super) fn take(&mut self, bytes: usize) -> Result<Option<Slab>> {
        match self {
            SlabSource::Ordered { pool, stream, unsettled } => {
                let memory = pool.allocate(bytes, stream)?;
                *unsettled = true;
                Ok(Some(Slab { id: None, address: memory.address(), bytes, memory: Some(memory) }))
            }
            SlabSource::Reserved(range) => {
                let address = range.map(bytes)?;
                Ok(address.map(|address| Slab { id: None, address, bytes, memory: None }))
            }
        }
    }

    /// What is to be waited for until the slabs that were taken are the device's to use, once.
    pub(super) fn unsettled(&mut self) -> Option<Stream> {
        match self {
            SlabSource::Ordered { stream, unsettled, .. } => std::mem::take(unsettled).then(|| stream.clone()),
            SlabSource::Reserved(_) => None,
        }
    }

    /// Lets the return of slabs come after the event. Mapped memory needs no order: what gives it back waits for the device, and not while a segment is
    /// open.
    pub(super) fn return_after(&self, event: &Event) -> Result<()> {
        match self {
            SlabSource::Ordered { stream, .. } => stream.wait(event),
            SlabSource::Reserved(_) => Ok(()),
        }
    }

    /// Takes slabs out, after [`return_after`](SlabSource::return_after). Their memory goes back when the results drop, which is not to happen under the
    /// pool's lock, and once the stream, if there is one, is synchronised.
    pub(super) fn reclaim(&mut self, slabs: Vec<Slab>) -> (Vec<Reclaimed>, Option<Stream>) {
        let reclaim = |slab: Slab| match (&mut *self, slab.memory) {
            (_, Some(memory)) => Some(Reclaimed::Buffer(memory)),
            (SlabSource::Reserved(range), None) => range.forget(slab.address).map(Reclaimed::Chunk),
            (SlabSource::Ordered { .. }, None) => None,
        };
        let replaced = slabs.into_iter().filter_map(reclaim).collect();
        match self {
            // With a release threshold of zero a synchronisation returns the memory to the device.
            SlabSource::Ordered { stream, .. } => (replaced, Some(stream.clone())),
            SlabSource::Reserved(_) => (replaced, None),
        }
    }
}

/// A slab's memory, given back when this drops.
pub(super) enum Reclaimed {
    Buffer(#[allow(dead_code)] DeviceBuffer),
    Chunk(#[allow(dead_code)] Mapping),
}
