//! How a pool is made, and what it holds.

/// What is beneath a pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Backing {
    /// Allocations from a `CUmemoryPool` of its own
    /// ([`cuMemAllocFromPoolAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html)).
    #[default]
    MemoryPool,
    /// Addresses that are reserved once, as many as [`PoolOptions::max_bytes`] or the device's memory has, with memory mapped under them
    /// ([`cuMemMap`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html)). The memory can be given back and taken again with all captures
    /// intact: [`CapturePool::release`](super::CapturePool::release).
    ReservedAddresses,
}

/// What restored memory holds, other than persistent tensors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum RestoredContent {
    /// Anything.
    #[default]
    Undefined,
    /// NaN in every floating-point format, -1 in signed integers: a capture that reads what it never wrote and nobody declared as persistent shows.
    Nan,
}

/// How to make a capture pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PoolOptions {
    /// The most bytes of slabs. `None`: the device's memory. A request beyond it is [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub max_bytes: Option<usize>,
    /// The priority of the capture stream, which the nodes of its graphs can keep.
    pub priority: Option<i32>,
    /// What is beneath it.
    pub backing: Backing,
    /// What memory holds after [`CapturePool::restore`](super::CapturePool::restore).
    pub restored: RestoredContent,
}

impl PoolOptions {
    /// With a limit in bytes.
    #[must_use]
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// With a capture stream of this priority.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = Some(priority);
        self
    }

    /// On this.
    #[must_use]
    pub fn backing(mut self, backing: Backing) -> Self {
        self.backing = backing;
        self
    }

    /// With this in restored memory.
    #[must_use]
    pub fn restored(mut self, content: RestoredContent) -> Self {
        self.restored = content;
        self
    }
}

/// What a capture pool holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PoolUsage {
    /// Bytes of slabs, taken from the device or, after a release, kept as addresses.
    pub reserved: usize,
    /// Of these, the planned range.
    pub planned: usize,
    /// Of the reserved, in blocks that tensors hold now.
    pub in_use: usize,
    /// The most bytes that were in use at once, ever.
    pub peak: usize,
    /// Slabs, the planned range counted in.
    pub slabs: usize,
    /// Blocks that tensors hold now.
    pub blocks: usize,
    /// Recordings that differed from their plan.
    pub divergences: u64,
    /// Bytes that breaks' temporaries and eager tensors have from the ordinary pool beside it now.
    pub temporary: u64,
}
