//! Floors: the driver calls of a replay, with nothing around them.

use crate::program::{Launches, Program, pointers_to};
use breakable_cuda_graph::driver::{Graph, GraphExec, InstantiateFlags, LaunchConfig};
use breakable_cuda_graph::sys::{CUDA_KERNEL_NODE_PARAMS, CUfunction, CUgraphExec, CUgraphNode, CUresult, CUstream};
use breakable_cuda_graph::{BreakableCapture, DType, Tensor};
use core::ffi::c_void;
use core::ptr::null_mut;
use std::error::Error;

type SetParams = unsafe extern "C" fn(CUgraphExec, CUgraphNode, *const CUDA_KERNEL_NODE_PARAMS) -> CUresult;

type GraphLaunch = unsafe extern "C" fn(CUgraphExec, CUstream) -> CUresult;
type LaunchKernel = unsafe extern "C" fn(
    CUfunction,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    CUstream,
    *mut *mut c_void,
    *mut *mut c_void,
) -> CUresult;

/// Launches the very same execs as a live capture, and the breaks' kernels, through the driver's table: with the context current and nothing
/// checked but the codes.
pub struct BareLoop {
    graph_launch: GraphLaunch,
    launch: LaunchKernel,
    execs: Vec<CUgraphExec>,
    function: CUfunction,
    stream: CUstream,
    config: LaunchConfig,
    /// What the parameters point to.
    values: Box<[u64; 4]>,
    kernels: usize,
    _buffers: [Tensor; 2],
}

impl BareLoop {
    pub fn new(program: &Program, live: &BreakableCapture<'_>) -> Result<BareLoop, Box<dyn Error>> {
        let buffer = || Tensor::zeros(&program.stream, DType::F32, &[program.shape.elements]);
        let buffers = [buffer()?, buffer()?];
        let (kernel, config, values) = program.ops.scale_raw(&buffers[0], 1.0, &buffers[1])?;
        let table = program.context.driver().table();
        Ok(BareLoop {
            graph_launch: table.cuGraphLaunch.ok_or("cuGraphLaunch")?,
            launch: table.cuLaunchKernel.ok_or("cuLaunchKernel")?,
            execs: live.execs().map(|exec| exec.as_raw()).collect(),
            function: kernel.as_raw(),
            stream: program.stream.as_raw(),
            config,
            values: Box::new(values),
            kernels: program.shape.break_kernels,
            _buffers: buffers,
        })
    }

    #[inline]
    pub fn replay(&self) -> Result<(), Box<dyn Error>> {
        let LaunchConfig { grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes, .. } = self.config;
        for (at, &exec) in self.execs.iter().enumerate() {
            // SAFETY: a live exec of a live capture.
            check(unsafe { (self.graph_launch)(exec, self.stream) })?;
            if at + 1 < self.execs.len() {
                for _ in 0..self.kernels {
                    let (mut pointers, none) = (pointers_to(&self.values), null_mut());
                    let pointers = pointers.as_mut_ptr();
                    // SAFETY: the kernel's own parameters, on live buffers.
                    check(unsafe {
                        let (function, stream) = (self.function, self.stream);
                        (self.launch)(function, gx, gy, gz, bx, by, bz, shared_bytes, stream, pointers, none)
                    })?;
                }
            }
        }
        Ok(())
    }
}

/// Sets the breaks' kernel nodes, all of them, in an exec of the whole program, and launches it.
pub struct BarePatched {
    graph_launch: GraphLaunch,
    set: SetParams,
    exec: GraphExec,
    /// The breaks' nodes address the exec's.
    _graph: Graph,
    nodes: Vec<CUgraphNode>,
    stream: CUstream,
    function: CUfunction,
    config: LaunchConfig,
    values: [u64; 4],
    launches: Launches,
    odd: bool,
    _buffers: [Tensor; 2],
}

impl BarePatched {
    /// `launches`: what differs from one replay to the next.
    pub fn new(program: &Program, launches: Launches) -> Result<BarePatched, Box<dyn Error>> {
        let buffer = || Tensor::zeros(&program.stream, DType::F32, &[program.shape.elements]);
        let buffers = [buffer()?, buffer()?];
        let (kernel, config, values) = program.ops.scale_raw(&buffers[0], 1.0, &buffers[1])?;
        let (function, graph) = (kernel.as_raw(), Graph::new(&program.context)?);
        let driver = program.context.driver();
        let mut pointers = pointers_to(&values);
        let parameters = parameters(function, config, &mut pointers);
        let (mut nodes, mut last) = (Vec::new(), None::<CUgraphNode>);
        for segment in 0..program.shape.segments {
            let breaks = if segment < program.shape.breaks() { program.shape.break_kernels } else { 0 };
            for place in 0..program.shape.kernels + breaks {
                let (mut node, before) = (null_mut(), last.as_slice());
                // SAFETY: a live graph, its own node or none, and the kernel's own parameters; the context is current.
                program.context.with_current(|| unsafe {
                    let (before, count) = (before.as_ptr(), before.len());
                    driver.cuGraphAddKernelNode_v2(&mut node, graph.as_raw(), before, count, &parameters)
                })??;
                last = Some(node);
                if place >= program.shape.kernels {
                    nodes.push(node);
                }
            }
        }
        let exec = GraphExec::new(&graph, InstantiateFlags::default())?;
        exec.upload(&program.stream)?;
        let table = driver.table();
        Ok(BarePatched {
            graph_launch: table.cuGraphLaunch.ok_or("cuGraphLaunch")?,
            set: table.cuGraphExecKernelNodeSetParams_v2.ok_or("cuGraphExecKernelNodeSetParams")?,
            exec,
            _graph: graph,
            nodes,
            stream: program.stream.as_raw(),
            function,
            config,
            values,
            launches,
            odd: false,
            _buffers: buffers,
        })
    }

    #[inline]
    pub fn replay(&mut self) -> Result<(), Box<dyn Error>> {
        self.odd = !self.odd;
        let (mut config, mut values) = (self.config, self.values);
        match self.launches {
            Launches::Changing | Launches::ForeignChanging => values[3] -= u64::from(self.odd),
            Launches::Regridded => config.grid[0] += u32::from(self.odd),
            Launches::Prepared | Launches::Foreign | Launches::Checked => {}
        }
        for &node in &self.nodes {
            let mut pointers = pointers_to(&values);
            let parameters = parameters(self.function, config, &mut pointers);
            // SAFETY: a live exec, a node of the graph that it was made from, and the kernel's own parameters.
            check(unsafe { (self.set)(self.exec.as_raw(), node, &parameters) })?;
        }
        // SAFETY: a live exec, whose buffers live as long.
        check(unsafe { (self.graph_launch)(self.exec.as_raw(), self.stream) })
    }
}

fn parameters(function: CUfunction, config: LaunchConfig, pointers: &mut [*mut c_void; 4]) -> CUDA_KERNEL_NODE_PARAMS {
    let LaunchConfig { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared_bytes, .. } = config;
    CUDA_KERNEL_NODE_PARAMS {
        func: function,
        gridDimX: grid_x,
        gridDimY: grid_y,
        gridDimZ: grid_z,
        blockDimX: block_x,
        blockDimY: block_y,
        blockDimZ: block_z,
        sharedMemBytes: shared_bytes,
        kernelParams: pointers.as_mut_ptr(),
        extra: null_mut(),
        kern: null_mut(),
        ctx: null_mut(),
    }
}

fn check(code: CUresult) -> Result<(), Box<dyn Error>> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(format!("the driver returned {}", code.0).into()) }
}
