//! Giving a pool's memory back while its captures stay, and taking it again at the same addresses.

use super::availability::Closed;
use super::backed_arena::is_out_of_memory;
use super::capture_pool::CapturePool;
use super::options::RestoredContent;
use crate::driver::{Stream, capture_state};
use crate::error::{Error, Misuse, OutOfMemory, Result};
use crate::tensor::{DType, Tensor};

impl CapturePool {
    /// An undefined row-major tensor in the pool's memory whose content survives [`release`](CapturePool::release): state that captures read and
    /// that something else writes, such as a table or a counter. It is saved to the host and put back.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Misuse::PoolReleased`], [`Misuse::PoolLent`], [`TensorError::Layout`](crate::TensorError::Layout), and what the driver returns.
    pub fn persistent(&self, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let inner = self.handle();
        let tensor = inner.persistent_tensor(dtype, shape)?;
        if !capture_state::is_open() {
            inner.settle()?;
        }
        Ok(tensor)
    }

    /// Whether the memory is given back.
    pub fn is_released(&self) -> bool {
        self.handle().availability.closed() == Some(Closed::Released)
    }

    /// Waits for the pool's last replay, and for what was enqueued on its tensors through the crate, and gives its memory back to the device. Addresses, captures and their execs stay; the content is lost, except
    /// that of [`persistent`](CapturePool::persistent) tensors. Until [`restore`](CapturePool::restore) replays and recordings fail with
    /// [`Misuse::PoolReleased`], and so does the use of its tensors. Nothing happens when it is released already.
    ///
    /// Work that the crate doesn't see, a foreign library's on other streams, must be done, or said with
    /// [`Tensor::record_stream`].
    ///
    /// # Errors
    /// [`Misuse::ReleaseUnsupported`] for a pool without [`Backing::ReservedAddresses`](super::Backing::ReservedAddresses),
    /// [`Misuse::SynchronizeWhileCapturing`], [`Misuse::PoolBusy`], [`Misuse::PoolLent`], [`Misuse::PoolPinned`], and what the driver returns: what could not be unmapped then stays
    /// with the pool, and `restore` puts everything right.
    pub fn release(&self) -> Result<()> {
        let inner = self.handle();
        if capture_state::is_open() {
            return Err(Misuse::SynchronizeWhileCapturing { what: "capture pool" }.into());
        }
        let guard = inner.lock_anyway()?;
        match inner.availability.closed() {
            Some(Closed::Lent) => return Err(Misuse::PoolLent.into()),
            Some(Closed::Released) => return Ok(()),
            None => {}
        }
        {
            let mut memory = inner.memory();
            memory.addresses()?;
            inner.availability.expect_unpinned()?;
            // From here on nobody begins to use it.
            inner.availability.set(Some(Closed::Released));
        }
        inner.users.wait_for_calls();
        let saved = guard.last_stream().map_or(Ok(()), Stream::settle_work).and_then(|()| {
            inner.users.settle()?;
            inner.memory().persistents.save(inner.capture_stream())
        });
        let mut memory = inner.memory();
        if let Err(error) = saved {
            inner.availability.set(None);
            return Err(error);
        }
        // Outputs that were not read are gone.
        inner.next_replay();
        memory.addresses()?.unmap()
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
        let _guard = inner.lock_anyway()?;
        if inner.availability.closed() != Some(Closed::Released) {
            return Ok(());
        }
        let mut memory = inner.memory();
        let usage = memory.arena.usage();
        if let Err(error) = memory.addresses()?.map_again() {
            return Err(match error {
                Error::Call(call) if is_out_of_memory(call) => Error::OutOfMemory(Box::new(OutOfMemory {
                    requested: usage.reserved,
                    in_use: usage.in_use,
                    call: Some(call),
                    ..OutOfMemory::default()
                })),
                other => other,
            });
        }
        let stream = inner.capture_stream();
        let put_back = || {
            if inner.restored == RestoredContent::Nan {
                for slab in memory.pieces() {
                    // SAFETY: memory of the pool that was just mapped.
                    unsafe { stream.fill_bytes(slab.address, 0xff, slab.bytes)? };
                }
            }
            memory.persistents.put_back(stream)?;
            stream.settle()
        };
        if let Err(error) = put_back() {
            // The first error is the one to tell; another restore maps what is missing.
            let _ = stream.settle();
            let _ = memory.addresses()?.unmap();
            return Err(error);
        }
        memory.persistents.drop_saved();
        inner.availability.set(None);
        Ok(())
    }
}
