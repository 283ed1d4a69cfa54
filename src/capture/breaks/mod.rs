//! What a break sees, and what it returns.

use crate::capture::forward::frame;
use crate::driver::Stream;
use crate::error::{Error, Misuse, Result, TensorError};
use crate::tensor::{DType, Tensor};
use std::any::Any;
use std::borrow::Cow;
use std::marker::PhantomData;

/// When a break's operation runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum BreakKind {
    /// On every replay, between two launches. It may do anything: allocate, synchronise, read results on the host.
    #[default]
    Live,
    /// On every replay, before the launch: it only enqueues work on the break's stream, which is recorded anew each time and put into one exec together
    /// with the segments around it. Host values that it reads (the forward context, the valid rows) are live; device data is not there yet when it
    /// runs. Where it only launches kernels through the crate, the launches are compared as data and those that differ are set on the exec's nodes;
    /// anything else (a library's launches, copies, a fork) takes a stream capture of the body, which costs a few times as much and allocates. It may run
    /// more than once in a replay, and up to three times when it is captured.
    ///
    /// Other arguments cost the driver little, other grids several times as much: launch as many blocks as the bucket may need, and tell the kernel by an
    /// argument what is real, or allow execs for grids that recur
    /// ([`CaptureOptions::max_recorded_configs`](super::CaptureOptions::max_recorded_configs)).
    Patched,
    /// Once, at capture time, as part of the segment: for work that is the same on every replay.
    Inline,
}

/// How a break is recorded. A `&'static str` or a `String` is a break of that name with the defaults.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BreakOptions {
    /// Its name, for errors and reports.
    pub name: Cow<'static, str>,
    /// Whether the leading dimension of its handoffs is rows, so that their padded tail is scrubbed when a replay has fewer valid rows. On by
    /// default.
    pub leading_dimension_is_rows: bool,
    /// When its operation runs.
    pub kind: BreakKind,
}

impl BreakOptions {
    /// A break of this name.
    pub fn new(name: impl Into<Cow<'static, str>>) -> BreakOptions {
        BreakOptions { name: name.into(), leading_dimension_is_rows: true, kind: BreakKind::Live }
    }

    /// Its handoffs' leading dimension isn't rows: they are never scrubbed.
    #[must_use]
    pub fn not_rows(mut self) -> BreakOptions {
        self.leading_dimension_is_rows = false;
        self
    }

    /// Its operation runs then.
    #[must_use]
    pub fn kind(mut self, kind: BreakKind) -> Self {
        self.kind = kind;
        self
    }

    /// Its operation only enqueues work, which is patched into the exec around it: [`BreakKind::Patched`].
    #[must_use]
    pub fn patched(self) -> Self {
        self.kind(BreakKind::Patched)
    }

    /// Its operation is captured once, with the segment: [`BreakKind::Inline`].
    #[must_use]
    pub fn inline(self) -> Self {
        self.kind(BreakKind::Inline)
    }
}

impl From<&'static str> for BreakOptions {
    fn from(name: &'static str) -> BreakOptions {
        BreakOptions::new(name)
    }
}

impl From<String> for BreakOptions {
    fn from(name: String) -> BreakOptions {
        BreakOptions::new(name)
    }
}

/// What a break's operation is given, on every run: at capture time, and live on each replay.
///
/// At capture time the inputs are undefined bytes, unless the capture runs through
/// ([`CaptureExecution::RunThrough`](super::CaptureExecution::RunThrough)): an operation must tolerate any.
pub struct Break<'a> {
    pub(crate) name: &'a str,
    pub(crate) stream: &'a Stream,
    pub(crate) inputs: &'a [Option<Tensor>],
    pub(crate) handoffs: &'a [Tensor],
    pub(crate) valid_rows: Option<usize>,
    /// How many forward contexts were published when this began: they outlive it.
    pub(crate) depth: usize,
    /// Contexts are the thread's.
    pub(crate) _thread: PhantomData<*const ()>,
}

