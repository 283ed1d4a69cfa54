//! Every reason for running eagerly is reached, counted, and logged once.

use super::model::{Owned, Small, Wrong};
use crate::support::Rig;
use crate::{bits, buckets, run, run_eager, runner};
use breakable_cuda_graph::PrefillRunner;
use breakable_cuda_graph::prefill::{
    CaptureWhen, Decision, EagerReason, Ladder, Mode, OFF_VARIABLE, OnFailure, Ranks, ReasonKind, RunnerOptions,
    ThreadRank,
};
use std::cell::RefCell;
use std::process::Command;

thread_local! {
    static LOGGED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Keeps what is logged, by thread.
struct Logger;

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LOGGED.with_borrow_mut(|logged| logged.push(record.args().to_string()));
    }

    fn flush(&self) {}
}

fn start_logging() {
    // Another test of this program may have been first.
    let _ = log::set_logger(&Logger);
    log::set_max_level(log::LevelFilter::Info);
    LOGGED.with_borrow_mut(Vec::clear);
}

fn logged(part: &str) -> usize {
    LOGGED.with_borrow(|logged| logged.iter().filter(|line| line.contains(part)).count())
}

/// Runs a batch three times: each time it runs eagerly for this reason, and gives what it should.
fn check(rig: &Rig, runner: &mut PrefillRunner<'_, Small>, batch: &Owned, reason: &EagerReason) {
    start_logging();
    let before = runner.stats();
    for _ in 0..3 {
        let (got, bucket) = run(rig, runner, batch);
        assert_eq!(bucket, None, "{reason}");
        if batch.rows > 0 {
            assert_eq!(bits(&got), bits(&run_eager(rig, runner, batch)), "{reason}");
        } else {
            assert!(got.is_empty());
        }
    }
    assert_eq!(batch.with(|batch| runner.decide(batch)), Decision::Eager(reason.clone()));
    let after = runner.stats();
    for kind in ReasonKind::ALL {
        let more = after.eager_for(kind) - before.eager_for(kind);
        assert_eq!(more, if kind == reason.kind() { 4 } else { 0 }, "{kind} after {reason}");
    }
    assert_eq!(after.eager_rows - before.eager_rows, 4 * batch.rows as u64);
    let once = usize::from(before.eager_for(reason.kind()) == 0);
    assert_eq!(logged(&reason.to_string()), once, "{reason} is logged the first time");
}

#[test]
fn each_reason_is_reached_counted_and_logged_once() {
    let rig = Rig::new(&crate::support::driver());
    let model = Small::new(&rig);
    let batch = |rows| Owned::new(&rig.stream, 5, rows);
    let mut runner = runner(&rig, &model, buckets(&[4, 8, 16]).when(CaptureWhen::OnCall).padding_limit(1.0));

    check(&rig, &mut runner, &batch(3), &EagerReason::NotCaptured { bucket: 4 });
    runner.capture_all(&rig.stream, |_| {}).expect("captured");
    let (got, bucket) = run(&rig, &mut runner, &batch(3));
    assert_eq!((bits(&got), bucket), (bits(&run_eager(&rig, &mut runner, &batch(3))), Some(4)));

    check(&rig, &mut runner, &batch(0), &EagerReason::NoRows);
    check(&rig, &mut runner, &batch(17), &EagerReason::AboveLargest { rows: 17, largest: 16 });
    check(&rig, &mut runner, &batch(1), &EagerReason::Padding { rows: 1, bucket: 4 });
    let mut other = batch(3);
    other.meta.mode = Mode::NotEligible;
    check(&rig, &mut runner, &other, &EagerReason::ModeNotEligible);
    other.meta.mode = Mode::Eligible(8);
    check(&rig, &mut runner, &other, &EagerReason::KeyMismatch);
    let mut rejected = batch(3);
    rejected.meta.reject = Some("a multimodal batch");
    check(&rig, &mut runner, &rejected, &EagerReason::Rejected("a multimodal batch".into()));

    // Under another key the captures are made anew.
    runner.set_key(8);
    check(&rig, &mut runner, &batch(3), &EagerReason::KeyMismatch);
    check(&rig, &mut runner, &other, &EagerReason::NotCaptured { bucket: 4 });
    runner.capture_all(&rig.stream, |_| {}).expect("captured");
    assert_eq!(run(&rig, &mut runner, &other).1, Some(4));

    runner.turn_off().expect("off");
    check(&rig, &mut runner, &batch(3), &EagerReason::TurnedOff);
    runner.capture_all(&rig.stream, |_| panic!("it is off")).expect("nothing to do");
    runner.turn_on();
    check(&rig, &mut runner, &other, &EagerReason::NotCaptured { bucket: 4 });
}

