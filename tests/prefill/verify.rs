//! A runner's captures compared with the eager forward (rule 54).

use super::model::{Owned, Small};
use crate::support::{Rig, for_each_driver, for_each_seed};
use crate::{bits, buckets, run, run_eager, runner};
use breakable_cuda_graph::driver::Context;
use breakable_cuda_graph::prefill::{
    Batch, FnModel, InputData, InputSpec, OneRank, OutputSpec, PrefillError, Ranks, RanksError, RunnerOptions, TailRule,
};
use breakable_cuda_graph::{
    BreakKind, DType, Error, PrefillModel, PrefillRunner, Result, Scope, Tensor, VerifyCause, VerifyError,
    VerifyOptions, VerifyPlace,
};

#[track_caller]
fn found<T: std::fmt::Debug>(verified: Result<T>) -> VerifyError {
    match verified {
        Err(Error::Verify(found)) => *found,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_bucket_of_a_sound_model_is_verified() {
    for_each_seed(|rig| {
        for kind in [BreakKind::Live, BreakKind::Patched] {
            let mut model = Small::new(&rig);
            model.kind = kind;
            let mut runner = runner(&rig, &model, buckets(&[4, 8]));
            runner.capture_all(&rig.stream, |_| {}).expect("captured");
            for bucket in [4, 8] {
                let (one, other) = (Owned::new(&rig.stream, 1, bucket - 2), Owned::new(&rig.stream, 2, bucket));
                let verified = one.with(|one| {
                    other.with(|other| runner.verify(&rig.stream, bucket, [one, other], VerifyOptions::new()))
                });
                let verified = verified.expect("it is right");
                assert_eq!((verified.handoffs, verified.outputs, verified.bit_equal), (4, 4, true));
            }
            assert_eq!((runner.stats().total_replays(), runner.stats().total_eager()), (0, 0), "nothing is counted");
            let batch = Owned::new(&rig.stream, 3, 5);
            let (got, bucket) = run(&rig, &mut runner, &batch);
            assert_eq!((bits(&got), bucket), (bits(&run_eager(&rig, &mut runner, &batch)), Some(8)));
        }
    });
}

/// What a model of one function is given and gives.
type Model<F> = FnModel<(), f32, F>;

fn model<F>(tail: bool, forward: F) -> Model<F>
where
    F: for<'r, 'm> Fn(&'m (), &Scope<'r, 'm>, &[Tensor]) -> Result<Vec<Tensor>> + Sync,
{
    let x = InputSpec::rows("x", DType::F32, &[2]);
    let x = x.tail(if tail { TailRule::Zero } else { TailRule::LeftAlone });
    FnModel::new((), 1.0, forward).input(x).output(OutputSpec::rows("y", DType::F32, &[2]))
}

fn captured<'m, M: PrefillModel>(
    model: &'m M,
    context: &Context,
    rig: &Rig,
    options: RunnerOptions,
) -> PrefillRunner<'m, M> {
    let mut runner = PrefillRunner::new(model, context, options).expect("a runner");
    runner.capture_all(&rig.stream, |_| {}).expect("captured");
    runner
}

fn verify<M: PrefillModel<Context = f32>>(rig: &Rig, runner: &mut PrefillRunner<'_, M>) -> Result<()> {
    let data = [[1.0_f32; 8], [2.0; 8]];
    let (full, part) = ([InputData::host(&data[0])], [InputData::host(&data[1][..4])]);
    let full = Batch { rows: 4, context: &2.0, inputs: &full };
    let part = Batch { rows: 2, context: &3.0, inputs: &part };
    runner.verify(&rig.stream, 4, [&part, &full], VerifyOptions::new()).map(drop)
}

#[test]
fn a_frozen_context_and_an_unfilled_tail_are_found_by_name() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let ops = &rig.ops;
        let frozen = model(true, |(), scope, inputs| Ok(vec![ops.scale(&inputs[0], *scope.frozen_ctx::<f32>()?)?]));
        let mut runner = captured(&frozen, &rig.context, &rig, buckets(&[4]));
        let error = found(verify(&rig, &mut runner));
        assert_eq!((error.batch, error.cause), (1, VerifyCause::FrozenContext));
        assert_eq!(error.place, VerifyPlace::Segment { segment: 0, seen_in: "output 0 (\"y\")".to_owned() });
        assert_eq!(error.bucket, Some(4));

        // Each row gets the last one's values, which is padding in the smaller batch.
        let leaking = |tail| {
            model(tail, |(), scope, inputs| {
                let y = scope.empty(DType::F32, inputs[0].shape())?;
                let last = inputs[0].narrow(0, inputs[0].rows() - 1, 1)?;
                for row in 0..y.rows() {
                    y.narrow(0, row, 1)?.copy_from(&scope.stream()?, &last)?;
                }
                Ok(vec![y])
            })
        };
        let (filled, unfilled) = (leaking(true), leaking(false));
        verify(&rig, &mut captured(&filled, &rig.context, &rig, buckets(&[4]))).expect("it is filled");
        let error = found(verify(&rig, &mut captured(&unfilled, &rig.context, &rig, buckets(&[4]))));
        assert_eq!((error.batch, error.cause), (0, VerifyCause::UnfilledTail { input: "x".to_owned() }));
    });
}

