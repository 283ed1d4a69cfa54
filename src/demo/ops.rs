//! Operations over the demo kernels: on the current stream, with results from [`empty`], so that a forward written with them runs eagerly, is
//! recorded and replayed alike.

use crate::capture::{current_stream, empty};
use crate::driver::{Context, Kernel, LaunchConfig, Module, Stream};
use crate::error::{Error, Result};
use crate::tensor::{Arg, DType, Tensor};
use std::sync::Arc;

/// The demo kernels, loaded. Cheap to clone. All tensors are f32 and contiguous, unless it says otherwise.
#[derive(Clone, Debug)]
pub struct Ops {
    kernels: Arc<Kernels>,
}

#[derive(Debug)]
struct Kernels {
    fill: Kernel,
    relu: Kernel,
    scale: Kernel,
    add: Kernel,
    gelu: Kernel,
    add_bias: Kernel,
    linear: Kernel,
    layer_norm: Kernel,
    attention: Kernel,
    embed: Kernel,
    mean_pool: Kernel,
    spin: Kernel,
}

/// A matrix product's second factor.
#[derive(Clone, Copy, Debug)]
pub enum Weight<'a> {
    /// `[inner, columns]`.
    RowMajor(&'a Tensor),
    /// `[columns, inner]`, as checkpoints have it.
    Transposed(&'a Tensor),
}

impl Ops {
    /// Loads the kernels.
    ///
    /// # Errors
    /// What the driver returns.
    pub fn load(context: &Context) -> Result<Ops> {
        let module = Module::load_ptx(context, super::PTX)?;
        let kernel = |name| module.kernel(name);
        let kernels = Kernels {
            fill: kernel("demo_fill")?,
            relu: kernel("demo_relu")?,
            scale: kernel("demo_scale")?,
            add: kernel("demo_add")?,
            gelu: kernel("demo_gelu")?,
            add_bias: kernel("demo_add_bias")?,
            linear: kernel("demo_linear")?,
            layer_norm: kernel("demo_layer_norm")?,
            attention: kernel("demo_attention")?,
            embed: kernel("demo_embed")?,
            mean_pool: kernel("demo_mean_pool")?,
            spin: kernel("demo_spin")?,
        };
        Ok(Ops { kernels: Arc::new(kernels) })
    }

    /// An undefined contiguous tensor of the same shape and element type.
    ///
    /// # Errors
    /// As for [`empty`].
    pub fn empty_like(&self, x: &Tensor) -> Result<Tensor> {
        empty(x.dtype(), x.shape())
    }

    /// Sets all elements.
    ///
    /// # Errors
    /// What the launch returns.
    pub fn fill(&self, stream: &Stream, y: &Tensor, value: f32) -> Result<()> {
        expect(y, "fill")?;
        self.each(&self.kernels.fill, stream, y, &[y.into(), value.into(), count(y)])
    }

    /// `max(x, 0)`.
    ///
    /// # Errors
    /// What the allocation and the launch return.
    pub fn relu(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.empty_like(x)?;
        self.relu_into(&current_stream()?, x, &y)?;
        Ok(y)
    }

    /// `y = max(x, 0)`.
    ///
    /// # Errors
    /// [`Error::Shape`], and what the launch returns.
    pub fn relu_into(&self, stream: &Stream, x: &Tensor, y: &Tensor) -> Result<()> {
        same_shape(x, y, "relu")?;
        self.each(&self.kernels.relu, stream, y, &[x.into(), y.into(), count(y)])
    }

    /// `x * factor`.
    ///
    /// # Errors
    /// What the allocation and the launch return.
    pub fn scale(&self, x: &Tensor, factor: f32) -> Result<Tensor> {
        let y = self.empty_like(x)?;
        self.scale_into(&current_stream()?, x, factor, &y)?;
        Ok(y)
    }

    /// `y = x * factor`.
    ///
    /// # Errors
    /// [`Error::Shape`], and what the launch returns.
    pub fn scale_into(&self, stream: &Stream, x: &Tensor, factor: f32, y: &Tensor) -> Result<()> {
        same_shape(x, y, "scale")?;
        self.each(&self.kernels.scale, stream, y, &[x.into(), y.into(), factor.into(), count(y)])
    }

    /// The kernel of [`scale_into`](Ops::scale_into) with its geometry, and the values of its four parameters: for bare launches in benchmarks.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn scale_raw(&self, x: &Tensor, factor: f32, y: &Tensor) -> Result<(Kernel, LaunchConfig, [u64; 4])> {
        same_shape(x, y, "scale")?;
        let values = [x.address(), y.address(), u64::from(factor.to_bits()), y.elements() as u64];
        Ok((self.kernels.scale.clone(), LaunchConfig::for_elements(y.elements()), values))
    }

    /// `a + b`.
    ///
    /// # Errors
    /// [`Error::Shape`], and what the allocation and the launch return.
    pub fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let y = self.empty_like(a)?;
        same_shape(a, b, "add")?;
        same_shape(a, &y, "add")?;
        self.each(&self.kernels.add, &current_stream()?, &y, &[a.into(), b.into(), (&y).into(), count(&y)])?;
        Ok(y)
    }

    /// The exact Gaussian error linear unit.
    ///
    /// # Errors
    /// What the allocation and the launch return.
    pub fn gelu(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.empty_like(x)?;
        same_shape(x, &y, "gelu")?;
        self.each(&self.kernels.gelu, &current_stream()?, &y, &[x.into(), (&y).into(), count(&y)])?;
        Ok(y)
    }

    /// `y[rows, columns] += bias[columns]`.
    ///
    /// # Errors
    /// [`Error::Shape`], and what the launch returns.
    pub fn add_bias(&self, stream: &Stream, bias: &Tensor, y: &Tensor) -> Result<()> {
        let [rows, columns] = matrix(y, "add_bias")?;
        shape(bias, &[columns], "bias")?;
        let arguments = [bias.into(), y.into(), (rows as u32).into(), (columns as u32).into()];
        self.each(&self.kernels.add_bias, stream, y, &arguments)
    }

    /// `x[rows, inner] w[inner, columns]`.
    ///
    /// # Errors
    /// As for [`linear`](Ops::linear).
    pub fn matmul(&self, x: &Tensor, w: &Tensor) -> Result<Tensor> {
        self.linear(x, Weight::RowMajor(w), None)
    }

    /// `x[rows, inner] w + bias[columns]`.
    ///
    /// # Errors
    /// [`Error::Shape`], and what the allocation and the launch return.
    pub fn linear(&self, x: &Tensor, w: Weight<'_>, bias: Option<&Tensor>) -> Result<Tensor> {
        let [rows, inner] = matrix(x, "linear")?;
        let (weight, transposed) = match w {
            Weight::RowMajor(weight) => (weight, 0_u32),
            Weight::Transposed(weight) => (weight, 1),
        };
        let [a, b] = matrix(weight, "linear's weight")?;
        let columns = if transposed == 1 { a } else { b };
        shape(weight, &if transposed == 1 { [columns, inner] } else { [inner, columns] }, "linear's weight")?;
        let y = empty(DType::F32, &[rows, columns])?;
        if y.elements() == 0 {
            return Ok(y);
        }
        let bias = match bias {
            Some(bias) => {
                shape(bias, &[columns], "bias")?;
                Arg::Tensor(bias)
            }
            None => Arg::U64(0),
        };
        let sizes = [rows, inner, columns, inner].map(|size| Arg::U32(size as u32));
        let [rows, inner, columns, stride] = sizes;
        let arguments =
            [x.into(), weight.into(), bias, (&y).into(), rows, inner, columns, stride, Arg::U32(transposed)];
        self.each(&self.kernels.linear, &current_stream()?, &y, &arguments)?;
        Ok(y)
    }

    /// `(x + residual)` with each row normalised, times gamma, plus beta.
    ///
    /// # Errors
    /// [`Error::Shape`], and what the allocation and the launch return.
    pub fn layer_norm(
        &self,
        x: &Tensor,
        residual: Option<&Tensor>,
        gamma: &Tensor,
        beta: &Tensor,
        epsilon: f32,
    ) -> Result<Tensor> {
        let [rows, width] = matrix(x, "layer_norm")?;
        shape(gamma, &[width], "gamma")?;
        shape(beta, &[width], "beta")?;
        let y = self.empty_like(x)?;
        if rows == 0 {
            return Ok(y);
        }
        let residual = match residual {
            Some(residual) => {
                same_shape(x, residual, "residual")?;
                Arg::Tensor(residual)
            }
            None => Arg::U64(0),
        };
        let sizes = [Arg::U32(rows as u32), Arg::U32(width as u32)];
        let arguments =
            [x.into(), residual, gamma.into(), beta.into(), (&y).into(), sizes[0], sizes[1], Arg::F32(epsilon)];
        // SAFETY: the kernel's parameters, on tensors of the shapes checked above.
        unsafe { self.kernels.layer_norm.launch(&current_stream()?, rowwise(rows), &arguments)? };
        Ok(y)
    }

    /// Attention within packed sequences into `y`: `q`, `k`, `v` and `y` are `[tokens, heads * width]`, `offsets` are i32 `[sequences + 1]` on
    /// the device. Rows past the last sequence are not written.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`], and what the launch returns.
    pub fn attention_into(
        &self,
        stream: &Stream,
        [q, k, v]: [&Tensor; 3],
        offsets: &Tensor,
        heads: usize,
        y: &Tensor,
    ) -> Result<()> {
        let [tokens, all] = matrix(q, "attention")?;
        for other in [k, v, y] {
            same_shape(q, other, "attention")?;
        }
        let sequences = offset_count(offsets)?;
        if heads == 0 || all % heads != 0 || all / heads > 64 {
            let expected = format!("{heads} heads of at most 64");
            return Err(Error::Shape { what: "attention", expected, got: Box::new(*q.layout()) });
        }
        if tokens == 0 || sequences == 0 {
            return Ok(());
        }
        let sizes = [sequences, heads, all / heads].map(|size| Arg::U32(size as u32));
        let arguments = [q.into(), k.into(), v.into(), y.into(), offsets.into(), sizes[0], sizes[1], sizes[2]];
        // SAFETY: the kernel's parameters, on tensors of the shapes checked above; the caller fills the offsets within the tokens.
        unsafe { self.kernels.attention.launch(stream, LaunchConfig::for_elements(tokens * heads), &arguments) }
    }

    /// The sum of word, position and type embeddings: `ids` and `places` are i32 `[tokens]`; an id below zero is padding and gives zeros.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`], and what the allocation and the launch return.
    pub fn embed(&self, ids: &Tensor, places: &Tensor, [words, positions, types]: [&Tensor; 3]) -> Result<Tensor> {
        let tokens = ids.elements();
        let [_, width] = matrix(words, "word embeddings")?;
        let [_, position_width] = matrix(positions, "position embeddings")?;
        let [_, type_width] = matrix(types, "type embeddings")?;
        if position_width != width || type_width != width {
            let expected = format!("embeddings of width {width}");
            return Err(Error::Shape { what: "embed", expected, got: Box::new(*positions.layout()) });
        }
        for integers in [ids, places] {
            expect_dtype(integers, DType::I32, "embed")?;
            shape(integers, &[tokens], "embed")?;
        }
        let y = empty(DType::F32, &[tokens, width])?;
        let sizes = [Arg::U32(tokens as u32), Arg::U32(width as u32)];
        let arguments =
            [ids.into(), places.into(), words.into(), positions.into(), types.into(), (&y).into(), sizes[0], sizes[1]];
        self.each(&self.kernels.embed, &current_stream()?, &y, &arguments)?;
        Ok(y)
    }

    /// The mean of each packed sequence's rows, scaled to length 1: `[sequences, width]`.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`], and what the allocation and the launch return.
    pub fn mean_pool(&self, x: &Tensor, offsets: &Tensor) -> Result<Tensor> {
        let [_, width] = matrix(x, "mean_pool")?;
        let sequences = offset_count(offsets)?;
        let y = empty(DType::F32, &[sequences, width])?;
        if sequences == 0 {
            return Ok(y);
        }
        let sizes = [Arg::U32(sequences as u32), Arg::U32(width as u32)];
        let arguments = [x.into(), offsets.into(), (&y).into(), sizes[0], sizes[1]];
        // SAFETY: the kernel's parameters; the caller fills the offsets within the rows.
        unsafe { self.kernels.mean_pool.launch(&current_stream()?, rowwise(sequences), &arguments)? };
        Ok(y)
    }

    /// Keeps the stream busy for about this many nanoseconds (on the reference driver, for none) and counts in `runs`, u32 `[1]`.
    ///
    /// # Errors
    /// [`Error::DType`], and what the launch returns.
    pub fn spin(&self, stream: &Stream, nanoseconds: u64, runs: &Tensor) -> Result<()> {
        expect_dtype(runs, DType::U32, "spin")?;
        shape(runs, &[1], "spin")?;
        let config = LaunchConfig { grid: [1, 1, 1], block: [1, 1, 1], shared_bytes: 0 };
        // SAFETY: the kernel's parameters, on a tensor of one element.
        unsafe { self.kernels.spin.launch(stream, config, &[nanoseconds.into(), runs.into()]) }
    }

    /// Launches one thread for each element of `y`; nothing when it has none.
    fn each(&self, kernel: &Kernel, stream: &Stream, y: &Tensor, arguments: &[Arg<'_>]) -> Result<()> {
        if y.elements() == 0 {
            return Ok(());
        }
        // SAFETY: the callers pass the kernel's own parameters, on tensors whose shapes they have checked.
        unsafe { kernel.launch(stream, LaunchConfig::for_elements(y.elements()), arguments) }
    }
}

