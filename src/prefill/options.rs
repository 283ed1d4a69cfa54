//! How a runner is made.

use super::ladder::Ladder;
use super::ranks::{OneRank, Ranks};
use crate::capture::GraphOptions;
use crate::pool::{CapturePool, PoolOptions};
use std::fmt;
use std::time::Duration;

/// Runners are off where this environment variable is set to anything but nothing or `0`.
pub const OFF_VARIABLE: &str = "BREAKABLE_CUDA_GRAPH_OFF";

/// When buckets are captured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CaptureWhen {
    /// When [`capture_all`](super::PrefillRunner::capture_all) is called, at start-up.
    #[default]
    StartUp,
    /// Each at its first use: the batch that needs it first waits for the warm-ups, on the dummy, and the capture is its run. Its breaks run once, with its
    /// own context and rows; where the capture fails, the batch runs anew, eagerly.
    FirstUse,
    /// One with each call of [`capture_next`](super::PrefillRunner::capture_next), between batches.
    OnCall,
}

/// What becomes of the other buckets when a capture fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnFailure {
    /// All captures are dropped, and every batch runs eagerly.
    #[default]
    RunEagerly,
    /// The others are kept; batches of the bucket that failed run eagerly.
    KeepOthers,
}

/// What becomes of a batch whose replay fails: a break returned an error, a launch failed, the pool's memory is released.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnReplayFailure {
    /// The error is returned.
    #[default]
    Tell,
    /// It runs once more, eagerly and padded to its bucket, and the reason is counted; [`last_failure`](super::PrefillRunner::last_failure) says what failed.
    /// Breaks that had run before the failure run again. The eager run's error is returned where that fails too. With several ranks this rank alone
    /// does so: not for a forward that exchanges data between them.
    RunEagerly,
}

/// Whether captures are planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Planning {
    /// The first warm-up of each bucket that is captured at start-up or on call is traced, and its blocks lie where a plan puts them: the pool takes what
    /// the largest bucket needs at its peak. Buckets that are captured at first use are planned when
    /// [`plan`](super::PrefillRunner::plan) was called before.
    #[default]
    Traced,
    /// Blocks are placed as they are asked for.
    Online,
}

/// How a runner is made.
#[non_exhaustive]
pub struct RunnerOptions {
    /// The buckets. Empty: the runner is off.
    pub ladder: Ladder,
    /// When they are captured.
    pub when: CaptureWhen,
    /// Eager runs of a bucket before its capture: what libraries create at first use can't be created in a segment. They run on the model's dummy, with no
    /// row valid. What they change of the static inputs is put back for a batch that waits; what a forward changes in place of the model's own memory, a
    /// state say, they change too: keep that to breaks, which are told that no row is valid, or ask for no warm-ups. Zero means none: then the dummy is not
    /// asked for at first use.
    pub warm_ups: usize,
    /// The most captures at once; the one least recently used makes room.
    pub max_captures: Option<usize>,
    /// The most device memory of the captures, in bytes: the pool's and the execs'. The pool can't grow beyond it, and the captures least recently
    /// used make room for others' execs. What execs take is measured around the making of each, so that memory which others take meanwhile doesn't count.
    /// A capture that does not fit alone is dropped again, its batch has its results, and it is tried again when the bucket was wanted some more times:
    /// 16 at first, then twice as often each time. See also [`set_max_bytes`](super::PrefillRunner::set_max_bytes).
    pub max_bytes: Option<usize>,
    /// The most padded rows over valid rows of a batch that is replayed. Off by default.
    pub padding_limit: Option<f64>,
    /// What becomes of the other buckets when a capture fails.
    pub on_failure: OnFailure,
    /// What becomes of a batch whose replay fails.
    pub on_replay_failure: OnReplayFailure,
    /// The pool, to share it with other captures. `None`: one of its own.
    pub pool: Option<CapturePool>,
    /// How its own pool is made. The limit is [`max_bytes`](RunnerOptions::max_bytes).
    pub pool_options: PoolOptions,
    /// Whether captures are planned.
    pub planning: Planning,
    /// How the graphs of each bucket are made.
    pub graph: GraphOptions,
    /// A name for errors and reports of captures.
    pub name: Option<String>,
    /// The ranks that must do the same. All make their runner, capture and run batches together.
    pub ranks: Box<dyn Ranks>,
}

