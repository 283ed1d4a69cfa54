//! The seam between the runner and an engine's model.

use super::spec::{InputSpec, OutputSpec};
use crate::capture::Scope;
use crate::driver::Stream;
use crate::error::Result;
use crate::tensor::{DType, Element, Tensor, bytes_of};
use std::any::Any;
use std::borrow::Cow;
use std::fmt;

/// A model as the runner sees it. The same forward runs eagerly, is recorded, and is replayed.
pub trait PrefillModel: Sync {
    /// What breaks read live: the batch's metadata. The runner publishes it around each forward and replay
    /// ([`active_forward`](crate::active_forward)), so that breaks find it with [`Break::forward_ctx`](crate::Break::forward_ctx).
    type Context: Any;

    /// What the recorded operations depend on beside the rows. Captures made under another key don't serve.
    type Key: Clone + PartialEq + fmt::Debug;

    /// The static inputs, in the order in which batches give them. Metadata that breaks and segments read on the device is best a fixed input, which the
    /// runner stages ([`InputSpec::fixed`]), and a break's input like any other tensor; what breaks read on the host is in the context.
    fn inputs(&self) -> Vec<InputSpec>;

    /// The outputs, in the order in which [`forward`](PrefillModel::forward) returns them.
    fn outputs(&self) -> Vec<OutputSpec>;

    /// The key under which captures are made at first.
    fn key(&self) -> Self::Key;

    /// A context to warm up and capture a bucket of this many rows with. The inputs hold their tail rules' values in all rows then, or zeros, and breaks are
    /// told that no row is valid.
    ///
    /// # Errors
    /// Whatever keeps the model from making one.
    fn dummy(&self, stream: &Stream, rows: usize) -> Result<Self::Context>;

    /// The same for captures under this key, for a runner that captures under several: its [`mode`](PrefillModel::mode) must be eligible under it. The forward
    /// finds the key in the context. By default what [`dummy`](PrefillModel::dummy) gives.
    ///
    /// # Errors
    /// As for [`dummy`](PrefillModel::dummy).
    fn dummy_for(&self, stream: &Stream, rows: usize, key: &Self::Key) -> Result<Self::Context> {
        let _ = key;
        self.dummy(stream, rows)
    }

    /// Whether a batch's mode can be replayed at all, and under which key.
    fn mode(&self, context: &Self::Context) -> Mode<Self::Key>;

    /// The model's own reason for running a batch eagerly, if it has one.
    fn reject(&self, context: &Self::Context, rows: usize) -> Option<Cow<'static, str>> {
        let _ = (context, rows);
        None
    }

    /// The forward over static inputs, each of the same number of rows where it has rows: the bucket's in a recording. What differs between batches
    /// of one bucket must be read in breaks, from the context.
    ///
    /// # Errors
    /// Whatever keeps the model from running.
    fn forward<'m>(&'m self, scope: &Scope<'_, 'm>, inputs: &[Tensor]) -> Result<Vec<Tensor>>;
}

/// A batch's mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode<K> {
    /// It can be replayed by captures made under this key.
    Eligible(K),
    /// It can't be replayed, such as a batch of another kind of forward.
    NotEligible,
}

/// A batch.
#[derive(Debug)]
pub struct Batch<'b, C> {
    /// Valid rows. With several ranks, this rank's.
    pub rows: usize,
    /// What breaks read.
    pub context: &'b C,
    /// The inputs' valid rows, in the order in which the model declares them.
    pub inputs: &'b [InputData<'b>],
}

impl<C> Clone for Batch<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for Batch<'_, C> {}

/// The valid rows of one input.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum InputData<'b> {
    /// In host memory, row-major. It may be reused as soon as the call that takes it returns.
    Host(HostData<'b>),
    /// In device memory, row-major: read in the stream's order. The static input's own leading rows are taken as they are.
    Device(&'b Tensor),
}

/// Elements in host memory.
#[derive(Clone, Copy)]
pub struct HostData<'b> {
    pub(super) dtype: DType,
    pub(super) bytes: &'b [u8],
}

impl fmt::Debug for HostData<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostData({} bytes of {})", self.bytes.len(), self.dtype)
    }
}

impl<'b> InputData<'b> {
    /// Elements in host memory.
    pub fn host<T: Element>(values: &'b [T]) -> InputData<'b> {
        InputData::Host(HostData { dtype: T::DTYPE, bytes: bytes_of(values) })
    }

    /// Elements of a type that has no Rust counterpart here, such as [`DType::BF16`], as bytes in host memory.
    pub fn host_bytes(dtype: DType, bytes: &'b [u8]) -> InputData<'b> {
        InputData::Host(HostData { dtype, bytes })
    }
}

impl<'b> From<&'b Tensor> for InputData<'b> {
    fn from(tensor: &'b Tensor) -> InputData<'b> {
        InputData::Device(tensor)
    }
}
