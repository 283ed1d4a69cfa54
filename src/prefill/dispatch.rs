//! What a batch does, from what is known of it: arithmetic and order alone.
#![deny(unsafe_code)]

use super::ladder::{Bucket, Ladder, padding};
use super::options::CaptureWhen;
use super::reason::{Decision, EagerReason};
use std::borrow::Cow;

/// What decides, and doesn't change from batch to batch.
#[derive(Clone, Debug)]
pub(super) struct Dispatch {
    ladder: Ladder,
    when: CaptureWhen,
    padding_limit: Option<f64>,
}

/// What a batch does; with the bucket's place, so that it is found once.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Choice {
    Replay(Bucket),
    Eager(EagerReason),
}

/// What the model says of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Under the key of this number.
    Eligible(usize),
    NotEligible,
    /// Eligible under a key other than the captures'.
    OtherKey,
    Rejected(Cow<'static, str>),
}

/// What there is of a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CaptureState {
    Captured,
    Failed,
    /// It took more memory than there may be. `again`: whether it is to be tried once more.
    OverBudget {
        again: bool,
    },
    Missing,
}

impl From<Choice> for Decision {
    fn from(choice: Choice) -> Decision {
        match choice {
            Choice::Replay(bucket) => Decision::Replay { bucket: bucket.rows },
            Choice::Eager(reason) => Decision::Eager(reason),
        }
    }
}

impl Dispatch {
    pub(super) fn new(ladder: Ladder, when: CaptureWhen, padding_limit: Option<f64>) -> Dispatch {
        Dispatch { ladder, when, padding_limit }
    }

    pub(super) fn ladder(&self) -> &Ladder {
        &self.ladder
    }

    /// Decides for a batch of so many rows: the most of any rank. `on`: whether the runner replays at all. The model is asked only where its answer
    /// matters. Of several reasons the first in this order counts.
    pub(super) fn choose(
        &self,
        on: bool,
        rows: usize,
        verdict: impl FnOnce() -> Verdict,
        state: impl FnOnce(Bucket) -> CaptureState,
    ) -> Choice {
        let Some(largest) = self.ladder.largest().filter(|_| on) else {
            return Choice::Eager(EagerReason::TurnedOff);
        };
        if rows == 0 {
            return Choice::Eager(EagerReason::NoRows);
        }
        let Some(bucket) = self.ladder.find(rows) else {
            return Choice::Eager(EagerReason::AboveLargest { rows, largest });
        };
        let bucket = match verdict() {
            Verdict::Eligible(key) => self.ladder.under(bucket, key),
            Verdict::NotEligible => return Choice::Eager(EagerReason::ModeNotEligible),
            Verdict::OtherKey => return Choice::Eager(EagerReason::KeyMismatch),
            Verdict::Rejected(text) => return Choice::Eager(EagerReason::Rejected(text)),
        };
        if self.padding_limit.is_some_and(|limit| padding(bucket.rows, rows) > limit) {
            return Choice::Eager(EagerReason::Padding { rows, bucket: bucket.rows });
        }
        match state(bucket) {
            CaptureState::Captured => Choice::Replay(bucket),
            CaptureState::Failed => Choice::Eager(EagerReason::CaptureFailed { bucket: bucket.rows }),
            CaptureState::Missing | CaptureState::OverBudget { again: true } if self.when == CaptureWhen::FirstUse => {
                Choice::Replay(bucket)
            }
            CaptureState::OverBudget { .. } => Choice::Eager(EagerReason::OverBudget { bucket: bucket.rows }),
            CaptureState::Missing => Choice::Eager(EagerReason::NotCaptured { bucket: bucket.rows }),
        }
    }

