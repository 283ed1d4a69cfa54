//! Comparing tensors on the device, and finding on the host where they differ.

use super::dtype::DType;
use super::layout::Layout;
use super::owned::Tensor;
use super::padding::describe;
use crate::driver::Stream;
use crate::error::{Difference, Result, TensorError};
use crate::kernels;

/// Enqueues a comparison: the 32-bit integer of `flag` becomes 1 where any bit of the two differs.
///
/// # Errors
/// [`TensorError::Shape`] and [`TensorError::DType`] where they are not of one kind, and what the driver returns.
pub(crate) fn compare(stream: &Stream, left: &Tensor, right: &Tensor, flag: &Tensor) -> Result<()> {
    expect_alike(left, right)?;
    let Some(launch) = kernels::comparison(&describe(left)?, &describe(right)?, flag.address()) else { return Ok(()) };
    let _in_use = (left.storage().enter()?, right.storage().enter()?, flag.storage().enter()?);
    for tensor in [left, right, flag] {
        tensor.expect_on(stream.context(), "tensor to compare")?;
        tensor.used_in(stream, "a comparison")?;
    }
    let library = stream.context().builtin_kernels()?;
    // SAFETY: the parameters describe live tensors of the stream's context.
    unsafe { library.compare(stream, &launch) }
}

fn expect_alike(left: &Tensor, right: &Tensor) -> Result<()> {
    if left.dtype() != right.dtype() {
        let (expected, got) = (left.dtype(), right.dtype());
        return Err(TensorError::DType { what: "tensor to compare", expected, got }.into());
    }
    if left.shape() != right.shape() {
        let (expected, got) = (format!("{}", left.layout()), Box::new(*right.layout()));
        return Err(TensorError::Shape { what: "tensor to compare", expected, got }.into());
    }
    Ok(())
}

/// The first element, in row-major order, that is further from its counterpart than `tolerance` allows, of two row-major tensors of one kind. Waits for the
/// work that is on the stream.
pub(crate) fn first_difference(
    stream: &Stream,
    left: &Tensor,
    right: &Tensor,
    tolerance: f64,
) -> Result<Option<Difference>> {
    expect_alike(left, right)?;
    let size = left.dtype().size();
    let (eager, replayed) = (bytes(stream, left)?, bytes(stream, right)?);
    let row_elements = left.elements().checked_div(left.rows()).unwrap_or(0).max(1);
    let pairs = eager.chunks_exact(size).zip(replayed.chunks_exact(size)).enumerate();
    for (at, (eager, replayed)) in pairs {
        if eager == replayed {
            continue;
        }
        let (eager, replayed) = (value(left.dtype(), eager), value(left.dtype(), replayed));
        if !is_close(eager, replayed, tolerance) {
            let (row, element) = (at / row_elements, at % row_elements);
            return Ok(Some(Difference { row, element, eager, replayed }));
        }
    }
    Ok(None)
}

fn bytes(stream: &Stream, tensor: &Tensor) -> Result<Vec<u8>> {
    let layout = Layout::contiguous(&[tensor.extent_bytes()])?;
    Tensor::of_parts(tensor.storage().clone(), tensor.offset(), DType::U8, layout).read(stream)
}

/// Whether two values of other bits are as good as equal: within the tolerance of the larger one's size.
fn is_close(eager: f64, replayed: f64, tolerance: f64) -> bool {
    tolerance > 0.0 && (eager - replayed).abs() <= tolerance * eager.abs().max(replayed.abs()).max(1.0)
}

/// An element as a number. Integers beyond 2⁵³ lose their last digits.
fn value(dtype: DType, bytes: &[u8]) -> f64 {
    let mut eight = [0_u8; 8];
    eight[..bytes.len().min(8)].copy_from_slice(&bytes[..bytes.len().min(8)]);
    let raw = u64::from_le_bytes(eight);
    match dtype {
        DType::F64 => f64::from_bits(raw),
        DType::F32 => f64::from(f32::from_bits(raw as u32)),
        DType::BF16 => f64::from(f32::from_bits((raw as u32) << 16)),
        DType::F16 => small_float(raw as u32, 5, 10, true),
        DType::F8E5M2 => small_float(raw as u32, 5, 2, true),
        DType::F8E4M3 => small_float(raw as u32, 4, 3, false),
        DType::I8 => f64::from(raw as i8),
        DType::I16 => f64::from(raw as i16),
        DType::I32 => f64::from(raw as i32),
        DType::I64 => raw as i64 as f64,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 | DType::Bool => raw as f64,
    }
}

