//! Memory: what a ladder takes, the bounds, and that all of it is given back.

use super::model::{Owned, Small};
use crate::support::{Ledger, Rig, driver, for_each_driver};
use crate::{bits, buckets, run, run_eager, runner};
use breakable_cuda_graph::driver::{Context, DeviceBuffer};
use breakable_cuda_graph::prefill::{
    Batch, EagerReason, FnModel, InputData, InputSpec, OutputSpec, PrefillModel, ReasonKind, TailRule,
};
use breakable_cuda_graph::prefill::{CaptureWhen, PrefillError};
use breakable_cuda_graph::sys::Call;
use breakable_cuda_graph::{DType, Error, Misuse, PrefillRunner, Tensor};
use std::sync::Mutex;

/// Handoffs and outputs are the pool's, so that the whole ladder takes what its largest bucket does.
#[test]
fn a_ladder_takes_the_memory_of_its_largest_bucket() {
    let rig = Rig::new(&driver());
    let model = Small::new(&rig);
    let rows = 1 << 14;
    let mut alone = runner(&rig, &model, buckets(&[rows]));
    alone.capture_all(&rig.stream, |_| {}).expect("captured");
    let largest = alone.pool().usage().expect("usage");
    let mut ladder = runner(&rig, &model, buckets(&[rows, rows / 2, rows / 4, rows / 8, 1000, 100, 10]));
    ladder.capture_all(&rig.stream, |_| {}).expect("captured");
    let all = ladder.pool().usage().expect("usage");
    assert!(largest.reserved > 0);
    assert_eq!((all.reserved, all.peak, all.in_use), (largest.reserved, largest.peak, 0));
    let owned = Owned::new(&rig.stream, 1, 900);
    assert_eq!(bits(&run(&rig, &mut ladder, &owned).0), bits(&run_eager(&rig, &mut alone, &owned)));
}

/// Execs refer to the static inputs, and these are nobody's once they are gone.
#[test]
fn captures_go_before_the_inputs_that_they_read() {
    let rig = Rig::new(&driver().intercepted());
    let model = Small::new(&rig);
    let mut runner = runner(&rig, &model, buckets(&[4, 8]));
    runner.capture_all(&rig.stream, |_| {}).expect("captured");
    let log = rig.driver.intercept().expect("an intercepted driver");
    let first = |log: &[Call], call: Call| log.iter().position(|made| *made == call).expect("it was made");
    let last = |log: &[Call], call: Call| log.iter().rposition(|made| *made == call).expect("it was made");
    log.start_log();
    runner.turn_off().expect("nothing is held");
    let off = log.take_log();
    assert!(last(&off, Call::cuGraphExecDestroy) < first(&off, Call::cuMemFree_v2), "{off:?}");
    runner.turn_on();
    runner.capture_all(&rig.stream, |_| {}).expect("captured again");
    log.start_log();
    drop(runner);
    let dropped = log.take_log();
    assert!(last(&dropped, Call::cuGraphExecDestroy) < first(&dropped, Call::cuMemFree_v2), "{dropped:?}");
    assert!(last(&dropped, Call::cuMemFree_v2) < first(&dropped, Call::cuMemPoolDestroy), "{dropped:?}");
}

