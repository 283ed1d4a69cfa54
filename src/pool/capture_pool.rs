//! [`CapturePool`].

use super::block::PoolBlock;
use super::blocks::{BlockId, BlockOptions, Blocks, Growth, SLAB_BYTES, SlabId, TooLarge};
use super::turn::{Turn, TurnGuard};
use crate::driver::window::{self, Kept};
use crate::driver::{Context, DeviceBuffer, Event, MemoryPool, MemoryPoolOptions, Stream, StreamOptions};
use crate::error::{Error, OutOfMemory, Result};
use crate::sys::{CUresult, Call, CallError, first_failure};
use crate::tensor::storage::{Hold, Storage};
use crate::tensor::{DType, Layout, Tensor};
use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) use super::blocks::StreamKey;

/// Device memory that captures share, with the stream on which they are recorded. Cheap to clone; all clones are the same pool.
///
/// Whatever a recording allocates comes from here and returns here when its tensor drops, so that a later segment, break or capture can use
/// the same bytes. That is sound because recordings and replays of one pool run one after the other: the pool sees to it, whatever the streams
/// and threads. The content of a tensor of the pool is therefore only valid until the next replay of any capture of the pool.
#[derive(Clone)]
pub struct CapturePool {
    inner: PoolHandle,
}

/// What the pool's users hold.
pub(crate) type PoolHandle = Arc<PoolInner>;

/// How to make a capture pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PoolOptions {
    /// The most bytes of slabs. `None`: the device's memory. A request beyond it is [`Error::OutOfMemory`].
    pub max_bytes: Option<usize>,
    /// The priority of the capture stream, which the nodes of its graphs can keep.
    pub priority: Option<i32>,
    /// How far the pool may grow rather than cut up a large free block, as a part of the most bytes ever live: one `slack_divisor`-th
    /// ([`BlockOptions::slack_divisor`](super::blocks::BlockOptions)). Zero, the default: never. With 5 a capture whose outputs are not kept takes
    /// less; one that is recorded beside kept outputs of others may have to grow.
    pub slack_divisor: usize,
}

impl PoolOptions {
    /// With a limit in bytes.
    #[must_use]
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// With this part of the peak to grow by choice.
    #[must_use]
    pub fn slack_divisor(mut self, divisor: usize) -> Self {
        self.slack_divisor = divisor;
        self
    }

    /// With a capture stream of this priority.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = Some(priority);
        self
    }
}

/// What a capture pool holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PoolUsage {
    /// Bytes of slabs taken from the device.
    pub reserved: usize,
    /// Of these, in blocks that tensors hold now.
    pub in_use: usize,
    /// The most bytes that were in use at once, ever.
    pub peak: usize,
    /// Slabs.
    pub slabs: usize,
    /// Blocks that tensors hold now.
    pub blocks: usize,
    /// Bytes that breaks' temporaries and eager tensors have from the ordinary pool beside it now.
    pub temporary: u64,
}

pub(crate) struct PoolInner {
    // Slabs go first when the pool is dropped, then the pools and streams that they came from.
    state: Mutex<State>,
    temporaries: MemoryPool,
    slab_pool: MemoryPool,
    slab_stream: Stream,
    capture_stream: Stream,
    capture_key: StreamKey,
    context: Context,
    limit: Option<usize>,
    turn: Turn,
    replays: AtomicU64,
    /// [`Mapped`] values there are.
    mapped: AtomicUsize,
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

struct State {
    blocks: Blocks,
    slabs: Vec<Slab>,
    /// What dropped captures kept and could not let go of at once.
    left_behind: Vec<Vec<Kept>>,
    /// Whether a slab was added that the device may not have mapped yet.
    unsettled: bool,
}

struct Slab {
    id: SlabId,
    /// Given back when this drops.
    _memory: DeviceBuffer,
}

impl fmt::Debug for CapturePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.inner.state();
        f.debug_struct("CapturePool")
            .field("slabs", &state.slabs.len())
            .field("stats", &state.blocks.usage())
            .finish_non_exhaustive()
    }
}

