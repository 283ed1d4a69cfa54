//! The capture pool: device memory for everything that is allocated while recording, shared by captures.
//!
//! - `blocks` is the arithmetic: which bytes of which slab serve a request. It knows no driver and has no `unsafe` code.
//! - `capture_pool` is [`CapturePool`]: slabs from a `CUmemoryPool`, limits, reports.
//! - `block` is a block that returns to its pool when dropped.
//! - `trace` is a recorded order of requests and releases, for simulations and for planning.
//! - `turn` orders the replays and recordings of one pool.
//!
//! Invariants:
//! 1. Free blocks are keyed by stream: a block freed on one stream never serves another.
//! 2. A slab is a live allocation of the pool's own `CUmemoryPool`, so neither trim nor the release threshold can touch it.
//! 3. Slabs are given back only when no block of them is out and no capture of the pool is left, after the last replay on the device.
//! 4. Only a recording takes blocks, and only its segments and landings write them. Temporaries of breaks and eager tensors come from an
//!    ordinary stream-ordered pool beside it.

mod block;
pub mod blocks;
mod capture_pool;
pub mod trace;
mod turn;

pub use capture_pool::{CapturePool, PoolOptions, PoolUsage};
pub(crate) use capture_pool::{PoolHandle, StreamKey};
