//! Arithmetic on bytes: which bytes of which slab serve a request, in which order requests come, and where known requests go. It knows no driver:
//! slabs are ranges of addresses that are given to it, and the bytes behind them are never touched.
//!
//! - `arena` decides where a block lies: at its planned place, online, or in a new slab.
//! - `allocator` is online best fit, keyed by stream, over `block_table` and `free_list`; `ids` are its names, `sizes` the units of memory.
//! - `trace` is a recorded order of requests and releases; `planner` places such requests in one range; `pool_plan` is a plan of traces;
//!   `planned_range` is the range in which recordings get their planned places, `divergence` how one differs from its plan.
//! - `footprint` is what traces take without a plan.
#![deny(unsafe_code)]

mod allocator;
pub(crate) mod arena;
mod block_table;
mod divergence;
mod footprint;
mod free_list;
pub(crate) mod ids;
mod planned_range;
pub mod planner;
mod pool_plan;
pub(crate) mod sizes;
#[cfg(test)]
mod tests;
mod trace;

pub use divergence::{Divergence, DivergenceKind};
pub use footprint::online_footprint;
pub use ids::StaleBlock;
pub use pool_plan::{PlannedBlock, PoolPlan, TracePlan};
pub use sizes::{ALIGNMENT, SLAB_BYTES};
pub use trace::{Role, Trace, TraceRequest, TraceStep};
