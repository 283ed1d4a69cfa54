//! Kernel launches as data: what a body of own launches is compared by and what nodes are made of.

use crate::kernels::LaunchConfig;
use crate::sys::{CUDA_KERNEL_NODE_PARAMS, CUfunction, zeroed};
use core::ffi::c_void;

/// The most parameters of a launch that is listed. One of more is enqueued.
pub(crate) const MAX_PARAMETERS: usize = 32;

/// The most bytes of all parameters of a launch that is listed: what every driver takes in a node. One of more is enqueued.
pub(crate) const MAX_PARAMETER_BYTES: usize = 4096;

/// Launches in order, with the values of their parameters. Cleared and filled anew without allocating.
#[derive(Default)]
pub(crate) struct LaunchList {
    launches: Vec<Launch>,
    /// Where each parameter begins in `words`.
    starts: Vec<u32>,
    /// The parameters' bytes, each from a word on, the last word of each filled up with zeros.
    words: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Launch {
    function: CUfunction,
    config: LaunchConfig,
    /// Its first parameter in `starts`, and the first word of that.
    first: (u32, u32),
}

// SAFETY: the driver synchronises functions (T2 of `docs/DESIGN.md`); the rest is plain data.
unsafe impl Send for LaunchList {}
// SAFETY: likewise.
unsafe impl Sync for LaunchList {}

/// One launch. Equal launches do the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct LaunchRef<'a> {
    function: CUfunction,
    config: LaunchConfig,
    words: &'a [u64],
    /// Relative to the launch's own words.
    starts: Starts<'a>,
}

/// Where a launch's parameters begin, in a list in which another number comes before all.
#[derive(Clone, Copy)]
struct Starts<'a> {
    of: &'a [u32],
    first: u32,
}

impl Starts<'_> {
    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.of.iter().map(|start| (start - self.first) as usize)
    }
}

impl PartialEq for Starts<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Starts<'_> {}

impl PartialEq for LaunchList {
    fn eq(&self, other: &LaunchList) -> bool {
        // Lists of nothing have no memory: to compare them byte by byte takes some processors hundreds of cycles.
        let LaunchList { launches, starts, words } = self;
        launches.len() == other.launches.len()
            && (launches.is_empty() || (launches, starts, words) == (&other.launches, &other.starts, &other.words))
    }
}

impl LaunchList {
    /// Forgets all launches and keeps the room.
    pub(crate) fn clear(&mut self) {
        self.launches.clear();
        self.starts.clear();
        self.words.clear();
    }

    /// Becomes equal to another, in the room that there is.
    pub(crate) fn become_like(&mut self, other: &LaunchList) {
        self.clear();
        self.launches.extend_from_slice(&other.launches);
        self.starts.extend_from_slice(&other.starts);
        self.words.extend_from_slice(&other.words);
    }

    /// Whether there are as many launches, of the same kernels in the same configurations.
    pub(crate) fn is_configured_like(&self, other: &LaunchList) -> bool {
        let configuration = |launch: &Launch| (launch.function, launch.config);
        self.launches.iter().map(configuration).eq(other.launches.iter().map(configuration))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.launches.len()
    }

    /// Begins a launch; its parameters follow.
    #[inline]
    pub(super) fn begin(&mut self, function: CUfunction, config: LaunchConfig) {
        let first = (self.starts.len() as u32, self.words.len() as u32);
        self.launches.push(Launch { function, config, first });
    }

    /// Adds the next parameter's value.
    #[inline]
    pub(crate) fn parameter(&mut self, bytes: &[u8]) {
        self.starts.push(self.words.len() as u32);
        // Most are of one word: a number or an address.
        if let &[a, b, c, d, e, f, g, h] = bytes {
            return self.words.push(u64::from_ne_bytes([a, b, c, d, e, f, g, h]));
        }
        if let &[a, b, c, d] = bytes {
            return self.words.push(u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]));
        }
        let words = bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        });
        self.words.extend(words);
    }

    /// All launches in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = LaunchRef<'_>> {
        let ends = self.launches.iter().skip(1).map(|next| next.first);
        let ends = ends.chain([(self.starts.len() as u32, self.words.len() as u32)]);
        self.launches.iter().zip(ends).map(|(launch, (starts_end, words_end))| {
            let (starts, words) = launch.first;
            LaunchRef {
                function: launch.function,
                config: launch.config,
                words: &self.words[words as usize..words_end as usize],
                starts: Starts { of: &self.starts[starts as usize..starts_end as usize], first: words },
            }
        })
    }
}

