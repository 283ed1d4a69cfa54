//! How many threads a kernel launch has.

/// The geometry of a launch: blocks in the grid, threads in a block, and bytes of dynamic shared memory for each block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LaunchConfig {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: u32,
}

impl LaunchConfig {
    /// Enough blocks of 256 threads for one thread an element; at least one block, since an empty grid is an error to the driver. More than
    /// the largest grid of 2³¹ − 1 blocks gives that.
    pub fn for_elements(elements: usize) -> LaunchConfig {
        const THREADS: usize = 256;
        let blocks = elements.div_ceil(THREADS).clamp(1, i32::MAX as usize);
        LaunchConfig { grid: [blocks as u32, 1, 1], block: [THREADS as u32, 1, 1], shared_bytes: 0 }
    }
}
