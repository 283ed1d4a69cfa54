//! How a forward is captured.

use crate::driver::{CaptureMode, InstantiateFlags, Stream};
use crate::memory::TracePlan;

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

/// What becomes of an exec's nodes where a patched break launches with another configuration (kernel, grid, block, shared memory) than they have. The
/// driver takes 0.2 µs to set a node's arguments, and about 1.3 µs to set a configuration and to launch with it
/// ([`cuGraphExecKernelNodeSetParams`, `cuGraphLaunch`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html)).
///
/// Better than both is a grid that is the same in every replay: the largest that the bucket needs, with the real size as an argument.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
#[doc(alias = "cuGraphExecKernelNodeSetParams", alias = "cuGraphLaunch")]
pub enum Reconfigure {
    /// The nodes are set. Takes no more memory.
    #[default]
    InPlace,
    /// An exec for each configuration, up to [`GraphOptions::max_execs`]; when there are as many, the one least recently used is set. Where a few
    /// configurations recur this saves most of the cost, at the price of the execs' memory; the replay that first has one makes it. It is as
    /// [`InPlace`](Reconfigure::InPlace) with [`GraphOptions::share_execs`].
    AnotherExec,
}

/// How graphs are captured, instantiated and patched: what is the same for all captures of a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct GraphOptions {
    /// Which calls are forbidden while a segment is open.
    pub mode: CaptureMode,
    /// How graphs are instantiated.
    pub instantiate: InstantiateFlags,
    /// The most execs of one composite graph, which is what lies between two live breaks: for bodies of other nodes, as a library may have for other
    /// sizes, and with [`Reconfigure::AnotherExec`] for other configurations. Beyond it a composite graph is launched part by part. At least 1; 8 by
    /// default.
    pub max_execs: usize,
    /// What becomes of nodes where a patched break launches with another configuration than they have.
    pub reconfigure: Reconfigure,
    /// One in so many of a composite graph's patched breaks is launched ahead of the rest with the segments around it, so that the device begins while
    /// the other bodies are recorded: the latency of a replay from idle is shorter by most of its host time, and there is one launch more. A composite
    /// graph of fewer breaks is one launch; with 0 all are. 8 by default.
    pub early_launch_divisor: usize,
    /// Whether kernel nodes take the place of memset nodes of segments that make up to 1 MiB of the context's device memory zero
    /// ([`cuGraphAddKernelNode`, `cuGraphDestroyNode`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html)). The driver launches a
    /// graph of kernels in a few microseconds of host time; each memset costs it 1 to 2 more at every launch, and libraries enqueue them (cuBLAS zeroes
    /// the counters of some of its products). On by default. Memsets stay where the driver can't tell a graph's edges.
    pub memset_as_kernel: bool,
    /// Whether captures of the pool take turns in common execs. Those whose graphs have the same nodes, as buckets of one model do, then need the
    /// device memory of one; a replay after another capture's takes longer by a
    /// [`cuGraphExecUpdate`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html) of all nodes, counted in
    /// [`PatchStats::switched`](crate::PatchStats::switched), and each of its launches takes a lock, which waits only while another such capture is
    /// dropped. Off by default.
    pub share_execs: bool,
}

impl Default for GraphOptions {
    fn default() -> GraphOptions {
        GraphOptions {
            mode: CaptureMode::default(),
            instantiate: InstantiateFlags::default(),
            max_execs: 8,
            reconfigure: Reconfigure::default(),
            early_launch_divisor: 8,
            memset_as_kernel: true,
            share_execs: false,
        }
    }
}

impl GraphOptions {
    /// With this capture mode.
    #[must_use]
    pub fn mode(mut self, mode: CaptureMode) -> Self {
        self.mode = mode;
        self
    }

    /// With graphs instantiated like this.
    #[must_use]
    pub fn instantiate(mut self, flags: InstantiateFlags) -> Self {
        self.instantiate = flags;
        self
    }

    /// With at most this many execs of one composite graph.
    #[must_use]
    pub fn max_execs(mut self, execs: usize) -> Self {
        self.max_execs = execs;
        self
    }

    /// With other configurations handled like this.
    #[must_use]
    pub fn reconfigure(mut self, how: Reconfigure) -> Self {
        self.reconfigure = how;
        self
    }

    /// With one in so many patched breaks launched ahead of the rest; 0: none.
    #[must_use]
    pub fn early_launch_divisor(mut self, divisor: usize) -> Self {
        self.early_launch_divisor = divisor;
        self
    }

