//! [`CapturePool`].

use super::options::{PoolOptions, PoolUsage};
use super::shared::{PoolHandle, PoolShared};
use crate::driver::{Context, Stream, capture_state};
use crate::error::{Misuse, Result};
use crate::memory::arena::ArenaUsage;
use crate::memory::{Divergence, PoolPlan};
use std::fmt;
use std::sync::Arc;

/// Device memory that captures share, with the stream on which they are recorded. Cheap to clone; all clones are the same pool.
///
/// Whatever a recording allocates comes from here and returns here when its tensor drops, so that a later segment, break or capture can use
/// the same bytes. That is sound because recordings and replays of one pool run one after the other: the pool sees to it, whatever the streams
/// and threads. The content of a tensor of the pool is therefore only valid until the next replay of any capture of the pool.
///
/// Blocks are placed by online best fit, or where a [`PoolPlan`] made from traces puts them, which takes less: see [`take_plan`](CapturePool::take_plan).
///
/// ```
/// # use breakable_cuda_graph::driver::{Device, Stream};
/// # use breakable_cuda_graph::Driver;
/// # let context = Device::get(&Driver::reference()?, 0)?.primary_context()?;
/// # let stream = Stream::new(&context)?;
/// # use breakable_cuda_graph::{BreakableCapture, CapturePool, DType};
/// let pool = CapturePool::new(&context)?;
/// let mut captures = Vec::new();
/// for rows in [4096, 1024] {
///     let mut capture = BreakableCapture::new(&pool)?;
///     capture.record(&stream, |scope| scope.empty(DType::F32, &[rows, 256])?.fill_bytes(&scope.stream()?, 0))?;
///     captures.push(capture);
/// }
/// assert_eq!(pool.usage()?.reserved, 4 << 20); // The smaller bucket uses the larger one's bytes.
/// # Ok::<(), breakable_cuda_graph::Error>(())
/// ```
#[derive(Clone)]
pub struct CapturePool {
    inner: PoolHandle,
}

/// Whether two values are the same pool.
impl PartialEq for CapturePool {
    fn eq(&self, other: &CapturePool) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for CapturePool {}

impl fmt::Debug for CapturePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CapturePool").field("usage", &self.inner.arena_usage()).finish_non_exhaustive()
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
    /// [`crate::Error::PoolsUnsupported`], [`Misuse::ForkedAfterInit`], and what the driver returns.
    pub fn with_options(context: &Context, options: PoolOptions) -> Result<CapturePool> {
        if !context.driver().is_of_this_process() {
            return Err(Misuse::ForkedAfterInit.into());
        }
        Ok(CapturePool { inner: Arc::new(PoolShared::new(context, &options)?) })
    }

    /// The context.
    pub fn context(&self) -> &Context {
        self.inner.context()
    }

    /// The stream on which captures of this pool are recorded, unless they are given one.
    pub fn capture_stream(&self) -> &Stream {
        self.inner.capture_stream()
    }

    /// What it holds now. Makes no driver call but for the temporaries, and can be asked while a segment is open.
    ///
    /// # Errors
    /// What the driver returns.
    pub fn usage(&self) -> Result<PoolUsage> {
        let temporary = self.inner.temporaries().usage()?.used;
        let memory = self.inner.memory();
        let ArenaUsage { reserved, planned, in_use, peak, blocks, divergences } = memory.arena.usage();
        let slabs = memory.pieces().count();
        Ok(PoolUsage { reserved, planned, in_use, peak, slabs, blocks, divergences, temporary })
    }

    /// How the last recording that differed from its plan did.
    pub fn last_divergence(&self) -> Option<Divergence> {
        self.inner.memory().arena.last_divergence().cloned()
    }

    /// Takes the memory that the plan asks for, before anything is recorded: recordings with one of its traces
    /// ([`CaptureOptions::plan`](crate::CaptureOptions)) then take no more. What the pool has already is kept where it suffices.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`]; [`Misuse::PoolInUse`] where a smaller planned range is in use; [`Misuse::SynchronizeWhileCapturing`], [`Misuse::PoolBusy`],
    /// [`Misuse::PoolReleased`], [`Misuse::PoolLent`].
    pub fn take_plan(&self, plan: &PoolPlan) -> Result<()> {
        if capture_state::is_open() {
            return Err(Misuse::SynchronizeWhileCapturing { what: "capture pool" }.into());
        }
        let guard = self.inner.lock()?;
        self.inner.take_range(plan, &guard)?;
        self.inner.settle()
    }

    /// Gives the slabs that have no block in use, and the memory that temporaries had, back to the device, after the last replay. Waits for it.
    ///
    /// # Errors
    /// [`Misuse::PoolInUse`] while captures of the pool, or views of their outputs, exist: they hold addresses and not blocks.
    /// [`Misuse::PoolBusy`] from inside a break, [`Misuse::SynchronizeWhileCapturing`] while a segment is open, [`Misuse::PoolReleased`],
    /// [`Misuse::PoolLent`].
    pub fn trim(&self) -> Result<()> {
        if capture_state::is_open() {
            return Err(Misuse::SynchronizeWhileCapturing { what: "capture pool" }.into());
        }
        self.inner.drain_deferred();
        let guard = self.inner.lock()?;
        let users = self.inner.availability.users();
        if users > 0 {
            return Err(Misuse::PoolInUse { users }.into());
        }
        let last = guard.last_stream().unwrap_or(self.inner.capture_stream());
        self.inner.shrink_to(0, last);
        self.inner.drop_range(last);
        self.inner.temporaries().trim(0)
    }

    pub(crate) fn handle(&self) -> &PoolHandle {
        &self.inner
    }
}
