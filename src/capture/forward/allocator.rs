//! Where the tensors of a forward come from.

use super::scratch::Scratch;
use crate::driver::{RecordingId, Stream};
use crate::error::Result;
use crate::memory::Role;
use crate::memory::ids::StreamKey;
use crate::pool::PoolHandle;
use crate::pool::tracer::Tracer;
use crate::tensor::{DType, Tensor};
use std::sync::Arc;

/// Where the tensors of a forward come from: one value, in the thread's frame, decides it.
#[derive(Clone)]
pub(crate) enum Allocator {
    /// Stream-ordered memory beside the pool: eager forwards, and live breaks.
    StreamOrdered,
    /// The pool's blocks of this key, for a recording. They keep their addresses on every replay.
    Blocks { key: StreamKey, recording: RecordingId },
    /// Stream-ordered memory that stands for the pool's blocks: what a recording would ask for is written down.
    TracedBlocks { tracer: Arc<Tracer>, recording: RecordingId },
    /// Stream-ordered memory of a break, of which the size is written down.
    TracedScratch(Arc<Tracer>),
    /// The scratch of a patched break, at the same addresses on every replay.
    Scratch(Arc<Scratch>),
}

impl Allocator {
    /// An undefined row-major tensor. `role`: what it is for, where a trace is written of a recording's blocks.
    pub(crate) fn empty(
        &self,
        pool: &PoolHandle,
        stream: &Stream,
        role: Role,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Tensor> {
        match self {
            Allocator::StreamOrdered => pool.temporary(stream, dtype, shape),
            Allocator::Blocks { key, recording } => pool.tensor(*key, *recording, dtype, shape),
            Allocator::TracedBlocks { tracer, recording } => {
                pool.traced(tracer, role, Some(*recording), stream, dtype, shape)
            }
            Allocator::TracedScratch(tracer) => pool.traced(tracer, Role::Scratch, None, stream, dtype, shape),
            Allocator::Scratch(scratch) => scratch.empty(dtype, shape),
        }
    }
}
