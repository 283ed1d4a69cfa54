//! Every driver call of a capture with patched breaks and of its replays fails in turn, those that patch and make execs among them.

use super::model::{Captured, Live, ROWS};
use crate::support::{Ledger, Rig, assert_same, driver};
use breakable_cuda_graph::BreakKind::{Live as Alive, Patched};
use breakable_cuda_graph::driver::InstantiateFlags;
use breakable_cuda_graph::sys::intercept::Fault;
use breakable_cuda_graph::sys::{CUresult, Call};
use breakable_cuda_graph::{BreakOptions, BreakableCapture, CaptureOptions, Error, Reconfigure, Result, is_capturing};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// Two composite graphs with a live break between them; replays that patch, that change nothing, that need another exec for their grids or their nodes,
/// whose bodies have to be captured, and that fall back.
fn scenario(rig: &Rig) -> Result<Vec<f32>> {
    let mut options = CaptureOptions::default();
    options.graph = options.graph.reconfigure(Reconfigure::AnotherExec).max_execs(4);
    options.graph.instantiate = InstantiateFlags::USE_NODE_PRIORITY;
    let mut captured = Captured::with(rig, &[Patched, Alive, Patched], options, Live::new(1.0))?;
    let first = captured.replay(Live::new(2.0), None)?;
    captured.replay(Live::new(2.0), None)?;
    for blocks in [1, 0, 2] {
        captured.replay(Live { blocks, ..Live::new(2.0) }, None)?;
    }
    captured.replay(Live { kernels: 3, ..Live::new(2.0) }, None)?;
    captured.replay(Live { copies: 7, ..Live::new(2.0) }, None)?;
    captured.replay(Live { copies: 7, ..Live::new(3.0) }, None)?;
    captured.replay(Live { kernels: 4, ..Live::new(2.0) }, Some(ROWS - 1))?;
    Ok(first)
}

#[test]
fn every_call_fails_in_turn() {
    let rig = Rig::new(&driver().intercepted());
    let told = Arc::new(Mutex::new(Vec::new()));
    let log = told.clone();
    rig.context.on_drop_error(Some(Arc::new(move |error| log.lock().expect("the log").push(*error))));
    let expected = scenario(&rig).expect("the scenario works");
    scenario(&rig).expect("and works again");
    let watch = rig.driver.intercept().expect("a watched driver");
    let reference = rig.driver.ref_driver();
    let (baseline, live) = (Ledger::of(&rig.driver), reference.map(|reference| reference.object_counts()));
    let code = CUresult::CUDA_ERROR_UNKNOWN;
    let mut failed = BTreeSet::new();
    for after in 0.. {
        told.lock().expect("the log").clear();
        watch.fail(Fault { call: None, after, code });
        let result = scenario(&rig);
        let fired = watch.clear_fault();
        let Some(&call) = fired.first() else {
            result.expect("no call failed");
            break;
        };
        let what = format!("call {after} ({call})");
        failed.insert(call);
        match &result {
            Err(error) => {
                let named = error.driver_call().unwrap_or_else(|| panic!("{what}: the error names no call: {error}"));
                assert_eq!((named.call(), named.code()), (call, code), "{what}: {error}");
            }
            Ok(_) => {
                let told = told.lock().expect("the log").iter().any(|told| told.error.call() == call);
                let again = matches!(
                    call,
                    Call::cuCtxSetCurrent | Call::cuCtxGetCurrent | Call::cuThreadExchangeStreamCaptureMode
                );
                assert!(told || again, "{what} failed and nobody was told");
            }
        }
        assert!(!is_capturing(), "{what}");
        rig.stream.synchronize().unwrap_or_else(|error| panic!("{what}: stream: {error}"));
        assert_eq!(Ledger::of(&rig.driver), baseline, "{what}");
        assert_eq!(reference.map(|reference| reference.object_counts()), live, "{what}");
        assert_same(&scenario(&rig).unwrap_or_else(|error| panic!("{what}: afterwards: {error}")), &expected);
    }
    for call in [
        Call::cuGraphExecChildGraphNodeSetParams,
        Call::cuGraphExecKernelNodeSetParams_v2,
        Call::cuGraphAddKernelNode_v2,
        Call::cuGraphKernelNodeSetAttribute,
        Call::cuGraphAddChildGraphNode,
        Call::cuGraphCreate,
        Call::cuGraphInstantiateWithParams,
        Call::cuGraphUpload,
        Call::cuGraphGetNodes,
        Call::cuStreamBeginCapture_v2,
        Call::cuStreamEndCapture,
        Call::cuGraphLaunch,
        Call::cuLaunchKernel,
    ] {
        assert!(failed.contains(&call), "{call} is part of it: {failed:?}");
    }
}

/// A composite graph is made when the last of its segments has ended: the one that can be no child of it is named, with its own operations.
#[test]
fn a_segment_that_can_be_no_child_is_named() {
    for (after, operations) in [(0, 1), (1, 2)] {
        let rig = Rig::new(&driver().intercepted());
        let (x, ops) = (rig.ones(&[4]), &rig.ops);
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let (call, code) = (Some(Call::cuGraphAddChildGraphNode), CUresult::CUDA_ERROR_NOT_SUPPORTED);
        rig.driver.intercept().expect("a watched driver").fail(Fault { call, after, code });
        let recorded = capture.record(&rig.stream, |scope| {
            let h = ops.relu(&x)?;
            let h = scope.break_point(BreakOptions::new("b").patched(), [&h], |b| ops.relu(b.input(0)?))?;
            ops.relu(&ops.relu(&h)?)
        });
        let Err(Error::Capture(error)) = recorded else { panic!("the child was refused") };
        assert_eq!((error.segment, error.operation), (after as usize, operations), "{error}");
        assert!(matches!(*error.source, Error::Call(call) if call.code() == code), "{error}");
    }
}

/// A body of which some launches have been set when a call fails is in none of its states (P1 of `docs/DESIGN.md`): the next replay sets all of it, also where its
/// values are those from before.
#[test]
fn a_body_that_was_set_half_way_is_set_anew_in_full() {
    for call_works in [false, true] {
        let rig = Rig::new(&driver().intercepted());
        let watch = rig.driver.intercept().expect("a watched driver");
        // All three launches differ from one to the other, and the last one in what it makes.
        let live = |factor| Live { kernels: 3, blocks: factor as u32, ..Live::new(factor) };
        let captured = Captured::with(&rig, &[Patched], CaptureOptions::default(), live(1.0));
        let mut captured = captured.expect("a capture");
        captured.check(live(2.0), None);
        let (call, code) = (Some(Call::cuGraphExecKernelNodeSetParams_v2), CUresult::CUDA_ERROR_UNKNOWN);
        let fault = Fault { call, after: 2, code };
        if call_works {
            watch.fail(fault)
        } else {
            watch.refuse(fault)
        }
        captured.replay(live(3.0), None).expect_err("a call failed");
        let before = captured.capture.patch_stats();
        captured.check(live(2.0), None);
        assert_eq!(captured.capture.patch_stats().patched, before.patched + 1, "the body was set");
        captured.check(live(2.0), None);
        assert_eq!(captured.capture.patch_stats().unchanged, before.unchanged + 1, "and is known again");
    }
}
