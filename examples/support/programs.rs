//! Programs whose memory is planned, as traces.

use super::support::demo::{Decoder, DecoderSizes, Ops};
use breakable_cuda_graph::driver::Stream;
use breakable_cuda_graph::memory::Trace;
use breakable_cuda_graph::{CapturePool, DType, Error, Misuse, Result, Scope, Tensor, empty, trace};

/// A forward to plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Program {
    /// Four layers of two products with a break between them, 512 → 2048 → 512, float32.
    #[default]
    Stack,
    /// A decoder of 8 billion parameters: 32 layers, bfloat16.
    #[value(name = "decoder-8b")]
    Decoder8b,
    /// One eighth of one of 70 billion: 80 layers, bfloat16.
    #[value(name = "decoder-70b-eighth")]
    Decoder70bEighth,
}

impl Program {
    /// What a forward of one row asks for; all its tensors grow with the rows.
    pub fn trace_of_one_row(self, ops: &Ops, pool: &CapturePool, stream: &Stream) -> Result<Trace> {
        let sizes = match self {
            Program::Stack => return Ok(trace(pool, stream, stack)?.0),
            Program::Decoder8b => DecoderSizes::of_8b(),
            Program::Decoder70bEighth => DecoderSizes::of_70b_eighth(),
        };
        Decoder::new(ops, stream, sizes)?.trace_of_one_row(pool, stream)
    }
}

fn stack(scope: &Scope<'_, '_>) -> Result<Tensor> {
    let named = |layer: usize, name: &str, columns| {
        let tensor = empty(DType::F32, &[1, columns])?;
        tensor.set_name(&format!("{layer}.{name}"));
        Ok::<_, Error>(tensor)
    };
    let mut x = None;
    for layer in 0..4 {
        let mut h = named(layer, "wide", 2048)?;
        let handoff = named(layer, "activated", 2048)?;
        h = scope.break_here("relu", handoff, [&h], |b| {
            b.output(0).ok_or(Error::Misuse(Misuse::OutputCount { expected: 1, got: 0 }))
        })?;
        // The one before is read by the first product, and goes when this is there.
        x = Some(named(layer, "narrow", 512)?);
        drop(h);
    }
    x.ok_or(Error::Misuse(Misuse::NoForward))
}
