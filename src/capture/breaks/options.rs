//! How a break is recorded.

use crate::error::{Misuse, Result};
use crate::tensor::Tensor;
use std::borrow::Cow;

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
    /// argument what is valid, or allow execs for grids that recur ([`Reconfigure::AnotherExec`](crate::Reconfigure::AnotherExec)).
    Patched,
    /// Once, at capture time, as part of the segment: for work that is the same on every replay.
    Inline,
}

/// How a break is recorded. A `&'static str` or a `String` is a break of that name with the defaults.
///
/// ```
/// # use breakable_cuda_graph::driver::{Device, Stream};
/// # use breakable_cuda_graph::Driver;
/// # let context = Device::get(&Driver::reference()?, 0)?.primary_context()?;
/// # let stream = Stream::new(&context)?;
/// # use breakable_cuda_graph::{BreakOptions, BreakableCapture, CapturePool, DType, Tensor, active_forward};
/// # let pool = CapturePool::new(&context)?;
/// # let cache = Tensor::from_slice(&stream, &[1.0_f32, 2.0, 3.0], &[3, 1])?;
/// let mut capture = BreakableCapture::new(&pool)?;
/// let found = active_forward(&0_usize, || {
///     capture.record(&stream, |scope| {
///         // It only enqueues work: what differs from the last replay is set on nodes of one exec.
///         scope.break_point(BreakOptions::new("attention").patched(), [&cache], |b| {
///             let found = b.empty(DType::F32, &[1, 1])?;
///             found.copy_from(b.stream(), &b.input(0)?.narrow(0, *b.forward_ctx::<usize>()?, 1)?)?;
///             Ok(found)
///         })
///     })
/// })?;
/// let _ = active_forward(&2_usize, || capture.replay(&stream))?;
/// assert_eq!((found.read::<f32>(&stream)?, capture.num_launches()), (vec![3.0], 1));
/// # Ok::<(), breakable_cuda_graph::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BreakOptions {
    /// Its name, for errors and reports.
    pub name: Cow<'static, str>,
    /// Whether the leading dimension of its handoffs is rows, so that their padded tail is scrubbed when a replay has fewer valid rows. On by
    /// default. Where a bucket is set ([`CaptureOptions::bucket`](crate::CaptureOptions::bucket)), a handoff of another leading dimension is then refused
    /// when it is recorded: [`Misuse::NotTheBucketsRows`]. A scalar has no rows: it is neither refused nor scrubbed.
    pub leading_dimension_is_rows: bool,
    /// When its operation runs.
    pub kind: BreakKind,
}

impl BreakOptions {
    /// A break of this name.
    pub fn new(name: impl Into<Cow<'static, str>>) -> BreakOptions {
        BreakOptions { name: name.into(), leading_dimension_is_rows: true, kind: BreakKind::Live }
    }

    /// Its handoffs' leading dimension isn't rows: they are never scrubbed, and may have any.
    #[must_use]
    pub fn not_rows(mut self) -> BreakOptions {
        self.leading_dimension_is_rows = false;
        self
    }

    /// Refuses a handoff that would be scrubbed where its rows are not, as its leading dimension is not the bucket's (rule 57).
    pub(crate) fn expect_rows(&self, bucket: Option<usize>, result: usize, handoff: &Tensor) -> Result<()> {
        let Some(bucket) = bucket.filter(|_| self.leading_dimension_is_rows) else { return Ok(()) };
        if handoff.layout().rank() == 0 || handoff.rows() == bucket {
            return Ok(());
        }
        let (break_name, shape) = (self.name.to_string(), handoff.shape().to_vec());
        Err(Misuse::NotTheBucketsRows { break_name, result, shape, bucket }.into())
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
