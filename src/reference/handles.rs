//! The objects behind the driver's handles. A handle is a number that is never a pointer to anything: each use is looked up.

use super::first_fit::FirstFit;
use super::ids::{CaptureId, Handle, TaskId};
use super::ptx::{Parameter, Threads};
use crate::kernels::host::HostKernel;
use crate::sys::CUresult;
use std::collections::HashMap;
use std::time::Instant;

pub(super) struct Device {
    /// Bytes given out.
    pub(super) used: usize,
    pub(super) total: usize,
    /// The primary context and how often it is retained.
    pub(super) primary: Option<(Handle, usize)>,
    pub(super) default_pool: Option<Handle>,
}

pub(super) struct Context {
    pub(super) device: usize,
    /// The last task of the legacy stream.
    pub(super) legacy_tail: Option<TaskId>,
    /// An error of work that has run: every later call returns it.
    pub(super) sticky: Option<CUresult>,
    pub(super) id: u64,
}

pub(super) struct Stream {
    pub(super) context: Handle,
    pub(super) flags: u32,
    pub(super) priority: i32,
    pub(super) id: u64,
    pub(super) tail: Option<TaskId>,
    pub(super) capture: Option<CaptureId>,
}

pub(super) struct Event {
    pub(super) context: Handle,
    pub(super) flags: u32,
    pub(super) recorded: Recorded,
    pub(super) time: Option<Instant>,
}

/// What an event was last recorded on.
#[derive(Clone)]
pub(super) enum Recorded {
    /// Nothing yet.
    Never,
    /// Work of streams.
    Work(Vec<TaskId>),
    /// A place in a capture: these nodes.
    Captured { capture: CaptureId, nodes: Vec<usize> },
}

pub(super) struct Module {
    pub(super) context: Handle,
    pub(super) functions: HashMap<String, Handle>,
}

pub(super) struct Function {
    pub(super) module: Handle,
    pub(super) name: std::ffi::CString,
    /// `None`: nobody gave one.
    pub(super) host: Option<HostKernel>,
    pub(super) parameters: Vec<Parameter>,
    pub(super) threads: Threads,
    pub(super) max_dynamic_shared: i32,
}

pub(super) struct Pool {
    pub(super) device: usize,
    pub(super) max: usize,
    pub(super) threshold: u64,
    pub(super) free: FirstFit,
    /// Blocks that are out, by address.
    pub(super) out: HashMap<u64, OutBlock>,
    pub(super) reserved: usize,
    pub(super) reserved_high: usize,
    pub(super) used: usize,
    pub(super) used_high: usize,
    /// Blocks freed on another stream than their slab's: reusable when the free has run. With address and bytes.
    pub(super) returning: Vec<(TaskId, u64, usize)>,
    pub(super) destroyed: bool,
}

#[derive(Clone, Copy)]
pub(super) struct OutBlock {
    pub(super) bytes: usize,
    pub(super) stream: Handle,
    pub(super) context: Handle,
}

/// Physical memory of `cuMemCreate`.
pub(super) struct Physical {
    pub(super) device: usize,
    pub(super) bytes: usize,
    /// Handles and mappings that need it.
    pub(super) uses: usize,
}

/// A reserved range of addresses, and what is mapped in it: by offset, with length, the physical memory, and whether it may be used.
pub(super) struct Reservation {
    pub(super) bytes: usize,
    pub(super) mappings: std::collections::BTreeMap<u64, Mapping>,
}

#[derive(Clone, Copy)]
pub(super) struct Mapping {
    pub(super) bytes: usize,
    pub(super) physical: u64,
    pub(super) accessible: bool,
}