impl LaunchRef<'_> {
    /// Whether both are of one kernel in one configuration.
    pub(crate) fn is_configured_like(&self, other: LaunchRef<'_>) -> bool {
        (self.function, self.config) == (other.function, other.config)
    }

    /// Hands the launch to `call` as a kernel node's parameters, which are valid during the call.
    pub(super) fn with_node_parameters<R>(&self, call: impl FnOnce(&CUDA_KERNEL_NODE_PARAMS) -> R) -> R {
        let mut pointers = [core::ptr::null_mut::<c_void>(); MAX_PARAMETERS];
        for (pointer, start) in pointers.iter_mut().zip(self.starts.iter()) {
            // A parameter of no bytes at the end has no word.
            *pointer = self.words.get(start..).map_or(core::ptr::null(), <[u64]>::as_ptr).cast_mut().cast();
        }
        let LaunchConfig { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared_bytes, .. } =
            self.config;
        let mut parameters: CUDA_KERNEL_NODE_PARAMS = zeroed();
        parameters.func = self.function;
        (parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ) = (grid_x, grid_y, grid_z);
        (parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ) = (block_x, block_y, block_z);
        parameters.sharedMemBytes = shared_bytes;
        parameters.kernelParams = pointers.as_mut_ptr();
        call(&parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(blocks: u32) -> LaunchConfig {
        LaunchConfig::new([blocks, 1, 1], [32, 1, 1])
    }

    fn list(launches: &[(u32, &[&[u8]])]) -> LaunchList {
        let mut list = LaunchList::default();
        for (blocks, parameters) in launches {
            list.begin(core::ptr::null_mut(), config(*blocks));
            parameters.iter().for_each(|parameter| list.parameter(parameter));
        }
        list
    }

    #[test]
    fn launches_are_equal_where_they_do_the_same() {
        let same = list(&[(1, &[&[1, 2, 3], &[4; 16]]), (2, &[&[5; 8]])]);
        // The same two after another one: places in the lists don't matter.
        let later = list(&[(9, &[&[7; 24]]), (1, &[&[1, 2, 3], &[4; 16]]), (2, &[&[5; 8]])]);
        assert_eq!((same.len(), later.len()), (2, 3));
        assert!(same.iter().eq(later.iter().skip(1)));
        for other in [
            list(&[(2, &[&[1, 2, 3], &[4; 16]])]),
            list(&[(1, &[&[1, 2, 4], &[4; 16]])]),
            list(&[(1, &[&[1, 2, 3]])]),
            list(&[(1, &[&[1, 2, 3], &[4; 8], &[4; 8]])]),
        ] {
            assert!(same.iter().next() != other.iter().next());
        }
    }

    #[test]
    fn arguments_are_no_part_of_a_configuration() {
        let these = list(&[(1, &[&[1; 8]]), (2, &[&[2; 8], &[3; 8]])]);
        for (others, alike) in [
            (list(&[(1, &[&[9; 8]]), (2, &[&[7; 8], &[3; 8]])]), true),
            (list(&[(1, &[&[1; 8]]), (3, &[&[2; 8], &[3; 8]])]), false),
            (list(&[(1, &[&[1; 8]])]), false),
        ] {
            assert_eq!(these.is_configured_like(&others), alike);
            assert!(others.is_configured_like(&others));
            let each = these.iter().zip(others.iter()).all(|(this, other)| this.is_configured_like(other));
            assert_eq!(each && these.len() == others.len(), alike);
        }
    }

    #[test]
    fn node_parameters_point_to_the_values() {
        let mut launches = list(&[(1, &[&[9; 8]]), (3, &[&7_u32.to_ne_bytes(), &8_u64.to_ne_bytes(), &[]])]);
        let launch = launches.iter().nth(1).expect("two launches");
        launch.with_node_parameters(|node| {
            assert_eq!((node.gridDimX, node.blockDimX, node.sharedMemBytes), (3, 32, 0));
            // SAFETY: the first two of the parameters, of these types.
            let values = unsafe {
                let pointers = core::slice::from_raw_parts(node.kernelParams, 2);
                (pointers[0].cast::<u32>().read(), pointers[1].cast::<u64>().read())
            };
            assert_eq!(values, (7, 8));
        });
        launches.clear();
        assert_eq!((launches.len(), launches.iter().count()), (0, 0));
    }
}
