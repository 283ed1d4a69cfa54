//! [`BreakableCapture`].

use super::program::{Program, Step};
use super::state::State;
use crate::capture::composite::PatchStats;
use crate::driver::{CaptureMode, Context, GraphExec, InstantiateFlags, KeepAlive, NodeCounts, Stream};
use crate::error::{Misuse, Result};
use crate::memory::TracePlan;
use crate::pool::CapturePool;
use std::fmt;

/// Whether segments run while they are recorded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum CaptureExecution {
    /// No: the inputs of breaks are undefined at capture time, and so is the first result.
    #[default]
    Record,
    /// Each segment is launched as soon as it is instantiated: breaks see real data, and the first result is valid.
    RunThrough,
}

/// How a forward is captured.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CaptureOptions {
    /// A name for errors and reports.
    pub name: Option<String>,
    /// The bucket that it is for, in rows, for errors and reports.
    pub bucket: Option<usize>,
    /// Which calls are forbidden while a segment is open.
    pub mode: CaptureMode,
    /// Whether segments run while they are recorded.
    pub execution: CaptureExecution,
    /// The stream to record on. `None`: the pool's capture stream, which lets captures of one pool share memory.
    pub stream: Option<Stream>,
    /// How segments are instantiated.
    pub instantiate: InstantiateFlags,
    /// Where its blocks go, in memory that the pool took with [`CapturePool::take_plan`]. A recording that differs from the trace is captured all the
    /// same, with more memory: see [`CapturePool::last_divergence`].
    pub plan: Option<TracePlan>,
    /// The most execs of one composite of patched breaks, each for bodies of another shape: other nodes, as a library may have for other sizes. Beyond it
    /// a composite is launched part by part.
    pub max_recorded_shapes: usize,
    /// The most of those execs for bodies of the same nodes, each for other launch configurations: kernels, grids, blocks, shared memory. The driver
    /// takes 0.2 µs to set a node's arguments, and about 1.3 µs to set a configuration and to launch with it
    /// ([`cuGraphExecKernelNodeSetParams`, `cuGraphLaunch`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html)); where a few
    /// configurations recur, an exec for each saves that at the price of its memory, and the replay that first has one makes it. A composite has at most
    /// [`max_recorded_shapes`](CaptureOptions::max_recorded_shapes) times so many execs; when there are as many as allowed, the one least recently used
    /// is set. It does nothing with [`share_execs`](CaptureOptions::share_execs). 1 by default.
    ///
    /// Better still is a grid that is the same in every replay: the largest that the bucket needs, with the real size as an argument.
    pub max_recorded_configs: usize,
    /// One in so many of a composite's patched breaks is launched ahead of the rest with the segments around it, so that the device begins while the other
    /// bodies are recorded: the latency of a replay from idle is shorter by most of its host time, and there is one launch more. A composite of fewer
    /// breaks is one launch; with 0 all are. 8 by default.
    pub early_launch_divisor: usize,
    /// Whether kernel nodes take the place of memset nodes of segments that make up to 1 MiB of the context's device memory zero
    /// ([`cuGraphAddKernelNode`, `cuGraphDestroyNode`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html)). The driver launches a
    /// graph of kernels in a few microseconds of host time; each memset costs it 1 to 2 more at every launch, and libraries enqueue them (cuBLAS zeroes
    /// the counters of some of its products). On by default. Memsets stay where the driver can't tell a graph's edges.
    pub memset_as_kernel: bool,
    /// Whether captures of the pool take turns in common execs. Those whose graphs have the same nodes, as buckets of one model do, then need the
    /// device memory of one; a replay after another capture's takes longer by a
    /// [`cuGraphExecUpdate`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html) of all nodes, counted in
    /// [`PatchStats::switched`], and each of its launches takes a lock, which waits only while another such capture is dropped. Off by default.
    pub share_execs: bool,
}

impl Default for CaptureOptions {
    fn default() -> CaptureOptions {
        CaptureOptions {
            name: None,
            bucket: None,
            mode: CaptureMode::default(),
            execution: CaptureExecution::default(),
            stream: None,
            instantiate: InstantiateFlags::default(),
            plan: None,
            max_recorded_shapes: 8,
            max_recorded_configs: 1,
            early_launch_divisor: 8,
            memset_as_kernel: true,
            share_execs: false,
        }
    }
}

impl CaptureOptions {
    /// With a name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// For a bucket of this many rows.
    #[must_use]
    pub fn bucket(mut self, rows: usize) -> Self {
        self.bucket = Some(rows);
        self
    }

    /// In this mode.
    #[must_use]
    pub fn mode(mut self, mode: CaptureMode) -> Self {
        self.mode = mode;
        self
    }

    /// With segments run or not.
    #[must_use]
    pub fn execution(mut self, execution: CaptureExecution) -> Self {
        self.execution = execution;
        self
    }

    /// On this stream.
    #[must_use]
    pub fn stream(mut self, stream: &Stream) -> Self {
        self.stream = Some(stream.clone());
        self
    }

    /// With execs shared by the captures of the pool or not.
    #[must_use]
    pub fn share_execs(mut self, share: bool) -> Self {
        self.share_execs = share;
        self
    }

    /// With blocks at planned places.
    #[must_use]
    pub fn plan(mut self, plan: &TracePlan) -> Self {
        self.plan = Some(plan.clone());
        self
    }
}

