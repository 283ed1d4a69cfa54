//! What a task or a node does, as data.

use super::ids::Handle;
use super::memory::Region;
use super::ptx::Parameter;
use crate::kernels::LaunchConfig;
use crate::kernels::host::HostKernel;
use core::ffi::c_void;
use std::sync::Arc;

/// A kernel's arguments, copied when it was launched.
pub(super) struct Arguments {
    /// The parameter space, aligned for every parameter.
    words: Vec<u64>,
    parameters: Vec<Parameter>,
}

impl Arguments {
    /// Copies the values that the pointers name.
    ///
    /// # Safety
    /// `pointers` has an entry for each parameter, which points to as many bytes as the parameter has.
    pub(super) unsafe fn copy(parameters: &[Parameter], pointers: *const *mut c_void) -> Arguments {
        let end = parameters.last().map_or(0, |last| last.offset + last.size);
        // One word more at each place, so that 16-byte parameters can be aligned.
        let arguments = Arguments { words: vec![0; end.div_ceil(8) + 2], parameters: parameters.to_vec() };
        for (index, parameter) in parameters.iter().enumerate() {
            // SAFETY: the caller vouches for the pointers; the space is as long as the parameters say.
            unsafe {
                let from = *pointers.add(index);
                arguments.place(parameter).copy_from_nonoverlapping(from.cast(), parameter.size);
            }
        }
        arguments
    }

    fn place(&self, parameter: &Parameter) -> *mut u8 {
        let start = self.words.as_ptr() as usize;
        (start.next_multiple_of(16) + parameter.offset) as *mut u8
    }

    /// A pointer to each argument.
    pub(super) fn pointers(&self) -> Vec<*mut c_void> {
        self.parameters.iter().map(|parameter| self.place(parameter).cast()).collect()
    }

    /// All aligned 64-bit words of the arguments: what may be addresses.
    pub(super) fn possible_addresses(&self) -> impl Iterator<Item = u64> + '_ {
        self.parameters.iter().flat_map(move |parameter| {
            let first = parameter.offset.next_multiple_of(8) - parameter.offset;
            (first..parameter.size.saturating_sub(7)).step_by(8).map(move |at| {
                // SAFETY: inside the parameter, which lies in the space, aligned to 8.
                unsafe { self.place(parameter).add(at).cast::<u64>().read() }
            })
        })
    }
}

/// A kernel to be run.
#[derive(Clone)]
pub(super) struct Launch {
    pub(super) function: Handle,
    pub(super) host: HostKernel,
    pub(super) geometry: LaunchConfig,
    pub(super) arguments: Arc<Arguments>,
    /// Its stream's, or what its node was given. It changes nothing: there is one processor.
    pub(super) priority: i32,
}

/// An end of a copy.
#[derive(Clone)]
pub(super) enum CopyEnd {
    /// Device memory, or host memory that the driver gave.
    Device(u64),
    /// Any host memory, by address: used when the copy runs.
    Host(u64),
    /// Bytes that were taken when the copy was enqueued.
    Staged(Arc<[u8]>),
}

/// What a task or a node does.
#[derive(Clone)]
pub(super) enum Work {
    Nothing,
    Kernel(Launch),
    Copy {
        to: CopyEnd,
        from: CopyEnd,
        bytes: usize,
    },
    Fill {
        address: u64,
        value: u32,
        width: usize,
        count: usize,
    },
    /// Makes memory usable, in the order of a stream.
    Open {
        address: u64,
        region: Region,
    },
    /// Makes memory unusable, in the order of a stream.
    Close {
        address: u64,
    },
    Host {
        function: unsafe extern "C" fn(*mut c_void),
        data: usize,
    },
    /// Notes the time for an event.
    Record {
        event: Handle,
    },
}
