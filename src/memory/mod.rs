//! Arithmetic on bytes: which bytes of which slab serve a request, in which order requests come, and where known requests go. It knows no driver:
//! slabs are ranges of addresses that are given to it, and the bytes behind them are never touched.
//!
//! - `allocator` is online best fit, keyed by stream; `ids` are its names, `block_table` and `free_list` its lists, `growth` its options, `usage` and
//!   `report` what it holds.
//! - `trace` is a recorded order of requests and releases; `planner` places such requests in one range; `pool_plan` is a plan of traces;
//!   `planned_range` is the range in which recordings get their planned places.
#![deny(unsafe_code)]

pub mod allocator;
mod block_table;
mod free_list;
mod growth;
pub(crate) mod planned_range;
pub mod planner;
pub(crate) mod pool_plan;
mod report;
#[cfg(test)]
mod tests;
pub mod trace;
mod usage;

pub use planned_range::{Divergence, DivergenceKind};
pub use pool_plan::{PoolPlan, TracePlan};
