//! Tensors in a pool's memory.

use super::backed_arena::Ask;
use super::shared::{PoolHandle, PoolShared};
use crate::driver::{KeepAlive, RecordingId, Stream};
use crate::error::Result;
use crate::memory::arena::BlockRef;
use crate::memory::ids::StreamKey;
use crate::tensor::storage::{Hold, PoolMemory, Storage};
use crate::tensor::{DType, Layout, Tensor};
use std::sync::Arc;

/// The key of blocks of no recording. No stream has it, so that they lie in slabs of their own, where no recorded segment writes (M3).
const PERSISTENT: StreamKey = StreamKey(u64::MAX);

/// The hold of a tensor on its block, which returns when this drops.
struct PoolBlock {
    pool: PoolHandle,
    block: BlockRef,
    /// The recording that took it.
    recording: Option<RecordingId>,
}

/// A block whose tensor is gone, and which another branch of the segment may still use.
struct ParkedBlock {
    pool: PoolHandle,
    block: BlockRef,
    recording: Option<RecordingId>,
}

impl PoolMemory for PoolBlock {
    #[inline]
    fn expect_usable(&self) -> Result<()> {
        self.pool.availability.expect_mapped()
    }

    fn expect_whole(&self, recording: RecordingId) -> Result<()> {
        self.pool.results.expect_whole(recording)
    }

    #[inline]
    fn used_on(&self, stream: &Stream) {
        self.pool.users.note(stream);
    }

    #[inline]
    fn enter(&self) -> Result<()> {
        self.pool.enter()
    }

    #[inline]
    fn leave(&self) {
        self.pool.users.leave();
    }
}

impl Drop for PoolBlock {
    fn drop(&mut self) {
        let PoolBlock { pool, block, recording } = self;
        let park =
            || -> KeepAlive { Arc::new(ParkedBlock { pool: pool.clone(), block: *block, recording: *recording }) };
        if !recording.is_some_and(|recording| pool.context().park_block(recording, park)) {
            pool.memory().release(*block, *recording);
        }
    }
}

impl Drop for ParkedBlock {
    fn drop(&mut self) {
        self.pool.memory().release(self.block, self.recording);
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
        let layout = Layout::contiguous(shape)?;
        let bytes = layout.elements() * dtype.size();
        let (block, address) = {
            let mut memory = self.memory();
            self.availability.expect_open()?;
            memory.take(key, bytes, Ask::Recording(recording))?
        };
        Ok(self.tensor_at(block, address, bytes, Some(recording), dtype, layout))
    }

    /// An undefined row-major tensor of no recording, whose content outlives a release.
    pub(super) fn persistent_tensor(self: &Arc<Self>, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let layout = Layout::contiguous(shape)?;
        let bytes = layout.elements() * dtype.size();
        let mut memory = self.memory();
        // Under the lock, so that it is not lent or released meanwhile.
        self.availability.expect_open()?;
        let (block, address) = memory.take(PERSISTENT, bytes, Ask::Outside)?;
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
        let hold = Hold::Block(Box::new(PoolBlock { pool: self.clone(), block, recording }));
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
