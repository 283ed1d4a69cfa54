//! The thread's slot for the first failing call, so that a capture can name the call that broke it and not only the one that found out.

use super::call_error::CallError;
use std::cell::Cell;

thread_local! {
    /// The first call that failed on this thread since the slot was last cleared. Written on failing paths only.
    static SLOT: Cell<Option<CallError>> = const { Cell::new(None) };
}

/// Empties the slot.
pub(crate) fn clear() {
    SLOT.set(None);
}

/// What the slot holds.
pub(crate) fn get() -> Option<CallError> {
    SLOT.get()
}

#[cold]
pub(super) fn note(error: CallError) -> CallError {
    if SLOT.get().is_none() {
        SLOT.set(Some(error));
    }
    error
}

/// Runs calls whose failures are told elsewhere: the slot is afterwards as it was.
pub(crate) fn untouched<R>(calls: impl FnOnce() -> R) -> R {
    let before = SLOT.get();
    let result = calls();
    SLOT.set(before);
    result
}

/// Runs calls of which one failure is an answer: `None`, with the slot as it was, where the failure is the `expected` one.
pub(crate) fn unless<T, E>(
    expected: impl FnOnce(&E) -> bool,
    calls: impl FnOnce() -> Result<T, E>,
) -> Result<Option<T>, E> {
    let before = SLOT.get();
    match calls() {
        Ok(value) => Ok(Some(value)),
        Err(error) if expected(&error) => {
            SLOT.set(before);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CUresult, Call};
    use super::*;

    fn failure(call: Call) -> CallError {
        CallError::Failed { call, code: CUresult::CUDA_ERROR_INVALID_VALUE }
    }

    #[test]
    fn the_first_failure_stays() {
        clear();
        note(failure(Call::cuInit));
        note(failure(Call::cuLaunchKernel));
        assert_eq!(get(), Some(failure(Call::cuInit)));
        clear();
        assert_eq!(get(), None);
    }

    #[test]
    fn failures_that_are_told_elsewhere_leave_no_trace() {
        clear();
        assert_eq!(untouched(|| note(failure(Call::cuMemFree_v2))), failure(Call::cuMemFree_v2));
        assert_eq!(get(), None);
    }

    #[test]
    fn only_the_expected_failure_is_an_answer() {
        clear();
        let update = |call| {
            unless(
                |error: &CallError| error.call() == Call::cuGraphExecUpdate_v2,
                move || Err::<(), _>(note(failure(call))),
            )
        };
        assert_eq!(update(Call::cuGraphExecUpdate_v2), Ok(None));
        assert_eq!(get(), None);
        assert_eq!(update(Call::cuGraphLaunch), Err(failure(Call::cuGraphLaunch)));
        assert_eq!(get(), Some(failure(Call::cuGraphLaunch)));
    }
}
