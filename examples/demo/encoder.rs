//! Operations of a text encoder over packed sequences.

use super::Ops;
use super::checks::{Rows, expect_shape, integers, matrix, optional, sequences, sizes};
use breakable_cuda_graph::driver::{LaunchConfig, Stream};
use breakable_cuda_graph::tensor::{Arg, DType, Tensor};
use breakable_cuda_graph::{Result, TensorError};
use breakable_cuda_graph::{current_stream, empty};

/// Columns of a head that one team of threads computes: `DEMO_CHUNK`.
const CHUNK: usize = 128;

/// Threads for this many teams of a warp each, in blocks so small that few rows still spread over the device.
pub(super) fn teams(count: usize) -> LaunchConfig {
    LaunchConfig::new([count.min(1 << 20) as u32, 1, 1], [32, 1, 1])
}

impl Ops {
    /// `(x + residual)` with each row normalised, times gamma, plus beta.
    ///
    /// # Errors
    /// [`TensorError::Shape`], [`TensorError::DType`], and what the allocation and the launch return.
    pub fn layer_norm(
        &self,
        x: &Tensor,
        residual: Option<&Tensor>,
        gamma: &Tensor,
        beta: &Tensor,
        epsilon: f32,
    ) -> Result<Tensor> {
        let [rows, width] = matrix(x, "layer_norm")?;
        let residual = optional(residual, &[rows, width], "residual")?;
        expect_shape(gamma, &[width], "gamma")?;
        expect_shape(beta, &[width], "beta")?;
        let y = self.empty_like(x)?;
        if y.elements() == 0 {
            return Ok(y);
        }
        let [m, n] = sizes(x, [rows, width])?;
        let arguments = [x.into(), residual, gamma.into(), beta.into(), (&y).into(), m, n, Arg::F32(epsilon)];
        // SAFETY: the kernel's parameters, on tensors of the shapes checked above.
        unsafe { self.kernels.layer_norm.launch(&current_stream()?, teams(rows), &arguments)? };
        Ok(y)
    }

    /// Attention within packed sequences into `y`: `q`, `k`, `v` and `y` are `[tokens, heads * width]`, each with rows that may be apart;
    /// `offsets` are i32 `[sequences + 1]` on the device, ascending. Rows past the last sequence are not written.
    ///
    /// # Errors
    /// [`TensorError::Shape`], [`TensorError::DType`], and what the launch returns.
    pub fn attention_into(
        &self,
        stream: &Stream,
        [q, k, v]: [&Tensor; 3],
        offsets: &Tensor,
        heads: usize,
        y: &Tensor,
    ) -> Result<()> {
        let (tokens, all) = Rows::of(q, "attention").map(|rows| (rows.rows, rows.width))?;
        let mut strides = [Arg::U64(0); 4];
        for (tensor, stride) in [q, k, v, y].into_iter().zip(&mut strides) {
            let rows = Rows::of(tensor, "attention")?;
            rows.expect(tensor, tokens, all, "attention")?;
            *stride = Arg::U64(rows.stride as u64);
        }
        let sequences = sequences(offsets)?;
        if heads == 0 || all % heads != 0 {
            let expected = format!("a width that {heads} heads divide");
            return Err(TensorError::Shape { what: "attention", expected, got: Box::new(*q.layout()) }.into());
        }
        if tokens == 0 || all == 0 || sequences == 0 {
            return Ok(());
        }
        let [t, s, h, w] = sizes(q, [tokens, sequences, heads, all / heads])?;
        let [qs, ks, vs, ys] = strides;
        let arguments = [q.into(), k.into(), v.into(), y.into(), offsets.into(), t, s, h, w, qs, ks, vs, ys];
        let count = tokens * heads * (all / heads).div_ceil(CHUNK);
        // SAFETY: the kernel's parameters, on tensors of the shapes checked above; it clamps the offsets.
        unsafe { self.kernels.attention.launch(stream, teams(count), &arguments) }
    }

    /// The sum of word, position and type embeddings (of type 0): `ids` and `places` are i32 `[tokens]`. An id or a place that its table lacks,
    /// such as -1, is padding and gives zeros.
    ///
    /// # Errors
    /// [`TensorError::Shape`], [`TensorError::DType`], and what the allocation and the launch return.
    pub fn embed(&self, ids: &Tensor, places: &Tensor, [words, positions, types]: [&Tensor; 3]) -> Result<Tensor> {
        let tokens = integers(ids, "ids")?;
        let [word_count, width] = matrix(words, "word embeddings")?;
        let [position_count, position_width] = matrix(positions, "position embeddings")?;
        let [type_count, type_width] = matrix(types, "type embeddings")?;
        for (tensor, fits) in [
            (positions, position_width == width),
            (types, type_width == width && type_count > 0),
            (places, integers(places, "places")? == tokens),
        ] {
            if !fits {
                let expected = format!("{tokens} places, and embeddings of width {width}");
                return Err(TensorError::Shape { what: "embed", expected, got: Box::new(*tensor.layout()) }.into());
            }
        }
        let y = empty(DType::F32, &[tokens, width])?;
        let [t, w, words_in, positions_in] = sizes(words, [tokens, width, word_count, position_count])?;
        let tables = [words, positions, types].map(Arg::Tensor);
        let [words, positions, types] = tables;
        let arguments = [ids.into(), places.into(), words, positions, types, (&y).into(), t, w, words_in, positions_in];
        self.each(&self.kernels.embed, &current_stream()?, &y, &arguments)?;
        Ok(y)
    }

    /// The mean of each packed sequence's rows, scaled to length 1: `[sequences, width]`. A sequence without rows gives zeros.
    ///
    /// # Errors
    /// [`TensorError::Shape`], [`TensorError::DType`], and what the allocations and the launches return.
    pub fn mean_pool(&self, x: &Tensor, offsets: &Tensor) -> Result<Tensor> {
        let [tokens, width] = matrix(x, "mean_pool")?;
        let sequences = sequences(offsets)?;
        let (mean, y) = (empty(DType::F32, &[sequences, width])?, empty(DType::F32, &[sequences, width])?);
        let [t, s, w] = sizes(x, [tokens, sequences, width])?;
        let stream = current_stream()?;
        self.each(&self.kernels.mean, &stream, &mean, &[x.into(), offsets.into(), (&mean).into(), t, s, w])?;
        if y.elements() > 0 {
            // SAFETY: the kernel's parameters, on tensors of that shape.
            unsafe { self.kernels.normalize.launch(&stream, teams(sequences), &[(&mean).into(), (&y).into(), s, w])? };
        }
        Ok(y)
    }
}
