//! Memset nodes of segments that make memory zero: kernel nodes in their place, which do the same at the same point.

use crate::support::{Ledger, Rig, assert_same, for_each_seed};
use breakable_cuda_graph::driver::{Event, EventFlags, InstantiateFlags, NodeCounts, PinnedBuffer, Stream};
use breakable_cuda_graph::sys::intercept::Fault;
use breakable_cuda_graph::sys::{CUresult, Call};
use breakable_cuda_graph::{
    BreakableCapture, CaptureOptions, DType, PoolOptions, Result, Scope, Tensor, current_stream, eager, is_capturing,
};
use std::ops::Range;

const ROWS: usize = 4;
const WIDTH: usize = 8;
const ALL: usize = ROWS * WIDTH;
/// The largest memset that becomes a kernel, in elements.
const MOST: usize = (1 << 20) / 4;

/// Sets elements of a tensor, by one memset.
fn set(tensor: &Tensor, value: u32, elements: Range<usize>) {
    tensor.keep_in_segment();
    set_at(tensor.address() + 4 * elements.start as u64, value, elements.len());
}

/// Sets 32-bit words from an address on, which outlives the replays.
fn set_at(address: u64, value: u32, words: usize) {
    let stream = current_stream().expect("a stream");
    // SAFETY: as the caller says.
    unsafe { stream.context().driver().cuMemsetD32Async(address, value, words, stream.as_raw()).expect("a memset") }
}

/// A memset at the start of a segment and one at its end, one between kernels, and a break between two segments.
fn forward<'env>(rig: &'env Rig, scope: &Scope<'_, 'env>, x: &Tensor) -> Result<Tensor> {
    let out = breakable_cuda_graph::empty(DType::F32, &[ROWS, WIDTH])?;
    set(&out, 0, 0..ALL);
    rig.ops.relu_into(&current_stream()?, x, &out)?;
    set(&out, 0, 3..WIDTH);
    let h = rig.ops.scale(&out, 2.0)?;
    set(&h, 0, ALL - 1..ALL);
    let ops = rig.ops.clone();
    let h = scope.break_point("negate", [&h], move |b| ops.scale(b.input(0)?, -1.0))?;
    set(&h, 0, 9..11);
    let out = rig.ops.scale(&h, 3.0)?;
    set(&out, 0, WIDTH..WIDTH + 1);
    Ok(out)
}

fn expected(x: &[f32]) -> Vec<f32> {
    let values = x.iter().enumerate().map(|(at, value)| {
        let gone = (3..WIDTH).contains(&at) || at == ALL - 1 || (9..11).contains(&at) || at == WIDTH;
        if gone { 0.0 } else { value.max(0.0) * -6.0 }
    });
    values.collect()
}

fn record<'env>(rig: &'env Rig, options: CaptureOptions, x: &Tensor) -> Result<(BreakableCapture<'env>, Tensor)> {
    let mut capture = BreakableCapture::with_options(&rig.pool, options)?;
    let out = capture.record(&rig.stream, |scope| forward(rig, scope, x))?;
    Ok((capture, out))
}

fn options(memset_as_kernel: bool) -> CaptureOptions {
    let mut options = CaptureOptions::default();
    options.graph.memset_as_kernel = memset_as_kernel;
    options
}

fn counts(counts: NodeCounts) -> (usize, usize) {
    (counts.kernels, counts.memsets)
}

#[test]
fn kernels_zero_what_memsets_did() {
    for_each_seed(|rig| {
        let x = rig.random(1, &[ROWS, WIDTH]);
        let expected = expected(&rig.read(&x));
        let run = eager(&rig.pool, &rig.stream, |scope| forward(&rig, scope, &x)).expect("eager");
        assert_same(&rig.read(&run), &expected);
        for (memset_as_kernel, nodes) in [(true, (8, 0)), (false, (3, 5))] {
            let (mut capture, out) = record(&rig, options(memset_as_kernel), &x).expect("a recording");
            assert_eq!(counts(capture.report().nodes), nodes);
            for _ in 0..2 {
                let _ = capture.replay(&rig.stream).expect("a replay");
                assert_same(&rig.read(&out), &expected);
            }
        }
    });
}

