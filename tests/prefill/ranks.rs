//! Several ranks: the same bucket, captures on all or on none.

use super::model::{Owned, Small, Wrong};
use crate::support::{Rig, driver};
use crate::{bits, buckets, run, run_eager, runner};
use breakable_cuda_graph::prefill::{CaptureWhen, Decision, EagerReason, PrefillError, Ranks, RanksError, ThreadRank};
use breakable_cuda_graph::{Error, PrefillRunner};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

/// Runs `body` on a thread for each of `size` ranks, each with a rig of its own.
pub fn on_ranks<T: Send>(size: usize, body: impl Fn(Rig, ThreadRank) -> T + Sync) -> Vec<T> {
    let body = &body;
    thread::scope(|scope| {
        let start = |rank| scope.spawn(move || body(Rig::new(&driver()), rank));
        let threads: Vec<_> = ThreadRank::group(size).into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// An idle rank replays too.
#[test]
fn ranks_with_different_rows_replay_the_same_bucket() {
    for when in [CaptureWhen::StartUp, CaptureWhen::FirstUse] {
        let used = on_ranks(4, |rig, rank| {
            let me = rank.rank();
            let model = Small::new(&rig);
            let mut runner = runner(&rig, &model, buckets(&[4, 8, 16]).when(when).ranks(rank));
            if when == CaptureWhen::StartUp {
                runner.capture_all(&rig.stream, |_| {}).expect("captured");
            }
            let mut used = Vec::new();
            for (step, rows) in
                [[3, 1, 0, 4], [9, 2, 2, 0], [0, 0, 5, 0], [17, 1, 1, 1], [0, 0, 0, 0]].iter().enumerate()
            {
                let owned = Owned::new(&rig.stream, step as u64, rows[me]);
                let (got, bucket) = run(&rig, &mut runner, &owned);
                used.push(bucket);
                if rows.iter().any(|rows| *rows > 0) {
                    assert_eq!(bits(&got), bits(&run_eager(&rig, &mut runner, &owned)), "rank {me}, step {step}");
                }
            }
            used
        });
        assert!(used.iter().all(|used| used == &[Some(4), Some(16), Some(8), None, None]), "{used:?}");
    }
}

/// What one rank does wrong, and what the others then say.
fn one_fails(wrong: impl Fn(&mut Small) + Sync, others: impl Fn(&Error) -> bool + Sync) {
    let started = Instant::now();
    on_ranks(4, |rig, rank| {
        let me = rank.rank();
        let mut model = Small::new(&rig);
        if me == 2 {
            wrong(&mut model);
        }
        let mut runner = runner(&rig, &model, buckets(&[4, 8]).ranks(rank));
        let capture =
            |runner: &mut PrefillRunner<'_, Small>| runner.capture_all(&rig.stream, |one| assert_eq!(one.bucket, 8));
        match catch_unwind(AssertUnwindSafe(|| capture(&mut runner))) {
            Ok(result) => {
                let error = result.expect_err("no rank has captured");
                if me == 2 {
                    let own = error.to_string().contains("own error");
                    assert!(own || others(&error), "{error}");
                } else {
                    assert!(others(&error), "{error}");
                }
            }
            Err(panic) => {
                assert_eq!(me, 2);
                assert_eq!(panic.downcast_ref::<&str>(), Some(&"the model's own panic"));
            }
        }
        assert_eq!(runner.stats().live, 0);
        let owned = Owned::new(&rig.stream, 1, 3);
        let decision = owned.with(|batch| runner.decide(batch));
        assert_eq!(decision, Decision::Eager(EagerReason::CaptureFailed { bucket: 4 }));
    });
    assert!(started.elapsed() < ThreadRank::PATIENCE / 2, "nobody waited for the others to come");
}

#[test]
fn an_error_on_one_rank_is_everybodys() {
    one_fails(
        |model| model.wrong = Wrong::FailsAt(4),
        |error| matches!(error, Error::Prefill(PrefillError::OtherRankFailed { bucket: 4 })),
    );
}

#[test]
fn a_panic_on_one_rank_is_everybodys() {
    one_fails(
        |model| model.wrong = Wrong::PanicsAt(4),
        |error| matches!(error, Error::Prefill(PrefillError::OtherRankFailed { bucket: 4 })),
    );
}

#[test]
fn recordings_that_differ_are_not_kept() {
    one_fails(
        |model| model.wrong = Wrong::MoreAt(4),
        |error| matches!(error, Error::Prefill(PrefillError::RecordingsDiffer { bucket: 4 })),
    );
}

#[test]
fn a_failure_at_first_use_is_everybodys() {
    on_ranks(3, |rig, rank| {
        let mut model = Small::new(&rig);
        if rank.rank() == 1 {
            model.wrong = Wrong::FailsAt(8);
        }
        let mut runner = runner(&rig, &model, buckets(&[4, 8]).when(CaptureWhen::FirstUse).ranks(rank));
        assert_eq!(run(&rig, &mut runner, &Owned::new(&rig.stream, 1, 3)).1, Some(4));
        assert_eq!(run(&rig, &mut runner, &Owned::new(&rig.stream, 1, 6)).1, None);
        assert!(runner.last_failure().is_some());
        assert_eq!(run(&rig, &mut runner, &Owned::new(&rig.stream, 1, 3)).1, None, "all or none");
    });
}

#[test]
fn runners_that_differ_are_told() {
    on_ranks(2, |rig, rank| {
        let model = Small::new(&rig);
        let list = if rank.rank() == 0 { [4, 8] } else { [4, 9] };
        let made = PrefillRunner::new(&model, &rig.context, buckets(&list).ranks(rank));
        assert!(matches!(made, Err(Error::Prefill(PrefillError::RunnersDiffer))));
    });
}

/// A rank that is gone leaves the others running, eagerly.
#[test]
fn the_others_go_on_when_a_rank_is_gone() {
    on_ranks(3, |rig, rank| {
        let me = rank.rank();
        let model = Small::new(&rig);
        let mut runner = runner(&rig, &model, buckets(&[4, 8]).ranks(rank));
        runner.capture_all(&rig.stream, |_| {}).expect("captured");
        let owned = Owned::new(&rig.stream, 1, 3);
        assert_eq!(run(&rig, &mut runner, &owned).1, Some(4));
        if me == 0 {
            return;
        }
        for _ in 0..2 {
            let (got, bucket) = run(&rig, &mut runner, &owned);
            assert_eq!((bits(&got), bucket), (bits(&run_eager(&rig, &mut runner, &owned)), None));
        }
        let why = runner.last_failure();
        assert!(matches!(why, Some(Error::Prefill(PrefillError::Ranks(RanksError::Gone { .. })))), "{why:?}");
        assert_eq!((runner.stats().live, runner.is_on()), (0, false));
    });
}

/// A batch that is refused on one rank does not leave the others waiting.
#[test]
fn a_bad_batch_on_one_rank_lets_the_others_go_on() {
    let started = Instant::now();
    on_ranks(2, |rig, rank| {
        let me = rank.rank();
        let model = Small::new(&rig);
        let mut runner = runner(&rig, &model, buckets(&[4, 8]).ranks(rank));
        runner.capture_all(&rig.stream, |_| {}).expect("captured");
        let owned = Owned::new(&rig.stream, 1, 3);
        owned.with(|batch| {
            let mut bad = *batch;
            if me == 1 {
                bad.rows = 4;
            }
            match runner.run(&rig.stream, &bad) {
                Ok(outputs) => assert_eq!((me, outputs.bucket()), (0, None)),
                Err(error) => assert!(me == 1 && error.to_string().contains("input ids"), "{error}"),
            }
        });
        assert_eq!(run(&rig, &mut runner, &owned).1, Some(4), "the next batch is replayed");
    });
    assert!(started.elapsed() < Duration::from_secs(30));
}

/// An engine's exchange whose answers leave this rank out from some call on.
struct Deaf {
    calls: Cell<u32>,
    sound: u32,
}

impl Deaf {
    /// Whether the next answer leaves this rank out.
    fn errs(&self) -> bool {
        self.calls.set(self.calls.get() + 1);
        self.calls.get() > self.sound
    }
}

impl Ranks for Deaf {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        2
    }

    fn all(&self, flag: bool) -> Result<bool, RanksError> {
        Ok(flag || self.errs())
    }

    fn max(&self, count: u64) -> Result<u64, RanksError> {
        Ok(if self.errs() { count.min(1) } else { count })
    }

    fn barrier(&self) -> Result<(), RanksError> {
        Ok(())
    }
}

/// A smaller count than this rank's own would choose a bucket that its batch does not fit.
#[test]
fn an_exchange_that_leaves_this_rank_out_is_found() {
    let rig = Rig::new(&driver());
    let model = Small::new(&rig);
    let mut found = 0;
    for sound in 0..40 {
        let options = buckets(&[4, 8]).ranks(Deaf { calls: Cell::new(0), sound });
        let is_told = |error: &Error| {
            matches!(error, Error::Prefill(PrefillError::Ranks(RanksError::WrongAnswer { call: "max" | "all", .. })))
        };
        let mut runner = match PrefillRunner::new(&model, &rig.context, options) {
            Ok(runner) => runner,
            Err(error) => {
                assert!(is_told(&error), "{error}");
                found += 1;
                continue;
            }
        };
        let told = runner.capture_all(&rig.stream, |_| {}).err();
        assert!(told.as_ref().is_none_or(is_told), "{told:?}");
        for (seed, rows) in [7, 3, 12].into_iter().enumerate() {
            let owned = Owned::new(&rig.stream, seed as u64, rows);
            let (got, _) = run(&rig, &mut runner, &owned);
            assert_eq!(bits(&got), bits(&run_eager(&rig, &mut runner, &owned)), "{rows} rows, {sound} sound answers");
        }
        if let Some(error) = runner.last_failure() {
            assert!(is_told(error), "{error}");
            found += 1;
        }
    }
    assert!((1..40).contains(&found), "found {found} times");
}
