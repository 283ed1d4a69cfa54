//! What is left to do when a handle is dropped, as data: at once, or when the open capture has closed.

use super::current::bind_stubbornly;
use crate::sys::{
    CUcontext, CUdeviceptr, CUevent, CUgraph, CUgraphExec, CUmemoryPool, CUmodule, CUstream, CallError, Driver,
    first_failure,
};
use core::ffi::c_void;
use std::fmt;

/// One handle to destroy or block to free.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Destroy {
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
unsafe impl Send for Destroy {}

impl Destroy {
    /// Carries it out in its context, without disturbing the thread's record of its first failing call. One is made once, by the owner of the
    /// handle, when it drops.
    pub(super) fn run_in(self, driver: &Driver, context: CUcontext) -> Result<(), DropError> {
        // The driver does not survive a fork: in the child its objects are not there to destroy.
        if !driver.is_of_this_process() {
            return Ok(());
        }
        first_failure::untouched(|| {
            let _bound = bind_stubbornly(driver, context);
            // SAFETY: the handle was live until its owner dropped, and belongs to the context, which is current.
            unsafe { self.run(driver) }
        })
        .map_err(|error| DropError { what: self.what(), error })
    }

    /// # Safety
    /// The handle is live, belongs to the context that is current, and nobody uses it afterwards.
    unsafe fn run(self, driver: &Driver) -> Result<(), CallError> {
        // SAFETY: as the caller says.
        unsafe {
            match self {
                Destroy::Stream(raw) => driver.cuStreamDestroy_v2(raw),
                Destroy::Event(raw) => driver.cuEventDestroy_v2(raw),
                Destroy::Module(raw) => driver.cuModuleUnload(raw),
                Destroy::Graph(raw) => driver.cuGraphDestroy(raw),
                Destroy::Exec(raw) => driver.cuGraphExecDestroy(raw),
                Destroy::Pool(raw) => driver.cuMemPoolDestroy(raw),
                Destroy::Memory(address) => driver.cuMemFree_v2(address),
                Destroy::OrderedMemory(address, stream) => driver.cuMemFreeAsync(address, stream),
                Destroy::Pinned(address) => driver.cuMemFreeHost(address),
                // No call promises to wait for what still uses it.
                Destroy::Mapping(address, bytes) => {
                    driver.cuCtxSynchronize().and_then(|()| driver.cuMemUnmap(address, bytes))
                }
                Destroy::Addresses(address, bytes) => driver.cuMemAddressFree(address, bytes),
            }
        }
    }

    /// What it is, for reports.
    fn what(self) -> &'static str {
        match self {
            Destroy::Stream(_) => "stream",
            Destroy::Event(_) => "event",
            Destroy::Module(_) => "module",
            Destroy::Graph(_) => "graph",
            Destroy::Exec(_) => "graph exec",
            Destroy::Pool(_) => "memory pool",
            Destroy::Memory(_) => "device memory",
            Destroy::OrderedMemory(..) => "stream-ordered memory",
            Destroy::Pinned(_) => "pinned host memory",
            Destroy::Mapping(..) => "mapped memory",
            Destroy::Addresses(..) => "range of addresses",
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
