//! Operations over the decoder's kernels, on a stream and into tensors that the caller has.

use super::super::checks::{
    Rows, expect_contiguous_of, expect_dtype, expect_shape_of, matrix_of, sequences, shape_error, sizes,
};
use super::super::encoder::teams;
use super::super::kernels::DECODER;
use super::Product;
use breakable_cuda_graph::Result;
use breakable_cuda_graph::driver::{Context, Kernel, LaunchConfig, Module, Stream};
use breakable_cuda_graph::tensor::{Arg, DType, Tensor};
use std::sync::Arc;

/// The decoder's kernels, loaded. Cheap to clone. All tensors are bfloat16 and contiguous, unless it says otherwise; arithmetic is f32.
#[derive(Clone, Debug)]
pub struct DecoderOps {
    kernels: Arc<Kernels>,
}

#[derive(Debug)]
struct Kernels {
    random: Kernel,
    rms_norm: Kernel,
    silu_mul: Kernel,
    rotate: Kernel,
    attention: Kernel,
    linear: Kernel,
}

/// Elements that one thread of `silu_mul` computes: `DECODER_CHUNK`.
const CHUNK: usize = 8;
/// Heads that one team rotates: `DECODER_ROTATED`.
const ROTATED: usize = 4;
/// Query heads with the same keys, and columns of a head, that one team attends with: `DECODER_SHARED` and `DECODER_COLUMNS`.
const SHARED: usize = 4;
const COLUMNS: usize = 128;
/// Rows and columns of the product that one thread computes: `DECODER_TILE`.
const TILE: usize = 4;

impl DecoderOps {
    /// Loads the kernels.
    ///
    /// # Errors
    /// What the driver returns.
    pub fn load(context: &Context) -> Result<DecoderOps> {
        let module = Module::load_ptx(context, DECODER)?;
        let kernel = |name| module.kernel(name);
        let kernels = Kernels {
            random: kernel("decoder_random")?,
            rms_norm: kernel("decoder_rms_norm")?,
            silu_mul: kernel("decoder_silu_mul")?,
            rotate: kernel("decoder_rotate")?,
            attention: kernel("decoder_attention")?,
            linear: kernel("decoder_linear")?,
        };
        Ok(DecoderOps { kernels: Arc::new(kernels) })
    }

    /// Sets all elements to values in `middle` ± `scale` that depend on the seed and the element's place alone.
    ///
    /// # Errors
    /// [`TensorError::Shape`](breakable_cuda_graph::TensorError::Shape), [`TensorError::DType`](breakable_cuda_graph::TensorError::DType), and what the launch returns.
    pub fn random_into(&self, stream: &Stream, seed: u64, middle: f32, scale: f32, y: &Tensor) -> Result<()> {
        expect_contiguous_of(DType::BF16, y, "random")?;
        if y.elements() == 0 {
            return Ok(());
        }
        let arguments = [y.into(), Arg::U64(y.elements() as u64), seed.into(), middle.into(), scale.into()];
        // SAFETY: the kernel's parameters, on a tensor of that many elements.
        unsafe { self.kernels.random.launch(stream, LaunchConfig::for_elements(y.elements()), &arguments) }
    }

    /// `y = x / sqrt(mean of x² + epsilon) * gamma` in each row of `[rows, width]`.
    ///
    /// # Errors
    /// [`TensorError::Shape`](breakable_cuda_graph::TensorError::Shape), [`TensorError::DType`](breakable_cuda_graph::TensorError::DType), and what the launch returns.
    pub fn rms_norm_into(&self, stream: &Stream, x: &Tensor, gamma: &Tensor, epsilon: f32, y: &Tensor) -> Result<()> {
        let [rows, width] = matrix_of(DType::BF16, x, "rms_norm")?;
        expect_shape_of(DType::BF16, gamma, &[width], "gamma")?;
        expect_shape_of(DType::BF16, y, &[rows, width], "rms_norm's result")?;
        if y.elements() == 0 {
            return Ok(());
        }
        let [m, n] = sizes(x, [rows, width])?;
        let arguments = [x.into(), gamma.into(), y.into(), m, n, epsilon.into()];
        // SAFETY: the kernel's parameters, on tensors of the shapes checked above.
        unsafe { self.kernels.rms_norm.launch(stream, teams(rows), &arguments) }
    }

