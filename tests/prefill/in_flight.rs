//! Batches that are on their way while the next ones are staged, on one stream and on several.

use crate::buckets;
use crate::support::demo::Ops;
use crate::support::{Rig, assert_same, driver, for_each_seed};
use breakable_cuda_graph::driver::{MemoryPool, Stream};
use breakable_cuda_graph::prefill::{Batch, FnModel, InputData, InputSpec, OutputSpec, PrefillModel, TailRule};
use breakable_cuda_graph::tensor::Layout;
use breakable_cuda_graph::{DType, PrefillRunner, Result, Scope, Tensor};

const WIDTH: usize = 16;
const ROWS: usize = 4;

/// What a batch's results are left in by a break: nothing waits for them.
type Kept = Tensor;

fn model<F>(rig: &Rig, forward: F) -> impl PrefillModel<Context = Kept>
where
    F: for<'r, 'm> Fn(&'m Ops, &Scope<'r, 'm>, &[Tensor]) -> Result<Vec<Tensor>> + Sync,
{
    FnModel::new(rig.ops.clone(), rig.zeros(&[ROWS, WIDTH]), forward)
        .input(InputSpec::rows("x", DType::F32, &[WIDTH]).tail(TailRule::Zero))
        .output(OutputSpec::rows("y", DType::F32, &[WIDTH]))
}

#[test]
fn neither_staging_nor_inputs_are_written_before_they_were_read() {
    for streams in [1, 2] {
        for_each_seed(|rig| {
            let model = model(&rig, |ops, scope, inputs| {
                let y = ops.scale(&inputs[0], 2.0)?;
                scope.break_point("keeps", [&y], |b| {
                    ops.scale_into(b.stream(), b.input(0)?, 1.0, b.forward_ctx::<Kept>()?)
                })?;
                Ok(vec![y])
            });
            let mut runner = PrefillRunner::new(&model, &rig.context, buckets(&[ROWS])).expect("a runner");
            runner.capture_all(&rig.stream, |_| {}).expect("captured");
            let streams: Vec<_> = (0..streams).map(|_| Stream::new(&rig.context).expect("a stream")).collect();
            let results: Vec<Tensor> = (0..6).map(|_| rig.zeros(&[ROWS, WIDTH])).collect();
            rig.stream.synchronize().expect("done");
            for (turn, result) in results.iter().enumerate() {
                let values = vec![turn as f32; ROWS * WIDTH];
                let batch = Batch { rows: ROWS, context: result, inputs: &[InputData::host(&values)] };
                drop(runner.run(&streams[turn % streams.len()], &batch).expect("a batch"));
            }
            streams.iter().for_each(|stream| stream.synchronize().expect("done"));
            for (turn, result) in results.iter().enumerate() {
                assert_same(&rig.read(result), &[2.0 * turn as f32; ROWS * WIDTH]);
            }
        });
    }
}

/// A batch's data may be memory in the order of another stream, and go as soon as the batch is enqueued.
#[test]
fn data_on_the_device_is_read_before_it_goes() {
    for_each_seed(|rig| {
        let model = model(&rig, |ops, scope, inputs| {
            let y = ops.scale(&inputs[0], 2.0)?;
            scope.break_point("keeps", [&y], |b| {
                ops.scale_into(b.stream(), b.input(0)?, 1.0, b.forward_ctx::<Kept>()?)
            })?;
            Ok(vec![y])
        });
        let mut runner = PrefillRunner::new(&model, &rig.context, buckets(&[ROWS])).expect("a runner");
        runner.capture_all(&rig.stream, |_| {}).expect("captured");
        let (memory, own) =
            (MemoryPool::new(&rig.context).expect("a pool"), Stream::new(&rig.context).expect("a stream"));
        let results: Vec<Tensor> = (0..3).map(|_| rig.zeros(&[ROWS, WIDTH])).collect();
        rig.stream.synchronize().expect("done");
        for (turn, result) in results.iter().enumerate() {
            let buffer = memory.allocate(ROWS * WIDTH * 4, &own).expect("memory");
            let layout = Layout::contiguous(&[ROWS, WIDTH]).expect("a layout");
            let data = Tensor::from_buffer(buffer, DType::F32, layout).expect("a tensor");
            rig.ops.fill(&own, &data, turn as f32).expect("filled");
            let batch = Batch { rows: ROWS, context: result, inputs: &[InputData::Device(&data)] };
            drop(runner.run(&rig.stream, &batch).expect("a batch"));
        }
        for (turn, result) in results.iter().enumerate() {
            assert_same(&rig.read(result), &[2.0 * turn as f32; ROWS * WIDTH]);
        }
    });
}

/// A break that writes all rows: the next segment finds zeros in those that are not valid.
#[test]
fn replays_are_told_what_is_valid() {
    let rig = Rig::new(&driver());
    let model = model(&rig, |ops, scope, inputs| {
        let ones = scope.break_point("ones", [&inputs[0]], |b| {
            let y = b.empty(DType::F32, b.input(0)?.shape())?;
            ops.fill(b.stream(), &y, 1.0).map(|()| y)
        })?;
        let y = ops.scale(&ones, 1.0)?;
        scope.break_point("keeps", [&y], |b| ops.scale_into(b.stream(), b.input(0)?, 1.0, b.forward_ctx::<Kept>()?))?;
        Ok(vec![y])
    });
    let mut runner = PrefillRunner::new(&model, &rig.context, buckets(&[ROWS])).expect("a runner");
    runner.capture_all(&rig.stream, |_| {}).expect("captured");
    let (result, values) = (rig.zeros(&[ROWS, WIDTH]), [5.0_f32; 2 * WIDTH]);
    let batch = Batch { rows: 2, context: &result, inputs: &[InputData::host(&values)] };
    assert_eq!(runner.run(&rig.stream, &batch).expect("a batch").bucket(), Some(ROWS));
    assert_same(&rig.read(&result), &[[1.0; 2 * WIDTH], [0.0; 2 * WIDTH]].concat());
}
