//! The driver's calls on the CPU, with the driver's rules and not only its results: what tests, examples and machines without a GPU use.
//!
//! It fills the same table as libcuda, so that everything above the table is the same code on both. What libcuda refuses is refused here with
//! the same code; what libcuda would get silently wrong (work that nothing orders, memory used after its free, bytes never written) shows up
//! as NaN or as an error with a text in [`RefDriver::diagnostics`].
//!
//! - `options`, `ref_driver` and `driver`: its settings, its counters, and how it becomes a [`Driver`](crate::Driver).
//! - `state`: what exists and how its work runs; `handles`: the objects behind the driver's handles, `ids`: their numbers.
//! - `tasks`: queues. Work runs when something waits for it, in an order drawn from the seed among those that streams and events allow. `work`: what is run.
//! - `memory`: device memory, poisoned when it is allocated and when it is freed. `first_fit`: the blocks of memory pools.
//! - `capture`: the rules of stream capture. `graph`: graphs, execs and their updates.
//! - `ptx`: what a module's text declares.
//! - `entry`: the entry points, by subject; `active`: which reference driver a call is for.

mod active;
mod capture;
mod driver;
mod entry;
mod first_fit;
mod graph;
mod handles;
mod ids;
mod memory;
mod options;
mod ptx;
mod ref_driver;
mod state;
mod tasks;
mod threads;
mod work;

pub use crate::kernels::host::HostKernel;
pub use options::Options;
pub use ref_driver::{ObjectCounts, RefDriver};
