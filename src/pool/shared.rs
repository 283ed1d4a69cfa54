//! What the users of a pool share.

use super::availability::Availability;
use super::backed_arena::BackedArena;
use super::extension::ExtensionSlot;
use super::options::{Backing, PoolOptions, RestoredContent};
use super::reclaim::Reclaimer;
use super::replay_lock::{ReplayGuard, ReplayLock};
use super::results::Results;
use super::slabs::SlabSource;
use super::users::Users;
use crate::driver::{Context, Event, MemoryPool, RecordingId, Stream, StreamOptions};
use crate::error::{Misuse, Result};
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
    pub(crate) results: Results,
    pub(super) users: Users,
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
            results: Results::default(),
            users: Users::new(options.backing == Backing::ReservedAddresses),
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

    /// The key of a stream's free blocks.
    pub(crate) fn key_of(&self, stream: &Stream) -> Result<StreamKey> {
        let (capture_stream, key) = &self.capture_stream;
        if stream == capture_stream { Ok(*key) } else { Ok(StreamKey(stream.id()?)) }
    }

    /// What the capture layer keeps with the pool.
    pub(crate) fn extension(&self) -> &ExtensionSlot {
        &self.extension
    }

    /// A call is about to enqueue work that uses the memory, which stays until the call leaves.
    ///
    /// # Errors
    /// [`Misuse::PoolReleased`].
    #[inline]
    pub(super) fn enter(&self) -> Result<()> {
        self.users.enter();
        self.availability.expect_mapped().inspect_err(|_| self.users.leave())
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

    /// Fails where a replay of this number is not the latest.
    ///
    /// # Errors
    /// [`Misuse::OutputsOverwritten`].
    pub(crate) fn expect_latest(&self, number: u64) -> Result<()> {
        if self.replay_lock.latest_replay() == number { Ok(()) } else { Err(Misuse::OutputsOverwritten.into()) }
    }

    /// Begins a recording, which walks through the plan if it has one.
    pub(crate) fn begin_recording(&self, recording: RecordingId, plan: Option<&TracePlan>) {
        self.memory().begin(recording, plan);
    }

    /// Blocks of the recording under way whose tensors are there.
    pub(crate) fn recordings_blocks(&self) -> usize {
        self.memory().recordings_blocks()
    }

    /// Ends it. `whole`: it was not broken off.
    pub(crate) fn end_recording(&self, whole: bool) {
        self.memory().arena.end(whole);
    }

    /// Waits until the slabs that were added are the device's to use. Not while a segment is open.
    pub(crate) fn settle(&self) -> Result<()> {
        let unsettled = self.memory().unsettled();
        unsettled.map_or(Ok(()), |stream| stream.settle_work())
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