#[test]
fn other_memsets_stay() {
    for_each_seed(|rig| {
        let large = Tensor::zeros(&rig.stream, DType::F32, &[MOST + 1]).expect("a tensor");
        let nodes_at = |address: u64, options: CaptureOptions, value: u32, elements: usize| {
            let mut capture = BreakableCapture::with_options(&rig.pool, options).expect("a capture");
            capture
                .record(&rig.stream, |_| {
                    set_at(address, value, elements);
                    Ok(())
                })
                .expect("a recording");
            let _ = capture.replay(&rig.stream).expect("a replay");
            rig.stream.synchronize().expect("the replay");
            counts(capture.report().nodes)
        };
        let nodes = |options, value, elements| nodes_at(large.address(), options, value, elements);
        assert_eq!(nodes(options(true), 0, MOST), (1, 0));
        assert_eq!(nodes(options(true), 0, MOST + 1), (0, 1), "it is large");
        assert_eq!(nodes(options(true), 1, 8), (0, 1), "its value isn't zero");
        let mut pinned = PinnedBuffer::new(&rig.context, 32).expect("host memory");
        pinned.as_mut_slice().fill(7);
        let address = pinned.as_slice().as_ptr() as u64;
        assert_eq!(nodes_at(address, options(true), 0, 8), (0, 1), "it is the host's memory");
        assert_eq!(pinned.as_slice(), [0; 32]);
    });
}

/// They have the capture stream's priority where nodes have one.
#[test]
fn kernels_that_zero_have_priorities() {
    let driver = crate::support::driver().intercepted();
    let rig = Rig::with_pool(&driver, PoolOptions::default().priority(-2));
    let x = rig.random(1, &[ROWS, WIDTH]);
    let watch = driver.intercept().expect("a watched driver");
    for (flags, set) in [(InstantiateFlags::default(), 0), (InstantiateFlags::USE_NODE_PRIORITY, 5)] {
        let before = watch.count(Call::cuGraphKernelNodeSetAttribute);
        let mut options = options(true);
        options.graph.instantiate = flags;
        let (mut capture, out) = record(&rig, options, &x).expect("a recording");
        assert_eq!(counts(capture.report().nodes), (8, 0));
        assert_eq!(watch.count(Call::cuGraphKernelNodeSetAttribute) - before, set);
        let _ = capture.replay(&rig.stream).expect("a replay");
        assert_same(&rig.read(&out), &expected(&rig.read(&x)));
        if let Some(reference) = driver.ref_driver().filter(|_| set > 0) {
            let priorities = capture.execs().flat_map(|exec| reference.kernel_priorities(exec.as_raw()));
            assert_eq!(priorities.collect::<Vec<_>>(), [-2; 8]);
        }
    }
}

