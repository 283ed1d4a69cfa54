//! The behaviour of the system that this crate re-imagines, test by test under the same names: on the reference driver for 64 orders of
//! interleaving, and on a GPU with the feature `driver-tests`.

mod ambient;
mod bucketed;
mod core;
mod pool_reuse;
mod weak;