/// A forward pass as an ordered list of segments and breaks. Recorded once, replayed as often as wanted.
///
/// `'env` is what its breaks borrow. It is `Send`: it can be replayed from any thread, whatever is current there.
pub struct BreakableCapture<'env> {
    // The program goes first when the capture is dropped: its execs refer to the pool.
    pub(crate) program: Program<'env>,
    /// What it was asked to keep; dropped after the program.
    keep: Vec<KeepAlive>,
    /// Keeps the pool's memory mapped, once there are execs that refer to it.
    pub(crate) mapped: Option<KeepAlive>,
    pub(crate) state: State,
    pub(crate) options: CaptureOptions,
    pub(crate) stream: Stream,
    pub(crate) pool: CapturePool,
}

/// What a capture is made of, as plain data.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CaptureReport {
    /// Its name.
    pub name: Option<String>,
    /// Its bucket in rows.
    pub bucket: Option<usize>,
    /// Segments and breaks: `2n + 1` for n breaks.
    pub segments: usize,
    /// The breaks' names, in order.
    pub breaks: Vec<String>,
    /// Execs that a replay launches.
    pub launches: usize,
    /// The segments' nodes, as they are launched: see [`CaptureOptions::memset_as_kernel`].
    pub nodes: NodeCounts,
}

impl fmt::Debug for BreakableCapture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BreakableCapture")
            .field("state", &self.state)
            .field("report", &self.report())
            .finish_non_exhaustive()
    }
}

impl<'env> BreakableCapture<'env> {
    /// A capture with a pool of its own, which [`pool`](BreakableCapture::pool) gives for the next one.
    ///
    /// # Errors
    /// As for [`CapturePool::new`].
    pub fn with_own_pool(context: &Context) -> Result<Self> {
        BreakableCapture::with_options(&CapturePool::new(context)?, CaptureOptions::default())
    }

    /// A capture on this pool.
    ///
    /// # Errors
    /// As for [`with_options`](BreakableCapture::with_options).
    pub fn new(pool: &CapturePool) -> Result<Self> {
        BreakableCapture::with_options(pool, CaptureOptions::default())
    }

    /// A capture on this pool. Nothing is recorded yet.
    ///
    /// # Errors
    /// [`LegacyStream`](crate::Misuse::LegacyStream), [`BlockingStream`](crate::Misuse::BlockingStream) and
    /// [`ContextMismatch`](crate::Misuse::ContextMismatch) for a stream that can't be captured with this pool.
    pub fn with_options(pool: &CapturePool, options: CaptureOptions) -> Result<Self> {
        let stream = options.stream.clone().unwrap_or_else(|| pool.capture_stream().clone());
        pool.context().expect_same(stream.context(), "capture stream")?;
        stream.refuse_for_capture()?;
        Ok(BreakableCapture {
            keep: Vec::new(),
            mapped: None,
            program: Program::default(),
            state: State::New,
            options,
            stream,
            pool: pool.clone(),
        })
    }

    /// Its pool.
    pub fn pool(&self) -> &CapturePool {
        &self.pool
    }

    /// The stream that it is recorded on.
    pub fn capture_stream(&self) -> &Stream {
        &self.stream
    }

    /// Fails unless the capture is one of this pool, for code that keeps several captures on one.
    ///
    /// # Errors
    /// [`Misuse::ForeignPool`].
    pub fn expect_pool(&self, pool: &CapturePool) -> Result<()> {
        if self.pool == *pool { Ok(()) } else { Err(Misuse::ForeignPool.into()) }
    }

    /// Segments and breaks together: `2n + 1` for n breaks, 0 before it was recorded.
    pub fn num_segments(&self) -> usize {
        self.program.segments + self.program.breaks
    }

    /// Breaks.
    pub fn num_breaks(&self) -> usize {
        self.program.breaks
    }

    /// Execs that a replay launches: segments without nodes are recorded and not launched, and those with patched breaks between them are one.
    pub fn num_launches(&self) -> usize {
        self.program.launches()
    }

    /// Keeps something alive until the capture's execs are gone: a communicator whose operations it holds, say.
    pub fn keep_alive(&mut self, owner: KeepAlive) {
        self.keep.push(owner);
    }

    /// The execs that a replay launches, in order and without those that are shared, for measuring and for tools.
    pub fn execs(&self) -> impl Iterator<Item = &GraphExec> {
        self.program.steps.iter().filter_map(|step| match step {
            Step::Segment { exec, .. } => Some(exec),
            Step::Break(_) => None,
            Step::Composite(composite) => composite.exec(),
        })
    }

    /// What its patched breaks cost and saved so far.
    pub fn patch_stats(&self) -> PatchStats {
        let mut stats = PatchStats::default();
        for step in &self.program.steps {
            if let Step::Composite(composite) = step {
                stats += composite.stats();
            }
        }
        stats
    }

    /// Whether it can be replayed.
    pub fn is_recorded(&self) -> bool {
        self.state == State::Recorded
    }

    /// Whether its recording failed.
    pub fn is_poisoned(&self) -> bool {
        self.state == State::Poisoned
    }

    /// A hash of its segments' sizes and its breaks' names and shapes, without addresses: equal for equal forwards on several devices or ranks.
    pub fn fingerprint(&self) -> u64 {
        self.program.fingerprint()
    }

    /// What it is made of.
    pub fn report(&self) -> CaptureReport {
        let breaks = self.program.breaks().map(|step| step.options.name.to_string());
        CaptureReport {
            name: self.options.name.clone(),
            bucket: self.options.bucket,
            segments: self.num_segments(),
            breaks: breaks.collect(),
            launches: self.num_launches(),
            nodes: self.program.nodes,
        }
    }
}