/// Two streams: memsets come after work of both, and work of both comes after them.
#[test]
fn a_kernel_has_the_edges_of_its_memset() {
    for_each_seed(|rig| {
        let (a, b) = (rig.random(1, &[ROWS, WIDTH]), rig.random(2, &[ROWS, WIDTH]));
        let side = Stream::new(&rig.context).expect("a stream");
        let event = || Event::with_flags(&rig.context, EventFlags::default()).expect("an event");
        let events = [event(), event(), event()];
        let sum = rig.zeros(&[ROWS, WIDTH]);
        let outs = [rig.zeros(&[ROWS, WIDTH]), rig.zeros(&[ROWS, WIDTH])];
        let join = |event: &Event, from: &Stream, to: &Stream| -> Result<()> {
            event.record(from)?;
            to.wait(event)
        };
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        capture
            .record(&rig.stream, |_| {
                let main = current_stream()?;
                join(&events[0], &main, &side)?;
                rig.ops.relu_into(&main, &a.leading_rows(ROWS / 2), &sum.leading_rows(ROWS / 2))?;
                rig.ops.relu_into(&side, &b.leading_rows(ROWS / 2), &outs[1].leading_rows(ROWS / 2))?;
                join(&events[1], &side, &main)?;
                set(&outs[1], 0, 0..3);
                set(&sum, 0, 1..4);
                join(&events[2], &main, &side)?;
                rig.ops.relu_into(&side, &sum, &outs[0])?;
                set(&outs[1], 0, 5..6);
                join(&events[0], &side, &main)
            })
            .expect("a recording");
        assert_eq!(counts(capture.report().nodes), (6, 0));
        let _ = capture.replay(&rig.stream).expect("a replay");
        let (a, b) = (rig.read(&a), rig.read(&b));
        let part = |x: &[f32], gone: &[usize]| -> Vec<f32> {
            let value = |at: usize| if gone.contains(&at) || at >= ALL / 2 { 0.0 } else { x[at].max(0.0) };
            (0..ALL).map(value).collect()
        };
        assert_same(&rig.read(&outs[0]), &part(&a, &[1, 2, 3]));
        assert_same(&rig.read(&outs[1]), &part(&b, &[0, 1, 2, 5]));
    });
}

/// Each call that replaces a node fails in turn: a typed error that names it, nothing left behind; or, where the driver only can't tell the edges or the
/// place of the memory, a capture with its memsets.
#[test]
fn every_call_of_a_replacement_fails_in_turn() {
    let rig = Rig::new(&crate::support::driver().intercepted());
    let watch = rig.driver.intercept().expect("it is watched");
    let x = rig.random(1, &[ROWS, WIDTH]);
    let expected = expected(&rig.read(&x));
    let check_usable = || {
        let (mut capture, out) = record(&rig, options(true), &x).expect("a recording");
        let _ = capture.replay(&rig.stream).expect("a replay");
        assert_same(&rig.read(&out), &expected);
    };
    check_usable();
    let reference = rig.driver.ref_driver();
    let (baseline, live) = (Ledger::of(&rig.driver), reference.map(|reference| reference.object_counts()));
    let stays = |call: Call, code: CUresult| {
        call == Call::cuPointerGetAttribute || (call == Call::cuGraphGetEdges && code.0 == 402)
    };
    let mut kept_memsets = 0;
    for call in [
        Call::cuGraphGetEdges,
        Call::cuGraphAddKernelNode_v2,
        Call::cuGraphAddDependencies,
        Call::cuGraphDestroyNode,
        Call::cuGraphMemsetNodeGetParams,
        Call::cuPointerGetAttribute,
    ] {
        for code in [CUresult::CUDA_ERROR_OUT_OF_MEMORY, breakable_cuda_graph::sys::cudaError_enum(402)] {
            let before = watch.count(call);
            drop(record(&rig, options(true), &x).expect("a recording"));
            let calls = watch.count(call) - before;
            assert!(calls > 0, "{call} is part of it");
            for after in 0..calls {
                let what = format!("{call} number {after} returning {}", code.0);
                watch.fail(Fault { call: Some(call), after, code });
                let recorded = record(&rig, options(true), &x);
                assert_eq!(watch.clear_fault(), [call], "{what}");
                match recorded {
                    Ok((mut capture, out)) => {
                        assert!(stays(call, code), "{what} and nobody was told");
                        kept_memsets += capture.report().nodes.memsets;
                        let _ = capture.replay(&rig.stream).expect("a replay");
                        assert_same(&rig.read(&out), &expected);
                    }
                    Err(error) => {
                        assert!(!stays(call, code), "{what}: {error}");
                        assert!(error.to_string().contains(call.name()), "{what}: {error}");
                    }
                }
                assert!(!is_capturing(), "{what}");
                rig.stream.synchronize().unwrap_or_else(|error| panic!("{what}: stream: {error}"));
                assert_eq!(Ledger::of(&rig.driver), baseline, "{what}");
                assert_eq!(reference.map(|reference| reference.object_counts()), live, "{what}");
            }
        }
    }
    assert!(kept_memsets > 0);
    check_usable();
}
