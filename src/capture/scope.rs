//! What model code records through: explicitly, by [`Scope`]; or by free functions, for code that is called deep down and knows nothing of
//! captures. Both do the same.

use super::breaks::options::{BreakKind, BreakOptions};
use super::breaks::outputs::{Outputs, gather_all, visit_in_order};
use super::breaks::view::Break;
use super::forward::allocator::Allocator;
use super::forward::context;
use super::forward::frame::{self, BreakObserver, Frame};
use super::options::EagerOptions;
use super::record::recorder::Recorder;
use crate::driver::{Stream, capture_state, live_break};
use crate::error::{FrozenPlace, Misuse, Result};
use crate::pool::CapturePool;
use crate::tensor::padding::land;
use crate::tensor::{DType, Tensor};
use std::any::Any;
use std::marker::PhantomData;
use std::rc::Rc;

/// The forward that runs: recorded, or eager. `'env` is what outlives the capture, which break operations may borrow.
///
/// In a break no recording is active: a scope that is used there runs straight through.
pub struct Scope<'r, 'env> {
    /// `None` in an eager forward.
    recorder: Option<&'r Recorder<'env>>,
    depth: usize,
    _thread: PhantomData<*const ()>,
}

impl<'r, 'env> Scope<'r, 'env> {
    pub(crate) fn recording(recorder: &'r Recorder<'env>) -> Self {
        Scope { recorder: Some(recorder), depth: context::depth(), _thread: PhantomData }
    }

    fn eager() -> Self {
        Scope { recorder: None, depth: context::depth(), _thread: PhantomData }
    }

    /// What records now: nothing inside a break.
    fn active(&self) -> Option<&'r Recorder<'env>> {
        self.recorder.filter(|recorder| recorder.is_active())
    }

    /// The stream to enqueue work on: the capture stream in a recording.
    ///
    /// # Errors
    /// None while the forward runs.
    pub fn stream(&self) -> Result<Stream> {
        frame::current_stream()
    }

    /// Whether a segment is open: see [`is_capturing`](super::is_capturing).
    pub fn is_capturing(&self) -> bool {
        frame::is_capturing()
    }

    /// Whether the forward is recorded, or traced as if it were: see [`is_recording`](super::is_recording).
    pub fn is_recording(&self) -> bool {
        frame::is_recording()
    }

    /// A row-major tensor of undefined content; see [`empty`](super::empty).
    ///
    /// # Errors
    /// As for [`empty`](super::empty).
    pub fn empty(&self, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        frame::empty(dtype, shape)
    }

    /// The innermost forward context of this type that was published around the forward. In a recording it is refused, as a segment would have this
    /// batch's in every replay: breaks read it, with [`Break::forward_ctx`].
    ///
    /// # Errors
    /// [`Misuse::FrozenContext`] while a segment is open, see [`frozen_ctx`](Scope::frozen_ctx); [`Misuse::NoForwardContext`].
    pub fn forward_ctx<T: Any>(&self) -> Result<&T> {
        if capture_state::is_in_segment() {
            let place = FrozenPlace::Segment(self.recorder.map(|recorder| recorder.position().segment));
            return Err(Misuse::FrozenContext { type_name: std::any::type_name::<T>(), place }.into());
        }
        self.frozen_ctx()
    }

    /// As [`forward_ctx`](Scope::forward_ctx), in a segment too: there it is the recording's, and what is made of it is the same in all replays. For
    /// what does not differ from batch to batch: weights, a configuration.
    ///
    /// # Errors
    /// [`Misuse::NoForwardContext`].
    pub fn frozen_ctx<T: Any>(&self) -> Result<&T> {
        let found = context::find::<T>(self.depth)
            .ok_or(Misuse::NoForwardContext { type_name: std::any::type_name::<T>(), break_name: None })?;
        // SAFETY: as in `Break::forward_ctx`: only contexts that were published before this value was made, which they outlive.
        Ok(unsafe { &*found })
    }

    /// Runs `operation` live on every replay, between two segments. Its results land in handoffs made from what it returns at capture time:
    /// the returned tensors, which the next segment reads at the same addresses on every replay.
    ///
    /// Outside a recording this is a direct call, whose result is returned as it is.
    ///
    /// # Errors
    /// What the operation returns, as [`Error::Break`](crate::Error::Break), and so [`Misuse::NotTheBucketsRows`]; what ending a segment or opening the
    /// next returns.
    pub fn break_point<'t, I, T, O, F>(&self, options: impl Into<BreakOptions>, inputs: I, operation: F) -> Result<O>
    where
        I: IntoIterator<Item = T>,
        T: Into<Option<&'t Tensor>>,
        O: Outputs,
        F: FnMut(&Break<'_>) -> Result<O> + Send + 'env,
    {
        run_break(self.active(), options.into(), collect(inputs), operation)
    }

    /// As [`break_point`](Scope::break_point), for one result that lands in `into`, which is returned.
    ///
    /// # Errors
    /// As for [`break_point`](Scope::break_point), and what the landing returns when the result doesn't fit.
    pub fn break_here<'t, I, T, F>(
        &self,
        options: impl Into<BreakOptions>,
        into: Tensor,
        inputs: I,
        operation: F,
    ) -> Result<Tensor>
    where
        I: IntoIterator<Item = T>,
        T: Into<Option<&'t Tensor>>,
        F: FnMut(&Break<'_>) -> Result<Tensor> + Send + 'env,
    {
        run_break_into(self.active(), options.into(), into, collect(inputs), operation)
    }
}

/// Runs a forward without capture: breaks run straight through, tensors are stream-ordered memory from the pool's side. The same model code
/// then also records and replays.
///
/// # Errors
/// What the forward returns; [`Misuse::ContextMismatch`] when stream and pool belong to different contexts.
pub fn eager<'env, T>(
    pool: &CapturePool,
    stream: &Stream,
    forward: impl FnOnce(&Scope<'_, 'env>) -> Result<T>,
) -> Result<T> {
    eager_with(pool, stream, EagerOptions::default(), forward)
}