/// One thread a row, in small blocks so that few rows still spread over the device.
fn rowwise(rows: usize) -> LaunchConfig {
    LaunchConfig { grid: [rows.div_ceil(32) as u32, 1, 1], block: [32, 1, 1], shared_bytes: 0 }
}

fn count(tensor: &Tensor) -> Arg<'static> {
    Arg::U64(tensor.elements() as u64)
}

fn expect_dtype(tensor: &Tensor, dtype: DType, what: &'static str) -> Result<()> {
    if tensor.dtype() == dtype { Ok(()) } else { Err(Error::DType { what, expected: dtype, got: tensor.dtype() }) }
}

fn expect(tensor: &Tensor, what: &'static str) -> Result<()> {
    expect_dtype(tensor, DType::F32, what)?;
    if tensor.layout().is_contiguous() {
        return Ok(());
    }
    Err(Error::Shape { what, expected: "a contiguous tensor".into(), got: Box::new(*tensor.layout()) })
}

fn shape(tensor: &Tensor, expected: &[usize], what: &'static str) -> Result<()> {
    if tensor.shape() == expected && tensor.layout().is_contiguous() {
        return Ok(());
    }
    Err(Error::Shape { what, expected: format!("a contiguous {expected:?}"), got: Box::new(*tensor.layout()) })
}

fn same_shape(x: &Tensor, y: &Tensor, what: &'static str) -> Result<()> {
    expect(x, what)?;
    expect_dtype(y, DType::F32, what)?;
    shape(y, x.shape(), what)
}

fn matrix(tensor: &Tensor, what: &'static str) -> Result<[usize; 2]> {
    expect(tensor, what)?;
    match tensor.shape() {
        &[rows, columns] => Ok([rows, columns]),
        _ => Err(Error::Shape { what, expected: "a matrix".into(), got: Box::new(*tensor.layout()) }),
    }
}

fn offset_count(offsets: &Tensor) -> Result<usize> {
    expect_dtype(offsets, DType::I32, "offsets")?;
    match offsets.shape() {
        &[count] if count > 0 && offsets.layout().is_contiguous() => Ok(count - 1),
        _ => {
            Err(Error::Shape { what: "offsets", expected: "[sequences + 1]".into(), got: Box::new(*offsets.layout()) })
        }
    }
}
