//! Bad input: each a typed error or a counted reason, and nothing is copied.

use super::model::{Owned, Small, WIDTH, Wrong};
use crate::support::{Rig, assert_same, driver, for_each_seed};
use crate::{buckets, run, runner};
use breakable_cuda_graph::prefill::{
    Batch, CaptureWhen, FnModel, InputData, InputSpec, Ladder, LadderOptions, OutputSpec, PrefillError, ReasonKind,
    RunnerOptions, TailRule,
};
use breakable_cuda_graph::{DType, Error, PrefillRunner, Result, Tensor, TensorError};

fn prefill<T: std::fmt::Debug>(result: Result<T>) -> PrefillError {
    match result {
        Err(Error::Prefill(error)) => error,
        other => panic!("{other:?}"),
    }
}
#[test]
fn an_input_without_a_tail_rule() {
    let rig = Rig::new(&driver());
    let mut model = Small::new(&rig);
    model.without_tail = true;
    let error = prefill(PrefillRunner::new(&model, &rig.context, buckets(&[4])).map(drop));
    assert!(matches!(error, PrefillError::NoTailRule { input: "ids" }), "{error}");
}

#[test]
fn tail_rules_that_do_not_fit() {
    let rig = Rig::new(&driver());
    struct Inputs(InputSpec);
    impl breakable_cuda_graph::PrefillModel for Inputs {
        type Context = ();
        type Key = ();
        fn inputs(&self) -> Vec<InputSpec> {
            vec![self.0.clone()]
        }
        fn outputs(&self) -> Vec<breakable_cuda_graph::prefill::OutputSpec> {
            Vec::new()
        }
        fn key(&self) {}
        fn dummy(&self, _: &breakable_cuda_graph::driver::Stream, _: usize) -> Result<()> {
            Ok(())
        }
        fn mode(&self, (): &()) -> breakable_cuda_graph::prefill::Mode<()> {
            breakable_cuda_graph::prefill::Mode::Eligible(())
        }
        fn forward<'m>(&'m self, _: &breakable_cuda_graph::Scope<'_, 'm>, _: &[Tensor]) -> Result<Vec<Tensor>> {
            Ok(Vec::new())
        }
    }
    let made = |spec: InputSpec| PrefillRunner::new(&Inputs(spec), &rig.context, buckets(&[4])).map(drop);
    let ids = |dtype, rule| InputSpec::rows("ids", dtype, &[]).tail(rule);
    for (spec, part) in [
        (ids(DType::F32, TailRule::DummySlot(0)), "not of an integer type"),
        (ids(DType::U32, TailRule::DummySlot(-1)), "out of the type's range"),
        (ids(DType::I8, TailRule::DummySlot(128)), "out of the type's range"),
        (ids(DType::I32, TailRule::Value(0.0_f32.into())), "another element type"),
        (InputSpec::fixed("table", DType::I32, &[3]).tail(TailRule::Zero), "no padded tail"),
    ] {
        let error = made(spec).expect_err("it is refused");
        let Error::Tensor(TensorError::UnfitTail { input, reason, .. }) = &error else { panic!("{error}") };
        assert!(["ids", "table"].contains(input) && reason.contains(part), "{error}");
    }
    for rule in [TailRule::Zero, TailRule::LeftAlone, TailRule::DummySlot(-1), TailRule::Value(5_i64.into())] {
        made(ids(DType::I64, rule)).expect("it fits");
    }
}

