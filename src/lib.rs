//! Breakable CUDA graphs.

#![deny(unsafe_op_in_unsafe_fn)]

pub mod pool;
#[cfg(feature = "reference-driver")]
pub mod reference;
pub mod sys;
