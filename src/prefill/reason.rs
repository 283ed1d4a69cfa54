//! What a batch does, and why it runs eagerly where it does.

use std::borrow::Cow;
use std::fmt;

/// What a batch does.
#[derive(Clone, PartialEq, Debug)]
#[must_use = "an eager batch is for the caller to run"]
pub enum Decision {
    /// It replays this bucket's capture, which is made now if the runner captures at first use.
    Replay {
        /// The bucket in rows.
        bucket: usize,
    },
    /// It runs eagerly.
    Eager(EagerReason),
}

/// Why a batch runs eagerly: a closed list, so that each reason is counted.
#[derive(Clone, PartialEq, Debug)]
pub enum EagerReason {
    /// The runner is off: its ladder is empty, [`turn_off`](super::PrefillRunner::turn_off) was called, or the environment says so. A batch that a bucket would
    /// hold runs padded to it.
    TurnedOff,
    /// The batch has no rows, on any rank: there is nothing to run.
    NoRows,
    /// The batch has more rows than the largest bucket.
    AboveLargest {
        /// Its rows.
        rows: usize,
        /// The largest bucket.
        largest: usize,
    },
    /// Padded rows over valid rows exceed the limit.
    Padding {
        /// The batch's rows.
        rows: usize,
        /// The bucket that it would go to.
        bucket: usize,
    },
    /// The batch's mode can't be replayed.
    ModeNotEligible,
    /// The captures were made under another key.
    KeyMismatch,
    /// The bucket is not captured: not yet, or no longer.
    NotCaptured {
        /// The bucket.
        bucket: usize,
    },
    /// A capture failed, on this rank or another.
    CaptureFailed {
        /// The bucket.
        bucket: usize,
    },
    /// The bucket's capture took more memory than all may. It is tried again after a while.
    OverBudget {
        /// The bucket.
        bucket: usize,
    },
    /// The batch's replay failed, and the runner was asked to run it eagerly then.
    ReplayFailed {
        /// The bucket.
        bucket: usize,
    },
    /// Another rank can't replay this batch, or the ranks can't reach each other.
    RanksDisagree,
    /// The model's own reason.
    Rejected(Cow<'static, str>),
}

/// [`EagerReason`] without its figures: what is counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[allow(missing_docs)] // As in `EagerReason`.
pub enum ReasonKind {
    TurnedOff,
    NoRows,
    AboveLargest,
    Padding,
    ModeNotEligible,
    KeyMismatch,
    NotCaptured,
    CaptureFailed,
    RanksDisagree,
    Rejected,
    OverBudget,
    ReplayFailed,
}

impl ReasonKind {
    /// All of them.
    pub const ALL: [ReasonKind; 12] = [
        ReasonKind::TurnedOff,
        ReasonKind::NoRows,
        ReasonKind::AboveLargest,
        ReasonKind::Padding,
        ReasonKind::ModeNotEligible,
        ReasonKind::KeyMismatch,
        ReasonKind::NotCaptured,
        ReasonKind::CaptureFailed,
        ReasonKind::RanksDisagree,
        ReasonKind::Rejected,
        ReasonKind::OverBudget,
        ReasonKind::ReplayFailed,
    ];

    /// A short name for reports, such as `above_largest`.
    pub const fn name(self) -> &'static str {
        match self {
            ReasonKind::TurnedOff => "turned_off",
            ReasonKind::NoRows => "no_rows",
            ReasonKind::AboveLargest => "above_largest",
            ReasonKind::Padding => "padding",
            ReasonKind::ModeNotEligible => "mode_not_eligible",
            ReasonKind::KeyMismatch => "key_mismatch",
            ReasonKind::NotCaptured => "not_captured",
            ReasonKind::CaptureFailed => "capture_failed",
            ReasonKind::RanksDisagree => "ranks_disagree",
            ReasonKind::Rejected => "rejected",
            ReasonKind::OverBudget => "over_budget",
            ReasonKind::ReplayFailed => "replay_failed",
        }
    }
}

impl fmt::Display for ReasonKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl EagerReason {
    /// What is counted.
    pub fn kind(&self) -> ReasonKind {
        match self {
            EagerReason::TurnedOff => ReasonKind::TurnedOff,
            EagerReason::NoRows => ReasonKind::NoRows,
            EagerReason::AboveLargest { .. } => ReasonKind::AboveLargest,
            EagerReason::Padding { .. } => ReasonKind::Padding,
            EagerReason::ModeNotEligible => ReasonKind::ModeNotEligible,
            EagerReason::KeyMismatch => ReasonKind::KeyMismatch,
            EagerReason::NotCaptured { .. } => ReasonKind::NotCaptured,
            EagerReason::CaptureFailed { .. } => ReasonKind::CaptureFailed,
            EagerReason::RanksDisagree => ReasonKind::RanksDisagree,
            EagerReason::Rejected(_) => ReasonKind::Rejected,
            EagerReason::OverBudget { .. } => ReasonKind::OverBudget,
            EagerReason::ReplayFailed { .. } => ReasonKind::ReplayFailed,
        }
    }
}

impl fmt::Display for EagerReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EagerReason::TurnedOff => f.write_str("the runner is turned off"),
            EagerReason::NoRows => f.write_str("the batch has no rows"),
            EagerReason::AboveLargest { rows, largest } => {
                write!(f, "{rows} rows are more than the largest bucket's {largest}")
            }
            EagerReason::Padding { rows, bucket } => {
                write!(f, "{rows} rows in bucket {bucket} would be more padding than allowed")
            }
            EagerReason::ModeNotEligible => f.write_str("the batch's mode can't be replayed"),
            EagerReason::KeyMismatch => f.write_str("the captures were made under another key"),
            EagerReason::NotCaptured { bucket } => write!(f, "bucket {bucket} is not captured"),
            EagerReason::CaptureFailed { bucket } => write!(f, "the capture of bucket {bucket} failed"),
            EagerReason::OverBudget { bucket } => {
                write!(f, "the capture of bucket {bucket} took more memory than all may: raise max_bytes")
            }
            EagerReason::ReplayFailed { bucket } => write!(f, "the replay of bucket {bucket} failed"),
            EagerReason::RanksDisagree => f.write_str("another rank can't replay, or the ranks can't reach each other"),
            EagerReason::Rejected(text) => write!(f, "the model rejects it: {text}"),
        }
    }
}
