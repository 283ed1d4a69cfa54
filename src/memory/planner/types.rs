//! What is asked of the planner, and what it answers.

use crate::memory::sizes::ALIGNMENT;
use std::time::Duration;

/// A buffer to place: live over the half-open interval [begin, end). The unit of time is the caller's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufferSpec {
    /// Its size. Zero bytes take one unit of the alignment.
    pub bytes: usize,
    /// When it comes to life.
    pub begin: u64,
    /// When it is released; a buffer that begins at that moment may take its bytes.
    pub end: u64,
}

impl BufferSpec {
    /// A buffer of so many bytes, live over [begin, end).
    pub fn new(bytes: usize, begin: u64, end: u64) -> BufferSpec {
        BufferSpec { bytes, begin, end }
    }
}

/// How a plan is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PlanOptions {
    /// What every offset is a multiple of: a power of two. Sizes are rounded up to it. Default: [`ALIGNMENT`].
    pub alignment: usize,
    /// How long a plan above the lower bound is worked on. Default: 20,000 steps.
    pub budget: SearchBudget,
    /// The most bytes a plan may take; more is an error. Default: no limit.
    pub max_bytes: Option<usize>,
}

/// How long a plan above the lower bound is worked on, after the fast methods. None of it is used where these meet the bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SearchBudget {
    /// So many steps, each the placing of one buffer in the search. The same buffers and options always give the same plan.
    Steps(u64),
    /// So much time, as the wall clock measures it. Plans may differ from run to run.
    Time(Duration),
}

impl Default for SearchBudget {
    fn default() -> SearchBudget {
        SearchBudget::Steps(20_000)
    }
}

impl Default for PlanOptions {
    fn default() -> PlanOptions {
        PlanOptions { alignment: ALIGNMENT, budget: SearchBudget::default(), max_bytes: None }
    }
}

impl PlanOptions {
    /// The default options.
    pub fn new() -> PlanOptions {
        PlanOptions::default()
    }

    /// Sets [`alignment`](PlanOptions::alignment).
    #[must_use]
    pub fn alignment(mut self, alignment: usize) -> PlanOptions {
        self.alignment = alignment;
        self
    }

    /// Sets [`budget`](PlanOptions::budget).
    #[must_use]
    pub fn budget(mut self, budget: SearchBudget) -> PlanOptions {
        self.budget = budget;
        self
    }

    /// Sets [`max_bytes`](PlanOptions::max_bytes).
    #[must_use]
    pub fn max_bytes(mut self, bytes: impl Into<Option<usize>>) -> PlanOptions {
        self.max_bytes = bytes.into();
        self
    }
}

/// What gave a plan.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Method {
    /// Each buffer, in order of its begin, takes the smallest gap that holds it.
    OnlineBestFit,
    /// The largest buffers first.
    GreedyBySize,
    /// The largest products of size and duration first.
    GreedyByArea,
    /// The longest-lived buffers first.
    GreedyByDuration,
    /// The buffers that meet the most bytes in their lifetimes first.
    GreedyByConflicts,
    /// The search that follows the fast methods.
    Improved,
}

/// Offsets for all buffers, such that no two buffers that are live together share a byte.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    pub(super) offsets: Vec<usize>,
    pub(super) bytes: usize,
    pub(super) lower_bound: usize,
    pub(super) method: Method,
}

impl Placement {
    /// Where each buffer starts, in the order in which they were given.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// The bytes that the plan takes: from zero to the end of the highest buffer.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The most rounded bytes that are live at once. No plan takes less; not every set of buffers has one that takes no more.
    pub fn lower_bound(&self) -> usize {
        self.lower_bound
    }

    /// What gave the plan.
    pub fn method(&self) -> Method {
        self.method
    }

    /// The part by which the plan exceeds the lower bound: 0.0 at the bound. Zero without buffers.
    pub fn overhead(&self) -> f64 {
        if self.lower_bound == 0 { 0.0 } else { (self.bytes - self.lower_bound) as f64 / self.lower_bound as f64 }
    }
}

/// Why there is no plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// [`PlanOptions::alignment`] is no power of two.
    #[error("the alignment of a plan, {0}, is not a power of two: give one, 256 say")]
    Alignment(usize),
    /// [`PlanOptions::alignment`] is less than the blocks of a pool have, which a [`PoolPlan`](crate::memory::PoolPlan) is for: tensors would lie where their
    /// elements are not aligned.
    #[error(
        "a pool's blocks lie at multiples of {ALIGNMENT} bytes, and the plan has an alignment of {0}: leave it at its default, or ask for more"
    )]
    PoolAlignment(usize),
    /// A buffer ends before it begins, or as it begins.
    #[error("buffer {index} is live over no time: it begins at {begin} and ends at {end}: end it later")]
    Lifetime {
        /// Which buffer it is.
        index: usize,
        /// When it begins.
        begin: u64,
        /// When it ends.
        end: u64,
    },
    /// The rounded sizes add up to more than `isize::MAX`.
    #[error(
        "buffer {index}, of {bytes} bytes, takes the sum of all buffers past the largest allocation there can be: plan smaller ones"
    )]
    TooLarge {
        /// The first buffer that is too much.
        index: usize,
        /// Its size.
        bytes: usize,
    },
    /// The best plan that was found takes more than [`PlanOptions::max_bytes`].
    #[error(
        "the plan takes {bytes} bytes, more than the limit of {limit}; no plan takes less than {lower_bound}: raise the limit, or plan smaller buffers"
    )]
    AboveLimit {
        /// What the plan takes. The lower bound where that is above the limit: then nothing was tried.
        bytes: usize,
        /// See [`Placement::lower_bound`].
        lower_bound: usize,
        /// The limit.
        limit: usize,
    },
}
