//! The memory of a decoder without its arithmetic.

use super::super::Ops;
use super::DecoderSizes;
use breakable_cuda_graph::CapturePool;
use breakable_cuda_graph::driver::Stream;
use breakable_cuda_graph::memory::Trace;
use breakable_cuda_graph::prefill::{InputSpec, Mode, OutputSpec, PrefillModel, TailRule, expect_inputs};
use breakable_cuda_graph::tensor::{DType, Tensor};
use breakable_cuda_graph::{Error, Misuse, Result};
use breakable_cuda_graph::{Scope, current_stream, empty, trace};

/// The sizes of a decoder with grouped key and value heads and a gated feed-forward, such as Llama's, and a model of its prefill that asks the pool for
/// the tensors of such a forward, bfloat16 and in order, with attention as a break. It launches next to nothing: for planning memory.
#[derive(Clone, Debug)]
pub struct Decoder {
    sizes: DecoderSizes,
    ops: Ops,
    marker: Tensor,
}

impl Decoder {
    /// A model of these sizes. It has no weights.
    ///
    /// # Errors
    /// What the driver returns.
    pub fn new(ops: &Ops, stream: &Stream, sizes: DecoderSizes) -> Result<Decoder> {
        Ok(Decoder { sizes, ops: ops.clone(), marker: Tensor::zeros(stream, DType::F32, &[1])? })
    }

    /// What a forward of one row asks of the pool. [`Trace::scaled`] makes the trace of more rows of it.
    ///
    /// # Errors
    /// As for [`trace`](breakable_cuda_graph::trace).
    pub fn trace_of_one_row(&self, pool: &CapturePool, stream: &Stream) -> Result<Trace> {
        Ok(trace(pool, stream, |scope| self.hidden(scope, 1))?.0)
    }

    /// A tensor that some operation has written.
    fn written(&self, name: &str, rows: usize, columns: usize) -> Result<Tensor> {
        let tensor = empty(DType::BF16, &[rows, columns])?;
        tensor.set_name(name);
        self.ops.fill(&current_stream()?, &self.marker, 1.0)?;
        Ok(tensor)
    }

    fn hidden<'m>(&'m self, scope: &Scope<'_, 'm>, rows: usize) -> Result<Tensor> {
        let DecoderSizes { layers, width, inner, shards, .. } = self.sizes;
        let (attention, keys) = (self.sizes.attention(), self.sizes.keys());
        let mut h = self.written("embedded", rows, width)?;
        for layer in 0..layers {
            let named = |name: &str, columns| self.written(&format!("{layer}.{name}"), rows, columns);
            let attended = {
                let normed = named("attention_norm", width)?;
                let qkv = named("qkv", attention + 2 * keys)?;
                drop(normed);
                let (q, k) = (named("rotated_q", attention)?, named("rotated_k", keys)?);
                let v = qkv.narrow(1, attention + keys, keys)?;
                let handoff = named("attended", attention)?;
                scope.break_here("attention", handoff, [&q, &k, &v], |b| {
                    b.output(0).ok_or(Error::Misuse(Misuse::OutputCount { expected: 1, got: 0 }))
                })?
            };
            let projected = named("projected", width)?;
            drop(attended);
            h = {
                let sum = named("after_attention", width)?;
                drop((h, projected));
                sum
            };
            let down = {
                let normed = named("feed_forward_norm", width)?;
                let gate_up = named("gate_up", 2 * inner / shards)?;
                drop(normed);
                let activated = named("activated", inner / shards)?;
                drop(gate_up);
                let down = named("down", width)?;
                drop(activated);
                down
            };
            h = {
                let sum = named("after_feed_forward", width)?;
                drop((h, down));
                sum
            };
        }
        self.written("hidden", rows, width)
    }
}

impl PrefillModel for Decoder {
    type Context = ();
    type Key = ();

    fn inputs(&self) -> Vec<InputSpec> {
        vec![InputSpec::rows("ids", DType::I32, &[]).tail(TailRule::DummySlot(-1))]
    }

    fn outputs(&self) -> Vec<OutputSpec> {
        vec![OutputSpec::rows("hidden", DType::BF16, &[self.sizes.width])]
    }

    fn key(&self) {}

    fn dummy(&self, _: &Stream, _: usize) -> Result<()> {
        Ok(())
    }

    fn mode(&self, _: &()) -> Mode<()> {
        Mode::Eligible(())
    }

    fn forward<'m>(&'m self, scope: &Scope<'_, 'm>, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let [ids] = expect_inputs(inputs)?;
        Ok(vec![self.hidden(scope, ids.rows())?])
    }
}
