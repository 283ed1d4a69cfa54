//! The order in which a pool goes (D1, D2 and D4 of the design), by the driver calls that are made of it.

use crate::support::{Rig, driver};
use breakable_cuda_graph::driver::{MemoryPool, Stream};
use breakable_cuda_graph::sys::Call;
use breakable_cuda_graph::tensor::Layout;
use breakable_cuda_graph::{BreakableCapture, CapturePool, DType, Tensor};

/// The first place of a call in a log, or the last.
fn first(log: &[Call], call: Call) -> usize {
    log.iter().position(|made| *made == call).unwrap_or_else(|| panic!("no {call} in {log:?}"))
}

fn last(log: &[Call], call: Call) -> usize {
    log.iter().rposition(|made| *made == call).unwrap_or_else(|| panic!("no {call} in {log:?}"))
}

/// Execs, then the slabs, after the last replay, then the memory pools, and their streams.
#[test]
fn execs_go_before_slabs_and_slabs_before_what_they_came_from() {
    let rig = Rig::new(&driver().intercepted());
    let x = rig.random(1, &[64]);
    let pool = CapturePool::new(&rig.context).expect("a pool");
    let mut capture = BreakableCapture::new(&pool).expect("a capture");
    let out = capture.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("a recording");
    let other = Stream::new(&rig.context).expect("a stream");
    let _ = capture.replay(&other).expect("a replay");
    let log = rig.driver.intercept().expect("an intercepted driver");
    log.start_log();
    drop((out, pool, capture));
    let log = log.take_log();
    let (free, destroyed) = (Call::cuMemFreeAsync, Call::cuMemPoolDestroy);
    assert!(last(&log, Call::cuGraphExecDestroy) < first(&log, free), "{log:?}");
    assert!(first(&log, Call::cuStreamWaitEvent) < first(&log, free), "after the last replay: {log:?}");
    assert!(last(&log, free) < first(&log, destroyed), "{log:?}");
    assert!(last(&log, free) < first(&log, Call::cuStreamDestroy_v2), "{log:?}");
}

/// What a dropped capture kept goes after the last replay, also where another capture of the pool stays.
#[test]
fn what_a_capture_kept_goes_with_it_and_after_its_execs() {
    let rig = Rig::new(&driver().intercepted());
    let pool = CapturePool::new(&rig.context).expect("a pool");
    let kept = MemoryPool::new(&rig.context).expect("a pool");
    let buffer = kept.allocate(256, &rig.stream).expect("a buffer");
    let layout = Layout::contiguous(&[64]).expect("a layout");
    let x = Tensor::from_buffer(buffer, DType::F32, layout).expect("a tensor");
    x.write(&rig.stream, &[1.0_f32; 64]).expect("written");
    let mut capture = BreakableCapture::new(&pool).expect("a capture");
    let out = capture.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("a recording");
    drop(x);
    let other = Stream::new(&rig.context).expect("a stream");
    let _ = capture.replay(&other).expect("a replay");
    assert_eq!(out.read::<f32>(&other).expect("a read"), [2.0; 64], "the segment keeps what it reads");
    let log = rig.driver.intercept().expect("an intercepted driver");
    log.start_log();
    drop(capture);
    let log = log.take_log();
    assert!(last(&log, Call::cuGraphExecDestroy) < first(&log, Call::cuMemFreeAsync), "{log:?}");
    assert!(first(&log, Call::cuStreamSynchronize) < first(&log, Call::cuGraphExecDestroy), "{log:?}");
}
