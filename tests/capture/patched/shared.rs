//! Captures of one pool that take turns in common execs.

use super::model::{Captured, Live};
use crate::support::{Ledger, Rig, driver, for_each_driver};
use breakable_cuda_graph::BreakKind::{self, Live as Alive, Patched};
use breakable_cuda_graph::sys::intercept::Fault;
use breakable_cuda_graph::sys::{CUresult, Call};
use breakable_cuda_graph::{CaptureOptions, GraphOptions};
use std::collections::BTreeSet;

fn shared() -> CaptureOptions {
    CaptureOptions::default().graph(GraphOptions::default().share_execs(true))
}

/// Device memory that is free.
fn free(rig: &Rig) -> usize {
    rig.stream.synchronize().expect("the stream");
    rig.context.memory_info().expect("memory").free
}

#[test]
fn captures_take_turns_and_each_is_right() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        for kinds in [[Patched; 3], [Alive; 3], [Patched, Alive, Patched]] {
            let mut captures: Vec<_> = (0..3).map(|_| Captured::new(&rig, &kinds, shared())).collect();
            for (turn, index) in [0, 1, 2, 2, 0, 1, 1, 0, 1, 2, 0, 2, 0, 1].into_iter().enumerate() {
                let live =
                    Live { kernels: 1 + turn % 2, copies: if turn % 7 == 5 { 5 } else { 0 }, ..Live::new(turn as f32) };
                captures[index].check(live, (turn % 3 == 1).then_some(4));
            }
            let switched: u64 = captures.iter().map(|captured| captured.capture.patch_stats().switched).sum();
            assert!(switched >= 3, "{kinds:?}: {switched}");
        }
    });
}

/// On the reference driver, where execs are charged for what they take.
#[test]
fn execs_of_the_same_nodes_are_one() {
    let rig = Rig::new(&driver());
    let kinds = [Patched, Alive, Patched];
    let mut first = Captured::new(&rig, &kinds, shared());
    first.check(Live::new(2.0), None);
    let before = (free(&rig), rig.driver.ref_driver().map(|reference| reference.object_counts()));
    let mut others: Vec<_> = (0..4).map(|_| Captured::new(&rig, &kinds, shared())).collect();
    others.iter_mut().for_each(|captured| captured.check(Live::new(3.0), None));
    if rig.is_reference() {
        let inputs: usize = others.iter().map(|captured| captured.input.extent_bytes()).sum();
        assert_eq!(free(&rig) + inputs, before.0, "later captures need no execs of their own");
    }
    // Those that can't take the graphs of the others have their own.
    let mut other = Captured::new(&rig, &[Patched, Patched, Alive], shared());
    other.check(Live::new(4.0), None);
    first.check(Live::new(5.0), None);
    if rig.is_reference() {
        assert!(free(&rig) < before.0);
    }
    drop((others, other));
    first.check(Live::new(6.0), None);
    assert_eq!(rig.driver.ref_driver().map(|reference| reference.object_counts()), before.1);
}

/// Whichever capture goes, the one whose graph is in the exec or the one that it was made from, the others are as before.
#[test]
fn captures_that_go_leave_the_others_theirs() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        for (latest, gone) in [(0, 0), (1, 0), (1, 1), (2, 1), (0, 2)] {
            let mut captures: Vec<_> = (0..3).map(|_| Some(Captured::new(&rig, &[Patched, Alive], shared()))).collect();
            let check = |captured: &mut Option<Captured<'_>>, factor| {
                if let Some(captured) = captured {
                    captured.check(Live::new(factor), None);
                }
            };
            check(&mut captures[latest], 2.0);
            captures[gone] = None;
            for round in 0..2 {
                captures.iter_mut().for_each(|captured| check(captured, 3.0 + round as f32));
            }
        }
    });
}

/// Nobody knows what is in an exec whose update failed in any other way than by a refusal.
#[test]
fn after_an_update_that_failed_each_capture_is_right() {
    let rig = Rig::new(&driver().intercepted());
    let log = rig.driver.intercept().expect("an intercepted driver");
    let mut captures: Vec<_> = (0..2).map(|_| Captured::new(&rig, &[Patched; 3], shared())).collect();
    captures.iter_mut().for_each(|captured| captured.check(Live::new(2.0), None));
    for _ in 0..2 {
        // The second's graph is in it.
        let updates = log.count(Call::cuGraphExecUpdate_v2);
        log.fail(Fault { call: Some(Call::cuGraphExecUpdate_v2), after: 0, code: CUresult::CUDA_ERROR_UNKNOWN });
        assert!(captures[0].replay(Live::new(3.0), None).is_err());
        captures[1].check(Live::new(3.0), None);
        assert_eq!(log.count(Call::cuGraphExecUpdate_v2), updates + 2, "its own graph is put in anew");
    }
    captures[0].check(Live::new(5.0), None);
}

#[test]
fn a_replay_of_the_same_capture_does_not_switch() {
    let rig = Rig::new(&driver());
    let mut captures = [Captured::new(&rig, &[Patched; 3], shared()), Captured::new(&rig, &[Patched; 3], shared())];
    for (index, switched) in [(1, 0), (1, 0), (0, 1), (0, 1), (1, 1), (0, 2)] {
        captures[index].check(Live::new(1.0), None);
        assert_eq!(captures[index].capture.patch_stats().switched, switched);
    }
    // All is set anew after a switch, and only then.
    let stats = captures[1].capture.patch_stats();
    assert_eq!((stats.patched, stats.unchanged), (6, 3), "{stats:?}");
}

fn scenario(rig: &Rig) -> breakable_cuda_graph::Result<Vec<f32>> {
    let kinds: [BreakKind; 3] = [Patched, Alive, Patched];
    let mut first = Captured::with(rig, &kinds, shared(), Live::new(1.0))?;
    let mut second = Captured::with(rig, &kinds, shared(), Live::new(1.0))?;
    let result = first.replay(Live::new(2.0), None)?;
    second.replay(Live::new(3.0), None)?;
    drop(first);
    second.replay(Live { kernels: 3, ..Live::new(3.0) }, None)?;
    Ok(result)
}

#[test]
fn every_call_fails_in_turn() {
    let rig = Rig::new(&driver().intercepted());
    rig.context.on_drop_error(Some(std::sync::Arc::new(|_| {})));
    let expected = scenario(&rig).expect("the scenario works");
    scenario(&rig).expect("and works again");
    let watch = rig.driver.intercept().expect("a watched driver");
    let baseline = Ledger::of(&rig.driver);
    let mut failed = BTreeSet::new();
    for after in 0.. {
        watch.fail(Fault { call: None, after, code: CUresult::CUDA_ERROR_UNKNOWN });
        let result = scenario(&rig);
        let Some(&call) = watch.clear_fault().first() else { break };
        if let Err(error) = &result {
            let named = error.driver_call().unwrap_or_else(|| panic!("call {after} ({call}): {error}"));
            assert_eq!(named.call(), call, "call {after}: {error}");
            failed.insert(call);
        }
        rig.stream.synchronize().expect("the stream");
        assert_eq!(Ledger::of(&rig.driver), baseline, "call {after} ({call})");
        crate::support::assert_same(&scenario(&rig).expect("afterwards"), &expected);
    }
    for call in
        [Call::cuGraphExecUpdate_v2, Call::cuGraphInstantiateWithParams, Call::cuGraphExecKernelNodeSetParams_v2]
    {
        assert!(failed.contains(&call), "{call} is part of it: {failed:?}");
    }
}