/// As [`eager`], with padding: breaks are told the valid rows, and what they return is scrubbed as in a replay.
///
/// ```
/// # use breakable_cuda_graph::driver::{Device, Stream};
/// # use breakable_cuda_graph::Driver;
/// # let context = Device::get(&Driver::reference()?, 0)?.primary_context()?;
/// # let stream = Stream::new(&context)?;
/// # use breakable_cuda_graph::{CapturePool, EagerOptions, Tensor, eager_with};
/// # let pool = CapturePool::new(&context)?;
/// let padded = Tensor::from_slice(&stream, &[1.0_f32, 2.0, f32::NAN, f32::NAN], &[4, 1])?;
/// let options = EagerOptions::default().valid_rows(2).bucket(4);
/// let out = eager_with(&pool, &stream, options, |scope| {
///     scope.break_point("attention", [&padded], |b| {
///         assert_eq!(b.valid_rows()?, Some(2));
///         b.input(0).cloned()
///     })
/// })?;
/// assert_eq!(out.read::<f32>(&stream)?, [1.0, 2.0, 0.0, 0.0]);
/// # Ok::<(), breakable_cuda_graph::Error>(())
/// ```
///
/// # Errors
/// As for [`eager`]; where there is padding, [`Misuse::NotTheBucketsRows`] for a break's result of another leading dimension than the bucket.
pub fn eager_with<'env, T>(
    pool: &CapturePool,
    stream: &Stream,
    options: EagerOptions,
    forward: impl FnOnce(&Scope<'_, 'env>) -> Result<T>,
) -> Result<T> {
    eager_observed(pool, stream, options, None, forward)
}

/// The same, with something that sees its breaks.
pub(super) fn eager_observed<'env, T>(
    pool: &CapturePool,
    stream: &Stream,
    options: EagerOptions,
    observer: Option<Rc<dyn BreakObserver>>,
    forward: impl FnOnce(&Scope<'_, 'env>) -> Result<T>,
) -> Result<T> {
    pool.context().expect_same(stream.context(), "stream")?;
    let _current = pool.context().bind()?;
    let _alone = live_break::suspend();
    let _frame = frame::enter(Frame {
        allocator: Allocator::StreamOrdered,
        stream: stream.clone(),
        pool: pool.handle().clone(),
        recorder: None,
        padding: options,
        observer,
    });
    forward(&Scope::eager())
}

