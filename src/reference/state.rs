//! A reference driver's state, and how its work runs.

use super::capture::Capture;
use super::graph::{Exec, Graph};
use super::handles::{Context, Device, Event, Function, Module, Physical, Pool, Reservation, Stream};
use super::ids::{CaptureId, Handle, TaskId};
use super::memory::{Memory, POISON};
use super::options::Options;
use super::tasks::Tasks;
use super::threads::ThreadNumber;
use super::work::{CopyEnd, Work};
use crate::kernels::host::HostKernel;
use crate::sys::CUresult;
use core::ffi::c_void;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};

/// What a driver call comes to.
pub(super) type Outcome<T = ()> = Result<T, CUresult>;

/// What exists on a reference driver, what waits to run, and what went wrong.
pub(super) struct State {
    pub(super) options: Options,
    pub(super) initialised: bool,
    pub(super) devices: Vec<Device>,
    pub(super) contexts: HashMap<Handle, Context>,
    /// The current context of each thread that has one.
    current: HashMap<ThreadNumber, Handle>,
    pub(super) streams: HashMap<Handle, Stream>,
    pub(super) events: HashMap<Handle, Event>,
    pub(super) modules: HashMap<Handle, Module>,
    pub(super) functions: HashMap<Handle, Function>,
    pub(super) graphs: HashMap<Handle, Graph>,
    /// The graph of each node.
    pub(super) nodes: HashMap<Handle, Handle>,
    pub(super) execs: HashMap<Handle, Exec>,
    pub(super) pools: HashMap<Handle, Pool>,
    /// The pool of each block that is out.
    pub(super) pool_of: HashMap<u64, Handle>,
    pub(super) physical: HashMap<u64, Physical>,
    pub(super) reservations: BTreeMap<u64, Reservation>,
    pub(super) pinned: HashMap<u64, usize>,
    pub(super) memory: Memory,
    pub(super) tasks: Tasks,
    pub(super) captures: HashMap<CaptureId, Capture>,
    pub(super) next_id: u64,
    pub(super) kernels: HashMap<String, HostKernel>,
    pub(super) diagnostics: Vec<String>,
}

thread_local! {
    /// Whether this thread runs a host function of a stream.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread runs a host function of a stream, which must not call the driver.
pub(super) fn is_in_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}

impl State {
    pub(super) fn new(options: Options, kernels: HashMap<String, HostKernel>) -> State {
        let device = || Device { used: 0, total: options.device_memory, primary: None, default_pool: None };
        State {
            initialised: false,
            devices: (0..options.devices).map(|_| device()).collect(),
            contexts: HashMap::new(),
            current: HashMap::new(),
            streams: HashMap::new(),
            events: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            graphs: HashMap::new(),
            nodes: HashMap::new(),
            execs: HashMap::new(),
            pools: HashMap::new(),
            pool_of: HashMap::new(),
            physical: HashMap::new(),
            reservations: BTreeMap::new(),
            pinned: HashMap::new(),
            memory: Memory::default(),
            tasks: Tasks::new(options.seed),
            captures: HashMap::new(),
            next_id: 1,
            kernels,
            diagnostics: Vec::new(),
            options,
        }
    }

    pub(super) fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// The calling thread's current context of this driver, if any.
    pub(super) fn current_or_none(&self) -> Option<Handle> {
        self.current.get(&ThreadNumber::current()).copied()
    }

    pub(super) fn set_current(&mut self, context: Option<Handle>) {
        match context {
            Some(context) => self.current.insert(ThreadNumber::current(), context),
            None => self.current.remove(&ThreadNumber::current()),
        };
    }

