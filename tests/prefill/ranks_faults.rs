//! Four ranks, one of which fails at every driver call of its capture in turn: all run eagerly, and nothing is left behind.

use super::model::{Owned, Small};
use crate::support::{Ledger, Rig, driver};
use crate::{bits, buckets, run, run_eager, runner};
use breakable_cuda_graph::Driver;
use breakable_cuda_graph::prefill::{Decision, EagerReason, Ranks, ReasonKind, ThreadRank};
use breakable_cuda_graph::sys::intercept::Fault;
use breakable_cuda_graph::sys::{CUresult, Call};
use std::thread;
use std::time::Instant;

const RANKS: usize = 4;
/// The one that fails.
const FAILS: usize = 1;

/// Calls that put back what was, and are made again when they fail; and calls in drops, which are told to the log.
fn may_go_by(call: Call) -> bool {
    matches!(
        call,
        Call::cuCtxSetCurrent
            | Call::cuCtxGetCurrent
            | Call::cuThreadExchangeStreamCaptureMode
            | Call::cuGraphDestroy
            | Call::cuEventDestroy_v2
            | Call::cuMemFreeAsync
            | Call::cuMemFree_v2
    )
}

/// One rank's part of a round. Whether the fault was set off.
fn one_rank(rig: &Rig, model: &Small, rank: ThreadRank, after: u64) -> bool {
    let me = rank.rank();
    let watch = rig.driver.intercept().expect("a watched driver");
    let owned = Owned::new(&rig.stream, 3, 3);
    let mut runner = runner(rig, model, buckets(&[4, 8]).ranks(rank));
    let expected = run_eager(rig, &mut runner, &owned);
    rig.stream.synchronize().expect("idle");
    runner.turn_off().expect("off");
    runner.turn_on();
    let (baseline, live) =
        (Ledger::of(&rig.driver), rig.driver.ref_driver().map(|reference| reference.object_counts()));

    let started = Instant::now();
    if me == FAILS {
        watch.fail(Fault { call: None, after, code: CUresult::CUDA_ERROR_UNKNOWN });
    }
    let result = runner.capture_all(&rig.stream, |_| {});
    let fired = if me == FAILS { watch.clear_fault() } else { Vec::new() };
    let (got, bucket) = run(rig, &mut runner, &owned);
    let took = started.elapsed();
    let what = format!("rank {me}, call {after} ({:?}), {result:?}", fired.first());

    assert_eq!(bits(&got), bits(&expected), "{what}");
    assert_eq!(bucket.is_some(), result.is_ok(), "all have captured, or none has: {what}");
    if result.is_ok() {
        assert!(fired.iter().all(|call| may_go_by(*call)), "{what}");
        runner.turn_off().unwrap_or_else(|error| panic!("{what}: {error}"));
    } else {
        // Nobody waited for a rank that had failed. Debug builds of the reference driver take a tenth of a second.
        assert!(took < ThreadRank::PATIENCE / 2, "{took:?}: {what}");
        assert_eq!(runner.stats().eager_for(ReasonKind::CaptureFailed), 1, "{what}");
        let decision = owned.with(|batch| runner.decide(batch));
        assert!(matches!(decision, Decision::Eager(EagerReason::CaptureFailed { .. })), "{what}");
    }
    rig.stream.synchronize().expect("idle");
    runner.pool().trim().expect("nothing in use");
    assert_eq!(Ledger::of(&rig.driver), baseline, "{what}");
    assert_eq!(rig.driver.ref_driver().map(|reference| reference.object_counts()), live, "{what}");
    !fired.is_empty()
}

#[test]
fn one_rank_fails_at_every_call_of_its_capture() {
    let drivers: Vec<Driver> = (0..RANKS).map(|_| driver().intercepted()).collect();
    let rigs: Vec<Rig> = drivers.iter().map(Rig::new).collect();
    let models: Vec<Small> = rigs.iter().map(Small::new).collect();
    for after in 0.. {
        let fired = thread::scope(|scope| {
            let parts = rigs.iter().zip(&models).zip(ThreadRank::group(RANKS));
            let threads: Vec<_> =
                parts.map(|((rig, model), rank)| scope.spawn(move || one_rank(rig, model, rank, after))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).fold(false, |any, fired| any | fired)
        });
        if !fired {
            assert!(after > 100, "{after} calls were tried");
            return;
        }
    }
}
