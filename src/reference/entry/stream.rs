//! Streams and their capture.

use super::context::{GREATEST_PRIORITY, LEAST_PRIORITY};
use super::{as_pointer, entries, put};
use crate::reference::capture::{Target, exchange_mode};
use crate::reference::handles::Stream;
use crate::reference::ids::{Handle, new_handle};
use crate::reference::state::{Outcome, State};
use crate::reference::work::Work;
use crate::sys::{
    CUcontext, CUevent, CUgraph, CUgraphNode, CUhostFn, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
    cuuint64_t,
};
use core::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::cell::RefCell;

impl State {
    fn new_stream(&mut self, flags: u32, priority: i32) -> Outcome<Handle> {
        let context = self.current()?;
        self.healthy(context)?;
        if flags > 1 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let (handle, id) = (new_handle(), self.next_id());
        let priority = priority.clamp(GREATEST_PRIORITY, LEAST_PRIORITY);
        self.streams.insert(handle, Stream { context, flags, priority, id, tail: None, capture: None });
        Ok(handle)
    }

    pub(super) fn priority_of(&self, target: Target) -> i32 {
        match target {
            Target::Legacy(_) => LEAST_PRIORITY,
            Target::Stream(stream) => self.streams[&stream].priority,
        }
    }

    fn stream(&self, raw: CUstream) -> Outcome<&Stream> {
        self.streams.get(&(raw as usize)).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    /// The status of a stream's capture, its id, and its graph.
    fn capture_status(&self, target: Target) -> (CUstreamCaptureStatus, u64, Option<Handle>) {
        match self.capture_of(target).and_then(|id| Some((id, self.captures.get(&id)?))) {
            None => (CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE, 0, None),
            Some((id, capture)) if capture.invalidated => {
                (CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED, id, None)
            }
            Some((id, capture)) => (CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE, id, Some(capture.graph)),
        }
    }
}

thread_local! {
    /// What `cuStreamGetCaptureInfo` gives a pointer to: valid until the thread's next such call.
    static DEPENDENCIES: RefCell<Vec<CUgraphNode>> = const { RefCell::new(Vec::new()) };
}

entries! {
    fn cuStreamCreate(state, stream: *mut CUstream, flags: c_uint) {
        let handle = state.new_stream(flags, 0)?;
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(stream, as_pointer(handle)) }
    }

    fn cuStreamCreateWithPriority(state, stream: *mut CUstream, flags: c_uint, priority: c_int) {
        let handle = state.new_stream(flags, priority)?;
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(stream, as_pointer(handle)) }
    }

    fn cuStreamDestroy_v2(state, stream: CUstream) {
        state.stream(stream)?;
        // A capture of it is gone with it; work on it runs all the same.
        if let Some(id) = state.capture_of(Target::Stream(stream as usize))
            && let Some(graph) = state.captures.get(&id).map(|capture| capture.graph) {
                state.forget_capture(id);
                state.remove_graph(graph);
            }
        state.streams.remove(&(stream as usize));
        Ok(())
    }

    fn cuStreamQuery(state, stream: CUstream) {
        let target = state.target(stream)?;
        state.refuse_capturing(target)?;
        state.unsafe_call()?;
        state.healthy(state.context_of(target))?;
        let tails = state.tails(target);
        state.advance(&tails);
        if tails.iter().any(|task| state.tasks.is_pending(*task)) { Err(CUresult::CUDA_ERROR_NOT_READY) } else { Ok(()) }
    }

    fn cuStreamSynchronize(state, stream: CUstream) {
        let target = state.target(stream)?;
        state.refuse_capturing(target)?;
        state.unsafe_call()?;
        let tails = state.tails(target);
        state.wait_for(&tails);
        state.release_unused();
        state.healthy(state.context_of(target))
    }

    fn cuStreamWaitEvent(state, stream: CUstream, event: CUevent, flags: c_uint) {
        if flags > 1 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        state.wait_event(stream, event as usize, flags == 1)
    }

    fn cuStreamGetFlags(state, stream: CUstream, flags: *mut c_uint) {
        let target = state.target(stream)?;
        state.refuse_capturing(target)?;
        let found = match target {
            Target::Legacy(_) => 0,
            Target::Stream(stream) => state.streams[&stream].flags,
        };
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(flags, found) }
    }

    fn cuStreamGetPriority(state, stream: CUstream, priority: *mut c_int) {
        let found = state.priority_of(state.target(stream)?);
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(priority, found) }
    }

    fn cuStreamGetCtx(state, stream: CUstream, context: *mut CUcontext) {
        let target = state.target(stream)?;
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(context, as_pointer(state.context_of(target))) }
    }

    fn cuStreamGetId(state, stream: CUstream, id: *mut c_ulonglong) {
        let target = state.target(stream)?;
        state.refuse_capturing(target)?;
        let found = match target {
            Target::Legacy(context) => state.contexts[&context].id << 32,
            Target::Stream(stream) => state.streams[&stream].id,
        };
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(id, found) }
    }

    fn cuStreamBeginCapture_v2(state, stream: CUstream, mode: CUstreamCaptureMode) {
        state.begin_capture(stream, mode)
    }

    fn cuStreamEndCapture(state, stream: CUstream, graph: *mut CUgraph) {
        let ended = state.end_capture(stream);
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(graph, ended.map_or(core::ptr::null_mut(), as_pointer))? };
        ended.map(drop)
    }

    fn cuStreamIsCapturing(state, stream: CUstream, status: *mut CUstreamCaptureStatus) {
        let (found, ..) = state.capture_status(state.target(stream)?);
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(status, found) }
    }

    fn cuStreamGetCaptureInfo_v2(
        state,
        stream: CUstream,
        status: *mut CUstreamCaptureStatus,
        id: *mut cuuint64_t,
        graph: *mut CUgraph,
        dependencies: *mut *const CUgraphNode,
        count: *mut usize,
    ) {
        let target = state.target(stream)?;
        let (found, capture, in_progress) = state.capture_status(target);
        let mut after = Vec::new();
        if let (Target::Stream(stream), Some(graph), Some(capture)) = (target, in_progress, state.captures.get(&capture)) {
            let tails = capture.tails.get(&stream).into_iter().flatten();
            after.extend(tails.map(|&at| as_pointer(state.graphs[&graph].nodes[at].handle)));
        }
        // SAFETY: the caller gives null, for what it does not want to know, or valid places.
        unsafe {
            put(status, found)?;
            if !id.is_null() {
                id.write(capture);
            }
            if !graph.is_null() {
                graph.write(in_progress.map_or(core::ptr::null_mut(), as_pointer));
            }
            if !count.is_null() {
                count.write(after.len());
            }
            let _ = DEPENDENCIES.try_with(|kept| {
                let mut kept = kept.borrow_mut();
                *kept = after;
                if !dependencies.is_null() {
                    dependencies.write(kept.as_ptr());
                }
            });
        }
        Ok(())
    }

    fn cuThreadExchangeStreamCaptureMode(_state, mode: *mut CUstreamCaptureMode) {
        if mode.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, so the caller gives a valid place.
        unsafe { mode.write(exchange_mode(mode.read())?) };
        Ok(())
    }

    fn cuLaunchHostFunc(state, stream: CUstream, function: CUhostFn, data: *mut c_void) {
        let target = state.target(stream)?;
        let function = function.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        state.submit(target, Work::Host { function, data: data as usize })
    }
}