impl CapturePool {
    /// A pool on the context, with no limit of its own and a capture stream of default priority.
    ///
    /// # Errors
    /// As for [`with_options`](CapturePool::with_options).
    pub fn new(context: &Context) -> Result<CapturePool> {
        CapturePool::with_options(context, PoolOptions::default())
    }

    /// A pool on the context. It takes no memory before the first recording.
    ///
    /// # Errors
    /// [`Error::PoolsUnsupported`], [`Error::ForkedAfterInit`], and what the driver returns.
    pub fn with_options(context: &Context, options: PoolOptions) -> Result<CapturePool> {
        if !context.driver().is_of_this_process() {
            return Err(Error::ForkedAfterInit);
        }
        let mut slab_options = MemoryPoolOptions::default().keep_bytes(0);
        slab_options.max_bytes = options.max_bytes.map(|bytes| bytes.next_multiple_of(SLAB_BYTES));
        let stream_options = StreamOptions { priority: options.priority };
        let slab_pool = MemoryPool::new(context, slab_options)?;
        let temporaries = MemoryPool::new(context, MemoryPoolOptions::default())?;
        let slab_stream = Stream::new(context)?;
        let capture_stream = Stream::with_options(context, stream_options)?;
        let capture_key = StreamKey(capture_stream.id()?);
        let turn = Turn::new(Event::new(context)?);
        // Loaded now, so that no replay or capture is the first to need it.
        context.library()?;
        let block_options = BlockOptions { slack_divisor: options.slack_divisor, ..BlockOptions::default() };
        // Every divisor makes sense, and the other options are the defaults.
        let blocks = Blocks::with_options(block_options).unwrap_or_default();
        let inner = PoolInner {
            state: Mutex::new(State { blocks, slabs: Vec::new(), left_behind: Vec::new(), unsettled: false }),
            temporaries,
            slab_pool,
            slab_stream,
            capture_stream,
            capture_key,
            context: context.clone(),
            limit: options.max_bytes,
            turn,
            replays: AtomicU64::new(0),
            mapped: AtomicUsize::new(0),
        };
        Ok(CapturePool { inner: Arc::new(inner) })
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The stream on which captures of this pool are recorded, unless they are given one.
    pub fn capture_stream(&self) -> &Stream {
        &self.inner.capture_stream
    }

    /// What it holds now. Makes no driver call but for the temporaries, and can be asked while a segment is open.
    ///
    /// # Errors
    /// What the driver returns.
    pub fn usage(&self) -> Result<PoolUsage> {
        let temporary = self.inner.temporaries.usage()?.used;
        let state = self.inner.state();
        let stats = state.blocks.usage();
        Ok(PoolUsage {
            reserved: stats.reserved,
            in_use: stats.in_use,
            peak: stats.peak,
            slabs: state.slabs.len(),
            blocks: stats.blocks_in_use,
            temporary,
        })
    }

    /// Gives the slabs that have no block in use, and the memory that temporaries had, back to the device, after the last replay. Waits for it.
    ///
    /// # Errors
    /// [`Error::PoolInUse`] while captures of the pool, or views of their outputs, exist: they hold addresses and not blocks.
    /// [`Error::PoolBusy`] from inside a break, [`Error::SynchronizeWhileCapturing`] while a segment is open.
    pub fn trim(&self) -> Result<()> {
        if window::is_open() {
            return Err(Error::SynchronizeWhileCapturing { what: "capture pool" });
        }
        self.inner.let_go_of_the_left_behind();
        let turn = self.inner.take_turn()?;
        let users = self.inner.mapped.load(Ordering::Acquire);
        if users > 0 {
            return Err(Error::PoolInUse { users });
        }
        self.inner.shrink_to(0, turn.last_stream().unwrap_or(&self.inner.capture_stream));
        self.inner.temporaries.trim(0)
    }

    /// Whether two values are the same pool.
    pub fn same(&self, other: &CapturePool) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn handle(&self) -> &PoolHandle {
        &self.inner
    }
}

impl PoolInner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// The key of a stream's free blocks.
    pub(crate) fn key_of(&self, stream: &Stream) -> Result<StreamKey> {
        if *stream == self.capture_stream { Ok(self.capture_key) } else { Ok(StreamKey(stream.id()?)) }
    }