    /// `y[rows, inner] = gate / (1 + exp(-gate)) * up`, with gate and up side by side in `gate_up[rows, 2 * inner]`.
    ///
    /// # Errors
    /// [`TensorError::Shape`](breakable_cuda_graph::TensorError::Shape), [`TensorError::DType`](breakable_cuda_graph::TensorError::DType), and what the launch returns.
    pub fn silu_mul_into(&self, stream: &Stream, gate_up: &Tensor, y: &Tensor) -> Result<()> {
        let [rows, inner] = matrix_of(DType::BF16, y, "silu_mul's result")?;
        let [_, both] = matrix_of(DType::BF16, gate_up, "silu_mul")?;
        expect_shape_of(DType::BF16, gate_up, &[rows, inner.saturating_mul(2)], "silu_mul")?;
        if y.elements() == 0 {
            return Ok(());
        }
        let [m, n, _] = sizes(y, [rows, inner, both])?;
        let config = LaunchConfig::for_elements(rows * inner.div_ceil(CHUNK));
        // SAFETY: the kernel's parameters, on tensors of the shapes checked above.
        unsafe { self.kernels.silu_mul.launch(stream, config, &[gate_up.into(), y.into(), m, n]) }
    }

    /// Rotary embedding of query and key heads: those of `qkv`, which begins with `[q | k]` in each row and whose rows may be apart, turned by each
    /// token's place in its sequence, to `q[tokens, heads * width]` and `k[tokens, kv_heads * width]`. Halves of a head are turned with each
    /// other, column `d` by `base` to the power of `-2d / width` a token. `offsets` are i32 `[sequences + 1]` on the device, ascending. Rows past
    /// the last sequence are not written.
    ///
    /// # Errors
    /// [`TensorError::Shape`](breakable_cuda_graph::TensorError::Shape), [`TensorError::DType`](breakable_cuda_graph::TensorError::DType), and what the launch returns.
    pub fn rotate_into(
        &self,
        stream: &Stream,
        qkv: &Tensor,
        offsets: &Tensor,
        [heads, kv_heads]: [usize; 2],
        base: f32,
        [q, k]: [&Tensor; 2],
    ) -> Result<()> {
        let [tokens, all] = matrix_of(DType::BF16, q, "rotated q")?;
        let width = head_width(q, all, heads)?;
        if !width.is_multiple_of(2) {
            return Err(shape_error(q, "rotated q", "heads of an even width".into()));
        }
        let keys = kv_heads.saturating_mul(width);
        expect_shape_of(DType::BF16, k, &[tokens, keys], "rotated k")?;
        let from = Rows::of_dtype(DType::BF16, qkv, "rotate")?;
        if from.rows != tokens || from.width < all.saturating_add(keys) {
            return Err(shape_error(
                qkv,
                "rotate",
                format!("{tokens} rows that begin with {} columns", all.saturating_add(keys)),
            ));
        }
        let sequences = sequences(offsets)?;
        if tokens == 0 || all == 0 || sequences == 0 {
            return Ok(());
        }
        let [t, s, h, kv, w, _] = sizes(qkv, [tokens, sequences, heads, kv_heads, width, from.width])?;
        let stride = Arg::U64(from.stride as u64);
        let step = -2.0 * base.log2() / width as f32;
        let arguments = [qkv.into(), offsets.into(), q.into(), k.into(), t, s, h, kv, w, stride, step.into()];
        let config = teams(tokens.saturating_mul((heads + kv_heads).div_ceil(ROTATED)));
        // SAFETY: the kernel's parameters, on tensors of the shapes checked above; it clamps the offsets.
        unsafe { self.kernels.rotate.launch(stream, config, &arguments) }
    }

