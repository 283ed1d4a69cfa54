//! What the users of a pool share: its blocks, its memory, and whose turn it is.

use super::block::{BlockRef, PoolBlock};
use super::options::{PoolOptions, RestoredContent};
use super::replay_lock::{ReplayGuard, ReplayLock};
use super::slabs::{Slab, SlabSource};
use super::suspend::Persistent;
use crate::capture::composite::shared::SharedExecs;
use crate::driver::KeepAlive;
use crate::driver::{Context, Event, MemoryPool, RecordingId, Stream, StreamOptions};
use crate::error::{Error, Misuse, OutOfMemory, Result, TensorError};
use crate::memory::allocator::{BlockOptions, Blocks, Growth, SLAB_BYTES, StreamKey, TooLarge};
use crate::memory::planned_range::{Divergence, Planned, Served};
use crate::memory::pool_plan::{PoolPlan, TracePlan};
use crate::sys::{CUresult, Call, CallError, first_failure};
use crate::tensor::storage::{Hold, Storage};
use crate::tensor::{DType, Layout, Tensor};
use std::any::Any;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the pool's users hold.
pub(crate) type PoolHandle = Arc<PoolShared>;

pub(crate) struct PoolShared {
    // Slabs go first when the pool is dropped, then the pools and streams that they came from.
    state: Mutex<State>,
    temporaries: MemoryPool,
    capture_stream: Stream,
    capture_key: StreamKey,
    context: Context,
    limit: Option<usize>,
    pub(super) restored: RestoredContent,
    turn: ReplayLock,
    /// Where bodies of patched breaks are recorded, in turn; one for each priority.
    recording_streams: Mutex<Vec<(i32, Stream)>>,
    /// For captures that ask for them.
    shared_execs: SharedExecs,
    replays: AtomicU64,
    /// [`Mapped`] values there are.
    mapped: AtomicUsize,
    /// Whether its memory can be used: a [`Closed`], or 0.
    closed: AtomicU8,
}

/// Why a pool's memory can't be used for now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Closed {
    Released = 1,
    Lent = 2,
}

/// Held by whatever refers to the pool's memory without holding a block of it: captures, and views of what they write. Keeps the memory mapped.
struct Mapped {
    pool: PoolHandle,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.pool.mapped.fetch_sub(1, Ordering::AcqRel);
    }
}

pub(super) struct State {
    pub(super) blocks: Blocks,
    pub(super) slabs: Vec<Slab>,
    /// Where planned blocks lie.
    pub(super) planned: Planned,
    pub(super) planned_slab: Option<Slab>,
    pub(super) source: SlabSource,
    /// What dropped captures kept and could not let go of at once.
    pub(super) deferred: Vec<Vec<KeepAlive>>,
    pub(super) persistent: Vec<Persistent>,
    divergences: u64,
    last_divergence: Option<Divergence>,
    /// The most bytes in use at once, in blocks of both kinds.
    peak: usize,
}

impl State {
    /// Bytes in use, and in all.
    pub(super) fn bytes(&self) -> (usize, usize) {
        let stats = self.blocks.usage();
        (stats.in_use + self.planned.in_use().0, stats.reserved + self.planned.bytes())
    }

    fn diverges(&mut self, divergence: Divergence) {
        log::warn!("a recording differs from its plan, and takes more memory than planned: {divergence}");
        self.divergences += 1;
        self.last_divergence = Some(divergence);
    }
}

