//! Replays that fail, and callers that panic when they are told of progress.

use crate::model::{Owned, Small};
use crate::support::{Rig, assert_same, driver, for_each_seed};
use crate::{bits, buckets, run, run_eager, runner};
use breakable_cuda_graph::prefill::{
    Batch, FnModel, InputData, InputSpec, OnReplayFailure, OutputSpec, PrefillError, ReasonKind, TailRule, ThreadRank,
    expect_inputs,
};
use breakable_cuda_graph::{DType, Error, PrefillRunner};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A replay that fails is an error, or is followed by one eager run that gives the same.
#[test]
fn a_failed_replay_can_be_followed_by_one_eager_run() {
    for_each_seed(|rig| {
        let fails = AtomicUsize::new(0);
        let model = FnModel::new((rig.ops.clone(), &fails), (), |(ops, fails), scope, inputs| {
            let [x] = expect_inputs(inputs)?;
            let h = ops.scale(x, 2.0)?;
            let h = scope.break_point("may fail", [&h], |b| {
                let left = fails.load(Ordering::Relaxed);
                if left > 0 {
                    fails.store(left - 1, Ordering::Relaxed);
                    return Err(Error::user("not now"));
                }
                b.input(0).cloned()
            })?;
            Ok(vec![ops.scale(&h, 5.0)?])
        });
        let model = model.input(InputSpec::rows("x", DType::F32, &[2]).tail(TailRule::Zero));
        let model = model.output(OutputSpec::rows("y", DType::F32, &[2]).scrubbed());
        for policy in [OnReplayFailure::Tell, OnReplayFailure::RunEagerly] {
            let options = buckets(&[4]).on_replay_failure(policy);
            let mut runner = PrefillRunner::new(&model, &rig.context, options).expect("a runner");
            runner.capture_all(&rig.stream, |_| {}).expect("captured");
            let x: Vec<f32> = (0..6).map(|at| at as f32).collect();
            let batch = Batch { rows: 3, context: &(), inputs: &[InputData::host(&x)] };
            for (failures, bucket) in [(0, Some(4)), (1, None), (0, Some(4)), (2, None), (0, Some(4))] {
                fails.store(failures, Ordering::Relaxed);
                let ran = runner.run(&rig.stream, &batch);
                if failures == 2 || (failures == 1 && policy == OnReplayFailure::Tell) {
                    // The eager run fails too.
                    let error = ran.map(drop).expect_err("it fails").to_string();
                    assert!(error.contains("not now"), "{error}");
                    continue;
                }
                let outputs = ran.expect("a batch");
                assert_eq!(outputs.bucket(), bucket);
                let whole = rig.read(&outputs.padded(0).expect("an output"));
                assert_same(&whole, &[0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 0.0, 0.0]);
            }
            let stats = runner.stats();
            let eager = if policy == OnReplayFailure::Tell { 0 } else { 2 };
            assert_eq!((stats.eager_in(ReasonKind::ReplayFailed, Some(4)), stats.total_replays()), (eager, 3));
            assert_eq!(runner.last_failure().is_some_and(|error| error.to_string().contains("may fail")), eager > 0);
        }
    });
}

/// What was captured before the panic stays, and the rest can be captured later.
#[test]
fn a_caller_that_panics_when_it_is_told_leaves_a_runner_that_works() {
    let rig = Rig::new(&driver());
    let model = Small::new(&rig);
    let mut runner = runner(&rig, &model, buckets(&[4, 8, 16]));
    let told = catch_unwind(AssertUnwindSafe(|| {
        runner.capture_all(&rig.stream, |one| assert!(one.done < 2, "the caller's own panic"))
    }));
    assert!(told.is_err());
    assert_eq!([4, 8, 16].map(|bucket| runner.is_captured(bucket)), [false, true, true]);
    let batch = Owned::new(&rig.stream, 1, 3);
    assert_eq!(run(&rig, &mut runner, &batch).1, None);
    runner.capture_all(&rig.stream, |_| {}).expect("the rest");
    let (got, bucket) = run(&rig, &mut runner, &batch);
    assert_eq!((bits(&got), bucket), (bits(&run_eager(&rig, &mut runner, &batch)), Some(4)));
    let told = catch_unwind(AssertUnwindSafe(|| runner.recapture(&rig.stream, 4, |_| panic!("again"))));
    assert!(told.is_err());
    assert_eq!(bits(&run(&rig, &mut runner, &batch).0), bits(&got));
    runner.turn_off().expect("nothing is held");
}

/// Other ranks don't wait for one whose caller panicked.
#[test]
fn a_caller_that_panics_on_one_rank_holds_up_no_other() {
    let rig = Rig::new(&driver());
    let model = Small::new(&rig);
    std::thread::scope(|scope| {
        for rank in ThreadRank::group(2) {
            let (rig, model) = (&rig, &model);
            scope.spawn(move || {
                let me = breakable_cuda_graph::prefill::Ranks::rank(&rank);
                let mut runner = runner(rig, model, buckets(&[4, 8, 16]).ranks(rank));
                let mut told = 0;
                let ended = catch_unwind(AssertUnwindSafe(|| {
                    runner.capture_all(&rig.stream, |_| {
                        told += 1;
                        assert!(me == 0, "this rank's caller");
                    })
                }));
                assert_eq!((ended.is_ok(), told), if me == 0 { (true, 3) } else { (false, 1) });
                assert!([4, 8, 16].iter().all(|bucket| runner.is_captured(*bucket)));
                assert_eq!(run(rig, &mut runner, &Owned::new(&rig.stream, 1, 3 + me)).1, Some(4));
            });
        }
    });
}

#[test]
fn a_forward_that_takes_other_inputs_than_are_declared_says_so() {
    let rig = Rig::new(&driver());
    let model = FnModel::new((), (), |(), _, inputs| {
        let [x, _] = expect_inputs(inputs)?;
        Ok(vec![x.clone()])
    });
    let model = model.input(InputSpec::rows("x", DType::F32, &[]).tail(TailRule::Zero));
    let mut runner = PrefillRunner::new(&model, &rig.context, buckets(&[4])).expect("a runner");
    let error = runner.capture_all(&rig.stream, |_| {}).expect_err("one input");
    assert!(matches!(error, Error::Prefill(PrefillError::ForwardInputs { expected: 2, got: 1 })), "{error}");
    assert!(error.to_string().contains("takes 2 inputs and was given 1"), "{error}");
}
