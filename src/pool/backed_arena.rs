//! [`BackedArena`]: an arena, and the device memory beneath it.

use super::persistent::Persistents;
use super::slabs::{Slab, SlabSource};
use crate::driver::{AddressRange, Event, RecordingId, Stream};
use crate::error::{Error, Misuse, OutOfMemory, Result, TensorError};
use crate::memory::TracePlan;
use crate::memory::arena::{Answer, Arena, BlockRef, Refused};
use crate::memory::ids::StreamKey;
use crate::sys::{CUresult, Call, CallError, first_failure};

/// What is decided together about a pool's memory, under one lock: where blocks lie, and which memory there is.
pub(super) struct BackedArena {
    /// Where blocks lie.
    pub(super) arena: Arena,
    /// State that outlives a release of the memory.
    pub(super) persistents: Persistents,
    // Slabs go before the memory pool or the addresses that they came from (D4).
    slabs: Vec<Slab>,
    range: Option<Slab>,
    source: SlabSource,
    limit: Option<usize>,
    /// The recording under way, and its blocks whose tensors are there.
    recording: Option<(RecordingId, usize)>,
}

/// Which placement is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ask {
    /// The next of this recording, which may have a plan.
    Recording(RecordingId),
    /// Of no recording.
    Outside,
}

impl BackedArena {
    pub(super) fn new(source: SlabSource, limit: Option<usize>) -> BackedArena {
        let (persistents, slabs) = (Persistents::default(), Vec::new());
        BackedArena { arena: Arena::new(limit), persistents, slabs, range: None, source, limit, recording: None }
    }

    /// A block, and its address.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`TensorError::Layout`], and what the driver returns.
    pub(super) fn take(&mut self, stream: StreamKey, bytes: usize, mut ask: Ask) -> Result<(BlockRef, u64)> {
        let taken_for = match ask {
            Ask::Recording(recording) => Some(recording),
            Ask::Outside => None,
        };
        loop {
            let answer = match ask {
                Ask::Recording(_) => self.arena.request(stream, bytes),
                Ask::Outside => self.arena.request_online(stream, bytes),
            };
            match answer {
                Ok(Answer::Here(block, address)) => {
                    if self.recording.is_some_and(|(recording, _)| Some(recording) == taken_for) {
                        self.recording = self.recording.map(|(recording, blocks)| (recording, blocks + 1));
                    }
                    return Ok((block, address));
                }
                Ok(Answer::Grow(slab_bytes)) => self.add_slab(stream, slab_bytes, bytes)?,
                Err(Refused::TooLarge) => {
                    return Err(
                        TensorError::Layout { reason: "the request is larger than memory: ask for less" }.into()
                    );
                }
                Err(Refused::OverLimit) => return Err(self.out_of_memory(bytes, None)),
            }
            // A recording asks its plan once for each request.
            ask = Ask::Outside;
        }
    }

    fn add_slab(&mut self, stream: StreamKey, slab_bytes: usize, requested: usize) -> Result<()> {
        let mut slab = self.take_slab(slab_bytes, requested)?;
        let unfit = |_| TensorError::Layout {
            reason: "the driver's memory overlaps a slab of the pool, which a driver does not do: please report it",
        };
        slab.id = Some(self.arena.add_slab(stream, slab.address, slab_bytes).map_err(unfit)?);
        self.slabs.push(slab);
        Ok(())
    }

    /// Memory of this size for a request. Where the device has too little, unused memory of the context's other pools is given back first, once. [`Error::OutOfMemory`] leaves no trace in the thread's record of failing calls.
    fn take_slab(&mut self, bytes: usize, requested: usize) -> Result<Slab> {
        let mut refused = None;
        for may_make_room in [true, false] {
            let out_of_memory = |error: &Error| match error {
                Error::Call(call) if is_out_of_memory(*call) => {
                    refused = Some(*call);
                    true
                }
                _ => false,
            };
            if let Some(slab) = first_failure::unless(out_of_memory, || self.source.take(bytes))?.flatten() {
                return Ok(slab);
            }
            if refused.is_none() || !may_make_room {
                break;
            }
            self.source.make_room();
        }
        Err(self.out_of_memory(requested, refused))
    }

