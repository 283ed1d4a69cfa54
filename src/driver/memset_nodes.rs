//! Memset nodes that make memory zero become kernel nodes.
//!
//! The driver launches a graph of kernels alone in a few microseconds, however many there are. Each memset node costs it one to two more of host time at
//! every launch, and libraries enqueue them: cuBLAS zeroes the counters of some of its products.

use super::graph::{self, Graph};
use super::launch_list::LaunchList;
use crate::error::Result;
use crate::sys::{
    CUDA_MEMSET_NODE_PARAMS, CUgraphNode, CUgraphNodeType, CUmemorytype_enum, CUpointer_attribute, Call, CallError,
    Driver, first_failure, zeroed,
};

/// `CUDA_ERROR_LOSSY_QUERY`, which headers before CUDA 12.3 lack: an edge has data that this form of the call can't give.
const LOSSY_QUERY: u32 = 402;

/// The largest memset that becomes a kernel, in bytes. What a larger one costs to launch is little beside what it takes to run.
const MOST_BYTES: usize = 1 << 20;

impl Graph {
    /// Puts a kernel node in the place of each memset node of the graph's own that makes device memory of its context zero, one row of up to 1 MiB.
    /// Returns how many. The others stay, as all do where the driver can't tell the edges. On an error the graph is good for nothing but being
    /// destroyed. `priority`: the kernel nodes', for execs in which nodes have one.
    pub(crate) fn memset_as_kernel(&mut self, priority: Option<i32>) -> Result<usize> {
        let context = self.context().clone();
        let (driver, _bound) = (context.driver(), context.bind()?);
        let zeroing = self.zeroing_memsets()?;
        if zeroing.is_empty() {
            return Ok(0);
        }
        let Some(mut edges) = self.edges()? else { return Ok(0) };
        for (memset, launches) in &zeroing {
            let before: Vec<_> = edges.iter().filter(|[_, to]| to == memset).map(|[from, _]| *from).collect();
            let after: Vec<_> = edges.iter().filter(|[from, _]| from == memset).map(|[_, to]| *to).collect();
            for launch in launches.iter() {
                // SAFETY: the crate's own kernel with its parameters.
                let kernel = unsafe { self.add_kernel_after(launch, &before, priority)? };
                if !after.is_empty() {
                    let from = vec![kernel; after.len()];
                    // SAFETY: nodes of this graph, and two arrays of this length.
                    unsafe {
                        driver.cuGraphAddDependencies(self.as_raw(), from.as_ptr(), after.as_ptr(), after.len())?
                    };
                }
                edges.iter_mut().flatten().filter(|node| **node == *memset).for_each(|node| *node = kernel);
            }
            // SAFETY: a node of this graph, which nothing names from here on. Its edges go with it.
            unsafe { driver.cuGraphDestroyNode(*memset)? };
        }
        Ok(zeroing.len())
    }

    /// The memset nodes that a kernel can stand for, each with its launch.
    fn zeroing_memsets(&self) -> Result<Vec<(CUgraphNode, LaunchList)>> {
        let driver = self.context().driver();
        let device = self.context().device().ordinal();
        let mut found = Vec::new();
        for node in graph::nodes(driver, self.as_raw())? {
            if graph::node_type(driver, node)? != CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET {
                continue;
            }
            let mut memset: CUDA_MEMSET_NODE_PARAMS = zeroed();
            // SAFETY: a memset node of a live graph, and a valid place.
            unsafe { driver.cuGraphMemsetNodeGetParams(node, &mut memset)? };
            let bytes = memset.width.saturating_mul(memset.elementSize as usize);
            if memset.value == 0 && memset.height == 1 && bytes <= MOST_BYTES && is_on(driver, memset.dst, device) {
                found.extend(
                    self.context().builtin_kernels()?.zeroing(memset.dst, bytes).map(|launches| (node, launches)),
                );
            }
        }
        Ok(found)
    }

    /// All edges, each from a node to one that comes after it. `None` where the driver has no such call, or an edge is more than an order.
    fn edges(&self) -> Result<Option<Vec<[CUgraphNode; 2]>>> {
        let driver = self.context().driver();
        if !driver.supports(Call::cuGraphGetEdges) || !driver.supports(Call::cuGraphAddDependencies) {
            return Ok(None);
        }
        let none = || core::ptr::null_mut::<CUgraphNode>();
        let mut count = 0;
        let read = || -> Result<_, CallError> {
            // SAFETY: a live graph; null asks for the number only.
            unsafe { driver.cuGraphGetEdges(self.as_raw(), none(), none(), &mut count)? };
            let mut from = vec![core::ptr::null_mut(); count];
            let mut to = from.clone();
            if count > 0 {
                // SAFETY: both arrays hold `count` entries.
                unsafe { driver.cuGraphGetEdges(self.as_raw(), from.as_mut_ptr(), to.as_mut_ptr(), &mut count)? };
            }
            Ok(from.into_iter().zip(to).map(|(from, to)| [from, to]).collect())
        };
        Ok(first_failure::unless(|error: &CallError| error.code().0 == LOSSY_QUERY, read)?)
    }
}

/// Whether an address is device memory of this device. An address that the driver says nothing about isn't.
fn is_on(driver: &Driver, address: u64, device: usize) -> bool {
    let read = |attribute: CUpointer_attribute| -> Result<u32, CallError> {
        let mut value = 0_u32;
        let place = core::ptr::from_mut(&mut value).cast();
        // SAFETY: both attributes that are asked for are 32-bit integers, the ordinal of a device that there is no negative one.
        unsafe { driver.cuPointerGetAttribute(place, attribute, address)? };
        Ok(value)
    };
    let (kind, ordinal) = first_failure::untouched(|| {
        let kind = read(CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
        (kind, read(CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL))
    });
    kind.is_ok_and(|kind| kind == CUmemorytype_enum::CU_MEMORYTYPE_DEVICE.0)
        && ordinal.is_ok_and(|ordinal| usize::try_from(ordinal) == Ok(device))
}
