//! What is left to do when a handle is dropped, as data: at once, or when the open capture has closed.

use super::capture_mode::relaxed;
use super::current::bind_stubbornly;
use crate::sys::{
    CUcontext, CUdeviceptr, CUevent, CUevent_flags_enum, CUgraph, CUgraphExec, CUmemoryPool, CUmodule, CUstream,
    CUstreamCaptureStatus, CallError, Driver, first_failure,
};
use core::ffi::c_void;
use std::fmt;
use std::sync::Arc;

/// One handle to destroy or block to free.
#[derive(Debug)]
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
    /// No handle: what comes next on one stream is made to wait for what is on another. Both are kept alive until this has been carried out.
    Order {
        later: CUstream,
        earlier: CUstream,
    },
    Pinned(*mut c_void),
    /// Memory at reserved addresses, whose handle is let go of already. As long as the token lives something is mapped there.
    Mapping(CUdeviceptr, usize, #[allow(dead_code)] Arc<()>),
    /// Reserved addresses.
    Addresses(CUdeviceptr, usize),
}

// SAFETY: each is the last name of its object, which may be destroyed from any thread (T2 of `docs/DESIGN.md`); a graph or exec among them has no other user (T1).
unsafe impl Send for Destroy {}

impl Destroy {
    /// Carries it out in its context, without disturbing the thread's record of its first failing call. One is made once, by the owner of the
    /// handle, when it drops.
    pub(super) fn run_in(self, driver: &Driver, context: CUcontext) -> Result<(), DropError> {
        // The driver does not survive a fork: in the child its objects are not there to destroy.
        if !driver.is_of_this_process() {
            return Ok(());
        }
        let done = first_failure::untouched(|| {
            let _bound = bind_stubbornly(driver, context);
            // Another thread, or the caller's own code, may have a capture open of which the crate knows nothing. Without this the call would end it.
            let _relaxed = relaxed(driver);
            // SAFETY: the handle was live until its owner dropped, and belongs to the context, which is current.
            unsafe { self.run(driver) }
        });
        done.map_err(|error| {
            let what = self.what();
            // What could not be unmapped is there for good.
            std::mem::forget(self);
            DropError { what, error }
        })
    }

    /// # Safety
    /// The handle is live, belongs to the context that is current, and nobody uses it afterwards.
    unsafe fn run(&self, driver: &Driver) -> Result<(), CallError> {
        // SAFETY: as the caller says.
        unsafe {
            match *self {
                Destroy::Stream(raw) => driver.cuStreamDestroy_v2(raw),
                Destroy::Event(raw) => driver.cuEventDestroy_v2(raw),
                Destroy::Module(raw) => driver.cuModuleUnload(raw),
                Destroy::Graph(raw) => driver.cuGraphDestroy(raw),
                Destroy::Exec(raw) => driver.cuGraphExecDestroy(raw),
                Destroy::Pool(raw) => driver.cuMemPoolDestroy(raw),
                Destroy::Memory(address) => driver.cuMemFree_v2(address),
                Destroy::OrderedMemory(address, stream) => driver.cuMemFreeAsync(address, stream),
                Destroy::Order { later, earlier } => order(driver, later, earlier),
                Destroy::Pinned(address) => driver.cuMemFreeHost(address),
                // No call promises to wait for what still uses it.
                Destroy::Mapping(address, bytes, _) => {
                    driver.cuCtxSynchronize().and_then(|()| driver.cuMemUnmap(address, bytes))
                }
                Destroy::Addresses(address, bytes) => driver.cuMemAddressFree(address, bytes),
            }
        }
    }

    /// What it is, for reports.
    fn what(&self) -> &'static str {
        match self {
            Destroy::Stream(_) => "stream",
            Destroy::Event(_) => "event",
            Destroy::Module(_) => "module",
            Destroy::Graph(_) => "graph",
            Destroy::Exec(_) => "graph exec",
            Destroy::Pool(_) => "memory pool",
            Destroy::Memory(_) => "device memory",
            Destroy::OrderedMemory(..) => "stream-ordered memory",
            Destroy::Order { .. } => "stream-ordered memory",
            Destroy::Pinned(_) => "pinned host memory",
            Destroy::Mapping(..) => "mapped memory",
            Destroy::Addresses(..) => "range of addresses",
        }
    }
}

/// Makes later work on one stream wait for what is on another. Where an event fails it waits on the host.
///
/// # Safety
/// Two live streams of the context that is current.
unsafe fn order(driver: &Driver, later: CUstream, earlier: CUstream) -> Result<(), CallError> {
    // SAFETY: as the caller says; the event is made and destroyed here.
    unsafe {
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        driver.cuStreamIsCapturing(earlier, &mut status)?;
        if status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
            // Another's capture, which is not to be disturbed. What was enqueued before it began has been waited for by nobody; there is no way to.
            return Ok(());
        }
        let mut event = core::ptr::null_mut();
        let ordered = driver.cuEventCreate(&mut event, CUevent_flags_enum::CU_EVENT_DISABLE_TIMING.0).and_then(|()| {
            let ordered = driver.cuEventRecord(event, earlier).and_then(|()| driver.cuStreamWaitEvent(later, event, 0));
            ordered.and(driver.cuEventDestroy_v2(event))
        });
        ordered.or_else(|_| driver.cuStreamSynchronize(earlier))
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
