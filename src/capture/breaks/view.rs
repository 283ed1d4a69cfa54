//! What a break sees.

use crate::capture::forward::{context, frame};
use crate::driver::{Stream, capture_state};
use crate::error::{FrozenPlace, Misuse, Result, TensorError};
use crate::tensor::{DType, Tensor};
use std::any::Any;
use std::marker::PhantomData;

/// What a break's operation is given, on every run: at capture time, and live on each replay.
///
/// At capture time the inputs are undefined bytes, unless the capture runs through
/// ([`CaptureExecution::RunThrough`](crate::CaptureExecution::RunThrough)): an operation must tolerate any.
pub struct Break<'a> {
    name: &'a str,
    stream: &'a Stream,
    inputs: &'a [Option<Tensor>],
    handoffs: &'a [Tensor],
    valid_rows: Option<usize>,
    /// How many forward contexts were published when this began: they outlive it.
    depth: usize,
    /// Contexts are the thread's.
    _thread: PhantomData<*const ()>,
}

impl<'a> Break<'a> {
    /// A run of this break's operation. Forward contexts that are published now are what it can read.
    pub(crate) fn new(
        name: &'a str,
        stream: &'a Stream,
        inputs: &'a [Option<Tensor>],
        handoffs: &'a [Tensor],
        valid_rows: Option<usize>,
    ) -> Break<'a> {
        Break { name, stream, inputs, handoffs, valid_rows, depth: context::depth(), _thread: PhantomData }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.name
    }

    /// The stream to enqueue work on: the caller's in a replay, the capture stream in a recording.
    pub fn stream(&self) -> &'a Stream {
        self.stream
    }

    /// How many inputs it has, absent ones counted in.
    pub fn inputs(&self) -> usize {
        self.inputs.len()
    }

    /// An input, with all rows of the bucket.
    ///
    /// # Errors
    /// [`TensorError::OutOfRange`] when there are not as many, [`Misuse::AbsentInput`] when it is absent.
    pub fn input(&self, index: usize) -> Result<&'a Tensor> {
        let absent = || Misuse::AbsentInput { break_name: self.name.to_owned(), index }.into();
        self.optional_input(index)?.ok_or_else(absent)
    }

    /// An input that may be absent, with all rows of the bucket.
    ///
    /// # Errors
    /// [`TensorError::OutOfRange`] when there are not as many.
    pub fn optional_input(&self, index: usize) -> Result<Option<&'a Tensor>> {
        match self.inputs.get(index) {
            Some(input) => Ok(input.as_ref()),
            None => Err(TensorError::OutOfRange {
                what: "break's inputs",
                end: index.saturating_add(1),
                length: self.inputs.len(),
            }
            .into()),
        }
    }

    /// An input's valid rows, as a view.
    ///
    /// # Errors
    /// As for [`input`](Break::input) and [`valid_rows`](Break::valid_rows).
    pub fn valid_input(&self, index: usize) -> Result<Tensor> {
        let (input, valid_rows) = (self.input(index)?, self.valid_rows()?);
        Ok(valid_rows.map_or_else(|| input.clone(), |rows| input.leading_rows(rows)))
    }

    /// The valid rows of this replay, recording or eager forward; `None` where it was not told: see
    /// [`ReplayOptions::valid_rows`](crate::ReplayOptions::valid_rows), [`CaptureOptions::valid_rows`](crate::CaptureOptions::valid_rows) and
    /// [`EagerOptions::valid_rows`](crate::EagerOptions::valid_rows).
    ///
    /// # Errors
    /// [`Misuse::FrozenRows`] in an inline break: see [`frozen_rows`](Break::frozen_rows).
    pub fn valid_rows(&self) -> Result<Option<usize>> {
        if capture_state::is_in_segment() {
            return Err(Misuse::FrozenRows { place: self.frozen_place() }.into());
        }
        Ok(self.valid_rows)
    }

    /// As [`valid_rows`](Break::valid_rows), in an inline break too: there it is the recording's, and what is made of it is the same in all replays.
    pub fn frozen_rows(&self) -> Option<usize> {
        self.valid_rows
    }

    /// The handoff that the `index`th result will land in, if there is one already: always for `break_here`, and for `break_point` from the
    /// first replay on. An operation that writes it and returns it saves the copy.
    pub fn output(&self, index: usize) -> Option<Tensor> {
        self.handoffs.get(index).cloned()
    }

    /// An undefined row-major tensor for this run, in the stream's order.
    ///
    /// # Errors
    /// What the driver returns.
    pub fn empty(&self, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        frame::empty(dtype, shape)
    }

    /// The innermost forward context of this type that was published around this run.
    ///
    /// # Errors
    /// [`Misuse::NoForwardContext`] naming the break where none is; [`Misuse::FrozenContext`] in an inline break: see [`frozen_ctx`](Break::frozen_ctx).
    pub fn forward_ctx<T: Any>(&self) -> Result<&T> {
        if capture_state::is_in_segment() {
            let (type_name, place) = (std::any::type_name::<T>(), self.frozen_place());
            return Err(Misuse::FrozenContext { type_name, place }.into());
        }
        self.frozen_ctx()
    }

    /// As [`forward_ctx`](Break::forward_ctx), in an inline break too: there it is the recording's, and what is made of it is the same in all replays.
    /// For what does not differ from batch to batch: weights, a configuration.
    ///
    /// # Errors
    /// [`Misuse::NoForwardContext`] naming the break where none is.
    pub fn frozen_ctx<T: Any>(&self) -> Result<&T> {
        let found = context::find::<T>(self.depth).ok_or_else(|| Misuse::NoForwardContext {
            type_name: std::any::type_name::<T>(),
            break_name: Some(self.name.to_owned()),
        })?;
        // SAFETY: only contexts that were published before this value was made are looked at. They stay published, and so borrowed, until the
        // call that this value is made in has returned, and the reference can't outlive this value.
        Ok(unsafe { &*found })
    }

    #[cold]
    fn frozen_place(&self) -> FrozenPlace {
        FrozenPlace::InlineBreak(self.name.to_owned())
    }
}
