//! Kernels of the examples, tests and benchmarks, and operations over them: what an engine has of its own. They use the crate's public interface alone.
//!
//! - `ops`: [`Ops`], with the element-wise operations and the matrix product. `encoder`: what an encoder needs beside them.
//! - `decoder`: a decoder's sizes, the memory of its prefill, and its layers in bfloat16, with kernels and operations of their own.
//! - `checks`: shapes and element types, checked before a kernel sees an address.
//! - `kernels`: the kernels, in CUDA C, as PTX, and as host functions for the reference driver.
#![allow(dead_code, unused_imports)]

mod checks;
mod decoder;
mod encoder;
mod kernels;
mod ops;

pub use decoder::{Decoder, DecoderBatch, DecoderOps, DecoderSizes, DecoderSizesError, Layers, Product};
pub use kernels::{DECODER, DEMO, driver, options};
pub use ops::{Ops, Weight};