    /// Takes the turn for a recording or a replay.
    #[inline]
    pub(crate) fn take_turn(&self) -> Result<TurnGuard<'_>> {
        self.turn.take()
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

    /// An undefined row-major tensor in a block of the pool, for the recording of this number.
    pub(crate) fn tensor(
        self: &Arc<Self>,
        key: StreamKey,
        recording: u64,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Tensor> {
        let layout = Layout::contiguous(shape)?;
        let bytes = layout.elements() * dtype.size();
        let (id, address) = self.take(key, bytes)?;
        let block = PoolBlock { pool: self.clone(), id };
        let storage = Storage {
            address,
            bytes,
            context: Some(self.context.clone()),
            recording,
            hold: Hold::Block(Box::new(block)),
        };
        Ok(Tensor::of_storage(storage, dtype, layout))
    }

    /// An undefined row-major tensor from the ordinary stream-ordered pool.
    pub(crate) fn temporary(&self, stream: &Stream, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let layout = Layout::contiguous(shape)?;
        let buffer = self.temporaries.allocate(layout.elements() * dtype.size(), stream)?;
        Tensor::from_buffer(buffer, dtype, layout)
    }

    fn take(&self, key: StreamKey, bytes: usize) -> Result<(BlockId, u64)> {
        let mut state = self.state();
        let too_large = |_: TooLarge| Error::Layout { reason: "the request is larger than memory" };
        let (slab_bytes, needed) = match state.blocks.growth_for(key, bytes).map_err(too_large)? {
            Growth::Unneeded => (0, false),
            Growth::Preferred(slab_bytes) => (slab_bytes, false),
            Growth::Needed(slab_bytes) => (slab_bytes, true),
        };
        let stats = state.blocks.usage();
        let out_of_memory = |call| {
            Error::OutOfMemory(Box::new(OutOfMemory {
                requested: bytes,
                in_use: stats.in_use,
                reserved: stats.reserved,
                limit: self.limit,
                bucket: None,
                segment: None,
                call,
            }))
        };
        let beyond_limit = self.limit.is_some_and(|limit| stats.reserved.saturating_add(slab_bytes) > limit);
        if beyond_limit && needed {
            return Err(out_of_memory(None));
        }
        if slab_bytes > 0 && !beyond_limit {
            let before = first_failure::get();
            match self.slab_pool.allocate(slab_bytes, &self.slab_stream) {
                Ok(buffer) => {
                    let unfit = |_| Error::Layout { reason: "the driver's memory overlaps a slab of the pool" };
                    let id = state.blocks.add_slab(key, buffer.address(), slab_bytes).map_err(unfit)?;
                    state.slabs.push(Slab { id, _memory: buffer });
                    state.unsettled = true;
                }
                // A free block holds the request too, at the price of being cut.
                Err(Error::Call(call)) if is_out_of_memory(call) && !needed => first_failure::set(before),
                Err(Error::Call(call)) if is_out_of_memory(call) => return Err(out_of_memory(Some(call))),
                Err(other) => return Err(other),
            }
        }
        match state.blocks.allocate(key, bytes) {
            Some(block) => Ok((block.id, block.address)),
            None => Err(out_of_memory(None)),
        }
    }

    pub(super) fn give_back(&self, id: BlockId) {
        // An id is given back once, by the block that holds it.
        let stale = self.state().blocks.release(id).is_err();
        debug_assert!(!stale, "a pool block was returned twice");
    }

    /// Waits until the slabs that were added are the device's to use. Not while a segment is open.
    pub(crate) fn settle(&self) -> Result<()> {
        if std::mem::take(&mut self.state().unsettled) {
            self.slab_stream.settle()?;
        }
        Ok(())
    }

    /// The number of slabs, to come back to with [`shrink_to`](PoolInner::shrink_to).
    pub(crate) fn slab_count(&self) -> usize {
        self.state().slabs.len()
    }

    /// Bytes in use, and in all.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        let stats = self.state().blocks.usage();
        (stats.in_use, stats.reserved)
    }