#[test]
fn inputs_that_do_not_fit_are_refused_before_anything_is_copied() {
    let rig = Rig::new(&driver());
    let model = Small::new(&rig);
    let mut runner = runner(&rig, &model, buckets(&[4, 8]));
    runner.capture_all(&rig.stream, |_| {}).expect("captured");
    let owned = Owned::new(&rig.stream, 1, 3);
    let _ = run(&rig, &mut runner, &owned);
    let state = |runner: &PrefillRunner<'_, Small>| {
        let [ids, x, bias] = runner.inputs() else { panic!("three inputs") };
        (ids.read::<i32>(&rig.stream).expect("ids"), rig.read(x), rig.read(bias))
    };
    let before = state(&runner);
    let (ids, x, bias) = (vec![1, 2, 3], vec![0.5_f32; 3 * WIDTH], vec![0.5_f32; WIDTH]);
    let there = rig.zeros(&[3, WIDTH]);
    let wide = rig.zeros(&[3, 2 * WIDTH]);
    let strided = wide.narrow(1, 0, WIDTH).expect("a view");
    let on_host = Tensor::host(&x, &[3, WIDTH]).expect("a tensor");
    let good = [InputData::host(&ids), InputData::host(&x), InputData::host(&bias)];
    let stats = runner.stats();
    let mut refused = |rows: usize, inputs: &[InputData<'_>], part: &str| {
        let batch = Batch { rows, context: &owned.meta, inputs };
        for result in [runner.run(&rig.stream, &batch).map(drop), runner.run_eager(&rig.stream, &batch).map(drop)] {
            let error = result.expect_err(part);
            assert!(error.to_string().contains(part), "{part} is not in {error}");
        }
        assert_eq!(state(&runner), before, "{part}");
    };
    refused(3, &good[..2], "2 inputs, the model declares 3");
    refused(4, &good, "input ids: a batch of 4 rows takes i32 [4]");
    refused(3, &[InputData::host(&ids), InputData::host(&x[WIDTH..]), good[2]], "input x");
    refused(3, &[InputData::host(&ids), InputData::host(&x), InputData::host(&bias[1..])], "input bias");
    refused(3, &[InputData::host(&[1.0_f32, 2.0, 3.0]), good[1], good[2]], "12 bytes of f32");
    refused(3, &[good[0], InputData::Device(&strided), good[2]], "row-major");
    refused(3, &[good[0], InputData::Device(&wide), good[2]], "input x");
    refused(3, &[good[0], InputData::Device(&on_host), good[2]], "device memory");
    refused(0, &good, "input ids");
    assert_eq!(runner.stats(), stats, "none of them was a batch");
    let fine = [good[0], InputData::Device(&there), good[2]];
    let batch = Batch { rows: 3, context: &owned.meta, inputs: &fine };
    assert_eq!(runner.run(&rig.stream, &batch).expect("a batch").bucket(), Some(4));
}

/// With the runner: too many rows run eagerly, or are refused where a bucket is named.
#[test]
fn more_rows_than_the_largest_bucket() {
    let rig = Rig::new(&driver());
    let model = Small::new(&rig);
    let mut runner = runner(&rig, &model, buckets(&[4, 8]));
    runner.capture_all(&rig.stream, |_| {}).expect("captured");
    let owned = Owned::new(&rig.stream, 1, 9);
    assert_eq!(run(&rig, &mut runner, &owned).1, None);
    assert_eq!(runner.stats().eager_for(ReasonKind::AboveLargest), 1);
    let error = prefill(owned.with(|batch| runner.replay(&rig.stream, batch, 8).map(drop)));
    assert!(matches!(error, PrefillError::Bucket { rows: 9, bucket: 8 }), "{error}");
    let owned = Owned::new(&rig.stream, 1, 3);
    let error = prefill(owned.with(|batch| runner.replay(&rig.stream, batch, 5).map(drop)));
    assert!(matches!(error, PrefillError::NotCaptured { bucket: 5 }), "{error}");
}
#[test]
fn a_batch_of_no_rows() {
    let rig = Rig::new(&driver());
    let model = Small::new(&rig);
    for when in [CaptureWhen::StartUp, CaptureWhen::FirstUse] {
        let mut runner = runner(&rig, &model, buckets(&[4]).when(when));
        let owned = Owned::new(&rig.stream, 1, 0);
        let (outputs, bucket) = run(&rig, &mut runner, &owned);
        assert!(outputs.is_empty() && bucket.is_none());
        assert_eq!((runner.stats().eager_for(ReasonKind::NoRows), runner.stats().captured), (1, 0));
        // Asked for, it runs: without rows, or in a bucket with nothing but padding.
        let eager =
            owned.with(|batch| runner.run_eager(&rig.stream, batch).expect("no rows").read::<f32>(0, &rig.stream));
        assert!(eager.expect("no values").is_empty());
        runner.capture_all(&rig.stream, |_| {}).expect("captured");
        let idle =
            owned.with(|batch| runner.replay(&rig.stream, batch, 4).expect("all padding").read::<f32>(0, &rig.stream));
        assert!(idle.expect("no values").is_empty());
        rig.stream.synchronize().expect("no fault");
    }
}

