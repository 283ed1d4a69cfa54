//! Calls by another thread while a capture is open.

use super::bench::{Bench, Code, INVALIDATED, Launcher, MODES, OK, UNSUPPORTED, code};
use breakable_cuda_graph::driver::Event;
use breakable_cuda_graph::sys::{
    CUevent, CUgraph, CUgraphExec, CUmemoryPool, CUresult, CUstream, CUstream_flags_enum, CUstreamCaptureMode,
    CUstreamCaptureStatus, CallError, Driver,
};
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

/// What a call of another thread does to a capture, in the three modes of that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Effect {
    /// 900, and the capture is lost, in Global mode; good in the others, and in all under an exchange to relaxed of its own.
    Guarded,
    /// 900, and the capture is lost, in every mode, whatever the thread exchanges.
    Fatal,
    /// Good, with so many nodes more in the capture.
    Good(usize),
}

/// Handles as numbers, which a thread can be given.
#[derive(Clone, Copy)]
struct Handles {
    capturing: usize,
    unrelated: usize,
    event: usize,
    fresh_event: usize,
    graph: usize,
    exec: usize,
    pool: usize,
    spare: u64,
}

type OtherCall = fn(Launcher<'_>, &Driver, Handles) -> Result<(), CallError>;

fn stream(raw: usize) -> CUstream {
    raw as CUstream
}

fn event(raw: usize) -> CUevent {
    raw as CUevent
}

/// Calls of another thread, by what they do. The handles that they are given live, and what they make is destroyed by them where that is as good.
fn calls() -> Vec<(&'static str, Effect, OtherCall)> {
    use Effect::{Fatal, Good, Guarded};
    // SAFETY, for all of them: live handles of the bench's or of the call's own making, valid places, and the context is current.
    vec![
        ("cuEventQuery", Guarded, |_, driver, h| unsafe { driver.cuEventQuery(event(h.event)) }),
        ("cuEventSynchronize", Guarded, |_, driver, h| unsafe { driver.cuEventSynchronize(event(h.event)) }),
        ("cuStreamQuery, unrelated", Guarded, |_, driver, h| unsafe { driver.cuStreamQuery(stream(h.unrelated)) }),
        ("cuStreamSynchronize, unrelated", Guarded, |_, driver, h| unsafe {
            driver.cuStreamSynchronize(stream(h.unrelated))
        }),
        ("cuMemAlloc and cuMemFree", Guarded, |_, driver, _| unsafe {
            let mut address = 0;
            driver.cuMemAlloc_v2(&mut address, 4096)?;
            driver.cuMemFree_v2(address)
        }),
        ("cuMemAllocHost", Guarded, |_, driver, _| unsafe {
            let mut memory = null_mut();
            driver.cuMemHostAlloc(&mut memory, 4096, 0)?;
            driver.cuMemFreeHost(memory)
        }),
        ("cuMemAllocFromPoolAsync and cuMemFreeAsync, unrelated", Guarded, |_, driver, h| unsafe {
            let mut address = 0;
            driver.cuMemAllocFromPoolAsync(&mut address, 4096, h.pool as CUmemoryPool, stream(h.unrelated))?;
            driver.cuMemFreeAsync(address, stream(h.unrelated))
        }),
        ("cuGraphInstantiate and cuGraphExecDestroy", Guarded, |_, driver, h| unsafe {
            let (mut exec, mut params) = (null_mut(), std::mem::zeroed());
            driver.cuGraphInstantiateWithParams(&mut exec, h.graph as CUgraph, &mut params)?;
            driver.cuGraphExecDestroy(exec)
        }),
        ("cuStreamQuery, capturing", Fatal, |_, driver, h| unsafe { driver.cuStreamQuery(stream(h.capturing)) }),
        ("cuStreamSynchronize, capturing", Fatal, |_, driver, h| unsafe {
            driver.cuStreamSynchronize(stream(h.capturing))
        }),
        ("cuCtxSynchronize", Fatal, |_, driver, _| unsafe { driver.cuCtxSynchronize() }),
        ("cuMemsetD8Async, capturing", Good(1), |_, driver, h| unsafe {
            driver.cuMemsetD8Async(h.spare, 0, 64, stream(h.capturing))
        }),
        ("cuLaunchKernel, capturing", Good(1), |launcher, _, h| launcher.launch(stream(h.capturing))),
        ("cuEventRecord, capturing", Good(0), |_, driver, h| unsafe {
            driver.cuEventRecord(event(h.fresh_event), stream(h.capturing))
        }),
        ("cuLaunchKernel, unrelated", Good(0), |launcher, _, h| launcher.launch(stream(h.unrelated))),
        ("cuGraphLaunch, unrelated", Good(0), |_, driver, h| unsafe {
            driver.cuGraphLaunch(h.exec as CUgraphExec, stream(h.unrelated))
        }),
        ("cuStreamCreate and cuStreamDestroy", Good(0), |_, driver, _| unsafe {
            let mut made = null_mut();
            driver.cuStreamCreate(&mut made, 1)?;
            driver.cuStreamDestroy_v2(made)
        }),
        ("cuEventCreate and cuEventDestroy", Good(0), |_, driver, _| unsafe {
            let mut made = null_mut();
            driver.cuEventCreate(&mut made, 0)?;
            driver.cuEventDestroy_v2(made)
        }),
        ("cuMemcpyDtoHAsync, unrelated", Good(0), |_, driver, h| unsafe {
            let mut bytes = [0_u8; 64];
            driver.cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), h.spare, 64, stream(h.unrelated))
        }),
        ("cuMemGetInfo", Good(0), |_, driver, _| unsafe {
            let (mut free, mut total) = (0, 0);
            driver.cuMemGetInfo_v2(&mut free, &mut total)
        }),
        ("cuStreamIsCapturing, capturing", Good(0), |_, driver, h| unsafe {
            let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
            driver.cuStreamIsCapturing(stream(h.capturing), &mut status)?;
            assert_eq!(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
            Ok(())
        }),
    ]
}