#[test]
fn the_number_of_captures_is_bounded() {
    let rig = Rig::new(&driver().intercepted());
    let model = Small::new(&rig);
    let sizes: Vec<usize> = (1..=64).collect();
    let mut runner = runner(&rig, &model, buckets(&sizes).when(CaptureWhen::FirstUse).max_captures(4));
    let watch = rig.driver.intercept().expect("a watched driver");
    let live = || watch.successes(Call::cuGraphInstantiateWithParams) - watch.successes(Call::cuGraphExecDestroy);
    let mut used = Vec::new();
    for batch in 0..200_usize {
        let rows = batch * 37 % 64 + 1;
        let owned = Owned::new(&rig.stream, batch as u64, rows);
        let (got, bucket) = run(&rig, &mut runner, &owned);
        assert_eq!(bucket, Some(rows));
        assert_eq!(bits(&got), bits(&run_eager(&rig, &mut runner, &owned)));
        used.retain(|bucket| *bucket != rows);
        used.push(rows);
        let kept = &used[used.len().saturating_sub(4)..];
        assert!(kept.iter().all(|bucket| runner.is_captured(*bucket)), "the four used last");
        assert_eq!((runner.stats().live, live()), (kept.len(), 3 * kept.len() as u64));
    }
    let stats = runner.stats();
    assert_eq!((stats.captured, stats.evicted), (200, 196));
    // At start-up no more are made than may be kept: the largest.
    let mut at_start = crate::runner(&rig, &model, buckets(&[4, 8, 16, 32]).max_captures(2));
    at_start.capture_all(&rig.stream, |_| {}).expect("captured");
    assert_eq!([4, 8, 16, 32].map(|bucket| at_start.is_captured(bucket)), [false, false, true, true]);
}

#[test]
fn the_bytes_of_captures_are_bounded() {
    let rig = Rig::new(&driver());
    let model = Small::new(&rig);
    let sizes: Vec<usize> = (1..=48).collect();
    let mut free = runner(&rig, &model, buckets(&sizes));
    let mut execs = 0;
    free.capture_all(&rig.stream, |one| execs += one.bytes - one.pool_bytes).expect("captured");
    let pool = free.pool().usage().expect("usage").reserved;
    assert!(execs > 0, "execs take device memory");
    drop(free);
    // A device gives execs memory in large pieces, so that half of it may be less than one of them takes.
    let limit = if rig.is_reference() { pool + execs / 2 } else { pool + 2 * execs };
    let mut bounded = runner(&rig, &model, buckets(&sizes).when(CaptureWhen::FirstUse).max_bytes(limit));
    for rows in (1..=48).rev() {
        let owned = Owned::new(&rig.stream, 1, rows);
        assert_eq!(run(&rig, &mut bounded, &owned).1, Some(rows));
    }
    let stats = bounded.stats();
    assert!(bounded.is_captured(1) && stats.live + stats.evicted as usize == 48, "{stats:?}");
    assert!(stats.evicted > 0 || !rig.is_reference(), "{stats:?}");
}

#[test]
fn out_of_memory_says_bucket_and_counters() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let model = Small::new(&rig);
        let mut runner = runner(&rig, &model, buckets(&[1 << 17, 16]).warm_ups(0).max_bytes(2 << 20));
        let error = runner.capture_all(&rig.stream, |_| {}).expect_err("it does not fit");
        let Error::Capture(capture) = &error else { panic!("{error}") };
        let Error::OutOfMemory(memory) = &*capture.source else { panic!("{error}") };
        assert_eq!((memory.bucket, memory.limit), (Some(1 << 17), Some(2 << 20)));
        assert!(error.to_string().contains("lower the largest bucket"), "{error}");
        let batch = Owned::new(&rig.stream, 1, 9);
        assert_eq!(run(&rig, &mut runner, &batch).1, None, "it runs eagerly");
    });
}

/// One capture alone is more than all may take: the pool has room, but its execs have not.
#[test]
fn a_budget_that_no_capture_fits_is_an_error() {
    let rig = Rig::new(&driver());
    let model = Small::new(&rig);
    let mut free = runner(&rig, &model, buckets(&[64]));
    free.capture_all(&rig.stream, |_| {}).expect("captured");
    let pool = free.pool().usage().expect("usage").reserved;
    drop(free);
    let mut runner = runner(&rig, &model, buckets(&[64]).max_bytes(pool));
    let mut bytes = 0;
    let result = runner.capture_all(&rig.stream, |one| bytes = one.bytes);
    // Execs of a device come from memory that the driver has set aside, at times.
    if bytes <= pool && result.is_ok() {
        assert!(!rig.is_reference());
        return;
    }
    assert!(matches!(result, Err(Error::Prefill(PrefillError::OverBudget { bucket: 64, .. }))), "{result:?}");
}

