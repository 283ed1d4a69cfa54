//! Tracing a forward: what it asks of the pool, without capturing it.

use super::scope::Scope;
use crate::capture::forward::frame::{self, Frame, Kind, Source};
use crate::capture::record::recorder::Recorder;
use crate::driver::{RecordingId, Stream};
use crate::error::{Misuse, Result};
use crate::memory::trace::Trace;
use crate::pool::CapturePool;
use crate::pool::tracer::Tracer;

/// Runs a forward as [`eager`](super::eager) does, and writes down what a recording of it would ask of the pool: each tensor and handoff with its size, and
/// when it goes. A warm-up run that is traced costs what a warm-up costs; its trace is what a [`PoolPlan`](crate::pool::PoolPlan) is made from.
///
/// BatchOutputs of breaks land in handoffs, as in a recording. The forward's tensors are ordinary stream-ordered memory.
///
/// # Errors
/// What the forward returns; [`Misuse::NestedCapture`] in a recording or another trace, [`Misuse::ContextMismatch`].
pub fn trace<'env, T>(
    pool: &CapturePool,
    stream: &Stream,
    forward: impl FnOnce(&Scope<'_, 'env>) -> Result<T>,
) -> Result<(Trace, T)> {
    if frame::is_recording() || frame::is_capturing() {
        return Err(Misuse::NestedCapture.into());
    }
    pool.context().expect_same(stream.context(), "stream")?;
    let tracer = Tracer::new();
    let recorder = Recorder::tracing(pool.handle().clone(), stream.clone(), RecordingId::next(), tracer.clone())?;
    let address: *const Recorder<'env> = &recorder;
    let source = Source::Traced(tracer.clone());
    // The frame holds the recorder's address without its lifetime; it is off the stack before the recorder is gone.
    let frame = frame::enter(Frame {
        kind: Kind::Recording { number: recorder.number, source, recorder: address.cast() },
        stream: stream.clone(),
        pool: pool.handle().clone(),
    });
    let value = forward(&Scope::recording(&recorder))?;
    recorder.finish()?;
    drop(frame);
    Ok((tracer.finish(), value))
}