    /// Starts the window of a recording, by which the pool decides how to grow.
    pub(crate) fn start_window(&self) {
        self.state().blocks.start_window();
    }

    /// Gives back the slabs that were added since the pool had this number of them, as far as no block of them is out. For a recording on
    /// `stream` that failed. Not while a segment is open.
    pub(crate) fn shrink_to(&self, slabs: usize, stream: &Stream) {
        let free: Vec<Slab> = {
            let mut state = self.state();
            let State { blocks, slabs: all, .. } = &mut *state;
            let added = all.split_off(slabs.min(all.len()));
            let (free, kept): (Vec<Slab>, Vec<Slab>) =
                added.into_iter().partition(|slab| blocks.remove_slab(slab.id).is_ok());
            all.extend(kept);
            free
        };
        if free.is_empty() {
            return;
        }
        self.return_after_work_on(stream, &[], true);
        drop(free);
        // With a release threshold of zero a synchronisation returns the memory to the device.
        if let Err(error) = self.slab_stream.settle() {
            self.context.report_in_drop("capture pool's memory", &error);
        }
    }

    /// Stream-ordered memory is returned in the order of its own stream: lets that come after what is on `last`.
    fn return_after_work_on(&self, last: &Stream, left_behind: &[Vec<Kept>], slabs: bool) {
        let ordered = Event::new(&self.context).and_then(|event| {
            event.record(last)?;
            if slabs {
                self.slab_stream.wait(&event)?;
            }
            return_after(left_behind, &event)
        });
        let Err(error) = ordered else { return };
        self.context.report_in_drop("capture pool's memory", &error);
        // The other way to be sure of the order.
        if let Err(error) = last.settle() {
            self.context.report_in_drop("capture pool's memory", &error);
        }
    }

    /// Takes what a dropped capture's segments kept, and lets go of it after the last replay.
    pub(crate) fn let_go(&self, kept: Vec<Kept>) {
        if !kept.is_empty() {
            self.state().left_behind.push(kept);
            self.let_go_of_the_left_behind();
        }
    }

    /// Buffers among them may come from a stream-ordered pool, to which they return in the order of their own stream: that is made to come
    /// after the last replay. While a segment is open or a replay runs on this thread they are left for later.
    pub(crate) fn let_go_of_the_left_behind(&self) {
        if window::is_open() {
            return;
        }
        let Ok(turn) = self.take_turn() else { return };
        let left_behind = std::mem::take(&mut self.state().left_behind);
        if left_behind.is_empty() {
            return;
        }
        if let Some(last) = turn.last_stream() {
            self.return_after_work_on(last, &left_behind, false);
        }
    }

    /// Keeps the pool's memory from being unmapped.
    pub(crate) fn as_kept(self: &Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self.mapped.fetch_add(1, Ordering::AcqRel);
        Arc::new(Mapped { pool: self.clone() })
    }
}

impl Drop for PoolInner {
    fn drop(&mut self) {
        if let Some(last) = self.turn.take_last_stream() {
            let left_behind = std::mem::take(&mut self.state().left_behind);
            self.return_after_work_on(&last, &left_behind, true);
        }
    }
}

fn is_out_of_memory(error: CallError) -> bool {
    error.call() == Call::cuMemAllocFromPoolAsync && error.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY
}

/// Lets the return of stream-ordered buffers come after the event.
fn return_after(left_behind: &[Vec<Kept>], event: &Event) -> Result<()> {
    let storages = left_behind.iter().flatten().filter_map(|kept| kept.downcast_ref::<Storage>());
    storages.into_iter().try_for_each(|storage| storage.return_after(event))
}