#[test]
fn turning_off_frees_everything() {
    for_each_driver(|driver| {
        let driver = driver.intercepted();
        let rig = Rig::new(&driver);
        let model = Small::new(&rig);
        let owned = Owned::new(&rig.stream, 1, 5);
        let mut runner = runner(&rig, &model, buckets(&[4, 8, 16]));
        let _ = run(&rig, &mut runner, &owned);
        rig.stream.synchronize().expect("done");
        runner.turn_off().expect("off");
        let (baseline, live) = (Ledger::of(&driver), driver.ref_driver().map(|reference| reference.object_counts()));
        for _ in 0..3 {
            runner.turn_on();
            runner.capture_all(&rig.stream, |_| {}).expect("captured");
            assert_eq!(run(&rig, &mut runner, &owned).1, Some(8));
            assert_ne!(Ledger::of(&driver), baseline);
            runner.turn_off().expect("off");
            assert_eq!(Ledger::of(&driver), baseline);
            assert_eq!(driver.ref_driver().map(|reference| reference.object_counts()), live);
        }
        // A clone of an output keeps the pool's memory mapped.
        runner.turn_on();
        runner.capture_all(&rig.stream, |_| {}).expect("captured");
        let clone = owned.with(|batch| runner.run(&rig.stream, batch).expect("a batch").tensor(0).expect("an output"));
        assert!(matches!(runner.turn_off(), Err(Error::Misuse(Misuse::PoolInUse { users: 1 }))));
        assert!(clone.read::<f32>(&rig.stream).is_ok(), "undefined, but there");
        drop(clone);
        runner.turn_off().expect("off");
        assert_eq!(Ledger::of(&driver), baseline);
    });
}

/// `2 x` with a break that counts its runs of batches; it can stand for others that take memory meanwhile.
struct Others {
    counts: Tensor,
    context: Context,
    takes: usize,
    taken: Mutex<Vec<DeviceBuffer>>,
}

fn twice(rig: &Rig, takes: usize) -> impl PrefillModel<Context = usize, Key = ()> {
    let counts = rig.zeros(&[2, 1]);
    let others = (Others { counts, context: rig.context.clone(), takes, taken: Mutex::default() }, rig.ops.clone());
    let model = FnModel::new(others, 0_usize, |(others, ops), scope, inputs| {
        let take = || -> breakable_cuda_graph::Result<()> {
            if others.takes > 0 {
                others.taken.lock().expect("no panic").push(DeviceBuffer::new(&others.context, others.takes)?);
            }
            Ok(())
        };
        if scope.is_capturing() {
            take()?;
        }
        let h = scope.break_point("count", [&inputs[0]], move |b| {
            take()?;
            let one = b.empty(DType::F32, &[1])?;
            ops.fill(b.stream(), &one, 1.0)?;
            ops.add_bias(b.stream(), &one, &others.counts.narrow(0, *b.forward_ctx()?, 1)?)?;
            b.input(0).cloned()
        })?;
        Ok(vec![ops.scale(&h, 2.0)?, ops.scale(&others.counts, 1.0)?])
    });
    let model = model.input(InputSpec::rows("x", DType::F32, &[2]).tail(TailRule::Zero));
    model.output(OutputSpec::rows("y", DType::F32, &[2])).output(OutputSpec::fixed("counts", DType::F32, &[2, 1]))
}

