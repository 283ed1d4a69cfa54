//! Breakable CUDA graphs.

#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(feature = "reference-driver")]
pub mod reference;
pub mod sys;
