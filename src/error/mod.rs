//! The crate's error.
//!
//! - `misuse`: calls that are refused, and work that can't be captured. `tensor_error`: tensors that don't fit.
//! - `capture_error`: a recording that failed. `out_of_memory`: memory that was not there.
//!   `verify_error`: replays that are not what the eager forward gives. `module_error`: modules and kernels that are not there. `code`: the number of each.

mod capture_error;
mod code;
mod misuse;
mod module_error;
mod out_of_memory;
mod tensor_error;
mod verify_error;

pub use capture_error::{CaptureError, PoolBytes};
pub use misuse::{FrozenPlace, Misuse};
pub use module_error::{KernelError, ModuleLoadError};
pub use out_of_memory::OutOfMemory;
pub use tensor_error::TensorError;
pub use verify_error::{Difference, VerifyCause, VerifyError, VerifyPlace};

use crate::driver::InstantiateError;
use crate::memory::planner::PlanError;
use crate::prefill::PrefillError;
use crate::sys::{CallError, LoadError};

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong. Each message says what, why and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// There is no device with this number.
    #[error("there is no device {ordinal}: the driver sees {count}{}", Visible(visible))]
    NoSuchDevice {
        /// The number asked for.
        ordinal: usize,
        /// How many devices there are.
        count: usize,
        /// What `CUDA_VISIBLE_DEVICES` says, where it is set: the driver numbers those devices from 0.
        visible: Option<String>,
    },
    /// The device has no stream-ordered memory pools (as some virtual and old GPUs).
    #[error(
        "{device} has no stream-ordered memory pools (driver {driver}), which captures need: use another device, or a later driver"
    )]
    PoolsUnsupported {
        /// The device's name.
        device: String,
        /// The driver's CUDA version.
        driver: i32,
    },
    /// A driver call failed, or the driver lacks it.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A graph could not be instantiated.
    #[error("{0}")]
    Instantiate(InstantiateError),
    /// A module could not be loaded.
    #[error(transparent)]
    ModuleLoad(Box<ModuleLoadError>),
    /// A module has no such kernel, or its code could not be loaded.
    #[error(transparent)]
    Kernel(Box<KernelError>),
    /// The capture pool's limit or the device's memory is reached.
    #[error(transparent)]
    OutOfMemory(Box<OutOfMemory>),
    /// The device has too little memory for an allocation of its own, outside the capture pool.
    #[error(
        "out of device memory: {requested} bytes requested, {free} of {total} are free ({call}): free what is not used (`CapturePool::trim`, other processes), or ask for less"
    )]
    DeviceOutOfMemory {
        /// Bytes requested.
        requested: usize,
        /// Bytes that the device had free, right after.
        free: usize,
        /// Bytes of the device.
        total: usize,
        /// The driver call that failed.
        call: CallError,
    },
    /// Memory could not be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A recording failed: where, and why.
    #[error(transparent)]
    Capture(Box<CaptureError>),
    /// A break failed during a replay. Later steps did not run; the capture can be replayed again.
    #[error("break {index} ({name:?}) failed: {source}")]
    Break {
        /// Its name.
        name: String,
        /// Its place among the capture's breaks.
        index: usize,
        /// Why.
        source: Box<Error>,
    },
    /// A patched break did what only a live one may do. It was not launched, nor was anything after it; the capture can be replayed again.
    #[error(
        "break {index} ({name:?}) can't be recorded: {source}; a patched break only enqueues work on its stream: take out what allocates, synchronises or queries, or make the break live"
    )]
    NotPatchable {
        /// Its name.
        name: String,
        /// Its place among the capture's breaks.
        index: usize,
        /// What it did.
        source: Box<Error>,
    },
    /// A patched break asked for more temporaries than it did when it was captured. Where that happens in a replay, its composite graph is launched part by part.
    #[error(
        "a patched break asked for {requested} bytes of scratch where {left} are left: what it took at capture is all there is. Let the break take as much when it is recorded, or make it live"
    )]
    ScratchExceeded {
        /// What was asked for, in bytes.
        requested: usize,
        /// What was left, in bytes.
        left: usize,
    },
    /// A segment could not be launched in a replay. Later steps did not run; the capture can be replayed again.
    #[error(
        "segment {index} could not be launched: {source}. What comes later did not run, and the capture can be replayed again"
    )]
    Segment {
        /// Its place among the capture's segments.
        index: usize,
        /// Why.
        source: Box<Error>,
    },
    /// A capture's replays are not what the eager forward gives: where, and the likely cause.
    #[error(transparent)]
    Verify(Box<VerifyError>),
    /// The prefill runner's own.
    #[error(transparent)]
    Prefill(#[from] PrefillError),
    /// The forward's or a break's own error.
    #[error("{0}")]
    User(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A call was refused before it had an effect, or work of a forward can't be captured.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// A tensor, a shape or a range does not fit.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A state that the crate takes for impossible: a fault of its own.
    #[error("a fault of this crate: {0}; please report it")]
    Internal(&'static str),
}

impl Error {
    /// Wraps the forward's or a break's own error.
    pub fn user(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::User(error.into())
    }

    /// A segment, by its place among the recording's segments, that could not become part of an exec, or be launched.
    pub(crate) fn segment(index: usize, error: Error) -> Error {
        Error::Segment { index, source: Box::new(error) }
    }

    /// The driver call at the root of this error, if it was one.
    pub fn driver_call(&self) -> Option<CallError> {
        match self {
            Error::Call(error) | Error::DeviceOutOfMemory { call: error, .. } => Some(*error),
            Error::Instantiate(error) => Some(error.error),
            Error::ModuleLoad(error) => Some(error.error),
            Error::Kernel(error) => Some(error.error),
            Error::Break { source, .. } | Error::NotPatchable { source, .. } | Error::Segment { source, .. } => {
                source.driver_call()
            }
            Error::OutOfMemory(error) => error.call,
            Error::Capture(error) => error.first_call.or_else(|| error.source.driver_call()),
            _ => None,
        }
    }
}

struct Visible<'a>(&'a Option<String>);

impl std::fmt::Display for Visible<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(list) => write!(f, " (CUDA_VISIBLE_DEVICES={list}, numbered from 0)"),
            None => f.write_str(", numbered from 0"),
        }
    }
}
