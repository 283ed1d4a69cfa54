//! What the users of a pool share.

use super::availability::Availability;
use super::backed_arena::BackedArena;
use super::extension::ExtensionSlot;
use super::options::{PoolOptions, RestoredContent};
use super::reclaim::Reclaimer;
use super::replay_lock::{ReplayGuard, ReplayLock};
use super::slabs::SlabSource;
use crate::driver::{Context, Event, KeepAlive, MemoryPool, Stream, StreamOptions};
use crate::error::Result;
use crate::memory::TracePlan;
use crate::memory::arena::ArenaUsage;
use crate::memory::ids::StreamKey;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the pool's users hold.
pub(crate) type PoolHandle = Arc<PoolShared>;

/// A capture pool. Each field is owned by one file, which says what it is for.
///
/// What captures have left goes first, then slabs, then the streams and pools that they came from (D2, D4): the order of the fields.
pub(crate) struct PoolShared {
    pub(super) reclaimer: Reclaimer,
    memory: Mutex<BackedArena>,
    extension: ExtensionSlot,
    temporaries: MemoryPool,
    capture_stream: (Stream, StreamKey),
    pub(super) replay_lock: ReplayLock,
    pub(super) availability: Availability,
    pub(super) restored: RestoredContent,
    context: Context,
}

impl PoolShared {
    pub(super) fn new(context: &Context, options: &PoolOptions) -> Result<PoolShared> {
        let source = SlabSource::new(context, options)?;
        let temporaries = MemoryPool::new(context)?;
        let stream = Stream::with_options(context, StreamOptions { priority: options.priority })?;
        let key = StreamKey(stream.id()?);
        let replay_lock = ReplayLock::new(Event::new(context)?);
        // Loaded now, so that no replay or capture is the first to need it.
        context.builtin_kernels()?;
        Ok(PoolShared {
            reclaimer: Reclaimer::default(),
            memory: Mutex::new(BackedArena::new(source, options.max_bytes)),
            extension: ExtensionSlot::default(),
            temporaries,
            capture_stream: (stream, key),
            replay_lock,
            availability: Availability::default(),
            restored: options.restored,
            context: context.clone(),
        })
    }

    pub(super) fn memory(&self) -> MutexGuard<'_, BackedArena> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Where temporaries come from: an ordinary stream-ordered pool (M3).
    pub(super) fn temporaries(&self) -> &MemoryPool {
        &self.temporaries
    }

    pub(super) fn capture_stream(&self) -> &Stream {
        &self.capture_stream.0
    }

    /// The key of the capture stream's free blocks.
    pub(super) fn capture_key(&self) -> StreamKey {
        self.capture_stream.1
    }

    /// The key of a stream's free blocks.
    pub(crate) fn key_of(&self, stream: &Stream) -> Result<StreamKey> {
        let (capture_stream, key) = &self.capture_stream;
        if stream == capture_stream { Ok(*key) } else { Ok(StreamKey(stream.id()?)) }
    }

    /// What the capture layer keeps with the pool.
    pub(crate) fn extension(&self) -> &ExtensionSlot {
        &self.extension
    }

    /// Takes the replay lock, whether or not the memory can be used.
    pub(super) fn lock_anyway(&self) -> Result<ReplayGuard<'_>> {
        self.replay_lock.lock()
    }

    /// Takes the replay lock for a recording or a replay.
    #[inline]
    pub(crate) fn lock(&self) -> Result<ReplayGuard<'_>> {
        let guard = self.replay_lock.lock()?;
        self.availability.expect_open()?;
        Ok(guard)
    }

    /// Counts a replay, and gives its number.
    #[inline]
    pub(crate) fn next_replay(&self) -> u64 {
        self.replay_lock.next_replay()
    }

    /// The number of the latest replay.
    pub(crate) fn latest_replay(&self) -> u64 {
        self.replay_lock.latest_replay()
    }

    /// Keeps the pool's memory from being unmapped.
    pub(crate) fn retain_mapping(self: &Arc<Self>) -> KeepAlive {
        self.availability.hold(self.clone())
    }

    /// Begins a recording, which walks through the plan if it has one.
    pub(crate) fn begin_recording(&self, plan: Option<&TracePlan>) {
        self.memory().arena.begin(plan);
    }

    /// Ends it. `whole`: it was not broken off.
    pub(crate) fn end_recording(&self, whole: bool) {
        self.memory().arena.end(whole);
    }

    /// Waits until the slabs that were added are the device's to use. Not while a segment is open.
    pub(crate) fn settle(&self) -> Result<()> {
        let unsettled = self.memory().unsettled();
        unsettled.map_or(Ok(()), |stream| stream.settle())
    }

    /// The number of slabs, to come back to with [`shrink_to`](PoolShared::shrink_to).
    pub(crate) fn slab_count(&self) -> usize {
        self.memory().slab_count()
    }

    /// What it holds.
    pub(crate) fn arena_usage(&self) -> ArenaUsage {
        self.memory().arena.usage()
    }
}
