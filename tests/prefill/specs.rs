//! What a model can say of its inputs and outputs: rows at another dimension, the number of valid rows, outputs whose padded rows are zero; and what runs
//! when a runner is off (rules 66 and 67).

use crate::buckets;
use crate::support::demo::Ops;
use crate::support::{Rig, assert_same, driver, for_each_seed};
use breakable_cuda_graph::prefill::{
    Batch, CaptureWhen, FnModel, InputData, InputSpec, OutputSpec, PrefillError, PrefillModel, TailRule,
};
use breakable_cuda_graph::{BreakOptions, DType, Error, PrefillRunner, Result, Scope, Tensor};
use std::sync::Mutex;

const HEADS: usize = 3;
const WIDTH: usize = 2;

/// `2 x` for x of `[heads, rows, width]`, and `x + alone`; each by way of a break.
fn heads(ops: &Ops) -> impl PrefillModel<Context = (), Key = ()> {
    let model = FnModel::new(ops.clone(), (), |ops, scope, inputs| {
        let [x, alone] = inputs else { return Err(Error::user("two inputs")) };
        assert!(x.layout().is_contiguous() && x.shape() == [HEADS, x.shape()[1], WIDTH]);
        let sum = ops.add(x, alone)?;
        let options = BreakOptions::new("twice").not_rows();
        let twice = scope.break_point(options, [x], |b| ops.scale(b.input(0)?, 2.0))?;
        Ok(vec![ops.scale(&twice, 1.0)?, sum])
    });
    let rows = |name| InputSpec::rows(name, DType::F32, &[HEADS, WIDTH]).rows_at(1);
    let output = |name| OutputSpec::rows(name, DType::F32, &[HEADS, WIDTH]).rows_at(1).scrubbed();
    let model = model.input(rows("x").tail(TailRule::from(5.0_f32))).input(rows("alone").tail(TailRule::LeftAlone));
    model.output(output("twice")).output(output("sum"))
}

#[test]
fn rows_may_be_another_dimension_than_the_first() {
    for_each_seed(|rig| {
        let model = heads(&rig.ops);
        for when in [CaptureWhen::StartUp, CaptureWhen::FirstUse] {
            let mut runner = PrefillRunner::new(&model, &rig.context, buckets(&[4, 8]).when(when)).expect("a runner");
            runner.capture_all(&rig.stream, |_| {}).expect("captured");
            for rows in [3, 8, 1, 4, 5, 3] {
                let count = HEADS * rows * WIDTH;
                let x: Vec<f32> = (0..count).map(|at| (at + rows) as f32).collect();
                let alone: Vec<f32> = (0..count).map(|at| 100.0 * at as f32).collect();
                let there = Tensor::from_slice(&rig.stream, &x, &[HEADS, rows, WIDTH]).expect("a tensor");
                for from in [InputData::host(&x), InputData::Device(&there)] {
                    let inputs = [from, InputData::host(&alone)];
                    let batch = Batch { rows, context: &(), inputs: &inputs };
                    let bucket = if rows <= 4 { 4 } else { 8 };
                    for eager in [false, true] {
                        let outputs = if eager {
                            runner.run_eager_in(&rig.stream, &batch, bucket).expect("a batch")
                        } else {
                            runner.run(&rig.stream, &batch).expect("a batch")
                        };
                        assert_eq!(outputs.bucket(), (!eager).then_some(bucket));
                        let twice: Vec<f32> = x.iter().map(|value| 2.0 * value).collect();
                        let sum: Vec<f32> = x.iter().zip(&alone).map(|(x, alone)| x + alone).collect();
                        for (index, expected) in [twice, sum].iter().enumerate() {
                            assert_same(&outputs.read::<f32>(index, &rig.stream).expect("an output"), expected);
                            let whole = outputs.padded(index).expect("an output");
                            assert_eq!(whole.shape(), [HEADS, bucket, WIDTH]);
                            let tail = whole.narrow(1, rows, bucket - rows).expect("the tail");
                            assert_same(&rig.read(&tail), &vec![0.0; HEADS * (bucket - rows) * WIDTH]);
                        }
                    }
                    // The tails, as declared.
                    let view = |input: &Tensor| {
                        let (shape, all) = ([HEADS, bucket, WIDTH], input.reshape(&[input.elements()]).expect("flat"));
                        let view = all.narrow(0, 0, HEADS * bucket * WIDTH).expect("a part").reshape(&shape);
                        rig.read(&view.expect("a view").narrow(1, rows, bucket - rows).expect("the tail"))
                    };
                    assert_same(&view(&runner.inputs()[0]), &vec![5.0; HEADS * (bucket - rows) * WIDTH]);
                }
            }
            // The static input's own memory has its rows elsewhere.
            let own =
                runner.inputs()[0].reshape(&[8 * HEADS * WIDTH]).and_then(|all| all.narrow(0, 0, 3 * HEADS * WIDTH));
            let own = own.and_then(|own| own.reshape(&[HEADS, 3, WIDTH])).expect("a view");
            let alone = [0.0_f32; 3 * HEADS * WIDTH];
            let inputs = [InputData::Device(&own), InputData::host(&alone)];
            let error = runner.run(&rig.stream, &Batch { rows: 3, context: &(), inputs: &inputs }).map(drop);
            assert!(matches!(error, Err(Error::Prefill(PrefillError::Input { input: "x", .. }))), "{error:?}");
        }
    });
}