/// A float of a sign, some bits of exponent and some of mantissa. `infinities`: the highest exponent is for these and NaN, as in IEEE 754; otherwise only all
/// ones are NaN.
fn small_float(bits: u32, exponent_bits: u32, mantissa_bits: u32, infinities: bool) -> f64 {
    let sign = if bits >> (exponent_bits + mantissa_bits) & 1 == 1 { -1.0 } else { 1.0 };
    let (highest, ones) = ((1 << exponent_bits) - 1, (1 << mantissa_bits) - 1);
    let (exponent, mantissa) = (bits >> mantissa_bits & highest, bits & ones);
    let bias = highest as i32 / 2;
    let fraction = f64::from(mantissa) / f64::from(1 << mantissa_bits);
    let magnitude = match exponent {
        0 => fraction * 2_f64.powi(1 - bias),
        _ if exponent == highest && infinities => {
            if mantissa == 0 {
                f64::INFINITY
            } else {
                f64::NAN
            }
        }
        _ if exponent == highest && mantissa == ones => f64::NAN,
        _ => (1.0 + fraction) * 2_f64.powi(exponent as i32 - bias),
    };
    sign * magnitude
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_of_every_type_are_read_as_numbers() {
        assert_eq!(value(DType::F64, &1.5_f64.to_le_bytes()), 1.5);
        assert_eq!(value(DType::F32, &(-2.25_f32).to_le_bytes()), -2.25);
        assert_eq!(value(DType::BF16, &0x3fc0_u16.to_le_bytes()), 1.5);
        assert_eq!(value(DType::F16, &0xc000_u16.to_le_bytes()), -2.0);
        assert_eq!(value(DType::F16, &0x0001_u16.to_le_bytes()), 2_f64.powi(-24));
        assert_eq!(value(DType::F16, &0x7c00_u16.to_le_bytes()), f64::INFINITY);
        assert!(value(DType::F16, &0x7e00_u16.to_le_bytes()).is_nan());
        assert_eq!(value(DType::F8E4M3, &[0x7e]), 448.0);
        assert!(value(DType::F8E4M3, &[0xff]).is_nan());
        assert_eq!(value(DType::F8E5M2, &[0x7b]), 57344.0);
        assert_eq!(value(DType::F8E5M2, &[0xfc]), f64::NEG_INFINITY);
        assert_eq!(value(DType::I8, &[0xff]), -1.0);
        assert_eq!(value(DType::I16, &(-300_i16).to_le_bytes()), -300.0);
        assert_eq!(value(DType::I32, &(-70_000_i32).to_le_bytes()), -70_000.0);
        assert_eq!(value(DType::I64, &(-1_i64 << 40).to_le_bytes()), -1.099_511_627_776e12);
        assert_eq!(value(DType::U8, &[255]), 255.0);
        assert_eq!(value(DType::U64, &(1_u64 << 40).to_le_bytes()), 1.099_511_627_776e12);
        assert_eq!(value(DType::Bool, &[1]), 1.0);
    }

    #[test]
    fn a_tolerance_is_relative_above_one_and_absolute_below() {
        assert!(!is_close(1.0, 1.0 + 1e-9, 0.0));
        assert!(is_close(1000.0, 1000.5, 1e-3) && !is_close(1000.0, 1001.5, 1e-3));
        assert!(is_close(0.0, 5e-4, 1e-3) && !is_close(0.0, 2e-3, 1e-3));
        assert!(!is_close(f64::NAN, 1.0, 1e-3), "NaN is never close");
    }
}
