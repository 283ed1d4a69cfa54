#![doc = include_str!("../README.md")]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod capture;
#[cfg(feature = "reference-driver")]
pub mod demo;
pub mod driver;
mod error;
pub(crate) mod kernels;
pub mod memory;
pub mod pool;
pub mod prefill;
#[cfg(feature = "reference-driver")]
pub mod reference;
pub mod sys;
pub mod tensor;

pub use capture::{
    Break, BreakKind, BreakOptions, BreakableCapture, CaptureExecution, CaptureOptions, GraphOptions, Outputs,
    PatchStats, Reconfigure, ReplayOptions, Replayed, Scope, active_forward, break_here, break_point,
    current_forward_ctx, current_stream, eager, empty, forbid_in_segment, is_capturing, trace,
};
pub use driver::CaptureMode;
pub use error::{CaptureError, Error, Misuse, OutOfMemory, PoolBytes, Result, TensorError};
pub use pool::{CapturePool, PoolOptions};
pub use prefill::{PrefillModel, PrefillRunner, RunnerOptions};
pub use sys::Driver;
pub use tensor::{DType, StaticInput, Tail, Tensor, scrub_padding_tail, slice_to_real_tokens, weak_ref};
