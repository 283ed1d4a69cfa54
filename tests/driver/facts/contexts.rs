//! What needs a current context: not the calls on a stream, whose context is the stream's.

use super::bench::{Bench, OK, code};
use breakable_cuda_graph::sys::{CUresult, CUstreamCaptureMode};
use std::ptr::null_mut;

#[test]
fn calls_on_a_stream_work_whatever_is_current() {
    let b = Bench::new();
    let (driver, stream, event) = (b.driver(), b.other.as_raw(), b.before.as_raw());
    let graph = b.capture(|stream| b.launch(stream).expect("a node"));
    let exec = b.instantiate(graph).expect("instantiated");
    let address = b.spare.address();
    // SAFETY: live handles of the bench and valid places.
    unsafe {
        driver.cuCtxSetCurrent(null_mut()).expect("none is current");
        assert_eq!(code(b.launch(stream)), OK, "cuLaunchKernel");
        assert_eq!(code(driver.cuGraphLaunch(exec, stream)), OK, "cuGraphLaunch");
        assert_eq!(code(driver.cuEventRecord(event, stream)), OK, "cuEventRecord");
        assert_eq!(code(driver.cuStreamWaitEvent(stream, event, 0)), OK, "cuStreamWaitEvent");
        assert_eq!(code(driver.cuMemcpyDtoDAsync_v2(address, address + 1024, 64, stream)), OK, "cuMemcpyDtoDAsync");
        assert_eq!(code(driver.cuMemsetD8Async(address, 0, 64, stream)), OK, "cuMemsetD8Async");
        b.begin(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        assert_eq!(code(b.launch(stream)), OK, "into a capture");
        let (ended, captured) = b.end(stream);
        assert_eq!(ended, OK, "cuStreamEndCapture");
        assert_eq!(code(driver.cuStreamSynchronize(stream)), OK, "cuStreamSynchronize");

        let mut address = 0;
        let refused = code(driver.cuMemAlloc_v2(&mut address, 64));
        assert_eq!(refused, CUresult::CUDA_ERROR_INVALID_CONTEXT, "cuMemAlloc needs one");
        driver.cuCtxSetCurrent(b.rig.context.as_raw()).expect("current");
        b.destroy(&[graph, captured], &[exec]);
    }
}
