//! Kernels of the examples, tests and benchmarks, and operations over them. No part of what an engine needs from the crate.
//!
//! - `ops`: [`Ops`], with the element-wise operations and the matrix product. `encoder`: what an encoder needs beside them.
//! - `decoder`: a decoder's sizes, the memory of its prefill, and its layers in bfloat16, with kernels and operations of their own.
//! - `checks`: shapes and element types, checked before a kernel sees an address.

mod checks;
pub(crate) mod decoder;
mod encoder;
mod ops;

pub use decoder::{Decoder, DecoderBatch, DecoderOps, DecoderSizes, DecoderSizesError, Layers, Product};
pub use ops::{Ops, Weight};

use std::ffi::CStr;

/// PTX made from `csrc/demo.cu` by `scripts/ptx.py`.
pub(crate) const PTX: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("../../csrc/demo.ptx"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the PTX holds a NUL"),
    };

crate::kernels::host::host_kernels! {
    /// The same kernels compiled for the host, for the reference driver.
    pub(crate) HOST:
    demo_fill,
    demo_relu,
    demo_scale,
    demo_add,
    demo_add_bias,
    demo_gelu,
    demo_linear,
    demo_layer_norm,
    demo_attention,
    demo_embed,
    demo_mean,
    demo_normalize,
    demo_spin,
}
