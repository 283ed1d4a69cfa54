//! The capture pool: device memory for everything that is allocated while recording, shared by captures.
//!
//! - `blocks` is the arithmetic: which bytes of which slab serve a request. It knows no driver and has no `unsafe` code.
//! - `trace` is a recorded order of requests and releases; `plan` places such requests in one range; `trace_plan` is a plan of traces; `planned` is the
//!   range in which recordings get their planned places. None of them knows a driver either.
//! - `capture_pool` is [`CapturePool`]; `options` says how it is made and what it holds; `inner` is what its users share.
//! - `slabs` is the memory beneath it, from a `CUmemoryPool` or under reserved addresses; `reclaim` gives it back in order.
//! - `release` gives it back while captures stay, and takes it again; `lend` lends it to eager work.
//! - `block` is a block that returns to its pool when dropped; `tracer` writes traces.
//! - `turn` orders the replays and recordings of one pool.
//!
//! Invariants:
//! 1. Free blocks are keyed by stream: a block freed on one stream never serves another.
//! 2. A slab is a live allocation of the pool's own `CUmemoryPool`, so neither trim nor the release threshold can touch it, or memory under addresses
//!    that the pool has reserved.
//! 3. Slabs are given back for good only when no block of them is out and no capture of the pool is left, after the last replay on the device.
//! 4. Only a recording takes blocks, and only its segments and landings write them. Temporaries of breaks and eager tensors come from an
//!    ordinary stream-ordered pool beside it.

mod block;
mod capture_pool;
mod lease;
mod options;
mod reclaim;
mod replay_lock;
mod shared;
mod slabs;
mod suspend;
pub(crate) mod tracer;

pub use capture_pool::CapturePool;
pub use lease::ScratchLease;
pub use options::{Backing, PoolOptions, PoolUsage, RestoredContent};
pub(crate) use replay_lock::ReplayGuard;
pub(crate) use shared::PoolHandle;