    /// The current context, which must be live.
    pub(super) fn current(&self) -> Outcome<Handle> {
        let context = self.current_or_none().ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        if self.contexts.contains_key(&context) { Ok(context) } else { Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED) }
    }

    /// Fails with the error of earlier work, if there was one.
    pub(super) fn healthy(&self, context: Handle) -> Outcome {
        match self.contexts.get(&context).and_then(|context| context.sticky) {
            Some(code) => Err(code),
            None => Ok(()),
        }
    }

    /// Adds work after other work, and runs as much of what waits as the seed leans to.
    pub(super) fn enqueue(&mut self, context: Handle, after: impl IntoIterator<Item = TaskId>, work: Work) -> TaskId {
        let task = self.tasks.add(context, after, work);
        let mut eager = self.tasks.eagerness();
        while eager > 0 && self.run_one(None) {
            eager -= 1;
        }
        task
    }

    /// Runs until these tasks have.
    pub(super) fn wait_for(&mut self, targets: &[TaskId]) {
        let needed = self.tasks.needed(targets);
        while targets.iter().any(|task| self.tasks.is_pending(*task)) {
            if !self.run_one(Some(&needed)) {
                return;
            }
        }
    }

    fn run_one(&mut self, needed: Option<&std::collections::BTreeSet<TaskId>>) -> bool {
        let Some((id, context, work)) = self.tasks.take(needed) else { return false };
        // After an error nothing runs any more, as on the device; memory is opened and closed all the same.
        let is_bookkeeping = matches!(work, Work::Open { .. } | Work::Close { .. } | Work::Record { .. });
        if (self.healthy(context).is_ok() || is_bookkeeping)
            && let Err(text) = self.perform(work)
        {
            self.diagnostics.push(text);
            if let Some(context) = self.contexts.get_mut(&context) {
                context.sticky = Some(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
            }
        }
        self.tasks.done(id);
        true
    }

    fn perform(&mut self, work: Work) -> Result<(), String> {
        match work {
            Work::Nothing => Ok(()),
            Work::Kernel(launch) => {
                let name = match self.functions.get(&launch.function) {
                    Some(function) => function.name.to_string_lossy().into_owned(),
                    None => return Err("a kernel ran after its module was unloaded".into()),
                };
                for address in launch.arguments.possible_addresses() {
                    if self.memory.is_known(address) && !self.memory.is_open(address, 1) {
                        return Err(format!(
                            "kernel {name} was given {address:#x}, which is not allocated when it runs"
                        ));
                    }
                }
                let pointers = launch.arguments.pointers();
                // SAFETY: the arguments are copies of what the launch was given, with the sizes that the module declares; the function is the one
                // that stands for this kernel.
                unsafe { (launch.host)(&launch.geometry, pointers.as_ptr()) };
                match launch.arguments.possible_addresses().find_map(|address| self.memory.overrun(address)) {
                    None => Ok(()),
                    Some((start, bytes)) => Err(format!(
                        "kernel {name} wrote past the end of the {bytes} bytes at {start:#x} that it was given"
                    )),
                }
            }
            Work::Copy { to, from, bytes } => self.copy(&to, &from, bytes),
            Work::Fill { address, value, width, count } => {
                self.expect_open("memset", address, width * count)?;
                let value = value.to_le_bytes();
                for at in 0..count {
                    // SAFETY: the range is open, so it is backed by memory that the driver owns.
                    unsafe {
                        ((address + (at * width) as u64) as *mut u8).copy_from_nonoverlapping(value.as_ptr(), width)
                    };
                }
                Ok(())
            }
            Work::Open { address, region } => {
                self.memory.open(address, region);
                Ok(())
            }
            Work::Close { address } => match self.memory.close(address) {
                Some(_) => Ok(()),
                None => {
                    Err(format!("memory at {address:#x} was freed when it was not allocated: nothing orders the two"))
                }
            },
            Work::Host { function, data } => {
                IN_HOST_FUNCTION.set(true);
                // SAFETY: the caller of cuLaunchHostFunc vouches for the function and its data.
                unsafe { function(data as *mut c_void) };
                IN_HOST_FUNCTION.set(false);
                Ok(())
            }
            Work::Record { event } => {
                if let Some(event) = self.events.get_mut(&event) {
                    event.time = Some(std::time::Instant::now());
                }
                Ok(())
            }
        }
    }

    fn copy(&mut self, to: &CopyEnd, from: &CopyEnd, bytes: usize) -> Result<(), String> {
        let source = match from {
            CopyEnd::Device(address) => {
                self.expect_open("copy", *address, bytes)?;
                *address as *const u8
            }
            CopyEnd::Host(address) => *address as *const u8,
            CopyEnd::Staged(staged) => staged.as_ptr(),
        };
        let target = match to {
            CopyEnd::Device(address) => {
                self.expect_open("copy", *address, bytes)?;
                *address as *mut u8
            }
            CopyEnd::Host(address) => *address as *mut u8,
            CopyEnd::Staged(_) => return Ok(()),
        };
        if let (CopyEnd::Device(to), CopyEnd::Device(from)) = (to, from)
            && to != from
            && to.abs_diff(*from) < bytes as u64
        {
            // On a device parts of it may be copied in any order: what comes of it is undefined.
            self.diagnostics.push(format!(
                "a copy of {bytes} bytes from {from:#x} to {to:#x} overlaps itself: its result is undefined"
            ));
            // SAFETY: the target is open, so it is backed.
            unsafe { target.write_bytes(POISON, bytes) };
            return Ok(());
        }
        // SAFETY: device ranges are open, so they are backed; for host ranges the caller of the copy vouches until it has run.
        unsafe { core::ptr::copy(source, target, bytes) };
        Ok(())
    }

    fn expect_open(&self, what: &str, address: u64, bytes: usize) -> Result<(), String> {
        if self.memory.is_open(address, bytes) {
            return Ok(());
        }
        Err(format!("a {what} of {bytes} bytes at {address:#x} reaches memory that is not allocated when it runs"))
    }
}
