//! Tracing a forward: what it asks of the pool, without capturing it.

use super::forward::frame;
use super::options::EagerOptions;
use super::record::recorder::Recorder;
use super::record::session::refuse_nested;
use super::scope::Scope;
use crate::driver::{Stream, live_break};
use crate::error::Result;
use crate::memory::Trace;
use crate::pool::CapturePool;
use crate::pool::tracer::Tracer;

/// Runs a forward as [`eager`](super::eager) does, and writes down what a recording of it would ask of the pool: each tensor and handoff with its size, and
/// when it goes. A warm-up run that is traced costs what a warm-up costs; its trace is what a [`PoolPlan`](crate::memory::PoolPlan) is made from.
///
/// Results of breaks land in handoffs, as in a recording. The forward's tensors are ordinary stream-ordered memory.
///
/// ```
/// # use breakable_cuda_graph::driver::{Device, Stream};
/// # use breakable_cuda_graph::Driver;
/// # let context = Device::get(&Driver::reference()?, 0)?.primary_context()?;
/// # let stream = Stream::new(&context)?;
/// # use breakable_cuda_graph::memory::{PoolPlan, planner::PlanOptions};
/// # use breakable_cuda_graph::{BreakableCapture, CaptureOptions, CapturePool, DType, Result, Scope, trace};
/// # let pool = CapturePool::new(&context)?;
/// # let forward = |scope: &Scope<'_, 'static>| -> Result<()> { scope.empty(DType::F32, &[1024, 1024]).map(drop) };
/// let (traced, ()) = trace(&pool, &stream, forward)?; // A warm-up.
/// let plan = PoolPlan::new([traced], &PlanOptions::default())?;
/// assert_eq!(plan.bytes(), 4 << 20); // Before anything is captured.
/// pool.take_plan(&plan)?;
/// let options = CaptureOptions::default().plan(&plan.traces()[0]);
/// BreakableCapture::with_options(&pool, options)?.record(&stream, forward)?;
/// assert_eq!(pool.usage()?.reserved, 4 << 20);
/// # Ok::<(), breakable_cuda_graph::Error>(())
/// ```
///
/// # Errors
/// What the forward returns; [`Misuse::NestedCapture`](crate::Misuse::NestedCapture) in a recording or another trace, [`Misuse::ContextMismatch`](crate::Misuse::ContextMismatch).
pub fn trace<'env, T>(
    pool: &CapturePool,
    stream: &Stream,
    forward: impl FnOnce(&Scope<'_, 'env>) -> Result<T>,
) -> Result<(Trace, T)> {
    trace_with(pool, stream, EagerOptions::default(), forward)
}

/// As [`trace`], with padding: breaks are told the valid rows, and their handoffs are zero from there on.
///
/// # Errors
/// As for [`trace`].
pub fn trace_with<'env, T>(
    pool: &CapturePool,
    stream: &Stream,
    options: EagerOptions,
    forward: impl FnOnce(&Scope<'_, 'env>) -> Result<T>,
) -> Result<(Trace, T)> {
    refuse_nested()?;
    pool.context().expect_same(stream.context(), "stream")?;
    let _current = pool.context().bind()?;
    let _alone = live_break::suspend();
    let tracer = Tracer::new();
    let recorder = Recorder::tracing(pool.handle(), stream, &tracer, options)?;
    // The frame holds the recorder's address; it is off the stack before the recorder is gone.
    let frame = frame::enter(recorder.frame());
    let value = forward(&Scope::recording(&recorder))?;
    recorder.finish()?;
    drop(frame);
    Ok((tracer.finish(), value))
}
