//! Every driver call of a capture and its replays fails in turn: each time there is a typed error that names the call, nothing is left behind,
//! the stream can be used, and a second capture succeeds. The same for a panic at each operation and in each break.

use crate::support::{Ledger, Rig, assert_same, random_values};
use breakable_cuda_graph::driver::{Device, DropError};
use breakable_cuda_graph::sys::intercept::Fault;
use breakable_cuda_graph::sys::{CUresult, Call, CallError};
use breakable_cuda_graph::{
    BreakableCapture, CaptureExecution, CaptureOptions, DType, Error, Misuse, ReplayOptions, Result, Tensor,
    is_capturing,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const CODES: [CUresult; 3] =
    [CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_ERROR_INVALID_VALUE, CUresult::CUDA_ERROR_UNKNOWN];
const ROWS: usize = 4;
const WIDTH: usize = 8;

/// A rig on a watched driver, with what a scenario needs and does not make itself.
struct Bench {
    rig: Rig,
    input: Tensor,
    weight: Tensor,
    expected: Vec<f32>,
    dropped: Arc<Mutex<Vec<DropError>>>,
}

impl Bench {
    fn new() -> Bench {
        let rig = Rig::new(&crate::support::driver().intercepted());
        let dropped = Arc::new(Mutex::new(Vec::new()));
        let log = dropped.clone();
        rig.context.on_drop_error(Some(Arc::new(move |error| log.lock().expect("the log").push(*error))));
        let (input, weight) = (rig.random(1, &[ROWS, WIDTH]), rig.random(2, &[WIDTH, WIDTH]));
        let mut bench = Bench { rig, input, weight, expected: Vec::new(), dropped };
        bench.expected = bench.scenario(CaptureExecution::Record).expect("the scenario works");
        bench
    }

    /// Two breaks, three segments, a side stream that is forked and joined, a temporary in a break; then two replays, one of them with a
    /// padded tail, and the result of the first.
    fn scenario(&self, execution: CaptureExecution) -> Result<Vec<f32>> {
        let rig = &self.rig;
        let options = CaptureOptions::default().name("sweep").bucket(ROWS).execution(execution);
        let mut capture = BreakableCapture::with_options(&rig.pool, options)?;
        let out = capture.record(&rig.stream, |scope| {
            let h = rig.ops.matmul(&self.input, &self.weight)?;
            let ops = rig.ops.clone();
            let h = scope.break_point("first", [&h], move |b| {
                let wide = b.empty(DType::F32, b.input(0)?.shape())?;
                ops.relu_into(b.stream(), b.input(0)?, &wide)?;
                ops.scale(&wide, 0.5)
            })?;
            let h = rig.ops.matmul(&h, &self.weight)?;
            let ops = rig.ops.clone();
            let handoff = rig.ops.empty_like(&h)?;
            let h = scope.break_here("second", handoff, [&h], move |b| ops.relu(b.input(0)?))?;
            rig.ops.matmul(&h, &self.weight)
        })?;
        let _ = capture.replay(&rig.stream)?;
        let result = out.read(&rig.stream)?;
        let _ = capture.replay_with(&rig.stream, ReplayOptions::default().valid_rows(ROWS - 1))?;
        rig.stream.synchronize()?;
        Ok(result)
    }

    /// The thread and the streams are as before: something can be launched, and the scenario works.
    fn check_usable(&self, what: &str) {
        assert!(!is_capturing(), "{what}: the segment was ended");
        self.rig.pool.capture_stream().synchronize().unwrap_or_else(|error| panic!("{what}: capture stream: {error}"));
        let result =
            self.scenario(CaptureExecution::Record).unwrap_or_else(|error| panic!("{what}: afterwards: {error}"));
        assert_same(&result, &self.expected);
    }
}

/// Calls that put back what was, and are made again when they fail: then nothing is wrong.
fn is_made_again(call: Call) -> bool {
    matches!(call, Call::cuCtxSetCurrent | Call::cuCtxGetCurrent | Call::cuThreadExchangeStreamCaptureMode)
}

/// What a call answers, and no failure: that there is no parameter of this number.
fn is_an_answer(call: Call, code: CUresult) -> bool {
    (call, code) == (Call::cuFuncGetParamInfo, CUresult::CUDA_ERROR_INVALID_VALUE)
}

/// The outcome of a scenario in which `call` was made to fail.
fn check_named<T: std::fmt::Debug>(what: &str, call: Call, code: CUresult, result: &Result<T>, dropped: &[DropError]) {
    let expected = |error: CallError| error.call() == call && error.code() == code;
    match result {
        Err(error) => {
            let named = error.driver_call().unwrap_or_else(|| panic!("{what}: the error names no call: {error}"));
            assert!(expected(named), "{what}: {call} failed with {}, the error names {named}: {error}", code.0);
            let text = error.to_string();
            assert!(text.contains(call.name()), "{what}: {text}");
        }
        Ok(_) => {
            let told = dropped.iter().any(|dropped| expected(dropped.error));
            assert!(told || is_made_again(call), "{what}: {call} failed and nobody was told");
        }
    }
}

fn sweep(execution: CaptureExecution) {
    let bench = Bench::new();
    let watch = bench.rig.driver.intercept().expect("a watched driver");
    let reference = bench.rig.driver.ref_driver();
    bench.check_usable("before");
    let (baseline, live) = (Ledger::of(&bench.rig.driver), reference.map(|reference| reference.object_counts()));
    let usage = bench.rig.pool.usage().expect("usage");
    let mut failed = std::collections::BTreeSet::new();
    for code in CODES {
        for after in 0.. {
            bench.dropped.lock().expect("the log").clear();
            watch.fail(Fault { call: None, after, code });
            let result = bench.scenario(execution);
            let fired = watch.clear_fault();
            let Some(&call) = fired.first() else {
                result.expect("no call failed");
                break;
            };
            let what = format!("call {after} ({call}) returning {}", code.0);
            if !is_an_answer(call, code) {
                check_named(&what, call, code, &result, &bench.dropped.lock().expect("the log"));
            }
            drop(result);
            failed.insert(call);
            bench.rig.stream.synchronize().unwrap_or_else(|error| panic!("{what}: stream: {error}"));
            bench.rig.pool.capture_stream().synchronize().unwrap_or_else(|error| panic!("{what}: stream: {error}"));
            assert_eq!(Ledger::of(&bench.rig.driver), baseline, "{what}");
            assert_eq!(reference.map(|reference| reference.object_counts()), live, "{what}");
            let now = bench.rig.pool.usage().expect("usage");
            assert_eq!(
                (now.in_use, now.reserved, now.temporary),
                (usage.in_use, usage.reserved, usage.temporary),
                "{what}"
            );
            bench.check_usable(&what);
        }
    }
    for call in [
        Call::cuStreamBeginCapture_v2,
        Call::cuStreamEndCapture,
        Call::cuGraphGetNodes,
        Call::cuGraphInstantiateWithParams,
        Call::cuGraphLaunch,
        Call::cuGraphDestroy,
        Call::cuGraphExecDestroy,
        Call::cuLaunchKernel,
        Call::cuEventCreate,
        Call::cuEventRecord,
        Call::cuStreamWaitEvent,
        Call::cuMemAllocFromPoolAsync,
        Call::cuMemFreeAsync,
        Call::cuMemcpyDtoHAsync_v2,
    ] {
        assert!(failed.contains(&call), "{call} was not reached: {failed:?}");
    }
}

#[test]
fn every_call_of_a_capture_and_replay_fails_in_turn() {
    sweep(CaptureExecution::Record);
}

#[test]
fn every_call_of_a_capture_that_runs_through_fails_in_turn() {
    sweep(CaptureExecution::RunThrough);
}

/// The same with a pool that has to grow, and nothing current on the thread: slabs, pools and contexts fail too.
#[test]
fn every_call_of_a_program_fails_in_turn() {
    let driver = crate::support::driver().intercepted();
    // Held throughout: making a primary context anew for each run takes a device long.
    let _context = Device::get(&driver, 0).and_then(|device| device.primary_context()).expect("a context");
    let program = || -> Result<Vec<f32>> {
        let rig = Rig::try_new(&driver)?;
        let input = Tensor::from_slice(&rig.stream, &random_values(1, ROWS * WIDTH), &[ROWS, WIDTH])?;
        let mut capture = BreakableCapture::new(&rig.pool)?;
        let out = capture.record(&rig.stream, |scope| {
            let h = rig.ops.relu(&input)?;
            let ops = rig.ops.clone();
            scope.break_point("break", [&h], move |b| ops.scale(b.input(0)?, 2.0))
        })?;
        let _ = capture.replay(&rig.stream)?;
        out.read(&rig.stream)
    };
    let expected = program().expect("the program works");
    let watch = driver.intercept().expect("a watched driver");
    let baseline = Ledger::of(&driver);
    for code in CODES {
        for after in 0.. {
            watch.fail(Fault { call: None, after, code });
            let result = program();
            let fired = watch.clear_fault();
            let Some(&call) = fired.first() else {
                assert_same(&result.expect("no call failed"), &expected);
                break;
            };
            let what = format!("call {after} ({call}) returning {}", code.0);
            match &result {
                // Drops are told to the log here.
                Ok(values) => assert_same(values, &expected),
                Err(_) if is_an_answer(call, code) => {}
                Err(_) => check_named(&what, call, code, &result, &[]),
            }
            assert_eq!(Ledger::of(&driver), baseline, "{what}");
            assert_same(&program().unwrap_or_else(|error| panic!("{what}: afterwards: {error}")), &expected);
        }
    }
}

/// A panic at each operation of the forward and inside each break, at capture and in a replay.
#[test]
fn a_panic_anywhere_leaves_nothing_behind() {
    const PLACES: usize = 6;
    let bench = Bench::new();
    let rig = &bench.rig;
    bench.check_usable("before");
    let (baseline, usage) = (Ledger::of(&rig.driver), rig.pool.usage().expect("usage"));
    for panicking in 0..PLACES + 2 {
        let count = Arc::new(AtomicUsize::new(0));
        let here = {
            let count = count.clone();
            move || {
                if count.fetch_add(1, Ordering::Relaxed) == panicking {
                    std::panic::panic_any(panicking);
                }
            }
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut capture = BreakableCapture::new(&rig.pool)?;
            let recorded = catch_unwind(AssertUnwindSafe(|| {
                capture.record(&rig.stream, |scope| {
                    here();
                    let h = rig.ops.matmul(&bench.input, &bench.weight)?;
                    here();
                    let (ops, inside) = (rig.ops.clone(), here.clone());
                    let h = scope.break_point("first", [&h], move |b| {
                        inside();
                        ops.relu(b.input(0)?)
                    })?;
                    here();
                    let (ops, inside) = (rig.ops.clone(), here.clone());
                    let h = scope.break_point("second", [&h], move |b| {
                        let h = ops.relu(b.input(0)?)?;
                        inside();
                        Ok(h)
                    })?;
                    here();
                    rig.ops.matmul(&h, &bench.weight)
                })
            }));
            match recorded {
                Err(panic) => {
                    assert!(capture.is_poisoned(), "place {panicking}");
                    assert!(matches!(capture.replay(&rig.stream), Err(Error::Misuse(Misuse::Poisoned))));
                    std::panic::resume_unwind(panic);
                }
                Ok(out) => {
                    let _out = out?;
                    let replayed = catch_unwind(AssertUnwindSafe(|| capture.replay(&rig.stream).map(drop)));
                    assert!(replayed.is_err(), "place {panicking} is in the replay");
                    // Its turn has come and gone: the capture replays.
                    capture.replay(&rig.stream).map(drop)?;
                    std::panic::resume_unwind(Box::new(panicking));
                }
            }
            #[allow(unreachable_code)]
            Ok::<(), Error>(())
        }));
        let payload = outcome.expect_err("it panicked");
        assert_eq!(payload.downcast_ref::<usize>(), Some(&panicking), "the payload is intact");
        let what = format!("a panic at place {panicking}");
        rig.stream.synchronize().expect("the stream is usable");
        rig.pool.capture_stream().synchronize().expect("the capture stream is usable");
        assert_eq!(Ledger::of(&rig.driver), baseline, "{what}");
        assert_eq!(rig.pool.usage().expect("usage").in_use, usage.in_use, "{what}");
        bench.check_usable(&what);
    }
}