#[test]
fn rows_at_no_dimension_are_refused() {
    let rig = Rig::new(&driver());
    let forward = |(): &(), _: &Scope<'_, '_>, _: &[Tensor]| -> Result<Vec<Tensor>> { Ok(Vec::new()) };
    let input = InputSpec::rows("x", DType::F32, &[2]).rows_at(2).tail(TailRule::Zero);
    let fixed = InputSpec::fixed("x", DType::F32, &[2, 2]).rows_at(1);
    for input in [input, fixed] {
        let model = FnModel::new((), (), forward).input(input);
        let error = PrefillRunner::new(&model, &rig.context, buckets(&[4])).map(drop).expect_err("it is refused");
        assert!(matches!(error, Error::Prefill(PrefillError::Axis { tensor: "x", .. })), "{error}");
    }
    let model = FnModel::new((), (), forward).output(OutputSpec::rows("y", DType::F32, &[]).rows_at(1));
    let error = PrefillRunner::new(&model, &rig.context, buckets(&[4])).map(drop).expect_err("it is refused");
    assert!(matches!(error, Error::Prefill(PrefillError::Axis { tensor: "y", axis: 1, rank: 0 })), "{error}");
    let model = FnModel::new((), (), forward).output(OutputSpec::fixed("y", DType::F32, &[4]).scrubbed());
    let error = PrefillRunner::new(&model, &rig.context, buckets(&[4])).map(drop).expect_err("it is refused");
    assert!(matches!(error, Error::Prefill(PrefillError::NoRows { output: "y" })), "{error}");
}

/// The number of valid rows is on the device for segments, and metadata of the batch as a fixed input for breaks: both staged by the runner.
#[test]
fn the_valid_rows_and_a_batchs_metadata_are_staged() {
    for_each_seed(|rig| {
        let told = Mutex::new(Vec::new());
        let model = FnModel::new((rig.ops.clone(), &told), (), |(ops, told), scope, inputs| {
            let [x, rows, page] = inputs else { return Err(Error::user("three inputs")) };
            let seen = scope.empty(DType::I32, &[1])?;
            seen.copy_from(&scope.stream()?, rows)?;
            let y = scope.break_point("page", [x, rows, page], |b| {
                // Live, as the runner has copied them in this stream's order.
                told.lock().expect("no panic").push(b.input(1)?.read::<i32>(b.stream())?[0]);
                let page = b.input(2)?.read::<f32>(b.stream())?[0];
                ops.scale(b.input(0)?, page)
            })?;
            Ok(vec![y, seen])
        });
        let model = model.input(InputSpec::rows("x", DType::F32, &[]).tail(TailRule::Zero));
        let model = model.input(InputSpec::valid_rows("rows")).input(InputSpec::fixed("page", DType::F32, &[1]));
        let model =
            model.output(OutputSpec::rows("y", DType::F32, &[])).output(OutputSpec::fixed("seen", DType::I32, &[1]));
        let mut runner = PrefillRunner::new(&model, &rig.context, buckets(&[4, 8])).expect("a runner");
        runner.capture_all(&rig.stream, |_| {}).expect("captured");
        assert!(
            told.lock().expect("no panic").drain(..).all(|rows| rows == 0),
            "no row is valid before there is a batch"
        );
        let x = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0];
        for (rows, page) in [(3, 10.0_f32), (6, 2.0), (1, 5.0), (4, 3.0)] {
            // Neither is kept by the batch.
            let (x, pages) = (x[..rows].to_vec(), [page]);
            let inputs = [InputData::host(&x), InputData::host(&pages)];
            let outputs = runner.run(&rig.stream, &Batch { rows, context: &(), inputs: &inputs }).expect("a batch");
            let expected: Vec<f32> = x.iter().map(|value| value * page).collect();
            assert_same(&outputs.read::<f32>(0, &rig.stream).expect("an output"), &expected);
            assert_eq!(outputs.read::<i32>(1, &rig.stream).expect("an output"), [rows as i32]);
            assert_eq!(told.lock().expect("no panic").pop(), Some(rows as i32));
        }
        let three = [InputData::host(&x[..3]), InputData::host(&[3_i32]), InputData::host(&[1.0_f32])];
        let error = runner.run(&rig.stream, &Batch { rows: 3, context: &(), inputs: &three }).map(drop);
        assert!(
            matches!(error, Err(Error::Prefill(PrefillError::InputCount { expected: 2, got: 3 }))),
            "batches don't give it: {error:?}"
        );
    });
}