    fn out_of_memory(&self, requested: usize, call: Option<CallError>) -> Error {
        let usage = self.arena.usage();
        let (in_use, reserved, limit) = (usage.in_use, usage.reserved, self.limit);
        Error::OutOfMemory(Box::new(OutOfMemory { requested, in_use, reserved, limit, call, ..OutOfMemory::default() }))
    }

    /// Takes memory for a planned range of this size. There is none now.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], and what the driver returns.
    pub(super) fn take_range(&mut self, bytes: usize) -> Result<()> {
        if !self.arena.may_grow(bytes) {
            return Err(self.out_of_memory(bytes, None));
        }
        let slab = self.take_slab(bytes, bytes)?;
        self.arena.set_range(slab.address, bytes);
        self.range = Some(slab);
        Ok(())
    }

    /// Takes out the planned range, if there is one and no block of it is in use.
    pub(super) fn take_out_range(&mut self) -> Option<Slab> {
        let (_, blocks) = self.arena.range();
        if blocks > 0 {
            return None;
        }
        self.arena.set_range(0, 0);
        self.range.take()
    }

    /// How many slabs there are, without the planned range.
    pub(super) fn slab_count(&self) -> usize {
        self.slabs.len()
    }

    /// Slabs, the planned range counted in.
    pub(super) fn pieces(&self) -> impl Iterator<Item = &Slab> {
        self.slabs.iter().chain(&self.range)
    }

    /// Takes out the slabs that were added since there were this many, as far as no block of them is in use.
    pub(super) fn take_out_free(&mut self, since: usize) -> Vec<Slab> {
        let added = self.slabs.split_off(since.min(self.slabs.len()));
        let is_free = |slab: &Slab| slab.id.is_some_and(|id| self.arena.remove_slab(id).is_ok());
        let (free, kept): (Vec<Slab>, Vec<Slab>) = added.into_iter().partition(is_free);
        self.slabs.extend(kept);
        free
    }

    /// A recording begins; its blocks are counted from now on.
    pub(super) fn begin(&mut self, recording: RecordingId, plan: Option<&TracePlan>) {
        self.arena.begin(plan);
        self.recording = Some((recording, 0));
    }

    /// Blocks of the recording under way whose tensors are there.
    pub(super) fn recordings_blocks(&self) -> usize {
        self.recording.map_or(0, |(_, blocks)| blocks)
    }

    /// Gives a block back. `recording`: the one that took it.
    pub(super) fn release(&mut self, block: BlockRef, recording: Option<RecordingId>) {
        if let Some((now, blocks)) = &mut self.recording
            && Some(*now) == recording
        {
            *blocks = blocks.saturating_sub(1);
        }
        // A block is given back once, by what holds it.
        let known = self.arena.release(block);
        debug_assert!(known, "a pool block was returned twice");
        self.persistents.forget(block);
    }

    /// The stream whose work is to be waited for until the slabs that were taken are the device's to use; once.
    pub(super) fn unsettled(&mut self) -> Option<Stream> {
        self.source.unsettled()
    }

    /// Lets the return of slabs come after the event.
    pub(super) fn return_after(&self, event: &Event) -> Result<()> {
        self.source.return_after(event)
    }

    /// What gives these slabs' memory back when it drops, and the stream to synchronise after that.
    pub(super) fn reclaim(&mut self, slabs: Vec<Slab>) -> (Vec<super::slabs::Reclaimed>, Option<Stream>) {
        self.source.reclaim(slabs)
    }

    /// Gives up the memory, which something may still use and nobody can wait for.
    pub(super) fn leak(&mut self) {
        std::mem::forget((std::mem::take(&mut self.slabs), self.range.take()));
        if let SlabSource::Reserved(range) = &mut self.source {
            range.leak();
        }
    }

    /// The addresses that the pool has reserved.
    ///
    /// # Errors
    /// [`Misuse::ReleaseUnsupported`] where it has none.
    pub(super) fn addresses(&mut self) -> Result<&mut AddressRange> {
        match &mut self.source {
            SlabSource::Reserved(range) => Ok(range),
            SlabSource::Ordered { .. } => Err(Misuse::ReleaseUnsupported.into()),
        }
    }
}

/// Whether the call says that the device or a pool is full.
pub(super) fn is_out_of_memory(error: CallError) -> bool {
    matches!(error.call(), Call::cuMemAllocFromPoolAsync | Call::cuMemCreate)
        && error.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY
}