impl PoolShared {
    pub(super) fn new(context: &Context, options: &PoolOptions) -> Result<PoolShared> {
        let source = SlabSource::new(context, options)?;
        let temporaries = MemoryPool::new(context)?;
        let capture_stream = Stream::with_options(context, StreamOptions { priority: options.priority })?;
        let capture_key = StreamKey(capture_stream.id()?);
        let turn = ReplayLock::new(Event::new(context)?);
        // Loaded now, so that no replay or capture is the first to need it.
        context.builtin_kernels()?;
        let block_options = BlockOptions { slack_divisor: options.slack_divisor, ..BlockOptions::default() };
        let state = State {
            // Every divisor makes sense, and the other options are the defaults.
            blocks: Blocks::with_options(block_options).unwrap_or_default(),
            slabs: Vec::new(),
            planned: Planned::default(),
            planned_slab: None,
            source,
            deferred: Vec::new(),
            persistent: Vec::new(),
            divergences: 0,
            last_divergence: None,
            peak: 0,
        };
        Ok(PoolShared {
            state: Mutex::new(state),
            temporaries,
            capture_stream,
            capture_key,
            context: context.clone(),
            limit: options.max_bytes,
            restored: options.restored,
            recording_streams: Mutex::default(),
            shared_execs: SharedExecs::default(),
            turn,
            replays: AtomicU64::new(0),
            mapped: AtomicUsize::new(0),
            closed: AtomicU8::new(0),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn temporaries(&self) -> &MemoryPool {
        &self.temporaries
    }

    pub(super) fn capture_stream(&self) -> &Stream {
        &self.capture_stream
    }

    /// The key of a stream's free blocks.
    pub(crate) fn key_of(&self, stream: &Stream) -> Result<StreamKey> {
        if *stream == self.capture_stream { Ok(self.capture_key) } else { Ok(StreamKey(stream.id()?)) }
    }

    /// Takes the turn, whether or not the memory can be used.
    pub(super) fn lock_anyway(&self) -> Result<ReplayGuard<'_>> {
        self.turn.take()
    }

    /// Takes the turn for a recording or a replay.
    #[inline]
    pub(crate) fn lock(&self) -> Result<ReplayGuard<'_>> {
        let turn = self.turn.take()?;
        self.expect_open()?;
        Ok(turn)
    }

    #[inline]
    fn expect_open(&self) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            0 => Ok(()),
            closed => Err(why_closed(closed)),
        }
    }

    pub(super) fn is_closed(&self) -> Option<Closed> {
        match self.closed.load(Ordering::Acquire) {
            0 => None,
            closed if closed == Closed::Released as u8 => Some(Closed::Released),
            _ => Some(Closed::Lent),
        }
    }

    /// Whoever calls this has the turn, or has lent the memory.
    pub(super) fn set_closed(&self, closed: Option<Closed>) {
        self.closed.store(closed.map_or(0, |closed| closed as u8), Ordering::Release);
    }

    /// Counts a replay, and gives its number.
    #[inline]
    pub(crate) fn next_replay(&self) -> u64 {
        self.replays.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The number of the latest replay.
    pub(crate) fn latest_replay(&self) -> u64 {
        self.replays.load(Ordering::Relaxed)
    }

    /// Captures and views that refer to the memory.
    pub(super) fn users(&self) -> usize {
        self.mapped.load(Ordering::Acquire)
    }

    /// A stream to record bodies on, whose nodes get the priority of another: one for all captures, since streams take device memory. To be used
    /// in the pool's turn.
    pub(crate) fn recording_stream(&self, of: &Stream) -> Result<Stream> {
        let priority = of.priority()?;
        let mut streams = self.recording_streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, stream)) = streams.iter().find(|(of, _)| *of == priority) {
            return Ok(stream.clone());
        }
        let stream = Stream::with_options(&self.context, StreamOptions::default().priority(priority))?;
        streams.push((priority, stream.clone()));
        Ok(stream)
    }

    /// The execs that captures of the pool may share.
    pub(crate) fn shared_execs(&self) -> &SharedExecs {
        &self.shared_execs
    }

    /// Keeps the pool's memory from being unmapped.
    pub(crate) fn retain_mapping(self: &Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self.mapped.fetch_add(1, Ordering::AcqRel);
        Arc::new(Mapped { pool: self.clone() })
    }

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
        let (block, address) = self.take(key, bytes)?;
        Ok(self.tensor_at(block, address, bytes, Some(recording), dtype, layout))
    }

    pub(super) fn tensor_at(
        self: &Arc<Self>,
        block: BlockRef,
        address: u64,
        bytes: usize,
        recording: Option<RecordingId>,
        dtype: DType,
        layout: Layout,
    ) -> Tensor {
        let hold = Hold::Block(Box::new(PoolBlock { pool: self.clone(), block }));
        let storage = Storage { address, bytes, context: Some(self.context.clone()), recording, hold };
        Tensor::of_storage(storage, dtype, layout)
    }

    /// An undefined row-major tensor from the ordinary stream-ordered pool.
    pub(crate) fn temporary(&self, stream: &Stream, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let layout = Layout::contiguous(shape)?;
        let buffer = self.temporaries.allocate(layout.elements() * dtype.size(), stream)?;
        Tensor::from_buffer(buffer, dtype, layout)
    }

    /// A block: where the recording's plan puts it, or by online best fit.
    fn take(&self, key: StreamKey, bytes: usize) -> Result<(BlockRef, u64)> {
        self.expect_open()?;
        let mut state = self.state();
        match state.planned.take(bytes) {
            Served::At(offset) => {
                state.peak = state.peak.max(state.bytes().0);
                let start = state.planned_slab.as_ref().map_or(0, |slab| slab.address);
                return Ok((BlockRef::Planned(offset), start + offset as u64));
            }
            Served::Differs(divergence) => state.diverges(divergence),
            Served::Elsewhere => {}
        }
        self.take_online(&mut state, key, bytes)
    }

    /// A block of no recording, on the capture stream.
    pub(super) fn take_outside(&self, bytes: usize) -> Result<(BlockRef, u64)> {
        self.expect_open()?;
        self.take_online(&mut self.state(), self.capture_key, bytes)
    }

    fn take_online(&self, state: &mut State, key: StreamKey, bytes: usize) -> Result<(BlockRef, u64)> {
        let too_large =
            |_: TooLarge| Error::Tensor(TensorError::Layout { reason: "the request is larger than memory" });
        let (slab_bytes, needed) = match state.blocks.growth_for(key, bytes).map_err(too_large)? {
            Growth::Unneeded => (0, false),
            Growth::Preferred(slab_bytes) => (slab_bytes, false),
            Growth::Needed(slab_bytes) => (slab_bytes, true),
        };
        if slab_bytes > 0 {
            match self.take_slab(state, slab_bytes) {
                Ok(mut slab) => {
                    let unfit = |_| {
                        Error::Tensor(TensorError::Layout { reason: "the driver's memory overlaps a slab of the pool" })
                    };
                    slab.id = Some(state.blocks.add_slab(key, slab.address, slab_bytes).map_err(unfit)?);
                    state.slabs.push(slab);
                }
                // A free block holds the request too, at the price of being cut.
                Err(Error::OutOfMemory(_)) if !needed => {}
                Err(Error::OutOfMemory(mut error)) => {
                    error.requested = bytes;
                    return Err(Error::OutOfMemory(error));
                }
                Err(other) => return Err(other),
            }
        }
        match state.blocks.allocate(key, bytes) {
            Some(block) => {
                state.peak = state.peak.max(state.bytes().0);
                Ok((BlockRef::Block(block.id), block.address))
            }
            None => Err(self.out_of_memory(state, bytes, None)),
        }
    }

    /// A slab of this size, within the limit. [`Error::OutOfMemory`] leaves no trace in the thread's record of failing calls.
    fn take_slab(&self, state: &mut State, bytes: usize) -> Result<Slab> {
        if self.limit.is_some_and(|limit| state.bytes().1.saturating_add(bytes) > limit) {
            return Err(self.out_of_memory(state, bytes, None));
        }
        let mut refused = None;
        let out_of_memory = |error: &Error| match error {
            Error::Call(call) if is_out_of_memory(*call) => {
                refused = Some(*call);
                true
            }
            _ => false,
        };
        match first_failure::unless(out_of_memory, || state.source.take(bytes))?.flatten() {
            Some(slab) => Ok(slab),
            None => Err(self.out_of_memory(state, bytes, refused)),
        }
    }

    fn out_of_memory(&self, state: &State, requested: usize, call: Option<CallError>) -> Error {
        let (in_use, reserved) = state.bytes();
        Error::OutOfMemory(Box::new(OutOfMemory {
            requested,
            in_use,
            reserved,
            limit: self.limit,
            bucket: None,
            segment: None,
            call,
        }))
    }

    pub(super) fn give_back(&self, block: BlockRef) {
        let mut state = self.state();
        // A block is given back once, by what holds it.
        let known = match block {
            BlockRef::Block(id) => state.blocks.release(id).is_ok(),
            BlockRef::Planned(offset) => state.planned.give_back(offset),
        };
        debug_assert!(known, "a pool block was returned twice");
        if let BlockRef::Block(id) = block
            && !state.persistent.is_empty()
        {
            state.persistent.retain(|persistent| persistent.id != id);
        }
    }

    /// Takes a range for planned blocks that is large enough for the plan. The caller has the turn.
    pub(super) fn take_range(&self, plan: &PoolPlan, turn: &ReplayGuard<'_>) -> Result<()> {
        let too_large = || Error::Tensor(TensorError::Layout { reason: "the plan is larger than memory" });
        let bytes = plan.bytes().checked_next_multiple_of(SLAB_BYTES).ok_or_else(too_large)?;
        {
            let state = self.state();
            if bytes <= state.planned.bytes() {
                return Ok(());
            }
            let users = self.users() + state.planned.in_use().1;
            if state.planned_slab.is_some() && users > 0 {
                return Err(Misuse::PoolInUse { users }.into());
            }
        }
        self.drop_range(turn.last_stream().unwrap_or(&self.capture_stream));
        let mut state = self.state();
        let slab = self.take_slab(&mut state, bytes)?;
        state.planned.set_range(bytes);
        state.planned_slab = Some(slab);
        Ok(())
    }

    /// Gives the planned range back, after what is on `last`, if no block of it is in use. Nothing else may refer to it.
    pub(super) fn drop_range(&self, last: &Stream) {
        let slab = {
            let mut state = self.state();
            if state.planned.in_use().1 > 0 {
                return;
            }
            state.planned.set_range(0);
            state.planned_slab.take()
        };
        self.give_back_slabs(slab.into_iter().collect(), last);
    }

    /// Waits until the slabs that were added are the device's to use. Not while a segment is open.
    pub(crate) fn settle(&self) -> Result<()> {
        let unsettled = self.state().source.unsettled();
        unsettled.map_or(Ok(()), |stream| stream.settle())
    }

    /// The number of slabs, to come back to with [`shrink_to`](PoolShared::shrink_to).
    pub(crate) fn slab_count(&self) -> usize {
        self.state().slabs.len()
    }

    /// Bytes in use, and in all.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        self.state().bytes()
    }

    /// The most bytes that were in use at once, the recordings that differed from their plan, and how the last one did.
    pub(super) fn history(&self) -> (usize, u64, Option<Divergence>) {
        let state = self.state();
        (state.peak, state.divergences, state.last_divergence.clone())
    }

    /// Begins a recording, which walks through the plan if it has one.
    pub(crate) fn begin_recording(&self, plan: Option<&TracePlan>) {
        let mut state = self.state();
        state.blocks.start_window();
        state.planned.begin(plan);
    }

    /// Ends it. `whole`: it was not broken off.
    pub(crate) fn end_recording(&self, whole: bool) {
        let mut state = self.state();
        if let Some(divergence) = state.planned.end(whole) {
            state.diverges(divergence);
        }
    }

    pub(super) fn take_last_stream(&mut self) -> Option<Stream> {
        self.turn.take_last_stream()
    }
}

/// Whether the call says that the device or a pool is full.
pub(super) fn is_out_of_memory(error: CallError) -> bool {
    matches!(error.call(), Call::cuMemAllocFromPoolAsync | Call::cuMemCreate)
        && error.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY
}

#[cold]
fn why_closed(closed: u8) -> Error {
    if closed == Closed::Released as u8 { Error::Misuse(Misuse::PoolReleased) } else { Error::Misuse(Misuse::PoolLent) }
}
