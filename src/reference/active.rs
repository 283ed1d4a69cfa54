//! Which reference driver a call is for: the entry points are plain functions, as a library's, and find it through the calling thread.

use super::state::{Outcome, State, is_in_host_function};
use super::threads::ThreadNumber;
use crate::sys::CUresult;
use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError, Weak};

thread_local! {
    /// The driver that was last called on this thread. Calls through the bare table find it here.
    static ACTIVE: RefCell<Weak<Mutex<State>>> = const { RefCell::new(Weak::new()) };
}

/// The same for threads that are ending and have taken theirs down, while values of theirs that use a driver still drop.
static ENDING: Mutex<Vec<(ThreadNumber, Weak<Mutex<State>>)>> = Mutex::new(Vec::new());

/// Makes this driver the one that the thread's next calls are for.
pub(super) fn set(driver: &Arc<Mutex<State>>) {
    let put = |active: &RefCell<Weak<Mutex<State>>>| {
        let mut active = active.borrow_mut();
        if active.as_ptr() != Arc::as_ptr(driver) {
            *active = Arc::downgrade(driver);
        }
    };
    if ACTIVE.try_with(put).is_err() {
        let me = ThreadNumber::current();
        let mut ending = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
        ending.retain(|(thread, driver)| *thread != me && driver.strong_count() > 0);
        ending.push((me, Arc::downgrade(driver)));
    }
}

fn active() -> Option<Arc<Mutex<State>>> {
    ACTIVE.try_with(|active| active.borrow().upgrade()).unwrap_or_else(|_| {
        let me = ThreadNumber::current();
        let ending = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
        ending.iter().find(|(thread, _)| *thread == me).and_then(|(_, driver)| driver.upgrade())
    })
}

/// Runs the body of an entry point.
pub(super) fn call(body: impl FnOnce(&mut State) -> Outcome) -> CUresult {
    if is_in_host_function() {
        return CUresult::CUDA_ERROR_NOT_PERMITTED;
    }
    let Some(driver) = active() else { return CUresult::CUDA_ERROR_NOT_INITIALIZED };
    let mut state = driver.lock().unwrap_or_else(PoisonError::into_inner);
    match body(&mut state) {
        Ok(()) => CUresult::CUDA_SUCCESS,
        Err(code) => code,
    }
}
