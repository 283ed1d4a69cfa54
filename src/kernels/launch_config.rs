//! The geometry of a launch.

/// The geometry of a launch: blocks in the grid, threads in a block, and bytes of dynamic shared memory for each block. Host functions of the
/// reference driver are given it as it is: `struct bcg_geometry` of `csrc/host.h`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct LaunchConfig {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: u32,
}

/// Threads of a block, where nothing else is asked for.
const THREADS: u32 = 256;

impl LaunchConfig {
    /// Enough blocks of 256 threads for one thread an element; at least one block, since an empty grid is an error to the driver. More than
    /// the largest grid of 2³¹ − 1 blocks gives that.
    pub fn for_elements(elements: usize) -> LaunchConfig {
        let blocks = elements.div_ceil(THREADS as usize).clamp(1, i32::MAX as usize);
        LaunchConfig { grid: [blocks as u32, 1, 1], block: [THREADS, 1, 1], shared_bytes: 0 }
    }

    /// One thread for each of `units`, in each of `tensors`, up to a grid that fills any device; threads loop over what is left.
    pub(super) fn looping(units: u64, tensors: u32) -> LaunchConfig {
        const MOST_BLOCKS: u64 = 4096;
        let blocks = units.div_ceil(u64::from(THREADS)).clamp(1, MOST_BLOCKS) as u32;
        LaunchConfig { grid: [blocks, tensors, 1], block: [THREADS, 1, 1], shared_bytes: 0 }
    }
}