    /// With kernel nodes in the place of memsets or not.
    #[must_use]
    pub fn memset_as_kernel(mut self, replace: bool) -> Self {
        self.memset_as_kernel = replace;
        self
    }

    /// With execs shared by the captures of the pool or not.
    #[must_use]
    pub fn share_execs(mut self, share: bool) -> Self {
        self.share_execs = share;
        self
    }
}

/// How a forward runs without capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct EagerOptions {
    /// The valid rows, which breaks are told. `None`: they aren't.
    pub valid_rows: Option<usize>,
    /// The padded rows that it runs in. What breaks return has zeros from the valid rows on, as a handoff has in a replay; where there is padding, a
    /// result of another leading dimension is refused as in a recording
    /// ([`BreakOptions::leading_dimension_is_rows`](crate::BreakOptions::leading_dimension_is_rows)). `None`: it comes back as it is.
    pub bucket: Option<usize>,
    /// Whether nobody uses what it gives: see [`is_warming_up`](crate::is_warming_up).
    pub warm_up: bool,
}

impl EagerOptions {
    /// With this many valid rows.
    #[must_use]
    pub fn valid_rows(mut self, rows: usize) -> Self {
        self.valid_rows = Some(rows);
        self
    }

    /// Padded to this many rows.
    #[must_use]
    pub fn bucket(mut self, rows: usize) -> Self {
        self.bucket = Some(rows);
        self
    }

    /// As a warm-up, whose results nobody uses.
    #[must_use]
    pub fn warm_up(mut self) -> Self {
        self.warm_up = true;
        self
    }

    /// Its padding, if there is any: from which row on what breaks return is to be zero, and how many rows it has.
    pub(super) fn padded(self) -> Option<(usize, usize)> {
        self.valid_rows.zip(self.bucket).filter(|(valid, bucket)| valid < bucket)
    }
}

/// How a forward is captured.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CaptureOptions {
    /// A name for errors and reports.
    pub name: Option<String>,
    /// The bucket that it is for, in rows: for errors and reports, and so that handoffs whose leading dimension is another are found
    /// ([`BreakOptions::leading_dimension_is_rows`](crate::BreakOptions::leading_dimension_is_rows)).
    pub bucket: Option<usize>,
    /// Whether segments run while they are recorded.
    pub execution: CaptureExecution,
    /// The rows that are valid while it is recorded, which its breaks are told as in a replay
    /// ([`ReplayOptions::valid_rows`](crate::ReplayOptions::valid_rows)), and from which on their handoffs are zero. 0 where nothing is real yet, as in a
    /// recording of a dummy: then nothing undefined reaches what a break stores. `None`: the bucket's where the recording runs through, and otherwise
    /// breaks aren't told.
    pub valid_rows: Option<usize>,
    /// The stream to record on. `None`: the pool's capture stream, which lets captures of one pool share memory.
    pub stream: Option<Stream>,
    /// Where its blocks go, in memory that the pool took with [`CapturePool::take_plan`](crate::CapturePool::take_plan). A recording that differs from
    /// the trace is captured all the same, with more memory: see [`CapturePool::last_divergence`](crate::CapturePool::last_divergence).
    pub plan: Option<TracePlan>,
    /// How its graphs are captured, instantiated and patched.
    pub graph: GraphOptions,
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

    /// With segments run or not.
    #[must_use]
    pub fn execution(mut self, execution: CaptureExecution) -> Self {
        self.execution = execution;
        self
    }

    /// With this many valid rows while it is recorded.
    #[must_use]
    pub fn valid_rows(mut self, rows: usize) -> Self {
        self.valid_rows = Some(rows);
        self
    }

    /// On this stream.
    #[must_use]
    pub fn stream(mut self, stream: &Stream) -> Self {
        self.stream = Some(stream.clone());
        self
    }

    /// With blocks at planned places.
    #[must_use]
    pub fn plan(mut self, plan: &TracePlan) -> Self {
        self.plan = Some(plan.clone());
        self
    }

    /// With graphs made like this.
    #[must_use]
    pub fn graph(mut self, options: GraphOptions) -> Self {
        self.graph = options;
        self
    }

    /// What breaks are told of valid rows while it is recorded.
    pub(super) fn told_rows(&self) -> Option<usize> {
        match self.execution {
            CaptureExecution::RunThrough => self.valid_rows.or(self.bucket),
            CaptureExecution::Record => self.valid_rows,
        }
    }
}