#[test]
fn rows_at_another_axis_are_compared_as_rows() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let ops = &rig.ops;
        let rotary = |factor: bool| {
            let forward = move |(): &(), scope: &Scope<'_, '_>, inputs: &[Tensor]| {
                let factor = if factor { *scope.frozen_ctx::<f32>()? } else { 5.0 };
                Ok(vec![ops.scale(&inputs[0], factor)?])
            };
            FnModel::new((), 1.0, forward)
                .input(InputSpec::rows("positions", DType::F32, &[2]).rows_at(1).tail(TailRule::Zero))
                .output(OutputSpec::rows("angles", DType::F32, &[2]).rows_at(1))
        };
        let (sound, frozen) = (rotary(false), rotary(true));
        verify(&rig, &mut captured(&sound, &rig.context, &rig, buckets(&[4]))).expect("it is right");
        let error = found(verify(&rig, &mut captured(&frozen, &rig.context, &rig, buckets(&[4]))));
        assert_eq!(error.cause, VerifyCause::FrozenContext);
    });
}

#[test]
fn what_can_not_be_verified_is_refused() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let model = Small::new(&rig);
        let mut runner = runner(&rig, &model, buckets(&[4, 8]));
        let (small, large) = (Owned::new(&rig.stream, 1, 3), Owned::new(&rig.stream, 2, 7));
        let mut verify = |bucket: usize, one: &Owned, other: &Owned| {
            let options = VerifyOptions::new();
            one.with(|one| other.with(|other| runner.verify(&rig.stream, bucket, [one, other], options)))
        };
        let not_captured = verify(4, &small, &small);
        assert!(matches!(not_captured, Err(Error::Prefill(PrefillError::NotCaptured { bucket: 4 }))));
        assert!(matches!(verify(5, &small, &small), Err(Error::Prefill(PrefillError::NotCaptured { bucket: 5 }))));
        for (one, other) in [(&small, &large), (&large, &small)] {
            let too_large = verify(4, one, other);
            assert!(matches!(too_large, Err(Error::Prefill(PrefillError::Bucket { rows: 7, bucket: 4 }))));
        }
    });
}

/// One of two ranks, whose other one does as it does.
struct Mirror;

impl Ranks for Mirror {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        2
    }

    fn all(&self, flag: bool) -> Result<bool, RanksError> {
        Ok(flag)
    }

    fn max(&self, count: u64) -> Result<u64, RanksError> {
        Ok(count)
    }

    fn barrier(&self) -> Result<(), RanksError> {
        Ok(())
    }
}

#[test]
fn among_ranks_a_difference_takes_no_runs_that_others_do_not_make() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let (ops, runs) = (&rig.ops, std::sync::atomic::AtomicUsize::new(0));
        let frozen = model(true, |(), scope, inputs| {
            runs.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok(vec![ops.scale(&inputs[0], *scope.frozen_ctx::<f32>()?)?])
        });
        let options = || buckets(&[4]);
        let eager_runs = |options: RunnerOptions| {
            let mut runner = captured(&frozen, &rig.context, &rig, options);
            let before = runs.load(std::sync::atomic::Ordering::Relaxed);
            let error = found(verify(&rig, &mut runner));
            (runs.load(std::sync::atomic::Ordering::Relaxed) - before, error.cause)
        };
        assert_eq!(eager_runs(options().ranks(Mirror)), (2, VerifyCause::Unknown));
        let (alone, cause) = eager_runs(options().ranks(OneRank));
        assert!(alone > 2 && cause == VerifyCause::FrozenContext);
    });
}
