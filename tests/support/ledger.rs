//! What a driver holds for a program, counted from its calls: the same on every driver.

use breakable_cuda_graph::Driver;
use breakable_cuda_graph::sys::Call;
use std::collections::BTreeMap;

/// Each kind of object, by the calls that make one and the calls that end one.
const KINDS: &[(&str, &[Call], &[Call])] = &[
    ("primary contexts", &[Call::cuDevicePrimaryCtxRetain], &[Call::cuDevicePrimaryCtxRelease_v2]),
    ("streams", &[Call::cuStreamCreate, Call::cuStreamCreateWithPriority], &[Call::cuStreamDestroy_v2]),
    ("events", &[Call::cuEventCreate], &[Call::cuEventDestroy_v2]),
    ("modules", &[Call::cuModuleLoadDataEx], &[Call::cuModuleUnload]),
    ("open captures", &[Call::cuStreamBeginCapture_v2], &[Call::cuStreamEndCapture]),
    ("graphs", &[Call::cuStreamEndCapture, Call::cuGraphCreate], &[Call::cuGraphDestroy]),
    ("graph execs", &[Call::cuGraphInstantiateWithParams], &[Call::cuGraphExecDestroy]),
    ("memory pools", &[Call::cuMemPoolCreate], &[Call::cuMemPoolDestroy]),
    ("device memory", &[Call::cuMemAlloc_v2], &[Call::cuMemFree_v2]),
    ("pool memory", &[Call::cuMemAllocFromPoolAsync], &[Call::cuMemFreeAsync]),
    ("pinned memory", &[Call::cuMemHostAlloc], &[Call::cuMemFreeHost]),
];

/// Live objects of each kind, zero left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ledger(BTreeMap<&'static str, i64>);

impl Ledger {
    /// What the watched driver holds now.
    pub fn of(driver: &Driver) -> Ledger {
        let watch = driver.intercept().expect("a watched driver");
        let sum = |calls: &[Call]| calls.iter().map(|&call| watch.successes(call) as i64).sum::<i64>();
        let live = KINDS.iter().map(|(kind, made, ended)| (*kind, sum(made) - sum(ended)));
        Ledger(live.filter(|(_, count)| *count != 0).collect())
    }
}
