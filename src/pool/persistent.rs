//! Tensors of a pool whose content outlives a release of its memory.

use crate::driver::Stream;
use crate::error::Result;
use crate::memory::arena::BlockRef;

/// The persistent tensors of a pool.
#[derive(Debug, Default)]
pub(super) struct Persistents {
    list: Vec<Persistent>,
}

#[derive(Debug)]
struct Persistent {
    block: BlockRef,
    address: u64,
    bytes: usize,
    /// While the memory is released.
    saved: Option<Vec<u8>>,
}

impl Persistents {
    /// Adds the tensor in this block.
    pub(super) fn add(&mut self, block: BlockRef, address: u64, bytes: usize) {
        self.list.push(Persistent { block, address, bytes, saved: None });
    }

    /// The block is given back.
    pub(super) fn forget(&mut self, block: BlockRef) {
        if !self.list.is_empty() {
            self.list.retain(|persistent| persistent.block != block);
        }
    }

    /// Copies all to the host.
    ///
    /// # Errors
    /// What the driver returns.
    pub(super) fn save(&mut self, stream: &Stream) -> Result<()> {
        for persistent in &mut self.list {
            let mut saved = vec![0; persistent.bytes];
            // SAFETY: a live block of this many bytes.
            unsafe { stream.copy_device_to_host(&mut saved, persistent.address)? };
            persistent.saved = Some(saved);
        }
        Ok(())
    }

    /// Puts back what was saved; [`drop_saved`](Persistents::drop_saved) when all has gone well.
    ///
    /// # Errors
    /// What the driver returns.
    pub(super) fn put_back(&self, stream: &Stream) -> Result<()> {
        for persistent in &self.list {
            if let Some(saved) = &persistent.saved {
                // SAFETY: a live block of this many bytes.
                unsafe { stream.copy_host_to_device(persistent.address, saved)? };
            }
        }
        Ok(())
    }

    /// Forgets the copies on the host.
    pub(super) fn drop_saved(&mut self) {
        self.list.iter_mut().for_each(|persistent| persistent.saved = None);
    }
}
