//! Tracing a forward: its tensors are ordinary stream-ordered memory, and the order in which they come and go is written down.

use super::shared::PoolShared;
use crate::driver::{RecordingId, Stream};
use crate::error::Result;
use crate::memory::{Role, Trace};
use crate::tensor::storage::{Hold, Storage, TraceObserver};
use crate::tensor::{DType, Layout, Tensor};
use std::sync::{Arc, Mutex, PoisonError};

/// Writes a trace.
#[derive(Default)]
pub(crate) struct Tracer {
    /// `None` once it is finished.
    trace: Mutex<Option<Trace>>,
}

/// Writes the release when dropped.
struct TraceHold {
    tracer: Arc<Tracer>,
    request: usize,
}

impl Drop for TraceHold {
    fn drop(&mut self) {
        // A block is released once.
        self.tracer.with(|trace| trace.release(self.request).is_ok());
    }
}

impl TraceObserver for TraceHold {
    fn set_name(&self, name: &str) {
        self.tracer.with(|trace| trace.set_name(self.request, name));
    }

    fn set_handoff(&self) {
        self.tracer.with(|trace| trace.set_role(self.request, Role::Handoff));
    }
}

impl Tracer {
    pub(crate) fn new() -> Arc<Tracer> {
        Arc::new(Tracer { trace: Mutex::new(Some(Trace::new())) })
    }

    /// The trace so far. What happens from now on is not in it.
    pub(crate) fn finish(&self) -> Trace {
        let mut trace = self.trace.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
        trace.finish();
        trace
    }

    fn with<T>(&self, write: impl FnOnce(&mut Trace) -> T) -> Option<T> {
        self.trace.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(write)
    }
}

impl PoolShared {
    /// An undefined row-major tensor whose coming and going is traced, as one of the recording of this number.
    pub(crate) fn traced(
        &self,
        tracer: &Arc<Tracer>,
        role: Role,
        recording: Option<RecordingId>,
        stream: &Stream,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Tensor> {
        let layout = Layout::contiguous(shape)?;
        let bytes = layout.elements() * dtype.size();
        let buffer = self.temporaries().allocate(bytes, stream)?;
        let request = tracer.with(|trace| trace.allocate_for(bytes, role)).unwrap_or(usize::MAX);
        let hold = Box::new(TraceHold { tracer: tracer.clone(), request });
        let (address, context) = (buffer.address(), Some(self.context().clone()));
        let storage = Storage { address, bytes, context, recording, hold: Hold::Traced(buffer, hold) };
        Ok(Tensor::of_storage(storage, dtype, layout))
    }
}
