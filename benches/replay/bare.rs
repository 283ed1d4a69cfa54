//! The bare loop: the driver calls of a live replay, with nothing around them.

use crate::program::{Program, pointers_to};
use breakable_cuda_graph::driver::LaunchConfig;
use breakable_cuda_graph::sys::{CUfunction, CUgraphExec, CUresult, CUstream};
use breakable_cuda_graph::{BreakableCapture, DType, Tensor};
use core::ffi::c_void;
use std::error::Error;

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
pub struct Bare {
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

impl Bare {
    pub fn new(program: &Program, live: &BreakableCapture<'_>) -> Result<Bare, Box<dyn Error>> {
        let buffer = || Tensor::zeros(&program.stream, DType::F32, &[program.shape.elements]);
        let buffers = [buffer()?, buffer()?];
        let (kernel, config, values) = program.ops.scale_raw(&buffers[0], 1.0, &buffers[1])?;
        let table = program.context.driver().table();
        Ok(Bare {
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
        let LaunchConfig { grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes } = self.config;
        for (at, &exec) in self.execs.iter().enumerate() {
            // SAFETY: a live exec of a live capture.
            check(unsafe { (self.graph_launch)(exec, self.stream) })?;
            if at + 1 < self.execs.len() {
                for _ in 0..self.kernels {
                    let (mut pointers, none) = (pointers_to(&self.values), core::ptr::null_mut());
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

fn check(code: CUresult) -> Result<(), String> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(format!("the driver returned {}", code.0)) }
}