impl<'a> Break<'a> {
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
    /// [`TensorError::OutOfRange`] when there are not as many, or it is absent.
    pub fn input(&self, index: usize) -> Result<&'a Tensor> {
        self.optional_input(index)?.ok_or_else(|| {
            Error::Tensor(TensorError::OutOfRange { what: "break's present inputs", end: index + 1, length: index })
        })
    }

    /// An input that may be absent, with all rows of the bucket.
    ///
    /// # Errors
    /// [`TensorError::OutOfRange`] when there are not as many.
    pub fn optional_input(&self, index: usize) -> Result<Option<&'a Tensor>> {
        match self.inputs.get(index) {
            Some(input) => Ok(input.as_ref()),
            None => {
                Err(TensorError::OutOfRange { what: "break's inputs", end: index + 1, length: self.inputs.len() }
                    .into())
            }
        }
    }

    /// An input's valid rows, as a view.
    ///
    /// # Errors
    /// As for [`input`](Break::input).
    pub fn valid_input(&self, index: usize) -> Result<Tensor> {
        let input = self.input(index)?;
        Ok(self.valid_rows.map_or_else(|| input.clone(), |rows| input.leading_rows(rows)))
    }

    /// The valid rows of this replay; `None` when it was not told, and in a recording.
    pub fn valid_rows(&self) -> Option<usize> {
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
    /// [`Misuse::NoForwardContext`] naming the break where none is.
    pub fn forward_ctx<T: Any>(&self) -> Result<&T> {
        let found = frame::find::<T>(self.depth).ok_or_else(|| {
            Error::Misuse(Misuse::NoForwardContext {
                type_name: std::any::type_name::<T>(),
                break_name: Some(self.name.to_owned()),
            })
        })?;
        // SAFETY: only contexts that were published before this value was made are looked at. They stay published, and so borrowed, until the
        // call that this value is made in has returned, and the reference can't outlive this value.
        Ok(unsafe { &*found })
    }
}

/// What a break's operation returns: one tensor, several, or none. Each has its own handoff.
pub trait Outputs: Sized {
    /// Hands each tensor to `visit`, in order, with its index; returns how many there were.
    ///
    /// # Errors
    /// The first that `visit` returns.
    fn visit(self, visit: &mut dyn FnMut(usize, Tensor) -> Result<()>) -> Result<usize>;

    /// Puts the handoffs in the place of the tensors: `next` gives them in the same order.
    fn gather(next: &mut dyn FnMut() -> Option<Tensor>) -> Option<Self>;
}

impl Outputs for () {
    fn visit(self, _visit: &mut dyn FnMut(usize, Tensor) -> Result<()>) -> Result<usize> {
        Ok(0)
    }

    fn gather(_next: &mut dyn FnMut() -> Option<Tensor>) -> Option<()> {
        Some(())
    }
}

impl Outputs for Tensor {
    fn visit(self, visit: &mut dyn FnMut(usize, Tensor) -> Result<()>) -> Result<usize> {
        visit(0, self)?;
        Ok(1)
    }

    fn gather(next: &mut dyn FnMut() -> Option<Tensor>) -> Option<Tensor> {
        next()
    }
}

impl Outputs for Vec<Tensor> {
    fn visit(self, visit: &mut dyn FnMut(usize, Tensor) -> Result<()>) -> Result<usize> {
        let count = self.len();
        self.into_iter().enumerate().try_for_each(|(index, tensor)| visit(index, tensor))?;
        Ok(count)
    }

    fn gather(next: &mut dyn FnMut() -> Option<Tensor>) -> Option<Vec<Tensor>> {
        Some(std::iter::from_fn(next).collect())
    }
}

impl<const N: usize> Outputs for [Tensor; N] {
    fn visit(self, visit: &mut dyn FnMut(usize, Tensor) -> Result<()>) -> Result<usize> {
        self.into_iter().enumerate().try_for_each(|(index, tensor)| visit(index, tensor))?;
        Ok(N)
    }

    fn gather(next: &mut dyn FnMut() -> Option<Tensor>) -> Option<[Tensor; N]> {
        let tensors: Vec<Tensor> = std::iter::from_fn(next).take(N).collect();
        tensors.try_into().ok()
    }
}

impl Outputs for (Tensor, Tensor) {
    fn visit(self, visit: &mut dyn FnMut(usize, Tensor) -> Result<()>) -> Result<usize> {
        [self.0, self.1].visit(visit)
    }

    fn gather(next: &mut dyn FnMut() -> Option<Tensor>) -> Option<(Tensor, Tensor)> {
        Some((next()?, next()?))
    }
}

impl Outputs for (Tensor, Tensor, Tensor) {
    fn visit(self, visit: &mut dyn FnMut(usize, Tensor) -> Result<()>) -> Result<usize> {
        [self.0, self.1, self.2].visit(visit)
    }

    fn gather(next: &mut dyn FnMut() -> Option<Tensor>) -> Option<(Tensor, Tensor, Tensor)> {
        Some((next()?, next()?, next()?))
    }
}
