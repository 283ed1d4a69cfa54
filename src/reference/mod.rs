//! The driver's calls on the CPU, with the driver's rules and not only its results: what tests, examples and machines without a GPU use.
//!
//! It fills the same table as libcuda, so that everything above the table is the same code on both. What libcuda refuses is refused here with
//! the same code; what libcuda would get silently wrong (work that nothing orders, memory used after its free, bytes never written) shows up
//! as NaN or as an error with a text in [`RefDriver::diagnostics`].
//!
//! - `options` and `machine`: a driver's settings, state and counters.
//! - `handles`: the objects behind the driver's handles.
//! - `tasks`: queues. Work runs when something waits for it, in an order drawn from the seed among those that streams and events allow.
//! - `memory`: device memory, poisoned when it is allocated and when it is freed.
//! - `capture`: the rules of stream capture. `graph`: graphs, execs and their updates.
//! - `ptx` and `kernel`: what a module's text declares, and the host functions that stand for its kernels.
//! - `entry`: the entry points, by subject.

mod capture;
mod entry;
mod graph;
mod handles;
mod memory;
mod options;
mod ptx;
mod ref_driver;
mod tasks;

pub use crate::kernels::host::HostKernel;
pub use options::Options;
pub(crate) use ref_driver::enter;
pub use ref_driver::{ObjectCounts, RefDriver};
