//! Events.

use super::{as_pointer, entries, put};
use crate::reference::handles::{Event, Recorded};
use crate::reference::ids::TaskId;
use crate::reference::ids::new_handle;
use crate::reference::state::State;
use crate::sys::{CUevent, CUevent_flags_enum, CUresult, CUstream};
use core::ffi::c_uint;

impl State {
    /// A query makes progress, so that a loop of queries ends.
    pub(super) fn advance(&mut self, tasks: &[TaskId]) {
        let needed = self.tasks.needed(tasks);
        if let Some(&first) = needed.first() {
            self.wait_for(&[first]);
        }
    }
}

entries! {
    fn cuEventCreate(state, event: *mut CUevent, flags: c_uint) {
        let context = state.current()?;
        state.healthy(context)?;
        if flags > 7 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let handle = new_handle();
        state.events.insert(handle, Event { context, flags, recorded: Recorded::Never, time: None });
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(event, as_pointer(handle)) }
    }

    fn cuEventDestroy_v2(state, event: CUevent) {
        state.events.remove(&(event as usize)).map(drop).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    fn cuEventRecord(state, event: CUevent, stream: CUstream) {
        state.record_event(event as usize, stream, false)
    }

    fn cuEventRecordWithFlags(state, event: CUevent, stream: CUstream, flags: c_uint) {
        if flags > 1 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        state.record_event(event as usize, stream, flags == 1)
    }

    fn cuEventQuery(state, event: CUevent) {
        let tasks = state.event_tasks(event as usize)?;
        state.unsafe_call()?;
        state.advance(&tasks);
        if tasks.iter().any(|task| state.tasks.is_pending(*task)) {
            return Err(CUresult::CUDA_ERROR_NOT_READY);
        }
        state.healthy(state.events[&(event as usize)].context)
    }

    fn cuEventSynchronize(state, event: CUevent) {
        let tasks = state.event_tasks(event as usize)?;
        state.unsafe_call()?;
        state.wait_for(&tasks);
        state.healthy(state.events[&(event as usize)].context)
    }

    fn cuEventElapsedTime(state, milliseconds: *mut f32, start: CUevent, end: CUevent) {
        let mut times = [None; 2];
        for (time, event) in times.iter_mut().zip([start, end]) {
            let tasks = state.event_tasks(event as usize)?;
            if tasks.iter().any(|task| state.tasks.is_pending(*task)) {
                return Err(CUresult::CUDA_ERROR_NOT_READY);
            }
            let event = &state.events[&(event as usize)];
            if event.flags & CUevent_flags_enum::CU_EVENT_DISABLE_TIMING.0 != 0 {
                return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
            }
            *time = event.time;
        }
        let [Some(start), Some(end)] = times else { return Err(CUresult::CUDA_ERROR_INVALID_HANDLE) };
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(milliseconds, end.saturating_duration_since(start).as_secs_f32() * 1e3) }
    }
}
