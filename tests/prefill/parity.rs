//! Replayed equals eager, bit for bit.

use super::model::{Owned, Small, WIDTH};
use crate::support::{Rig, for_each_driver, random_values, reference};
use crate::{bits, buckets, run, run_eager, runner};
use breakable_cuda_graph::prefill::{Batch, CaptureWhen, InputData};
use breakable_cuda_graph::{BreakKind, Error, GraphOptions, Misuse, Reconfigure, Tensor, TensorError};

const LADDER: [usize; 7] = [1, 3, 4, 8, 13, 21, 32];

/// Buckets are captured as the runner's options say.
#[test]
fn captures_are_made_with_the_options_for_them() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let mut model = Small::new(&rig);
        model.kind = BreakKind::Patched;
        let mut runner = runner(&rig, &model, buckets(&[4, 8]).name("prefill").share_execs(true));
        runner.capture_all(&rig.stream, |_| {}).expect("all captured");
        let report = runner.report(8).expect("a capture");
        assert_eq!((report.name.as_deref(), report.bucket), (Some("prefill"), Some(8)));
    });
}

/// A thousand batches of random sizes over all buckets, for some seeds with patched breaks and with execs that the buckets share, with all static
/// inputs and all rows that attention does not write poisoned before each.
fn a_thousand_batches(rig: &Rig, seed: u64) {
    let mut model = Small::new(rig);
    model.kind = if seed % 2 == 1 { BreakKind::Patched } else { BreakKind::Live };
    let graph = GraphOptions::default().share_execs(seed % 4 == 3).reconfigure(Reconfigure::AnotherExec);
    let mut runner = runner(rig, &model, buckets(&LADDER).graph(graph));
    runner.capture_all(&rig.stream, |_| {}).expect("all captured");
    let poison: Vec<_> = runner.inputs().iter().map(|input| vec![f32::NAN; input.elements()]).collect();
    let mut rows = 1;
    for batch in 0..1000_u64 {
        for (input, poison) in runner.inputs().iter().zip(&poison) {
            if input.dtype() == breakable_cuda_graph::DType::F32 {
                input.write(&rig.stream, poison).expect("poisoned");
            } else {
                input.fill_bytes(&rig.stream, 0x1f).expect("poisoned");
            }
        }
        rows = (rows * 29 + batch as usize + seed as usize) % 32 + 1;
        let owned = Owned::new(&rig.stream, seed * 1000 + batch, rows);
        let (got, bucket) = run(rig, &mut runner, &owned);
        assert_eq!(bucket, LADDER.into_iter().find(|bucket| *bucket >= rows), "batch {batch} of {rows} rows");
        let expected = run_eager(rig, &mut runner, &owned);
        assert_eq!(bits(&got), bits(&expected), "batch {batch} of {rows} rows");
        assert!(got.iter().flatten().all(|value| value.is_finite()), "batch {batch} of {rows} rows");
    }
    let stats = runner.stats();
    assert_eq!((stats.total_replays(), stats.total_eager(), stats.live), (1000, 0, LADDER.len()));
    assert!(stats.replays.iter().all(|bucket| bucket.replays > 0), "{stats:?}");
}

#[test]
fn a_thousand_batches_in_random_order_equal_eager() {
    if cfg!(feature = "driver-tests") {
        for seed in 0..4 {
            a_thousand_batches(&Rig::new(&crate::support::driver()), seed);
        }
        return;
    }
    for seed in 0..16 {
        a_thousand_batches(&Rig::new(&reference(seed)), seed);
    }
}

#[test]
fn the_batch_that_captures_gets_a_valid_result() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let model = Small::new(&rig);
        let mut runner = runner(&rig, &model, buckets(&LADDER).when(CaptureWhen::FirstUse));
        for (batch, rows) in [5, 8, 20, 2, 3, 32, 6].into_iter().enumerate() {
            let owned = Owned::new(&rig.stream, batch as u64, rows);
            let (got, bucket) = run(&rig, &mut runner, &owned);
            assert!(bucket.is_some(), "{rows} rows");
            assert_eq!(bits(&got), bits(&run_eager(&rig, &mut runner, &owned)), "{rows} rows");
        }
        let stats = runner.stats();
        assert_eq!((stats.captured, stats.total_replays(), stats.live), (4, 7, 4));
    });
}

#[test]
fn captured_between_batches_one_a_call_largest_first() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let model = Small::new(&rig);
        let mut runner = runner(&rig, &model, buckets(&[8, 32, 4]).when(CaptureWhen::OnCall));
        let owned = Owned::new(&rig.stream, 1, 6);
        let expected = run_eager(&rig, &mut runner, &owned);
        for (captured, bucket) in [(32, None), (8, Some(8)), (4, Some(8))] {
            let one = runner.capture_next(&rig.stream).expect("a capture").expect("one is left");
            assert_eq!(one.bucket, captured);
            let (got, used) = run(&rig, &mut runner, &owned);
            assert_eq!((bits(&got), used), (bits(&expected), bucket));
        }
        assert!(runner.capture_next(&rig.stream).expect("no error").is_none());
    });
}

