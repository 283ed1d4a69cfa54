//! Operations over the demo kernels: on the current stream, with results from [`empty`], so that a forward written with them runs eagerly, is
//! recorded and replayed alike.

use super::checks::{Rows, expect_contiguous, expect_dtype, expect_shape, matrix, optional, same_shape, sizes};
use breakable_cuda_graph::driver::{Context, Kernel, LaunchConfig, Module, Stream};
use breakable_cuda_graph::tensor::{Arg, DType, Tensor};
use breakable_cuda_graph::{Result, TensorError};
use breakable_cuda_graph::{current_stream, empty};
use std::sync::Arc;

/// The demo kernels, loaded. Cheap to clone. All tensors are f32 and contiguous, unless it says otherwise.
#[derive(Clone, Debug)]
pub struct Ops {
    pub(super) kernels: Arc<Kernels>,
}

#[derive(Debug)]
pub(super) struct Kernels {
    fill: Kernel,
    relu: Kernel,
    scale: Kernel,
    add: Kernel,
    gelu: Kernel,
    add_bias: Kernel,
    linear: Kernel,
    pub(super) layer_norm: Kernel,
    pub(super) attention: Kernel,
    pub(super) embed: Kernel,
    pub(super) mean: Kernel,
    pub(super) normalize: Kernel,
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

impl Weight<'_> {
    /// Columns of the product; 0 where the tensor has no such dimension, which the product then refuses.
    fn columns(&self) -> usize {
        let length = |tensor: &Tensor, at: usize| tensor.shape().get(at).copied().unwrap_or(0);
        match self {
            Weight::RowMajor(weight) => length(weight, 1),
            Weight::Transposed(weight) => length(weight, 0),
        }
    }
}

/// Rows and columns of the product that one thread computes: `DEMO_TILE`.
const TILE: usize = 4;