    /// Causal attention within packed sequences into `y`: `q` and `y` are `[tokens, heads * width]`, `k` and `v` are
    /// `[tokens, kv_heads * width]`, each with rows that may be apart; `offsets` are i32 `[sequences + 1]` on the device, ascending. Rows past the
    /// last sequence are not written.
    ///
    /// # Errors
    /// [`TensorError::Shape`](breakable_cuda_graph::TensorError::Shape), [`TensorError::DType`](breakable_cuda_graph::TensorError::DType), and what the launch returns.
    pub fn attention_into(
        &self,
        stream: &Stream,
        [q, k, v]: [&Tensor; 3],
        offsets: &Tensor,
        [heads, kv_heads]: [usize; 2],
        y: &Tensor,
    ) -> Result<()> {
        let (tokens, all) = Rows::of_dtype(DType::BF16, q, "attention").map(|rows| (rows.rows, rows.width))?;
        let width = head_width(q, all, heads)?;
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(shape_error(k, "attention", format!("key heads that divide {heads} heads, not {kv_heads}")));
        }
        let mut strides = [Arg::U64(0); 4];
        for ((tensor, heads), stride) in
            [(q, heads), (k, kv_heads), (v, kv_heads), (y, heads)].into_iter().zip(&mut strides)
        {
            let rows = Rows::of_dtype(DType::BF16, tensor, "attention")?;
            rows.expect(tensor, tokens, heads * width, "attention")?;
            *stride = Arg::U64(rows.stride as u64);
        }
        let sequences = sequences(offsets)?;
        if tokens == 0 || all == 0 || sequences == 0 {
            return Ok(());
        }
        let [t, s, h, kv, w, _] = sizes(q, [tokens, sequences, heads, kv_heads, width, all])?;
        let [qs, ks, vs, ys] = strides;
        let arguments = [q.into(), k.into(), v.into(), y.into(), offsets.into(), t, s, h, kv, w, qs, ks, vs, ys];
        let parts = kv_heads * (heads / kv_heads).div_ceil(SHARED) * width.div_ceil(COLUMNS);
        // SAFETY: the kernel's parameters, on tensors of the shapes checked above; it clamps the offsets.
        unsafe { self.kernels.attention.launch(stream, teams(tokens.saturating_mul(parts)), &arguments) }
    }

    /// `y[rows, columns] = x[rows, inner] wᵀ` with `w[columns, inner]`; with `accumulate` it is added to what `y` holds. Plain rather than fast.
    ///
    /// # Errors
    /// [`TensorError::Shape`](breakable_cuda_graph::TensorError::Shape), [`TensorError::DType`](breakable_cuda_graph::TensorError::DType), and what the launch returns.
    pub fn linear_into(&self, stream: &Stream, x: &Tensor, w: &Tensor, accumulate: bool, y: &Tensor) -> Result<()> {
        let [rows, inner] = matrix_of(DType::BF16, x, "linear")?;
        let [_, columns] = matrix_of(DType::BF16, y, "linear's result")?;
        expect_shape_of(DType::BF16, w, &[columns, inner], "linear's weight")?;
        expect_shape_of(DType::BF16, y, &[rows, columns], "linear's result")?;
        if y.elements() == 0 {
            return Ok(());
        }
        let [m, k, n] = sizes(x, [rows, inner, columns])?;
        let arguments = [x.into(), w.into(), y.into(), m, k, n, Arg::U32(accumulate.into())];
        let tiles = rows.div_ceil(TILE) * columns.div_ceil(TILE);
        // SAFETY: the kernel's parameters, on tensors of the shapes checked above.
        unsafe { self.kernels.linear.launch(stream, LaunchConfig::for_elements(tiles), &arguments) }
    }
}

impl Product for DecoderOps {
    fn product(&self, stream: &Stream, x: &Tensor, w: &Tensor, accumulate: bool, y: &Tensor) -> Result<()> {
        self.linear_into(stream, x, w, accumulate, y)
    }
}

/// Columns of a head, where `heads` have `all` columns together.
fn head_width(tensor: &Tensor, all: usize, heads: usize) -> Result<usize> {
    expect_dtype(tensor, DType::BF16, "heads")?;
    if heads == 0 || !all.is_multiple_of(heads) {
        return Err(shape_error(tensor, "heads", format!("a width that {heads} heads divide")));
    }
    Ok(all / heads)
}