#[test]
fn an_empty_ladder_is_off() {
    let rig = Rig::new(&crate::support::driver());
    let model = Small::new(&rig);
    let mut runner = runner(&rig, &model, RunnerOptions::new(Ladder::default()));
    assert!(!runner.is_on());
    runner.capture_all(&rig.stream, |_| panic!("nothing to capture")).expect("nothing to do");
    runner.turn_on();
    check(&rig, &mut runner, &Owned::new(&rig.stream, 1, 3), &EagerReason::TurnedOff);
}

#[test]
fn a_failed_capture_is_a_reason() {
    let rig = Rig::new(&crate::support::driver());
    let mut model = Small::new(&rig);
    model.wrong = Wrong::FailsAt(8);
    for first_use in [false, true] {
        let when = if first_use { CaptureWhen::FirstUse } else { CaptureWhen::StartUp };
        let mut runner = runner(&rig, &model, buckets(&[4, 8, 16]).when(when).on_failure(OnFailure::KeepOthers));
        if first_use {
            let (_, bucket) = run(&rig, &mut runner, &Owned::new(&rig.stream, 1, 7));
            assert_eq!(bucket, None);
            let failure = runner.last_failure().expect("a failure").to_string();
            assert!(failure.contains("the model's own error"), "{failure}");
        } else {
            let error = runner.capture_all(&rig.stream, |_| {}).expect_err("bucket 8 fails");
            assert!(error.to_string().contains("the model's own error"), "{error}");
            assert!(runner.is_captured(4) && runner.is_captured(16) && !runner.is_captured(8));
        }
        start_logging();
        for rows in [5, 7] {
            let owned = Owned::new(&rig.stream, 1, rows);
            let decision = owned.with(|batch| runner.decide(batch));
            assert_eq!(decision, Decision::Eager(EagerReason::CaptureFailed { bucket: 8 }));
        }
        assert_eq!(run(&rig, &mut runner, &Owned::new(&rig.stream, 1, 4)).1, Some(4), "others are kept");
        assert_eq!(run(&rig, &mut runner, &Owned::new(&rig.stream, 1, 9)).1, Some(16), "others are kept");
        assert_eq!(runner.stats().failed, 1);
        assert_eq!(logged("the capture of bucket 8 failed"), usize::from(!first_use));
    }
    // By default none is kept.
    let mut runner = runner(&rig, &model, buckets(&[4, 8, 16]));
    runner.capture_all(&rig.stream, |_| {}).expect_err("bucket 8 fails");
    model_free(&rig, &mut runner);
}

fn model_free(rig: &Rig, runner: &mut PrefillRunner<'_, Small>) {
    assert!(!runner.is_on() && runner.inputs().is_empty());
    assert_eq!(runner.pool().usage().expect("usage").reserved, 0);
    check(rig, runner, &Owned::new(&rig.stream, 1, 3), &EagerReason::CaptureFailed { bucket: 8 });
    runner.turn_on();
    assert!(runner.is_on());
}

/// Rank 1's batch can't be replayed, so rank 0's is not either.
#[test]
fn ranks_that_disagree_are_a_reason() {
    let rig = Rig::new(&crate::support::driver());
    let model = Small::new(&rig);
    std::thread::scope(|scope| {
        for rank in ThreadRank::group(2) {
            let (rig, model) = (&rig, &model);
            scope.spawn(move || {
                let me = rank.rank();
                let mut runner = runner(rig, model, buckets(&[4, 8]).ranks(rank));
                runner.capture_all(&rig.stream, |_| {}).expect("captured");
                let mut batch = Owned::new(&rig.stream, 2, 3 + me);
                assert_eq!(run(rig, &mut runner, &batch).1, Some(4), "both can");
                if me == 0 {
                    check(rig, &mut runner, &batch, &EagerReason::RanksDisagree);
                } else {
                    batch.meta.reject = Some("not this one");
                    check(rig, &mut runner, &batch, &EagerReason::Rejected("not this one".into()));
                }
            });
        }
    });
}

/// In a process of its own, as the environment is the process's.
#[test]
fn the_environment_turns_runners_off() {
    const CHILD: &str = "PREFILL_TEST_CHILD";
    let name = "dispatch::the_environment_turns_runners_off";
    if std::env::var_os(CHILD).is_some() {
        let rig = Rig::new(&crate::support::driver());
        let model = Small::new(&rig);
        let mut runner = runner(&rig, &model, buckets(&[4, 8]));
        runner.capture_all(&rig.stream, |_| panic!("it is off")).expect("nothing to do");
        runner.turn_on();
        assert!(!runner.is_on());
        return check(&rig, &mut runner, &Owned::new(&rig.stream, 1, 3), &EagerReason::TurnedOff);
    }
    let program = std::env::current_exe().expect("this program");
    let output =
        Command::new(program).args(["--exact", name]).env(CHILD, "1").env(OFF_VARIABLE, "1").output().expect("a child");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
