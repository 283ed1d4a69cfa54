//! Padded tails: scrubbing them, landing a break's result with its tail zeroed, and slicing to the valid rows.

use super::owned::Tensor;
use crate::driver::Stream;
use crate::error::{Error, Result, TensorError};
use crate::kernels::{self, TensorDesc};

/// Zeroes rows `[rows..]` of every tensor, in the stream's order: all of them in one launch, up to 16. Absent tensors, scalars and those with no more
/// rows are skipped. Any element type and any strides.
///
/// In a segment the launch is recorded with this number of rows.
///
/// ```
/// # use breakable_cuda_graph::driver::{Device, Stream};
/// # use breakable_cuda_graph::Driver;
/// # let context = Device::get(&Driver::reference()?, 0)?.primary_context()?;
/// # let stream = Stream::new(&context)?;
/// # use breakable_cuda_graph::{Tensor, scrub_padding_tail};
/// let (a, b) = (Tensor::from_slice(&stream, &[1, 2, 3], &[3])?, Tensor::from_slice(&stream, &[4.0_f32; 4], &[2, 2])?);
/// scrub_padding_tail(&stream, 1, [Some(&a), None, Some(&b)])?; // In one launch.
/// assert_eq!(a.read::<i32>(&stream)?, [1, 0, 0]);
/// assert_eq!(b.read::<f32>(&stream)?, [4.0, 4.0, 0.0, 0.0]);
/// # Ok::<(), breakable_cuda_graph::Error>(())
/// ```
///
/// # Errors
/// [`TensorError::Location`] for a host tensor, [`TensorError::SharedElements`] for a broadcast,
/// [`Misuse::ContextMismatch`](crate::Misuse::ContextMismatch), and what the driver returns.
pub fn scrub_padding_tail<'a, I, T>(stream: &Stream, rows: usize, tensors: I) -> Result<()>
where
    I: IntoIterator<Item = T>,
    T: Into<Option<&'a Tensor>>,
{
    let mut batch = kernels::ScrubBatch::new(rows);
    let mut in_use = [const { None }; kernels::SCRUB_TENSORS];
    for tensor in tensors.into_iter().filter_map(Into::into) {
        if tensor.layout().rank() == 0 || tensor.rows() <= rows || tensor.elements() == 0 {
            continue;
        }
        tensor.expect_on(stream.context(), "tensor to scrub")?;
        expect_writable("a scrub", tensor)?;
        let place = describe(tensor)?;
        if !batch.add(&place) {
            launch_scrub(stream, &batch)?;
            in_use.fill_with(|| None);
            batch = kernels::ScrubBatch::new(rows);
            batch.add(&place);
        }
        let entered = tensor.storage().enter()?;
        if let Some(place) = in_use.iter_mut().find(|place| place.is_none()) {
            *place = Some(entered);
        }
        tensor.used_in(stream, "a scrub")?;
    }
    launch_scrub(stream, &batch)
}

fn launch_scrub(stream: &Stream, batch: &kernels::ScrubBatch) -> Result<()> {
    let Some(launch) = batch.launch() else { return Ok(()) };
    let library = stream.context().builtin_kernels()?;
    // SAFETY: the parameters describe live tensors of the stream's context.
    unsafe { library.scrub(stream, &launch) }
}

/// The leading `rows` rows of each tensor, as views and in order. Absent tensors stay absent; those with no more rows come back as they are.
pub fn slice_to_real_tokens<'a, I, T>(rows: usize, tensors: I) -> Vec<Option<Tensor>>
where
    I: IntoIterator<Item = T>,
    T: Into<Option<&'a Tensor>>,
{
    tensors.into_iter().map(|tensor| tensor.into().map(|tensor| tensor.leading_rows(rows))).collect()
}

/// Lands a break's result in its handoff, in the stream's order.
///
/// The result fills the handoff's leading rows. With `valid_rows`, the handoff's rows from there on are zero afterwards, by the same kernel;
/// without it, rows that the result does not have are left as they are. A result that is the handoff itself is not copied.
pub(crate) fn land(stream: &Stream, result: &Tensor, handoff: &Tensor, valid_rows: Option<usize>) -> Result<()> {
    check_landing(result, handoff)?;
    if handoff.elements() == 0 {
        return Ok(());
    }
    expect_writable("a landing", handoff)?;
    let rows = handoff.rows();
    // A scalar has no rows, and so no padded ones.
    let valid = valid_rows.filter(|_| handoff.layout().rank() > 0).unwrap_or(rows).min(rows);
    if result.same_place(handoff) {
        return if valid < rows { scrub_padding_tail(stream, valid, [handoff]) } else { Ok(()) };
    }
    if result.overlaps(handoff) {
        return Err(TensorError::Overlap.into());
    }
    let (from, to) = (describe(result)?, describe(handoff)?);
    let Some(launch) = kernels::landing(&from, &to, valid) else { return Ok(()) };
    result.expect_on(stream.context(), "break's result")?;
    handoff.expect_on(stream.context(), "handoff")?;
    let library = stream.context().builtin_kernels()?;
    let _in_use = (result.storage().enter()?, handoff.storage().enter()?);
    result.used_in(stream, "a copy of a tensor")?;
    handoff.used_in(stream, "a copy of a tensor")?;
    // SAFETY: the parameters describe live tensors of the stream's context.
    unsafe { library.land(stream, &launch) }
}

/// Whether a result fits its handoff: the same element type and trailing shape, and no more rows.
pub(crate) fn check_landing(result: &Tensor, handoff: &Tensor) -> Result<()> {
    if result.dtype() != handoff.dtype() {
        return Err(
            TensorError::DType { what: "break's result", expected: handoff.dtype(), got: result.dtype() }.into()
        );
    }
    let fits = result.layout().same_row_shape(handoff.layout()) && result.rows() <= handoff.rows();
    if !fits {
        let expected = format!("{} or fewer rows", handoff.layout());
        return Err(TensorError::Shape { what: "break's result", expected, got: Box::new(*result.layout()) }.into());
    }
    Ok(())
}

/// Refuses a tensor whose elements share memory as what is written.
#[inline]
pub(crate) fn expect_writable(what: &'static str, tensor: &Tensor) -> Result<()> {
    if tensor.layout().has_distinct_elements() {
        return Ok(());
    }
    Err(TensorError::SharedElements { what, layout: Box::new(*tensor.layout()) }.into())
}

pub(super) fn describe(tensor: &Tensor) -> Result<TensorDesc<'_>> {
    let element_size = tensor.dtype().size() as u32;
    TensorDesc::new(tensor.address(), element_size, tensor.shape(), tensor.strides()).ok_or(Error::Tensor(
        TensorError::Misaligned { what: "the tensor", address: tensor.address(), dtype: tensor.dtype() },
    ))
}
