//! Which reference driver a call is for: the entry points are plain functions, as a library's, and find it through the calling thread.

use super::state::{Outcome, State, is_in_host_function};
use crate::sys::CUresult;
use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError, Weak};

thread_local! {
    /// The driver that was last called on this thread. Calls through the bare table find it here.
    static ACTIVE: RefCell<Weak<Mutex<State>>> = const { RefCell::new(Weak::new()) };
}

/// Makes this driver the one that the thread's next calls are for.
pub(super) fn set(driver: &Arc<Mutex<State>>) {
    ACTIVE.with_borrow_mut(|active| {
        if active.as_ptr() != Arc::as_ptr(driver) {
            *active = Arc::downgrade(driver);
        }
    });
}

/// Runs the body of an entry point.
pub(super) fn call(body: impl FnOnce(&mut State) -> Outcome) -> CUresult {
    if is_in_host_function() {
        return CUresult::CUDA_ERROR_NOT_PERMITTED;
    }
    let Some(driver) = ACTIVE.with_borrow(Weak::upgrade) else { return CUresult::CUDA_ERROR_NOT_INITIALIZED };
    let mut state = driver.lock().unwrap_or_else(PoisonError::into_inner);
    match body(&mut state) {
        Ok(()) => CUresult::CUDA_SUCCESS,
        Err(code) => code,
    }
}