#[test]
fn a_model_that_returns_other_shapes_at_other_times() {
    let rig = Rig::new(&driver());
    let mut model = Small::new(&rig);
    model.wrong = Wrong::WidthInSegment;
    let mut first = runner(&rig, &model, buckets(&[4, 8]));
    let error = first.capture_all(&rig.stream, |_| {}).expect_err("another width");
    let Error::Capture(capture) = &error else { panic!("{error}") };
    assert!(matches!(&*capture.source, Error::Prefill(PrefillError::Output { output: "hidden", .. })), "{error}");
    drop(first);

    model.wrong = Wrong::CountAbove(4);
    let mut second = runner(&rig, &model, buckets(&[4, 8]));
    let error = prefill(second.capture_all(&rig.stream, |_| {}));
    assert!(matches!(error, PrefillError::OutputCount { expected: 2, got: 1 }), "{error}");
    let owned = Owned::new(&rig.stream, 1, 6);
    let error = prefill(owned.with(|batch| second.run(&rig.stream, batch).map(drop)));
    assert!(matches!(error, PrefillError::OutputCount { .. }), "{error}");
}

/// Sizes of zero in a ladder; negative ones can't be said.
#[test]
fn ladders_of_nothing() {
    let rig = Rig::new(&driver());
    let model = Small::new(&rig);
    for ladder in [LadderOptions::new(0), LadderOptions::new(0).explicit([0, 4])] {
        let mut runner = runner(&rig, &model, RunnerOptions::new(Ladder::new(&ladder)));
        assert_eq!(run(&rig, &mut runner, &Owned::new(&rig.stream, 1, 3)).1, None);
        assert_eq!(runner.stats().eager_for(ReasonKind::TurnedOff), 1);
    }
    let zeros = Ladder::new(&LadderOptions::new(8).explicit([0, 0, 4]));
    assert_eq!(zeros.buckets(), [4, 8]);
}

/// The copies into static inputs come one after another, so that data must not lie where an earlier one writes.
#[test]
fn data_that_overlaps_what_is_filled_before_it_is_refused() {
    for_each_seed(|rig| {
        let model = Small::new(&rig);
        let mut runner = runner(&rig, &model, buckets(&[4, 8]));
        runner.capture_all(&rig.stream, |_| {}).expect("captured");
        let owned = Owned::new(&rig.stream, 1, 3);
        let [x, bias] = [1, 2].map(|at| runner.inputs()[at].clone());
        let row = |at: usize| x.narrow(0, at, 1).and_then(|row| row.reshape(&[WIDTH])).expect("a row");
        let x_rows = x.leading_rows(3);
        let mut try_run = |change: &[(usize, &Tensor)]| {
            owned.with(|batch| {
                let mut inputs = batch.inputs.to_vec();
                change.iter().for_each(|(at, tensor)| inputs[*at] = InputData::Device(tensor));
                let outputs = runner.run(&rig.stream, &Batch { inputs: &inputs, ..*batch })?;
                assert_eq!(outputs.bucket(), Some(4));
                outputs.read::<f32>(0, &rig.stream)
            })
        };
        for (change, name) in [
            // Its own rows, shifted.
            (&[(1, &x.narrow(0, 1, 3).expect("rows"))][..], "x"),
            // Rows that are overwritten before they are copied: valid ones, and one of the padded tail.
            (&[(2, &row(0))], "bias"),
            (&[(1, &x_rows), (2, &row(3))], "bias"),
        ] {
            let error = prefill(try_run(change));
            assert!(matches!(error, PrefillError::Input { input, rows: 3, .. } if input == name), "{error}");
        }
        // What is overwritten later, or not in this bucket, is read before.
        let expect_same = |got: Vec<f32>, expected: Vec<f32>| assert_same(&got, &expected);
        for lent in [row(0), row(4)] {
            let values: Vec<f32> = (0..WIDTH).map(|at| at as f32).collect();
            lent.write(&rig.stream, &values).expect("a write");
            let elsewhere = Tensor::from_slice(&rig.stream, &values, &[WIDTH]).expect("a tensor");
            let alone = Tensor::zeros(&rig.stream, DType::F32, &[3, WIDTH]).expect("a tensor");
            alone.copy_from(&rig.stream, &x_rows).expect("a copy");
            let in_place = try_run(&[(1, &x_rows), (2, &lent)]).expect("a batch");
            expect_same(in_place, try_run(&[(1, &alone), (2, &elsewhere)]).expect("a batch"));
        }
        let mut one_row = |tensor: &Tensor| {
            let owned = Owned::new(&rig.stream, 1, 1);
            owned.with(|batch| {
                let mut inputs = batch.inputs.to_vec();
                inputs[1] = InputData::Device(tensor);
                let outputs = runner.run(&rig.stream, &Batch { inputs: &inputs, ..*batch }).expect("a batch");
                outputs.read::<f32>(0, &rig.stream).expect("an output")
            })
        };
        let values: Vec<f32> = (0..WIDTH).map(|at| at as f32).collect();
        let elsewhere = Tensor::from_slice(&rig.stream, &values, &[1, WIDTH]).expect("a tensor");
        bias.write(&rig.stream, &values).expect("a write");
        let read_before = one_row(&bias.reshape(&[1, WIDTH]).expect("a row"));
        expect_same(read_before, one_row(&elsewhere));
    });
}