impl RunnerOptions {
    /// For these buckets, on one rank.
    pub fn new(ladder: Ladder) -> RunnerOptions {
        RunnerOptions {
            ladder,
            when: CaptureWhen::default(),
            warm_ups: 3,
            max_captures: None,
            max_bytes: None,
            padding_limit: None,
            on_failure: OnFailure::default(),
            on_replay_failure: OnReplayFailure::default(),
            pool: None,
            pool_options: PoolOptions::default(),
            planning: Planning::default(),
            graph: GraphOptions::default(),
            name: None,
            ranks: Box::new(OneRank),
        }
    }

    /// With buckets captured then.
    #[must_use]
    pub fn when(mut self, when: CaptureWhen) -> Self {
        self.when = when;
        self
    }

    /// With this many eager runs before each capture.
    #[must_use]
    pub fn warm_ups(mut self, runs: usize) -> Self {
        self.warm_ups = runs;
        self
    }

    /// With at most this many captures.
    #[must_use]
    pub fn max_captures(mut self, captures: usize) -> Self {
        self.max_captures = Some(captures);
        self
    }

    /// With at most this much device memory.
    #[must_use]
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// With at most this much padding, as a part of the valid rows.
    #[must_use]
    pub fn padding_limit(mut self, ratio: f64) -> Self {
        self.padding_limit = Some(ratio);
        self
    }

    /// With this policy for captures that fail.
    #[must_use]
    pub fn on_failure(mut self, policy: OnFailure) -> Self {
        self.on_failure = policy;
        self
    }

    /// With this policy for replays that fail.
    #[must_use]
    pub fn on_replay_failure(mut self, policy: OnReplayFailure) -> Self {
        self.on_replay_failure = policy;
        self
    }

    /// On this pool.
    #[must_use]
    pub fn pool(mut self, pool: &CapturePool) -> Self {
        self.pool = Some(pool.clone());
        self
    }

    /// With a pool of its own that is made like this.
    #[must_use]
    pub fn pool_options(mut self, options: PoolOptions) -> Self {
        self.pool_options = options;
        self
    }

    /// With captures planned or not.
    #[must_use]
    pub fn planning(mut self, planning: Planning) -> Self {
        self.planning = planning;
        self
    }

    /// With graphs made like this.
    #[must_use]
    pub fn graph(mut self, options: GraphOptions) -> Self {
        self.graph = options;
        self
    }

    /// With execs shared by the buckets or not: see [`GraphOptions::share_execs`].
    #[must_use]
    pub fn share_execs(mut self, share: bool) -> Self {
        self.graph.share_execs = share;
        self
    }

    /// With this name in errors and reports of captures.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// As one of these ranks.
    #[must_use]
    pub fn ranks(mut self, ranks: impl Ranks + 'static) -> Self {
        self.ranks = Box::new(ranks);
        self
    }
}

impl fmt::Debug for RunnerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunnerOptions")
            .field("ladder", &self.ladder)
            .field("when", &self.when)
            .field("warm_ups", &self.warm_ups)
            .field("max_captures", &self.max_captures)
            .field("max_bytes", &self.max_bytes)
            .field("padding_limit", &self.padding_limit)
            .field("on_failure", &self.on_failure)
            .field("ranks", &self.ranks.size())
            .finish_non_exhaustive()
    }
}

/// A capture that was made.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct CaptureProgress {
    /// The bucket in rows.
    pub bucket: usize,
    /// Captures made by this call so far, this one counted in.
    pub done: usize,
    /// Captures that this call is to make, as far as the bounds allow.
    pub of: usize,
    /// Device memory that the recording and its first replay took, in bytes: growth of the pool, and execs.
    pub bytes: usize,
    /// Of these, growth of the pool.
    pub pool_bytes: usize,
    /// Warm-ups, capture and smoke replay.
    pub took: Duration,
}

/// Whether the environment turns runners off.
pub(super) fn off_by_environment() -> bool {
    std::env::var_os(OFF_VARIABLE).is_some_and(|value| !value.is_empty() && value != "0")
}
