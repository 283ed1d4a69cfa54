//! The geometry of a launch, and what else is asked of it.

/// The geometry of a launch: blocks in the grid, threads in a block, and bytes of dynamic shared memory for each block. Host functions of the
/// reference driver are given it as it is: it begins as `struct bcg_geometry` of `csrc/include/breakable_cuda_graph/host.h`.
///
/// ```
/// use breakable_cuda_graph::driver::LaunchConfig;
///
/// let plain = LaunchConfig::new([64, 1, 1], [256, 1, 1]);
/// let clustered = plain.shared_bytes(96 << 10).cluster([2, 1, 1]); // Pairs of blocks on neighbouring multiprocessors.
/// assert!(plain.attributes.is_empty() && !clustered.attributes.is_empty());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct LaunchConfig {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block in bytes. Above 48 KiB: [`Kernel::allow_shared_bytes`](crate::driver::Kernel::allow_shared_bytes).
    pub shared_bytes: u32,
    /// What the driver is asked for beside the geometry: nothing, for most launches.
    pub attributes: LaunchAttributes,
}

/// The attributes of a launch
/// ([`CUlaunchAttribute`](https://docs.nvidia.com/cuda/cuda-driver-api/structCUlaunchAttribute__st.html)). A launch with any goes by
/// [`cuLaunchKernelEx`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EXEC.html), which drivers of CUDA 11.8 and later have. A segment's nodes
/// have them as they were captured; a patched break's body that has one is captured by the driver on each replay, and not listed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C)]
pub struct LaunchAttributes {
    /// Blocks of a cluster in x, y and z; zeros for none.
    cluster: [u16; 3],
    cooperative: bool,
    programmatic: bool,
}

impl LaunchAttributes {
    /// No attributes.
    pub const NONE: LaunchAttributes = LaunchAttributes { cluster: [0; 3], cooperative: false, programmatic: false };

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        *self == LaunchAttributes::NONE
    }

    /// Blocks of a cluster in x, y and z, if the launch is to have clusters.
    pub fn cluster(&self) -> Option<[u32; 3]> {
        (self.cluster != [0; 3]).then(|| self.cluster.map(u32::from))
    }

    /// Whether all blocks run at once.
    pub fn is_cooperative(&self) -> bool {
        self.cooperative
    }

    /// Whether the kernel may begin before the one before it has ended.
    pub fn is_programmatic(&self) -> bool {
        self.programmatic
    }
}

/// Threads of a block, where nothing else is asked for.
const THREADS: u32 = 256;

impl LaunchConfig {
    /// Blocks of the grid and threads of a block, in x, y and z; no dynamic shared memory and no attributes.
    pub const fn new(grid: [u32; 3], block: [u32; 3]) -> LaunchConfig {
        LaunchConfig { grid, block, shared_bytes: 0, attributes: LaunchAttributes::NONE }
    }

    /// Enough blocks of 256 threads for one thread an element; at least one block, since an empty grid is an error to the driver. More than
    /// the largest grid of 2³¹ − 1 blocks gives that.
    pub fn for_elements(elements: usize) -> LaunchConfig {
        let blocks = elements.div_ceil(THREADS as usize).clamp(1, i32::MAX as usize);
        LaunchConfig::new([blocks as u32, 1, 1], [THREADS, 1, 1])
    }

    /// With so many bytes of dynamic shared memory for each block.
    #[must_use]
    pub const fn shared_bytes(mut self, bytes: u32) -> LaunchConfig {
        self.shared_bytes = bytes;
        self
    }

    /// Groups blocks into clusters of so many in x, y and z, which run together and reach each other's shared memory
    /// ([`CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html), devices of compute capability 9.0 and later).
    /// The grid is a multiple of it in each direction, and a cluster of at most 8 blocks; the driver refuses others.
    #[doc(alias = "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION")]
    #[must_use]
    pub const fn cluster(mut self, blocks: [u32; 3]) -> LaunchConfig {
        // No device has clusters of more blocks than this holds: the driver refuses the largest.
        let [x, y, z] = blocks;
        self.attributes.cluster = [saturated(x), saturated(y), saturated(z)];
        self
    }

    /// Asks that all blocks of the grid run at once, so that they can wait for each other
    /// ([`CU_LAUNCH_ATTRIBUTE_COOPERATIVE`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html)). The driver refuses a grid for which the device has no room
    /// (`CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE`).
    #[doc(alias = "CU_LAUNCH_ATTRIBUTE_COOPERATIVE", alias = "cuLaunchCooperativeKernel")]
    #[must_use]
    pub const fn cooperative(mut self) -> LaunchConfig {
        self.attributes.cooperative = true;
        self
    }

    /// Lets the kernel begin before the one before it on its stream has ended: programmatic dependent launch
    /// ([`CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html), devices of compute
    /// capability 9.0 and later). The kernel's own code waits (`griddepcontrol.wait`) before it reads what the one before wrote; one that doesn't reads
    /// whatever is there.
    #[doc(alias = "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION", alias = "PDL")]
    #[must_use]
    pub const fn programmatic(mut self) -> LaunchConfig {
        self.attributes.programmatic = true;
        self
    }

    /// One thread for each of `units`, in each of `tensors`, up to a grid that fills any device; threads loop over what is left.
    pub(super) fn looping(units: u64, tensors: u32) -> LaunchConfig {
        const MOST_BLOCKS: u64 = 4096;
        let blocks = units.div_ceil(u64::from(THREADS)).clamp(1, MOST_BLOCKS) as u32;
        LaunchConfig::new([blocks, tensors, 1], [THREADS, 1, 1])
    }
}

const fn saturated(blocks: u32) -> u16 {
    if blocks > u16::MAX as u32 { u16::MAX } else { blocks as u16 }
}
