//! Giving a pool's memory back while its captures stay, and taking it again at the same addresses.

use super::block::BlockRef;
use super::capture_pool::CapturePool;
use super::options::RestoredContent;
use super::shared::{Closed, State, is_out_of_memory};
use super::slabs::SlabSource;
use crate::driver::{AddressRange, capture_state};
use crate::error::{Error, Misuse, OutOfMemory, Result};
use crate::memory::allocator::BlockId;
use crate::tensor::{DType, Layout, Tensor};

/// A tensor of the pool whose content outlives a release.
pub(super) struct Persistent {
    pub(super) id: BlockId,
    address: u64,
    bytes: usize,
    /// While the memory is released.
    saved: Option<Vec<u8>>,
}

impl CapturePool {
    /// An undefined row-major tensor in the pool's memory whose content survives [`release`](CapturePool::release): state that captures read and
    /// that something else writes, such as a table or a counter. It is saved to the host and put back.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Misuse::PoolReleased`], [`Misuse::PoolLent`], [`TensorError::Layout`](crate::TensorError::Layout), and what the driver returns.
    pub fn persistent(&self, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let inner = self.handle();
        let layout = Layout::contiguous(shape)?;
        let bytes = layout.elements() * dtype.size();
        let (block, address) = inner.take_outside(bytes)?;
        // From here on the block goes back with the tensor.
        let tensor = inner.tensor_at(block, address, bytes, None, dtype, layout);
        if let BlockRef::Block(id) = block {
            inner.state().persistent.push(Persistent { id, address, bytes, saved: None });
        }
        if !capture_state::is_open() {
            inner.settle()?;
        }
        Ok(tensor)
    }

    /// Whether the memory is given back.
    pub fn is_released(&self) -> bool {
        self.handle().is_closed() == Some(Closed::Released)
    }

    /// Waits for the pool's last replay and gives its memory back to the device. Addresses, captures and their execs stay; the content is lost, except
    /// that of [`persistent`](CapturePool::persistent) tensors. Until [`restore`](CapturePool::restore) replays and recordings fail with
    /// [`Misuse::PoolReleased`]. Nothing happens when it is released already.
    ///
    /// Work of the caller's that reads outputs on other streams must be done.
    ///
    /// # Errors
    /// [`Misuse::ReleaseUnsupported`] for a pool without [`Backing::ReservedAddresses`](super::Backing::ReservedAddresses),
    /// [`Misuse::SynchronizeWhileCapturing`], [`Misuse::PoolBusy`], [`Misuse::PoolLent`], and what the driver returns: what could not be unmapped then stays
    /// with the pool, and `restore` puts everything right.
    pub fn release(&self) -> Result<()> {
        let inner = self.handle();
        if capture_state::is_open() {
            return Err(Misuse::SynchronizeWhileCapturing { what: "capture pool" }.into());
        }
        let turn = inner.lock_anyway()?;
        match inner.is_closed() {
            Some(Closed::Lent) => return Err(Misuse::PoolLent.into()),
            Some(Closed::Released) => return Ok(()),
            None => {}
        }
        let mut state = inner.state();
        let State { source, persistent, .. } = &mut *state;
        let range = reserved(source)?;
        if let Some(last) = turn.last_stream() {
            last.settle()?;
        }
        let stream = inner.capture_stream();
        for persistent in persistent.iter_mut() {
            let mut saved = vec![0; persistent.bytes];
            // SAFETY: a live block of this many bytes.
            unsafe { stream.copy_device_to_host(&mut saved, persistent.address)? };
            persistent.saved = Some(saved);
        }
        // BatchOutputs that were not read are gone.
        inner.next_replay();
        inner.set_closed(Some(Closed::Released));
        range.unmap()
    }

    /// Takes memory again at the same addresses and puts the content of persistent tensors back. Replays work again. Nothing happens when it is
    /// not released.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where the device has too little memory now, [`Misuse::SynchronizeWhileCapturing`], [`Misuse::PoolBusy`], and what the driver
    /// returns: then it stays released, and can be restored later.
    pub fn restore(&self) -> Result<()> {
        let inner = self.handle();
        if capture_state::is_open() {
            return Err(Misuse::SynchronizeWhileCapturing { what: "capture pool" }.into());
        }
        let _turn = inner.lock_anyway()?;
        if inner.is_closed() != Some(Closed::Released) {
            return Ok(());
        }
        let mut state = inner.state();
        let (in_use, reserved_bytes) = state.bytes();
        let State { source, persistent, slabs, planned_slab, .. } = &mut *state;
        let range = reserved(source)?;
        range.map_again().map_err(|error| match error {
            Error::Call(call) if is_out_of_memory(call) => Error::OutOfMemory(Box::new(OutOfMemory {
                requested: reserved_bytes,
                in_use,
                reserved: 0,
                limit: None,
                bucket: None,
                segment: None,
                call: Some(call),
            })),
            other => other,
        })?;
        let stream = inner.capture_stream();
        let put_back = || {
            if inner.restored == RestoredContent::Nan {
                for slab in slabs.iter().chain(planned_slab.as_ref()) {
                    // SAFETY: memory of the pool that was just mapped.
                    unsafe { stream.fill_bytes(slab.address, 0xff, slab.bytes)? };
                }
            }
            for persistent in persistent.iter() {
                if let Some(saved) = &persistent.saved {
                    // SAFETY: a live block of this many bytes.
                    unsafe { stream.copy_host_to_device(persistent.address, saved)? };
                }
            }
            stream.settle()
        };
        if let Err(error) = put_back() {
            // The first error is the one to tell; another restore maps what is missing.
            let _ = stream.settle();
            let _ = range.unmap();
            return Err(error);
        }
        for persistent in persistent.iter_mut() {
            persistent.saved = None;
        }
        inner.set_closed(None);
        Ok(())
    }
}

fn reserved(source: &mut SlabSource) -> Result<&mut AddressRange> {
    match source {
        SlabSource::Reserved(range) => Ok(range),
        SlabSource::Ordered { .. } => Err(Misuse::ReleaseUnsupported.into()),
    }
}
