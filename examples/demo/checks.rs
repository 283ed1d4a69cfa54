//! What the operations check of their tensors: an operation that is safe to call never lets a kernel outside them.

use breakable_cuda_graph::tensor::{Arg, DType, Tensor};
use breakable_cuda_graph::{Error, Result, TensorError};

pub(super) fn shape_error(tensor: &Tensor, what: &'static str, expected: String) -> Error {
    Error::Tensor(TensorError::Shape { what, expected, got: Box::new(*tensor.layout()) })
}

pub(super) fn expect_dtype(tensor: &Tensor, dtype: DType, what: &'static str) -> Result<()> {
    if tensor.dtype() == dtype {
        Ok(())
    } else {
        Err(TensorError::DType { what, expected: dtype, got: tensor.dtype() }.into())
    }
}

/// An f32 tensor without gaps.
pub(super) fn expect_contiguous(tensor: &Tensor, what: &'static str) -> Result<()> {
    expect_contiguous_of(DType::F32, tensor, what)
}

/// A tensor of this element type without gaps.
pub(super) fn expect_contiguous_of(dtype: DType, tensor: &Tensor, what: &'static str) -> Result<()> {
    expect_dtype(tensor, dtype, what)?;
    if tensor.layout().is_contiguous() { Ok(()) } else { Err(shape_error(tensor, what, "a contiguous tensor".into())) }
}

/// An f32 tensor of this shape without gaps.
pub(super) fn expect_shape(tensor: &Tensor, shape: &[usize], what: &'static str) -> Result<()> {
    expect_shape_of(DType::F32, tensor, shape, what)
}

/// A tensor of this element type and shape without gaps.
pub(super) fn expect_shape_of(dtype: DType, tensor: &Tensor, shape: &[usize], what: &'static str) -> Result<()> {
    expect_dtype(tensor, dtype, what)?;
    if tensor.shape() == shape && tensor.layout().is_contiguous() {
        return Ok(());
    }
    Err(shape_error(tensor, what, format!("a contiguous {shape:?}")))
}

pub(super) fn same_shape(x: &Tensor, y: &Tensor, what: &'static str) -> Result<()> {
    expect_contiguous(x, what)?;
    expect_shape(y, x.shape(), what)
}

/// The argument for a tensor that may be absent: a null pointer then.
pub(super) fn optional<'a>(tensor: Option<&'a Tensor>, shape: &[usize], what: &'static str) -> Result<Arg<'a>> {
    match tensor {
        Some(tensor) => expect_shape(tensor, shape, what).map(|()| Arg::Tensor(tensor)),
        None => Ok(Arg::U64(0)),
    }
}

/// Rows and columns of an f32 matrix without gaps.
pub(super) fn matrix(tensor: &Tensor, what: &'static str) -> Result<[usize; 2]> {
    matrix_of(DType::F32, tensor, what)
}

/// The same of this element type.
pub(super) fn matrix_of(dtype: DType, tensor: &Tensor, what: &'static str) -> Result<[usize; 2]> {
    expect_contiguous_of(dtype, tensor, what)?;
    match tensor.shape() {
        &[rows, columns] => Ok([rows, columns]),
        _ => Err(shape_error(tensor, what, "a matrix".into())),
    }
}

/// A matrix whose rows have no gaps but may be apart.
pub(super) struct Rows {
    pub(super) rows: usize,
    pub(super) width: usize,
    /// From one row to the next, in elements.
    pub(super) stride: usize,
}

impl Rows {
    /// Of f32.
    pub(super) fn of(tensor: &Tensor, what: &'static str) -> Result<Rows> {
        Rows::of_dtype(DType::F32, tensor, what)
    }

    pub(super) fn of_dtype(dtype: DType, tensor: &Tensor, what: &'static str) -> Result<Rows> {
        expect_dtype(tensor, dtype, what)?;
        match (tensor.shape(), tensor.strides()) {
            (&[rows, width], &[stride, step]) if step == 1 || width <= 1 => Ok(Rows { rows, width, stride }),
            _ => Err(shape_error(tensor, what, "a matrix whose rows have no gaps".into())),
        }
    }

    pub(super) fn expect(&self, tensor: &Tensor, rows: usize, width: usize, what: &'static str) -> Result<()> {
        let fits = self.rows == rows && self.width == width;
        if fits { Ok(()) } else { Err(shape_error(tensor, what, format!("{:?}", [rows, width]))) }
    }
}

/// An i32 list without gaps: its length.
pub(super) fn integers(tensor: &Tensor, what: &'static str) -> Result<usize> {
    expect_dtype(tensor, DType::I32, what)?;
    match tensor.shape() {
        &[length] if tensor.layout().is_contiguous() => Ok(length),
        _ => Err(shape_error(tensor, what, "a contiguous list".into())),
    }
}

/// The number of sequences between i32 offsets.
pub(super) fn sequences(offsets: &Tensor) -> Result<usize> {
    integers(offsets, "offsets")?
        .checked_sub(1)
        .ok_or_else(|| shape_error(offsets, "offsets", "[sequences + 1]".into()))
}

/// Sizes as 32-bit arguments.
pub(super) fn sizes<const N: usize>(tensor: &Tensor, sizes: [usize; N]) -> Result<[Arg<'static>; N]> {
    if sizes.iter().any(|&size| i32::try_from(size).is_err()) {
        return Err(shape_error(tensor, "demo kernel", "dimensions below 2^31".into()));
    }
    Ok(sizes.map(|size| Arg::U32(size as u32)))
}