/// Memory that others take while a bucket is captured is no cost of its capture (rule 64).
#[test]
fn what_others_take_meanwhile_does_not_count() {
    let rig = Rig::new(&driver());
    let model = twice(&rig, 64 << 20);
    let options = buckets(&[8, 16]).max_bytes(32 << 20);
    let mut runner = PrefillRunner::new(&model, &rig.context, options).expect("a runner");
    runner.capture_all(&rig.stream, |one| assert!(one.bytes < 16 << 20, "{one:?}")).expect("captured");
    let stats = runner.stats();
    assert!(stats.execs.execs == 2 && stats.execs.bytes < 16 << 20 && stats.live == 2, "{stats:?}");
    assert!(stats.execs.bytes > 0 || !rig.is_reference(), "{stats:?}");
}

/// A batch whose capture is over budget has run, once; the runner stays on, and tries again: after a while, or with another budget.
#[test]
fn over_budget_is_not_for_ever() {
    let rig = Rig::new(&driver());
    if !rig.is_reference() {
        // Execs of a device come from memory that the driver has set aside, at times: nothing is over budget then.
        return;
    }
    let model = twice(&rig, 0);
    // A pool of the engine's, which has room.
    let options = buckets(&[8]).warm_ups(0).when(CaptureWhen::FirstUse).pool(&rig.pool).max_bytes(3 << 20);
    let mut runner = PrefillRunner::new(&model, &rig.context, options).expect("a runner");
    runner.set_max_bytes(Some(2 << 20));
    let mut batches = 0.0;
    let mut run = |runner: &mut PrefillRunner<'_, _>, bucket: Option<usize>| {
        batches += 1.0;
        let batch = Batch { rows: 1, context: &1, inputs: &[InputData::host(&[1.0_f32, 2.0])] };
        let outputs = runner.run(&rig.stream, &batch).expect("a batch");
        assert_eq!(outputs.bucket(), bucket);
        assert_eq!(outputs.read::<f32>(0, &rig.stream).expect("an output"), [2.0, 4.0]);
        assert_eq!(outputs.read::<f32>(1, &rig.stream).expect("an output"), [0.0, batches], "each has run once");
    };
    for attempts in [1, 1, 1] {
        run(&mut runner, None);
        let stats = runner.stats();
        assert_eq!((stats.over_budget, stats.failed, runner.is_on()), (attempts, 0, true));
    }
    assert!(matches!(runner.last_failure(), Some(Error::Prefill(PrefillError::OverBudget { bucket: 8, .. }))));
    for _ in 3..17 {
        run(&mut runner, None);
    }
    assert_eq!(runner.stats().over_budget, 1);
    run(&mut runner, None);
    assert_eq!(runner.stats().over_budget, 2, "tried again");
    assert_eq!(runner.stats().eager_for(ReasonKind::OverBudget), 18);
    let batch = Batch { rows: 1, context: &1, inputs: &[InputData::host(&[1.0_f32, 2.0])] };
    let reason = EagerReason::OverBudget { bucket: 8 };
    assert_eq!(runner.decide(&batch), breakable_cuda_graph::prefill::Decision::Eager(reason));
    runner.set_max_bytes(Some(3 << 20));
    run(&mut runner, Some(8));
    run(&mut runner, Some(8));
}

/// What does not fit is left out, and the others are captured.
#[test]
fn buckets_that_fit_are_captured_beside_those_that_do_not() {
    let rig = Rig::new(&driver());
    if !rig.is_reference() {
        return;
    }
    let model = twice(&rig, 0);
    let options = buckets(&[8, 1 << 20]).pool(&rig.pool).max_bytes(4 << 20);
    let mut runner = PrefillRunner::new(&model, &rig.context, options).expect("a runner");
    let result = runner.capture_all(&rig.stream, |_| {});
    assert!(matches!(result, Err(Error::Prefill(PrefillError::OverBudget { bucket: 1_048_576, .. }))), "{result:?}");
    assert!(runner.is_on() && runner.is_captured(8) && !runner.is_captured(1 << 20));
    assert!(rig.pool.usage().expect("usage").reserved < 4 << 20, "what the largest took is given back");
    assert!(runner.capture_next(&rig.stream).expect("not yet").is_none());
}
