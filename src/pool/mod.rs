//! The capture pool: device memory for everything that is allocated while recording, shared by captures.
//!
//! - [`blocks`] is the arithmetic: which bytes of which slab serve a request. It knows no driver and has no `unsafe` code.
//! - [`trace`] is a recorded order of requests and releases, for simulations and for planning.

pub mod blocks;
pub mod trace;
