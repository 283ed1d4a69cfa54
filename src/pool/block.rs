//! Tensors in a pool's memory.

use super::backed_arena::Ask;
use super::shared::{PoolHandle, PoolShared};
use crate::driver::{RecordingId, Stream};
use crate::error::Result;
use crate::memory::arena::BlockRef;
use crate::memory::ids::StreamKey;
use crate::tensor::storage::{Hold, Storage};
use crate::tensor::{DType, Layout, Tensor};
use std::sync::Arc;

/// The hold of a tensor on its block, which returns when this drops.
struct PoolBlock {
    pool: PoolHandle,
    block: BlockRef,
}

impl Drop for PoolBlock {
    fn drop(&mut self) {
        self.pool.memory().release(self.block);
    }
}

impl PoolShared {
    /// An undefined row-major tensor in a block of the pool, for the recording of this number.
    pub(crate) fn tensor(
        self: &Arc<Self>,
        key: StreamKey,
        recording: RecordingId,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Tensor> {
        self.availability.expect_open()?;
        let layout = Layout::contiguous(shape)?;
        let bytes = layout.elements() * dtype.size();
        let (block, address) = self.memory().take(key, bytes, Ask::Recording)?;
        Ok(self.tensor_at(block, address, bytes, Some(recording), dtype, layout))
    }

    /// An undefined row-major tensor of no recording, whose content outlives a release.
    pub(super) fn persistent_tensor(self: &Arc<Self>, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        self.availability.expect_open()?;
        let layout = Layout::contiguous(shape)?;
        let bytes = layout.elements() * dtype.size();
        let mut memory = self.memory();
        let (block, address) = memory.take(self.capture_key(), bytes, Ask::Outside)?;
        memory.persistents.add(block, address, bytes);
        drop(memory);
        Ok(self.tensor_at(block, address, bytes, None, dtype, layout))
    }

    fn tensor_at(
        self: &Arc<Self>,
        block: BlockRef,
        address: u64,
        bytes: usize,
        recording: Option<RecordingId>,
        dtype: DType,
        layout: Layout,
    ) -> Tensor {
        let hold = Hold::Block(Box::new(PoolBlock { pool: self.clone(), block }));
        let storage = Storage { address, bytes, context: Some(self.context().clone()), recording, hold };
        Tensor::of_storage(storage, dtype, layout)
    }

    /// An undefined row-major tensor from the ordinary stream-ordered pool.
    pub(crate) fn temporary(&self, stream: &Stream, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let layout = Layout::contiguous(shape)?;
        let buffer = self.temporaries().allocate(layout.elements() * dtype.size(), stream)?;
        Tensor::from_buffer(buffer, dtype, layout)
    }
}