/// As [`Scope::break_point`], for the forward that runs on this thread. The operation borrows nothing: values that it captures by move are
/// frozen, live values come from the forward context.
///
/// ```
/// # use breakable_cuda_graph::driver::{Device, Stream};
/// # use breakable_cuda_graph::Driver;
/// # let context = Device::get(&Driver::reference()?, 0)?.primary_context()?;
/// # let stream = Stream::new(&context)?;
/// # use breakable_cuda_graph::{BreakableCapture, CapturePool, DType, Result, Tensor, break_point, current_stream, eager, empty};
/// # let pool = CapturePool::new(&context)?;
/// /// Model code that is handed no scope.
/// fn forward(input: &Tensor) -> Result<Tensor> {
///     let h = empty(DType::F32, input.shape())?;
///     h.copy_from(&current_stream()?, input)?;
///     break_point("attention", [&h], |b| b.input(0).cloned())
/// }
///
/// let input = Tensor::from_slice(&stream, &[1.0_f32, 2.0], &[2, 1])?;
/// let eagerly = eager(&pool, &stream, |_| forward(&input))?;
/// let mut capture = BreakableCapture::new(&pool)?;
/// let output = capture.record(&stream, |_| forward(&input))?;
/// let _ = capture.replay(&stream)?;
/// assert_eq!(output.read::<f32>(&stream)?, eagerly.read::<f32>(&stream)?);
/// # Ok::<(), breakable_cuda_graph::Error>(())
/// ```
///
/// # Errors
/// As for [`Scope::break_point`].
pub fn break_point<'t, I, T, O, F>(options: impl Into<BreakOptions>, inputs: I, operation: F) -> Result<O>
where
    I: IntoIterator<Item = T>,
    T: Into<Option<&'t Tensor>>,
    O: Outputs,
    F: FnMut(&Break<'_>) -> Result<O> + Send + 'static,
{
    run_break(active(), options.into(), collect(inputs), operation)
}

/// As [`Scope::break_here`], for the forward that runs on this thread.
///
/// # Errors
/// As for [`Scope::break_here`].
pub fn break_here<'t, I, T, F>(
    options: impl Into<BreakOptions>,
    into: Tensor,
    inputs: I,
    operation: F,
) -> Result<Tensor>
where
    I: IntoIterator<Item = T>,
    T: Into<Option<&'t Tensor>>,
    F: FnMut(&Break<'_>) -> Result<Tensor> + Send + 'static,
{
    run_break_into(active(), options.into(), into, collect(inputs), operation)
}

/// What records on this thread.
fn active<'a>() -> Option<&'a Recorder<'static>> {
    // SAFETY: the address is that of a recorder whose frame is on the stack, so that it outlives the call that this is made in. The recorder's
    // own 'env may be shorter than 'static; it is only given operations here, and one that lives for ever lives long enough.
    frame::recorder().map(|address| unsafe { &*address.0.cast::<Recorder<'static>>() })
}

fn collect<'t, I, T>(inputs: I) -> Vec<Option<Tensor>>
where
    I: IntoIterator<Item = T>,
    T: Into<Option<&'t Tensor>>,
{
    inputs.into_iter().map(|input| input.into().cloned()).collect()
}

/// Records a break, or runs its operation straight through where nothing records.
fn run_break<'env, O, F>(
    recorder: Option<&Recorder<'env>>,
    options: BreakOptions,
    inputs: Vec<Option<Tensor>>,
    operation: F,
) -> Result<O>
where
    O: Outputs,
    F: FnMut(&Break<'_>) -> Result<O> + Send + 'env,
{
    match recorder {
        Some(recorder) => recorder.add_break(options, inputs, None, operation),
        None => {
            let results = run_directly(&options, &inputs, &[], operation)?;
            observed(&options, &inputs, scrubbed(&options, results)?)
        }
    }
}

/// The same for one result that lands in `into`.
fn run_break_into<'env, F>(
    recorder: Option<&Recorder<'env>>,
    options: BreakOptions,
    into: Tensor,
    inputs: Vec<Option<Tensor>>,
    operation: F,
) -> Result<Tensor>
where
    F: FnMut(&Break<'_>) -> Result<Tensor> + Send + 'env,
{
    if let Some(recorder) = recorder {
        return recorder.add_break(options, inputs, Some(into), operation);
    }
    let padding = frame::padding().padded().filter(|_| options.leading_dimension_is_rows);
    options.expect_rows(padding.map(|(_, bucket)| bucket), 0, &into)?;
    let result = run_directly(&options, &inputs, std::slice::from_ref(&into), operation)?;
    let valid = padding.map(|(valid, _)| valid);
    land(&frame::current_stream()?, &result, &into, valid)?;
    observed(&options, &inputs, into)
}

fn run_directly<O, F>(
    options: &BreakOptions,
    inputs: &[Option<Tensor>],
    handoffs: &[Tensor],
    mut operation: F,
) -> Result<O>
where
    F: FnMut(&Break<'_>) -> Result<O>,
{
    let stream = frame::current_stream()?;
    let valid_rows = frame::padding().valid_rows;
    let _frame = frame::enter_eager_break()?;
    operation(&Break::new(&options.name, &stream, inputs, handoffs, valid_rows))
}

/// A break's results with zeros in the padded tail, in tensors of their own where they have one: what the operation returned may be a view of what
/// it keeps.
fn scrubbed<O: Outputs>(options: &BreakOptions, results: O) -> Result<O> {
    let padding = frame::padding().padded().filter(|_| options.leading_dimension_is_rows);
    let Some((valid, bucket)) = padding else { return Ok(results) };
    let stream = frame::current_stream()?;
    let mut landed = Vec::new();
    visit_in_order(results, &mut |index, result| {
        options.expect_rows(Some(bucket), index, &result)?;
        landed.push(if result.layout().rank() == 0 {
            result
        } else {
            let handoff = frame::empty(result.dtype(), result.shape())?;
            land(&stream, &result, &handoff, Some(valid))?;
            handoff
        });
        Ok(())
    })?;
    gather_all(landed)
}

/// A break's results, shown to what sees the forward's breaks. An inline one is part of a segment.
fn observed<O: Outputs>(options: &BreakOptions, inputs: &[Option<Tensor>], results: O) -> Result<O> {
    let observer = frame::observer().filter(|_| options.kind != BreakKind::Inline);
    let Some(observer) = observer else { return Ok(results) };
    let mut all = Vec::new();
    visit_in_order(results, &mut |_, result| {
        all.push(result);
        Ok(())
    })?;
    observer.break_ran(options, &frame::current_stream()?, inputs, &all)?;
    gather_all(all)
}
