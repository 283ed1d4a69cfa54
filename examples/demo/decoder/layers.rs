//! A decoder's layers with weights and arithmetic.

use super::{DecoderOps, DecoderSizes};
use breakable_cuda_graph::driver::Stream;
use breakable_cuda_graph::tensor::{DType, Tensor};
use breakable_cuda_graph::{Break, BreakKind, BreakOptions, Scope, current_stream, empty};
use breakable_cuda_graph::{Error, Misuse, Result};

/// Matrix products for [`Layers`].
pub trait Product {
    /// `y[rows, columns] = x[rows, inner] wᵀ` with `w[columns, inner]`, all contiguous bfloat16; with `accumulate` it is added to what `y` holds.
    /// It is called in segments, so it only enqueues work on the stream, and allocates nothing.
    ///
    /// # Errors
    /// What computes it returns.
    fn product(&self, stream: &Stream, x: &Tensor, w: &Tensor, accumulate: bool, y: &Tensor) -> Result<()>;
}

/// What attention reads live: the forward context to publish around a forward and its replays.
#[derive(Clone, Debug)]
pub struct DecoderBatch {
    /// Where each sequence begins and the last one ends: i32 `[sequences + 1]` on the device, ascending. Rows past the end are padding.
    pub offsets: Tensor,
}

/// The layers of a decoder on one device, with weights of pseudo-random numbers: real work at real sizes, and no meaning. Of shards, it is the first alone:
/// what it would have to sum with the others is left as it is.
#[derive(Debug)]
pub struct Layers {
    sizes: DecoderSizes,
    ops: DecoderOps,
    layers: Vec<Layer>,
}

/// The weights of one layer, `[columns, inner]` each.
#[derive(Debug)]
struct Layer {
    attention_norm: Tensor,
    /// Query, key and value side by side.
    qkv: Tensor,
    output: Tensor,
    feed_forward_norm: Tensor,
    /// Gate and up side by side.
    gate_up: Tensor,
    down: Tensor,
}

const EPSILON: f32 = 1e-5;
const ROTARY_BASE: f32 = 500_000.0;

impl Layers {
    /// Layers of these sizes, whose weights are made on the device, and depend on the seed alone.
    ///
    /// # Errors
    /// [`DecoderSizesError`](super::DecoderSizesError) within [`Error::User`], and what the driver returns.
    pub fn new(ops: &DecoderOps, stream: &Stream, sizes: DecoderSizes, seed: u64) -> Result<Layers> {
        sizes.check()?;
        let mut number = seed.wrapping_mul(1 << 20);
        let mut random = |shape: &[usize], middle: f32, scale: f32| {
            let tensor = Tensor::allocate(stream.context(), DType::BF16, shape)?;
            ops.random_into(stream, number, middle, scale, &tensor)?;
            number = number.wrapping_add(1);
            Ok::<_, Error>(tensor)
        };
        let layers = (0..sizes.layers)
            .map(|_| {
                let DecoderSizes { width, inner, shards, .. } = sizes;
                let (attention, inner) = (sizes.attention(), inner / shards);
                // Products of numbers of variance 1 have that variance again.
                let scale = |inner: usize| (3.0 / inner as f32).sqrt();
                Ok(Layer {
                    attention_norm: random(&[width], 1.0, 0.25)?,
                    qkv: random(&[attention + 2 * sizes.keys(), width], 0.0, scale(width))?,
                    output: random(&[width, attention], 0.0, scale(attention))?,
                    feed_forward_norm: random(&[width], 1.0, 0.25)?,
                    gate_up: random(&[2 * inner, width], 0.0, scale(width))?,
                    down: random(&[width, inner], 0.0, scale(inner))?,
                })
            })
            .collect::<Result<_>>()?;
        Ok(Layers { sizes, ops: ops.clone(), layers })
    }

    /// The sizes.
    pub fn sizes(&self) -> DecoderSizes {
        self.sizes
    }

    /// The hidden states that the layers make of `x`, both bfloat16 `[rows, width]`. Each layer has a break of this kind, which reads a
    /// [`DecoderBatch`] from the forward context. Rows past the batch's last sequence have no attention: what they give is undefined, and no
    /// other row reads it.
    ///
    /// # Errors
    /// [`TensorError::Shape`](breakable_cuda_graph::TensorError::Shape), [`TensorError::DType`](breakable_cuda_graph::TensorError::DType), [`Misuse::NoForwardContext`] without a batch, and what the allocations, the products and the
    /// launches return.
    pub fn forward<'m>(
        &'m self,
        scope: &Scope<'_, 'm>,
        x: &Tensor,
        product: &'m dyn Product,
        kind: BreakKind,
    ) -> Result<Tensor> {
        let (rows, width, attention, keys) = (x.rows(), self.sizes.width, self.sizes.attention(), self.sizes.keys());
        let inner = self.sizes.inner / self.sizes.shards;
        let (ops, stream) = (&self.ops, current_stream()?);
        let tensor = |columns: usize| empty(DType::BF16, &[rows, columns]);
        // The residual stream: each layer adds to it in place, and `x` stays as it is.
        let h = tensor(width)?;
        h.copy_from(&stream, x)?;
        let normed = |gamma: &Tensor| {
            let normed = tensor(width)?;
            ops.rms_norm_into(&stream, &h, gamma, EPSILON, &normed)?;
            Ok::<_, Error>(normed)
        };
        for layer in &self.layers {
            let qkv = {
                let (normed, qkv) = (normed(&layer.attention_norm)?, tensor(attention + 2 * keys)?);
                product.product(&stream, &normed, &layer.qkv, false, &qkv)?;
                qkv
            };
            let v = qkv.narrow(1, attention + keys, keys)?;
            let options = BreakOptions::new("attention").kind(kind);
            let attended = scope.break_here(options, tensor(attention)?, [&qkv, &v], |b| self.attend(b))?;
            drop((qkv, v));
            product.product(&stream, &attended, &layer.output, true, &h)?;
            drop(attended);
            let gate_up = {
                let (normed, gate_up) = (normed(&layer.feed_forward_norm)?, tensor(2 * inner)?);
                product.product(&stream, &normed, &layer.gate_up, false, &gate_up)?;
                gate_up
            };
            let activated = tensor(inner)?;
            ops.silu_mul_into(&stream, &gate_up, &activated)?;
            drop(gate_up);
            product.product(&stream, &activated, &layer.down, true, &h)?;
        }
        Ok(h)
    }

    /// The break's operation, from query, key and value side by side, and the value again, into the handoff.
    fn attend(&self, b: &Break<'_>) -> Result<Tensor> {
        let (qkv, v) = (b.input(0)?, b.input(1)?);
        let y = b.output(0).ok_or(Error::Misuse(Misuse::OutputCount { expected: 1, got: 0 }))?;
        // As an inline break too: then every batch has its offsets in this tensor, and only the tensor's place is the recording's.
        let offsets = &b.frozen_ctx::<DecoderBatch>()?.offsets;
        let DecoderSizes { heads, kv_heads, shards, .. } = self.sizes;
        let heads = [heads / shards, kv_heads / shards];
        let q = b.empty(DType::BF16, &[qkv.rows(), self.sizes.attention()])?;
        let k = b.empty(DType::BF16, &[qkv.rows(), self.sizes.keys()])?;
        self.ops.rotate_into(b.stream(), qkv, offsets, heads, ROTARY_BASE, [&q, &k])?;
        self.ops.attention_into(b.stream(), [&q, &k, v], offsets, heads, &y)?;
        Ok(y)
    }
}