/// Also where a row has no bytes, so that any number of rows is as long as the data.
#[test]
fn batches_of_any_number_of_rows_are_typed_errors() {
    let rig = Rig::new(&driver());
    let model = Small::new(&rig);
    let mut small = runner(&rig, &model, buckets(&[4, 8]));
    let owned = Owned::new(&rig.stream, 1, 4);
    let none = |counted: bool| {
        let model = FnModel::new((), (), |(), _, inputs| Ok(vec![inputs[0].clone()]));
        let model = model.input(InputSpec::rows("none", DType::F32, &[0]).tail(TailRule::Zero));
        let model = if counted { model.input(InputSpec::valid_rows("rows")) } else { model };
        model.output(OutputSpec::rows("none", DType::F32, &[0]))
    };
    let [plain, counted] = [none(false), none(true)];
    let [mut plain, mut counted] =
        [&plain, &counted].map(|model| PrefillRunner::new(model, &rig.context, buckets(&[4])).expect("a runner"));
    for rows in [usize::MAX, usize::MAX - 1, usize::MAX / 2, 1 << 62, 1 << 60] {
        for eagerly in [false, true] {
            let ran = owned.with(|batch| {
                let batch = Batch { rows, ..*batch };
                let ran = if eagerly { small.run_eager(&rig.stream, &batch) } else { small.run(&rig.stream, &batch) };
                ran.map(drop)
            });
            assert!(matches!(prefill(ran), PrefillError::Input { input: "ids", .. }), "{rows}");
            for runner in [&mut plain, &mut counted] {
                let inputs = [InputData::host::<f32>(&[])];
                let batch = Batch { rows, context: &(), inputs: &inputs };
                let ran = if eagerly { runner.run_eager(&rig.stream, &batch) } else { runner.run(&rig.stream, &batch) };
                assert!(matches!(ran.map(drop), Err(Error::Tensor(_))), "{rows}");
            }
        }
        let in_bucket = owned.with(|batch| small.run_eager_in(&rig.stream, batch, rows).map(drop));
        assert!(in_bucket.is_err(), "{rows}");
    }
    let inputs = [InputData::host::<f32>(&[])];
    let more_than_an_i32 = Batch { rows: 1 << 31, context: &(), inputs: &inputs };
    let error = counted.run(&rig.stream, &more_than_an_i32).map(drop).expect_err("it can't be counted");
    assert!(matches!(error, Error::Tensor(TensorError::TooManyRows { input: "rows", .. })), "{error}");
}
