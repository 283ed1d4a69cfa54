//! A decoder with grouped key and value heads and a gated feed-forward, such as Llama's, in bfloat16.
//!
//! - `sizes`: how large it is. `memory`: the memory of its prefill, without the arithmetic.
//! - `ops`: operations over the kernels of `csrc/decoder.cu`. `layers`: its layers with weights and arithmetic, attention as a break.

mod layers;
mod memory;
mod ops;
mod sizes;

pub use layers::{DecoderBatch, Layers, Product};
pub use memory::Decoder;
pub use ops::DecoderOps;
pub use sizes::{DecoderSizes, DecoderSizesError};

use std::ffi::CStr;

/// PTX made from `csrc/decoder.cu` by `scripts/ptx.py`.
pub(crate) const PTX: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("../../../csrc/decoder.ptx"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the PTX holds a NUL"),
    };

crate::kernels::host::host_kernels! {
    /// The same kernels compiled for the host, for the reference driver.
    pub(crate) HOST:
    decoder_random,
    decoder_rms_norm,
    decoder_silu_mul,
    decoder_rotate,
    decoder_attention,
    decoder_linear,
}