/// The sum of squares over the bucket's rows, which padding would spoil; and the rows that the forward ran on.
fn mixing<'t>(ops: &Ops, ran: &'t Mutex<Vec<usize>>) -> impl PrefillModel<Context = (), Key = ()> + use<'t> {
    let model = FnModel::new((ops.clone(), ran), (), |(ops, ran), scope, inputs| {
        ran.lock().expect("no panic").push(inputs[0].rows());
        let h = scope.break_point("leaves rows", [&inputs[0]], |b| {
            let (x, y) = (b.input(0)?, b.empty(DType::F32, b.input(0)?.shape())?);
            ops.fill(b.stream(), &y, f32::NAN)?;
            let rows = x.rows().min(3);
            ops.scale_into(b.stream(), &x.leading_rows(rows), 1.0, &y.leading_rows(rows))?;
            Ok(y)
        })?;
        let sum = ops.matmul(&h.reshape(&[1, h.rows()])?, &h)?;
        Ok(vec![ops.scale(&h, 2.0)?, sum, ops.scale(&inputs[0], 1.0)?])
    });
    let model = model.input(InputSpec::rows("x", DType::F32, &[1]).tail(TailRule::from(7.0_f32)));
    let model = model.input(InputSpec::rows("unused", DType::F32, &[1]).tail(TailRule::LeftAlone));
    let model =
        model.output(OutputSpec::rows("y", DType::F32, &[1])).output(OutputSpec::fixed("sum", DType::F32, &[1, 1]));
    model.output(OutputSpec::rows("x", DType::F32, &[1]))
}

/// What a bucket would hold runs padded to it, with nothing captured and no static inputs (rule 67).
#[test]
fn turned_off_it_runs_the_same_padded_forward() {
    for_each_seed(|rig| {
        let ran = Mutex::new(Vec::new());
        let model = mixing(&rig.ops, &ran);
        let mut runner = PrefillRunner::new(&model, &rig.context, buckets(&[4, 8])).expect("a runner");
        let x = [1.0_f32, 2.0, 3.0];
        let there = Tensor::from_slice(&rig.stream, &x, &[3, 1]).expect("a tensor");
        for from in [InputData::host(&x), InputData::Device(&there)] {
            let mut results = Vec::new();
            for off in [false, true] {
                if off {
                    runner.turn_off().expect("off");
                } else {
                    runner.turn_on();
                    runner.capture_all(&rig.stream, |_| {}).expect("captured");
                }
                ran.lock().expect("no panic").clear();
                let batch = Batch { rows: 3, context: &(), inputs: &[from, InputData::host(&x)] };
                let outputs = runner.run(&rig.stream, &batch).expect("a batch");
                assert_eq!((outputs.bucket(), outputs.padded(0).expect("an output").rows()), ((!off).then_some(4), 4));
                let read = |index| outputs.read::<f32>(index, &rig.stream).expect("an output");
                results.push([read(0), read(1)]);
                assert_same(&rig.read(&outputs.padded(2).expect("an output")), &[1.0, 2.0, 3.0, 7.0]);
                drop(outputs);
                assert_eq!(*ran.lock().expect("no panic"), if off { vec![4] } else { vec![] });
                assert_eq!(runner.inputs().is_empty(), off);
            }
            assert_eq!(results[0], results[1]);
            assert_eq!(results[0], [vec![2.0, 4.0, 6.0], vec![14.0]]);
        }
        // Above the largest bucket there is nothing to be padded to.
        let nine = [1.0_f32; 9];
        let batch = Batch { rows: 9, context: &(), inputs: &[InputData::host(&nine), InputData::host(&nine)] };
        let _ = runner.run(&rig.stream, &batch).expect("a batch");
        assert_eq!(ran.lock().expect("no panic").last(), Some(&9));
    });
}