    /// What must be the same on all ranks.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        let buckets = self.ladder.buckets().iter().map(|bucket| *bucket as u64);
        buckets.chain([self.when as u64, self.padding_limit.map_or(u64::MAX, f64::to_bits)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefill::LadderOptions;

    fn dispatch(when: CaptureWhen, padding_limit: Option<f64>) -> Dispatch {
        Dispatch::new(Ladder::new(&LadderOptions::new(32).explicit([8, 32])), when, padding_limit)
    }

    const SECOND: Bucket = Bucket { index: 1, rows: 32, slot: 1 };

    #[test]
    fn a_batch_replays_the_smallest_bucket_that_holds_it() {
        let start_up = dispatch(CaptureWhen::StartUp, None);
        for (rows, index, bucket) in [(1, 0, 8), (8, 0, 8), (9, 1, 32), (32, 1, 32)] {
            let choice = start_up.choose(true, rows, || Verdict::Eligible(0), |_| CaptureState::Captured);
            assert_eq!(choice, Choice::Replay(Bucket { index, rows: bucket, slot: index }), "{rows}");
        }
        assert_eq!(Decision::from(Choice::Replay(SECOND)), Decision::Replay { bucket: 32 });
    }

    /// Each is in the way of all that come after it, and of what comes after it alone.
    #[test]
    fn of_several_reasons_the_first_counts() {
        let never = |_| -> CaptureState { panic!("it does not matter") };
        let unasked = || -> Verdict { panic!("it does not matter") };
        let limited = dispatch(CaptureWhen::FirstUse, Some(1.0));
        let eager = |choice: Choice| match choice {
            Choice::Eager(reason) => reason,
            Choice::Replay(bucket) => panic!("{bucket:?}"),
        };
        assert_eq!(eager(limited.choose(false, 0, unasked, never)), EagerReason::TurnedOff);
        let none = Dispatch::new(Ladder::default(), CaptureWhen::FirstUse, None);
        assert_eq!(eager(none.choose(true, 0, unasked, never)), EagerReason::TurnedOff, "an empty ladder");
        assert_eq!(eager(limited.choose(true, 0, unasked, never)), EagerReason::NoRows);
        let above = EagerReason::AboveLargest { rows: 33, largest: 32 };
        assert_eq!(eager(limited.choose(true, 33, unasked, never)), above);
        for (verdict, reason) in [
            (Verdict::NotEligible, EagerReason::ModeNotEligible),
            (Verdict::OtherKey, EagerReason::KeyMismatch),
            (Verdict::Rejected("no".into()), EagerReason::Rejected("no".into())),
        ] {
            assert_eq!(eager(limited.choose(true, 9, || verdict, never)), reason);
        }
        let padding = EagerReason::Padding { rows: 9, bucket: 32 };
        assert_eq!(eager(limited.choose(true, 9, || Verdict::Eligible(0), never)), padding);
        let failed = EagerReason::CaptureFailed { bucket: 32 };
        assert_eq!(eager(limited.choose(true, 16, || Verdict::Eligible(0), |_| CaptureState::Failed)), failed);
    }

    #[test]
    fn a_bucket_that_is_not_captured_is_captured_at_its_first_use_or_not_replayed() {
        let missing = |when| dispatch(when, None).choose(true, 9, || Verdict::Eligible(0), |_| CaptureState::Missing);
        assert_eq!(missing(CaptureWhen::FirstUse), Choice::Replay(SECOND));
        for when in [CaptureWhen::StartUp, CaptureWhen::OnCall] {
            assert_eq!(missing(when), Choice::Eager(EagerReason::NotCaptured { bucket: 32 }));
        }
    }

    #[test]
    fn padding_up_to_the_limit_is_allowed() {
        let limited = dispatch(CaptureWhen::StartUp, Some(1.0));
        let choice = limited.choose(true, 4, || Verdict::Eligible(0), |_| CaptureState::Captured);
        assert_eq!(choice, Choice::Replay(Bucket { index: 0, rows: 8, slot: 0 }));
        let choice = limited.choose(true, 3, || Verdict::Eligible(0), |_| CaptureState::Captured);
        assert_eq!(choice, Choice::Eager(EagerReason::Padding { rows: 3, bucket: 8 }));
    }
}