#[test]
fn each_call_does_to_a_capture_what_its_mode_says() {
    let b = Bench::new();
    let graph = b.capture(|stream| b.launch(stream).expect("a node"));
    let exec = b.instantiate(graph).expect("instantiated");
    let fresh_event = Event::new(&b.rig.context).expect("an event");
    for (what, effect, call) in calls() {
        for (mode_name, mode) in MODES {
            for exchanges in [false, true] {
                let what = format!("{what}, {mode_name}, exchanged: {exchanges}");
                let capturing = b.stream(CUstream_flags_enum::CU_STREAM_NON_BLOCKING.0);
                let handles = Handles {
                    capturing: capturing as usize,
                    unrelated: b.other.as_raw() as usize,
                    event: b.before.as_raw() as usize,
                    fresh_event: fresh_event.as_raw() as usize,
                    graph: graph as usize,
                    exec: exec as usize,
                    pool: b.pool.as_raw() as usize,
                    spare: b.spare.address(),
                };
                b.begin(capturing, mode);
                b.launch(capturing).expect("a node");
                let global = mode == CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
                let lost = effect == Effect::Fatal || (effect == Effect::Guarded && global && !exchanges);
                let (driver, launcher) = (b.driver(), b.launcher());
                let got = elsewhere(&b, || {
                    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
                    if exchanges {
                        // SAFETY: a valid place; it is the mode of a thread that ends.
                        unsafe { driver.cuThreadExchangeStreamCaptureMode(&mut mode).expect("exchanged") };
                    }
                    code(call(launcher, driver, handles))
                });
                assert_eq!(got, if lost { UNSUPPORTED } else { OK }, "{what}");
                let (ended, captured) = b.end(capturing);
                assert_eq!(ended, if lost { INVALIDATED } else { OK }, "{what}: the capture");
                if let Effect::Good(more) = effect {
                    assert_eq!(b.nodes(captured), 1 + more, "{what}: its nodes");
                }
                if !lost {
                    b.destroy(&[captured], &[]);
                }
                b.check_usable(capturing, &what);
                // SAFETY: made above.
                unsafe { b.driver().cuStreamDestroy_v2(capturing).expect("destroyed") };
            }
        }
    }
    b.rig.context.synchronize().expect("all has run");
    b.destroy(&[graph], &[exec]);
}
