//! Records a model's forward pass over the CUDA driver API as CUDA-graph *segments* with live *breaks* between them, and replays it for every batch
//! that fits a padded bucket, with all intermediates at stable addresses in one shared pool.
//!
//! A segment is what the driver can capture. A break is what it can't, or what depends on the batch: attention over a cache, a copy from the host, a
//! collective. On a replay the segments are launched and the breaks run between them, with the values of that batch.
//!
//! ```
//! use breakable_cuda_graph::driver::{Device, Stream};
//! use breakable_cuda_graph::{BreakableCapture, CapturePool, DType, Driver, Tensor, active_forward};
//!
//! /// What the break reads live: the page of a cache that belongs to the batch.
//! struct Batch {
//!     page: usize,
//! }
//!
//! # fn main() -> breakable_cuda_graph::Result<()> {
//! let driver = Driver::reference()?; // On the CPU. `Driver::load()` is libcuda; what follows is the same.
//! let context = Device::get(&driver, 0)?.primary_context()?;
//! let (stream, pool) = (Stream::new(&context)?, CapturePool::new(&context)?);
//! let cache = Tensor::from_slice(&stream, &[1.0_f32, 1.0, 2.0, 2.0], &[2, 2])?;
//! let input = Tensor::zeros(&stream, DType::F32, &[1, 2])?; // Replays read this address.
//!
//! let mut capture = BreakableCapture::new(&pool)?;
//! let output = active_forward(&Batch { page: 0 }, || {
//!     capture.record(&stream, |scope| {
//!         let query = scope.empty(DType::F32, &[1, 2])?;
//!         query.copy_from(&scope.stream()?, &input)?; // Into the first segment.
//!         let attended = scope.break_point("attention", [&query], |b| {
//!             cache.narrow(0, b.forward_ctx::<Batch>()?.page, 1) // On every replay.
//!         })?;
//!         let output = scope.empty(DType::F32, &[1, 2])?;
//!         output.copy_from(&scope.stream()?, &attended)?; // Into the second segment.
//!         Ok(output)
//!     })
//! })?;
//!
//! let _ = active_forward(&Batch { page: 1 }, || capture.replay(&stream))?;
//! assert_eq!(output.read::<f32>(&stream)?, [2.0, 2.0]);
//! # Ok(())
//! # }
//! ```
//!
//! # Where to begin
//!
//! - An engine's usual need, a ladder of buckets with their inputs, captures and reasons for running eagerly: [`PrefillRunner`].
//! - One recording, by hand: [`BreakableCapture`], [`Scope`], [`Break`], and the [`CapturePool`] that captures share.
//! - An engine's own contexts, streams, modules and memory: [`driver`], whose handles are borrowed with `borrow_raw` and given with `as_raw`.
//! - Kernels of one's own, and tests of them without a GPU: [`driver::Module`], [`driver::Kernel`], [`reference`](mod@reference).
//! - How much memory captures will take, before anything is captured: [`trace`](fn@trace) and [`memory::PoolPlan`].
//!
//! # What holds everywhere
//!
//! Errors are one type, [`Error`], with numbers that never change ([`Error::code`]). What a graph's nodes refer to is kept for as long as the graph. The
//! replay of a capture allocates nothing on the heap and looks nothing up; it holds its pool's replay lock, so that replays and recordings of one pool
//! run one after the other. The thread's only state is the published forward contexts ([`active_forward`]) and an open recording.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod capture;
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
#[cfg(all(doctest, feature = "reference-driver"))]
#[doc = include_str!("../README.md")]
mod readme {}

#[doc(inline)]
pub use capture::{
    Break, BreakKind, BreakOptions, BreakableCapture, CaptureExecution, CaptureOptions, EagerOptions, ExecMemory,
    GraphOptions, Outputs, PatchStats, Reconfigure, ReplayOptions, Replayed, Scope, Verified, VerifyOptions,
    active_forward, break_here, break_point, current_forward_ctx, current_stream, eager, eager_with, empty,
    forbid_in_segment, is_capturing, is_recording, is_warming_up, trace, trace_with,
};
#[doc(inline)]
pub use driver::{CaptureMode, outside_capture};
pub use error::{
    CaptureError, Difference, Error, FrozenPlace, Misuse, OutOfMemory, PoolBytes, Result, TensorError, VerifyCause,
    VerifyError, VerifyPlace,
};
#[doc(inline)]
pub use pool::{CapturePool, PoolOptions};
#[doc(inline)]
pub use prefill::{PrefillModel, PrefillRunner, RunnerOptions};
#[doc(inline)]
pub use sys::Driver;
#[doc(inline)]
pub use tensor::{DType, StaticInput, TailRule, Tensor, scrub_padding_tail, slice_to_real_tokens, weak_ref};
