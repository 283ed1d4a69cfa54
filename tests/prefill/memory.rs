//! What a runner says its captures will take, against what they take.

use crate::support::demo::{Decoder, DecoderSizes};
use crate::support::{Rig, driver};
use breakable_cuda_graph::pool::Backing;
use breakable_cuda_graph::prefill::{Batch, CaptureWhen, InputData, Ladder, LadderOptions, Planning};
use breakable_cuda_graph::{Error, Misuse, PoolOptions, PrefillRunner, RunnerOptions};

fn ladder(max: usize) -> Ladder {
    Ladder::new(&LadderOptions::new(max))
}

/// The pool's bytes are the plan's, to the byte, and the plan is at the peak of live bytes within 1%.
#[test]
fn the_plan_of_decoders_is_what_their_captures_take() {
    let rig = Rig::new(&driver());
    // A reference driver's memory is the host's.
    let max = if rig.is_reference() { 64 } else { 8192 };
    for sizes in [DecoderSizes::of_8b(), DecoderSizes::of_70b_eighth()] {
        let decoder = Decoder::new(&rig.ops, &rig.stream, sizes).expect("a model");
        let list: Vec<usize> = (0..6).map(|halvings| max >> halvings).collect();
        let options = RunnerOptions::new(Ladder::new(&LadderOptions::new(max).explicit(list.as_slice()))).warm_ups(1);
        let mut runner = PrefillRunner::new(&decoder, &rig.context, options).expect("a runner");
        let plan = runner.plan(&rig.stream).expect("a plan");
        assert_eq!(runner.pool().usage().expect("usage").reserved, 0, "planning keeps nothing");
        assert!(plan.buckets.iter().all(|bucket| bucket.planned as f64 <= 1.01 * bucket.peak as f64), "{plan:?}");
        runner.capture_all(&rig.stream, |_| {}).expect("captures");
        let usage = runner.pool().usage().expect("usage");
        assert_eq!((usage.reserved, usage.planned, usage.divergences), (plan.pool, plan.pool, 0));
        assert_eq!(plan.inputs, runner.inputs().iter().map(|input| input.extent_bytes()).sum::<usize>());
        // A device's driver takes memory for execs in large pieces, and may have some left.
        assert!(plan.execs_estimate > 0 || !rig.is_reference());
        assert!(plan.outputs > 0 && plan.total_estimate() > plan.pool);
        let rows: Vec<usize> = plan.buckets.iter().map(|bucket| bucket.bucket).collect();
        assert_eq!(rows, runner.buckets());
    }
}

/// Whatever the order in which buckets are captured, once there is a plan.
#[test]
fn captures_at_first_use_follow_a_plan_that_was_made_before() {
    let rig = Rig::new(&driver());
    let sizes = DecoderSizes { layers: 2, ..DecoderSizes::of_70b_eighth() };
    let decoder = Decoder::new(&rig.ops, &rig.stream, sizes).expect("a model");
    for when in [CaptureWhen::FirstUse, CaptureWhen::OnCall, CaptureWhen::StartUp] {
        let options = RunnerOptions::new(ladder(128)).when(when).warm_ups(1);
        let mut runner = PrefillRunner::new(&decoder, &rig.context, options).expect("a runner");
        let plan = runner.plan(&rig.stream).expect("a plan");
        match when {
            CaptureWhen::FirstUse => {
                for rows in [3, 128, 40, 65] {
                    let ids = vec![0_i32; rows];
                    let batch = Batch { rows, context: &(), inputs: &[InputData::host(&ids)] };
                    let outputs = runner.run(&rig.stream, &batch).expect("a batch");
                    assert_eq!(outputs.bucket(), runner_bucket(rows));
                }
            }
            CaptureWhen::OnCall => while runner.capture_next(&rig.stream).expect("a capture").is_some() {},
            _ => runner.capture_all(&rig.stream, |_| {}).expect("captures"),
        }
        let usage = runner.pool().usage().expect("usage");
        assert_eq!((usage.reserved, usage.divergences), (plan.pool, 0), "{when:?}");
        runner.turn_off().expect("off");
        assert_eq!(runner.pool().usage().expect("usage").reserved, 0);
        assert!(matches!(
            runner.plan(&rig.stream),
            Err(Error::Prefill(breakable_cuda_graph::prefill::PrefillError::TurnedOff))
        ));
        runner.turn_on();
        runner.capture_all(&rig.stream, |_| {}).expect("captures");
        assert_eq!(runner.pool().usage().expect("usage").reserved, plan.pool, "the plan is still known");
    }
}

fn runner_bucket(rows: usize) -> Option<usize> {
    ladder(128).bucket_for(rows)
}

#[test]
fn without_planning_blocks_are_placed_online() {
    let rig = Rig::new(&driver());
    let sizes = DecoderSizes { layers: 2, ..DecoderSizes::of_70b_eighth() };
    let decoder = Decoder::new(&rig.ops, &rig.stream, sizes).expect("a model");
    let options = RunnerOptions::new(ladder(128)).warm_ups(1).planning(Planning::Online);
    let mut runner = PrefillRunner::new(&decoder, &rig.context, options).expect("a runner");
    runner.capture_all(&rig.stream, |_| {}).expect("captures");
    let usage = runner.pool().usage().expect("usage");
    assert!(usage.planned == 0 && usage.reserved >= usage.peak && usage.divergences == 0, "{usage:?}");
}

/// A runner's memory goes and comes back under its captures.
#[test]
fn a_runner_releases_and_restores() {
    let rig = Rig::new(&driver());
    let sizes = DecoderSizes { layers: 2, ..DecoderSizes::of_70b_eighth() };
    let decoder = Decoder::new(&rig.ops, &rig.stream, sizes).expect("a model");
    let pool = PoolOptions::default().backing(Backing::ReservedAddresses);
    let options = RunnerOptions::new(ladder(64)).warm_ups(1).pool_options(pool);
    let mut runner = PrefillRunner::new(&decoder, &rig.context, options).expect("a runner");
    let plan = runner.plan(&rig.stream).expect("a plan");
    runner.capture_all(&rig.stream, |_| {}).expect("captures");
    assert_eq!(runner.pool().usage().expect("usage").reserved, plan.pool);
    let ids = [0_i32; 20];
    let batch = Batch { rows: 20, context: &(), inputs: &[InputData::host(&ids)] };
    for _ in 0..3 {
        assert_eq!(runner.run(&rig.stream, &batch).expect("a batch").bucket(), Some(32));
        runner.release().expect("released");
        assert!(matches!(runner.run(&rig.stream, &batch).map(|_| ()), Err(Error::Misuse(Misuse::PoolReleased))));
        assert_eq!(runner.run_eager(&rig.stream, &batch).expect("an eager batch").rows(), 20);
        runner.restore().expect("restored");
    }
}
