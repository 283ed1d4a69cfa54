//! What is left to do when a handle is dropped, as data: at once, or when the open capture has closed.

use crate::sys::{CUdeviceptr, CUevent, CUgraph, CUgraphExec, CUmemoryPool, CUmodule, CUstream, CallError, Driver};
use core::ffi::c_void;
use std::fmt;

/// One handle to destroy or block to free.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Disposal {
    Stream(CUstream),
    Event(CUevent),
    Module(CUmodule),
    Graph(CUgraph),
    Exec(CUgraphExec),
    Pool(CUmemoryPool),
    Memory(CUdeviceptr),
    /// Stream-ordered memory; the stream is kept alive by the buffer until this has been carried out.
    OrderedMemory(CUdeviceptr, CUstream),
    Pinned(*mut c_void),
    /// Memory at reserved addresses, whose handle is let go of already.
    Mapping(CUdeviceptr, usize),
    /// Reserved addresses.
    Addresses(CUdeviceptr, usize),
}

// SAFETY: the handles are names of driver objects, which may be destroyed from any thread.
unsafe impl Send for Disposal {}

impl Disposal {
    /// Carries it out.
    ///
    /// # Safety
    /// The handle is live, belongs to the context that is current, and nobody uses it afterwards.
    pub(crate) unsafe fn carry_out(self, driver: &Driver) -> Result<(), CallError> {
        // SAFETY: as the caller says.
        unsafe {
            match self {
                Disposal::Stream(raw) => driver.cuStreamDestroy_v2(raw),
                Disposal::Event(raw) => driver.cuEventDestroy_v2(raw),
                Disposal::Module(raw) => driver.cuModuleUnload(raw),
                Disposal::Graph(raw) => driver.cuGraphDestroy(raw),
                Disposal::Exec(raw) => driver.cuGraphExecDestroy(raw),
                Disposal::Pool(raw) => driver.cuMemPoolDestroy(raw),
                Disposal::Memory(address) => driver.cuMemFree_v2(address),
                Disposal::OrderedMemory(address, stream) => driver.cuMemFreeAsync(address, stream),
                Disposal::Pinned(address) => driver.cuMemFreeHost(address),
                // No call promises to wait for what still uses it.
                Disposal::Mapping(address, bytes) => {
                    driver.cuCtxSynchronize().and_then(|()| driver.cuMemUnmap(address, bytes))
                }
                Disposal::Addresses(address, bytes) => driver.cuMemAddressFree(address, bytes),
            }
        }
    }

    /// What it is, for reports.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Disposal::Stream(_) => "stream",
            Disposal::Event(_) => "event",
            Disposal::Module(_) => "module",
            Disposal::Graph(_) => "graph",
            Disposal::Exec(_) => "graph exec",
            Disposal::Pool(_) => "memory pool",
            Disposal::Memory(_) => "device memory",
            Disposal::OrderedMemory(..) => "stream-ordered memory",
            Disposal::Pinned(_) => "pinned host memory",
            Disposal::Mapping(..) => "mapped memory",
            Disposal::Addresses(..) => "range of addresses",
        }
    }
}

/// A driver call that failed in a drop, where there is nobody to return it to. See [`Context::on_drop_error`](super::Context::on_drop_error).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DropError {
    /// What was being destroyed or freed.
    pub what: &'static str,
    /// The call and its code.
    pub error: CallError,
}

impl fmt::Display for DropError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dropping a {}: {}", self.what, self.error)
    }
}

impl std::error::Error for DropError {}
