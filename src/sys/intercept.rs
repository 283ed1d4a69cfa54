//! Interception of a driver's calls: they are counted and listed, and the n-th of them is made to fail, on the reference driver and on libcuda alike.

use super::backend::Backend;
use super::bindings::CUresult;
use super::call::Call;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A counter of calls and a fault to come, between [`Driver`](super::Driver)'s methods and the table. The reference driver always has one;
/// [`Driver::intercepted`](super::Driver::intercepted) makes a copy of any other that has one too.
pub struct Intercept {
    state: Mutex<State>,
    backend: Option<Arc<dyn Backend>>,
}

#[derive(Default)]
struct State {
    total: u64,
    counts: BTreeMap<Call, u64>,
    successes: BTreeMap<Call, u64>,
    fault: Option<Fault>,
    /// Whether the fault keeps every call from its work.
    refuses: bool,
    fired: Vec<Call>,
    log: Option<Vec<Call>>,
}

/// Which call is to fail, counted from the moment the fault is set.
///
/// Set by [`Intercept::fail`], a call that creates or enqueues does nothing and returns the code. A call that ends, frees or destroys does its work and then returns the
/// code, as the driver does when it reports an earlier error there.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The call, or any.
    pub call: Option<Call>,
    /// How many matching calls still succeed first.
    pub after: u64,
    /// What the failing call returns.
    pub code: CUresult,
}

impl Intercept {
    pub(super) fn new(backend: Option<Arc<dyn Backend>>) -> Intercept {
        Intercept { state: Mutex::default(), backend }
    }

    pub(super) fn backend(&self) -> Option<&Arc<dyn Backend>> {
        self.backend.as_ref()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call fail, once. Replaces a fault that has not fired.
    pub fn fail(&self, fault: Fault) {
        self.set_fault(fault, false);
    }

    /// As [`fail`](Intercept::fail), but the call does nothing, whatever it is: one that ends, frees or destroys leaves what it was to end as it is.
    pub fn refuse(&self, fault: Fault) {
        self.set_fault(fault, true);
    }

    fn set_fault(&self, fault: Fault, refuses: bool) {
        let mut state = self.state();
        (state.fault, state.refuses) = (Some(fault), refuses);
        state.fired.clear();
    }

    /// Takes back a fault that has not fired, and tells which calls were made to fail since the last [`fail`](Intercept::fail).
    pub fn clear_fault(&self) -> Vec<Call> {
        let mut state = self.state();
        state.fault = None;
        std::mem::take(&mut state.fired)
    }

    /// Calls made so far.
    pub fn total(&self) -> u64 {
        self.state().total
    }

    /// How often one call was made so far.
    pub fn count(&self, call: Call) -> u64 {
        self.state().counts.get(&call).copied().unwrap_or(0)
    }

    /// How often the driver itself carried the call out with success, whatever was returned in its place.
    pub fn successes(&self, call: Call) -> u64 {
        self.state().successes.get(&call).copied().unwrap_or(0)
    }

    /// Starts a list of the calls made.
    pub fn start_log(&self) {
        self.state().log = Some(Vec::new());
    }

    /// Ends the list and returns it; empty where none was started.
    pub fn take_log(&self) -> Vec<Call> {
        self.state().log.take().unwrap_or_default()
    }

    pub(super) fn around(&self, call: Call, run: impl FnOnce() -> CUresult) -> CUresult {
        let forced = {
            let mut state = self.state();
            state.total += 1;
            *state.counts.entry(call).or_default() += 1;
            if let Some(log) = &mut state.log {
                log.push(call);
            }
            state.due(call).map(|code| (code, state.refuses))
        };
        if let Some((code, _)) = forced.filter(|(_, refused)| *refused || !does_its_work_all_the_same(call)) {
            return code;
        }
        if let Some(backend) = &self.backend {
            backend.enter();
        }
        let code = run();
        if code == CUresult::CUDA_SUCCESS {
            *self.state().successes.entry(call).or_default() += 1;
        }
        forced.map_or(code, |(code, _)| code)
    }
}

impl State {
    /// The code that this call is to return, if its turn has come.
    fn due(&mut self, call: Call) -> Option<CUresult> {
        let fault = self.fault.as_mut()?;
        if fault.call.is_some_and(|only| only != call) {
            return None;
        }
        if fault.after > 0 {
            fault.after -= 1;
            return None;
        }
        let code = fault.code;
        self.fault = None;
        self.fired.push(call);
        Some(code)
    }
}

fn does_its_work_all_the_same(call: Call) -> bool {
    use Call::*;
    matches!(
        call,
        cuStreamEndCapture
            | cuStreamDestroy_v2
            | cuEventDestroy_v2
            | cuMemFree_v2
            | cuMemFreeAsync
            | cuMemFreeHost
            | cuMemPoolDestroy
            | cuMemAddressFree
            | cuMemRelease
            | cuMemUnmap
            | cuModuleUnload
            | cuGraphDestroy
            | cuGraphExecDestroy
            | cuDevicePrimaryCtxRelease_v2
            | cuStreamSynchronize
            | cuCtxSynchronize
            | cuEventSynchronize
    )
}
