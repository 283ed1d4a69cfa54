//! The capture pool: device memory for everything that is allocated while recording, shared by captures.
//!
//! - `capture_pool` is [`CapturePool`]; `options` says how it is made and what it holds; `shared` is what its users share.
//! - `backed_arena` decides where blocks lie and has the memory beneath them: `slabs`, from a `CUmemoryPool` or under reserved addresses; `persistent` is
//!   what outlives a release of it.
//! - `block` makes tensors of blocks, which return when these drop; `tracer` makes tensors whose coming and going is traced.
//! - `replay_lock` orders the replays and recordings of one pool; `waits` sees to it that no threads wait for each other's.
//! - `reclaim` gives memory back in order; `availability` says whether it can be used, and who needs it where it is.
//! - `mapping` is what needs the memory and holds no block of it; `users` are the streams that a release waits for; `results` says whose latest replay
//!   failed.
//! - `pin` keeps it where it is; `suspend` gives it back while captures stay, and takes it again; `lease` lends it to eager work.
//! - `extension` is what the capture layer keeps with a pool.
//!
//! The invariants M1 to M5, L1 to L6 and D1 to D8 of the design hold here.

mod availability;
mod backed_arena;
mod block;
mod capture_pool;
mod extension;
mod lease;
mod mapping;
mod options;
mod persistent;
mod pin;
mod reclaim;
mod replay_lock;
mod results;
mod shared;
mod slabs;
mod suspend;
pub(crate) mod tracer;
mod users;
mod waits;

pub use capture_pool::CapturePool;
pub use lease::ScratchLease;
pub(crate) use mapping::MappingHold;
pub use options::{Backing, PoolOptions, PoolUsage, RestoredContent};
pub use pin::PoolPin;
pub(crate) use reclaim::settle_stubbornly;
pub(crate) use replay_lock::ReplayGuard;
pub(crate) use results::Results;
pub(crate) use shared::{PoolHandle, PoolShared};
