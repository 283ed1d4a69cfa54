//! Calls by another thread while a capture is open.

use super::bench::{Bench, Code, INVALIDATED, MODES, OK, UNSUPPORTED, code};
use breakable_cuda_graph::sys::{CUresult, CUstreamCaptureStatus};
use std::ptr::null_mut;

/// Runs on another thread, with the same context current.
fn elsewhere<R: Send>(b: &Bench, work: impl FnOnce() -> R + Send) -> R {
    let context = &b.rig.context;
    std::thread::scope(|threads| {
        threads.spawn(|| context.with_current(work).expect("current")).join().expect("the other thread")
    })
}

#[test]
fn mem_alloc() {
    let b = Bench::new();
    for ((name, mode), (expected, end)) in MODES.into_iter().zip([(UNSUPPORTED, INVALIDATED), (OK, OK), (OK, OK)]) {
        let stream = b.stream(1);
        b.begin(stream, mode);
        b.launch(stream).expect("a node");
        let driver = b.driver().clone();
        let (got, address) = elsewhere(&b, || {
            let mut address = 0;
            // SAFETY: a valid place, with the context current.
            (code(unsafe { driver.cuMemAlloc_v2(&mut address, 4096) }), address)
        });
        assert_eq!(got, expected, "{name}");
        let (ended, graph) = b.end(stream);
        assert_eq!((ended, graph.is_null()), (end, end != OK), "{name}: the capture");
        b.check_usable(stream, name);
        // SAFETY: made above.
        unsafe {
            if got == OK {
                b.driver().cuMemFree_v2(address).expect("freed");
                b.driver().cuGraphDestroy(graph).expect("destroyed");
            }
            b.driver().cuStreamDestroy_v2(stream).expect("destroyed");
        }
    }
}

#[test]
fn stream_end_capture() {
    const WRONG_THREAD: Code = CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    let b = Bench::new();
    for ((name, mode), expected) in MODES.into_iter().zip([WRONG_THREAD, WRONG_THREAD, OK]) {
        let stream = b.stream(1);
        b.begin(stream, mode);
        b.launch(stream).expect("a node");
        let (driver, raw) = (b.driver().clone(), stream as usize);
        let (got, graph) = elsewhere(&b, || {
            let mut graph = null_mut();
            // SAFETY: a live stream and a valid place.
            let ended = unsafe { driver.cuStreamEndCapture(raw as *mut _, &mut graph) };
            (code(ended), graph as usize)
        });
        assert_eq!((got, graph == 0), (expected, expected != OK), "{name}");
        assert_eq!(b.status(stream), CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE, "{name}: it is over");
        b.check_usable(stream, name);
        // SAFETY: made above.
        unsafe {
            if got == OK {
                b.driver().cuGraphDestroy(graph as *mut _).expect("destroyed");
            }
            b.driver().cuStreamDestroy_v2(stream).expect("destroyed");
        }
    }
}