impl Ops {
    /// Loads the kernels.
    ///
    /// # Errors
    /// What the driver returns.
    pub fn load(context: &Context) -> Result<Ops> {
        let module = Module::load_ptx(context, super::kernels::DEMO)?;
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
            mean: kernel("demo_mean")?,
            normalize: kernel("demo_normalize")?,
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
        expect_contiguous(y, "fill")?;
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
    /// [`TensorError::Shape`], and what the launch returns.
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
    /// [`TensorError::Shape`], and what the launch returns.
    pub fn scale_into(&self, stream: &Stream, x: &Tensor, factor: f32, y: &Tensor) -> Result<()> {
        same_shape(x, y, "scale")?;
        self.each(&self.kernels.scale, stream, y, &[x.into(), y.into(), factor.into(), count(y)])
    }

    /// The kernel of [`scale_into`](Ops::scale_into) with its geometry, and the values of its four parameters: for bare launches in benchmarks.
    ///
    /// # Errors
    /// [`TensorError::Shape`].
    pub fn scale_raw(&self, x: &Tensor, factor: f32, y: &Tensor) -> Result<(Kernel, LaunchConfig, [u64; 4])> {
        same_shape(x, y, "scale")?;
        let values = [x.address(), y.address(), u64::from(factor.to_bits()), y.elements() as u64];
        Ok((self.kernels.scale.clone(), LaunchConfig::for_elements(y.elements()), values))
    }

    /// `a + b`.
    ///
    /// # Errors
    /// [`TensorError::Shape`], and what the allocation and the launch return.
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
    /// [`TensorError::Shape`], and what the launch returns.
    pub fn add_bias(&self, stream: &Stream, bias: &Tensor, y: &Tensor) -> Result<()> {
        let [rows, columns] = matrix(y, "add_bias")?;
        expect_shape(bias, &[columns], "bias")?;
        let [m, n] = sizes(y, [rows, columns])?;
        let arguments = [bias.into(), y.into(), m, n];
        self.each(&self.kernels.add_bias, stream, y, &arguments)
    }

    /// `x[rows, inner] w[inner, columns]`.
    ///
    /// # Errors
    /// As for [`linear`](Ops::linear).
    pub fn matmul(&self, x: &Tensor, w: &Tensor) -> Result<Tensor> {
        self.linear(x, Weight::RowMajor(w), None)
    }

    /// `x[rows, inner] w + bias[columns]`. Rows of `x` may be apart.
    ///
    /// # Errors
    /// [`TensorError::Shape`], [`TensorError::DType`], and what the allocation and the launch return.
    pub fn linear(&self, x: &Tensor, w: Weight<'_>, bias: Option<&Tensor>) -> Result<Tensor> {
        let y = empty(DType::F32, &[x.rows(), w.columns()])?;
        self.linear_into(&current_stream()?, x, w, bias, &y)?;
        Ok(y)
    }

    /// `y = x[rows, inner] w + bias[columns]`. Rows of `x` and of `y` may be apart.
    ///
    /// # Errors
    /// [`TensorError::Shape`], [`TensorError::DType`], and what the launch returns.
    pub fn linear_into(
        &self,
        stream: &Stream,
        x: &Tensor,
        w: Weight<'_>,
        bias: Option<&Tensor>,
        y: &Tensor,
    ) -> Result<()> {
        let (from, to) = (Rows::of(x, "linear")?, Rows::of(y, "linear's result")?);
        let (weight, transposed) = match w {
            Weight::RowMajor(weight) => (weight, 0_u32),
            Weight::Transposed(weight) => (weight, 1),
        };
        let [rows, inner, columns] = [from.rows, from.width, w.columns()];
        expect_shape(weight, &if transposed == 1 { [columns, inner] } else { [inner, columns] }, "linear's weight")?;
        to.expect(y, rows, columns, "linear's result")?;
        let bias = optional(bias, &[columns], "bias")?;
        if y.elements() == 0 {
            return Ok(());
        }
        let [m, k, n] = sizes(x, [rows, inner, columns])?;
        let strides = [from.stride, to.stride].map(|stride| Arg::U64(stride as u64));
        let arguments =
            [x.into(), weight.into(), bias, y.into(), m, k, n, strides[0], strides[1], Arg::U32(transposed)];
        let tiles = rows.div_ceil(TILE) * columns.div_ceil(TILE);
        // SAFETY: the kernel's parameters, on tensors of the shapes checked above.
        unsafe { self.kernels.linear.launch(stream, LaunchConfig::for_elements(tiles), &arguments) }
    }

    /// Keeps the stream busy for about this many nanoseconds (on the reference driver, for none) and counts in `runs`, u32 `[1]`.
    ///
    /// # Errors
    /// [`TensorError::DType`], and what the launch returns.
    pub fn spin(&self, stream: &Stream, nanoseconds: u64, runs: &Tensor) -> Result<()> {
        expect_dtype(runs, DType::U32, "spin")?;
        if runs.shape() != [1] {
            return Err(
                TensorError::Shape { what: "spin", expected: "[1]".into(), got: Box::new(*runs.layout()) }.into()
            );
        }
        let config = LaunchConfig::new([1, 1, 1], [1, 1, 1]);
        // SAFETY: the kernel's parameters, on a tensor of one element.
        unsafe { self.kernels.spin.launch(stream, config, &[nanoseconds.into(), runs.into()]) }
    }

    /// Launches one thread for each element of `y`; nothing when it has none.
    pub(super) fn each(&self, kernel: &Kernel, stream: &Stream, y: &Tensor, arguments: &[Arg<'_>]) -> Result<()> {
        if y.elements() == 0 {
            return Ok(());
        }
        // SAFETY: the callers pass the kernel's own parameters, on tensors whose shapes they have checked.
        unsafe { kernel.launch(stream, LaunchConfig::for_elements(y.elements()), arguments) }
    }
}

fn count(tensor: &Tensor) -> Arg<'static> {
    Arg::U64(tensor.elements() as u64)
}