#[test]
fn progress_is_told_largest_first() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let model = Small::new(&rig);
        let mut runner = runner(&rig, &model, buckets(&[4, 32, 8]));
        let mut told = Vec::new();
        runner
            .capture_all(&rig.stream, |one| told.push((one.bucket, one.done, one.of, one.pool_bytes > 0)))
            .expect("captured");
        assert_eq!(told, [(32, 1, 3, true), (8, 2, 3, false), (4, 3, 3, false)]);
        runner.capture_all(&rig.stream, |_| panic!("all are captured")).expect("nothing to do");
    });
}

/// Inputs in device memory, and in the static inputs themselves.
#[test]
fn inputs_may_be_on_the_device() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let model = Small::new(&rig);
        let mut runner = runner(&rig, &model, buckets(&[4, 8]));
        runner.capture_all(&rig.stream, |_| {}).expect("captured");
        let owned = Owned::new(&rig.stream, 3, 3);
        let ids = vec![4, 5, 6];
        let (x, bias) = (random_values(9, 3 * WIDTH), random_values(8, WIDTH));
        let host = [InputData::host(&ids), InputData::host(&x), InputData::host(&bias)];
        let run = |runner: &mut breakable_cuda_graph::PrefillRunner<'_, Small>, inputs: &[InputData<'_>]| {
            let outputs = runner.run(&rig.stream, &Batch { rows: 3, context: &owned.meta, inputs }).expect("a batch");
            assert_eq!(outputs.bucket(), Some(4));
            outputs.read::<f32>(0, &rig.stream).expect("an output")
        };
        let expected = run(&mut runner, &host);
        let x_there = Tensor::from_slice(&rig.stream, &x, &[3, WIDTH]).expect("a tensor");
        let bias_there = Tensor::from_slice(&rig.stream, &bias, &[WIDTH]).expect("a tensor");
        assert_eq!(run(&mut runner, &[InputData::host(&ids), (&x_there).into(), (&bias_there).into()]), expected);
        // Written where captures read it, by the engine itself.
        let in_place = runner.inputs()[1].leading_rows(3);
        runner.inputs()[1].write(&rig.stream, &[f32::NAN; 8 * WIDTH]).expect("poisoned");
        in_place.write(&rig.stream, &x).expect("written");
        assert_eq!(run(&mut runner, &[InputData::host(&ids), (&in_place).into(), InputData::host(&bias)]), expected);
    });
}

/// A batch on another stream waits for what still reads the static inputs.
#[test]
fn batches_on_several_streams_in_turn() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let model = Small::new(&rig);
        let mut runner = runner(&rig, &model, buckets(&[8]));
        runner.capture_all(&rig.stream, |_| {}).expect("captured");
        let streams = [(); 3].map(|()| breakable_cuda_graph::driver::Stream::new(&rig.context).expect("a stream"));
        for batch in 0..12 {
            let stream = &streams[batch % 3];
            let owned = Owned::new(&rig.stream, batch as u64, batch % 8 + 1);
            let kept = rig.zeros(&[batch % 8 + 1, WIDTH]);
            owned.with(|b| {
                let outputs = runner.run(stream, b).expect("a batch");
                let hidden = outputs.tensor(0).expect("an output");
                model.ops.scale_into(stream, &hidden, 1.0, &kept).expect("kept");
            });
            // The next batch is enqueued without a wait for this one; every third is looked at.
            if batch % 3 == 2 {
                let got = kept.read::<f32>(stream).expect("a read");
                assert_eq!(bits(&[got])[0], bits(&run_eager(&rig, &mut runner, &owned))[0], "batch {batch}");
            }
        }
    });
}

#[test]
fn outputs_are_refused_after_another_replay_of_the_pool() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let model = Small::new(&rig);
        let options = || buckets(&[8]).pool(&rig.pool);
        let (mut one, mut other) = (runner(&rig, &model, options()), runner(&rig, &model, options()));
        one.capture_all(&rig.stream, |_| {}).expect("captured");
        other.capture_all(&rig.stream, |_| {}).expect("captured");
        let batch = Owned::new(&rig.stream, 1, 5);
        batch.with(|batch| {
            let outputs = one.run(&rig.stream, batch).expect("a batch");
            assert!(outputs.tensor(0).is_ok());
            assert!(matches!(outputs.tensor(2), Err(Error::Tensor(TensorError::OutOfRange { .. }))));
            let _ = other.run(&rig.stream, batch).expect("a batch");
            assert!(matches!(outputs.tensor(0), Err(Error::Misuse(Misuse::OutputsOverwritten))));
            assert!(matches!(outputs.read::<f32>(1, &rig.stream), Err(Error::Misuse(Misuse::OutputsOverwritten))));
        });
    });
}
