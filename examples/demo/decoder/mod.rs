//! A decoder with grouped key and value heads and a gated feed-forward, such as Llama's, in bfloat16.
//!
//! - `sizes`: how large it is. `memory`: the memory of its prefill, without the arithmetic.
//! - `ops`: operations over the kernels of `kernels/decoder.cu`. `layers`: its layers with weights and arithmetic, attention as a break.

mod layers;
mod memory;
mod ops;
mod sizes;

pub use layers::{DecoderBatch, Layers, Product};
pub use memory::Decoder;
pub use ops::DecoderOps;
pub use sizes::{DecoderSizes, DecoderSizesError};
