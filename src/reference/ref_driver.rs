//! [`RefDriver`]: a reference driver as its user sees it.

use super::active;
use super::memory::Kind;
use super::options::Options;
use super::state::State;
use crate::sys::{Backend, CUgraphExec};
use core::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One reference driver: its devices and all that was made on them. Drivers share nothing with each other.
pub struct RefDriver {
    id: u64,
    options: Options,
    state: Arc<Mutex<State>>,
}

/// What a reference driver holds at a moment. Two of these are equal when nothing was left behind in between.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct ObjectCounts {
    pub contexts: usize,
    pub streams: usize,
    pub events: usize,
    pub modules: usize,
    pub graphs: usize,
    pub graph_execs: usize,
    pub open_captures: usize,
    pub memory_pools: usize,
    pub device_allocations: usize,
    pub device_bytes: usize,
    pub pool_blocks: usize,
    pub pool_bytes: usize,
    pub pool_reserved_bytes: usize,
    pub pinned_allocations: usize,
    pub reservations: usize,
    pub physical_handles: usize,
    pub mappings: usize,
}

impl RefDriver {
    pub(crate) fn new(options: Options) -> Arc<RefDriver> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        // The first of a name is the one that counts.
        let own = crate::kernels::HOST.iter().map(|(name, host)| ((*name).to_owned(), *host));
        let kernels = own.chain(options.kernels.iter().cloned()).collect();
        let state = Arc::new(Mutex::new(State::new(options.clone(), kernels)));
        Arc::new(RefDriver { id, options, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What exists now.
    pub fn object_counts(&self) -> ObjectCounts {
        let state = self.state();
        let (device_allocations, device_bytes) = state.memory.open_regions(|kind| matches!(kind, Kind::Device(_)));
        ObjectCounts {
            contexts: state.contexts.len(),
            streams: state.streams.len(),
            events: state.events.len(),
            modules: state.modules.len(),
            graphs: state.graphs.values().filter(|graph| !graph.borrowed).count(),
            graph_execs: state.execs.len(),
            open_captures: state.captures.len(),
            memory_pools: state.pools.len(),
            device_allocations,
            device_bytes,
            pool_blocks: state.pool_of.len(),
            pool_bytes: state.pools.values().map(|pool| pool.used).sum(),
            pool_reserved_bytes: state.pools.values().map(|pool| pool.reserved).sum(),
            pinned_allocations: state.pinned.len(),
            reservations: state.reservations.len(),
            physical_handles: state.physical.len(),
            mappings: state.reservations.values().map(|reservation| reservation.mappings.len()).sum(),
        }
    }

    /// What went wrong in work that has run, in the order in which it did: use of memory after its free, and the like.
    pub fn diagnostics(&self) -> Vec<String> {
        self.state().diagnostics.clone()
    }

    /// The priorities of the kernel nodes of an exec, which no call of the driver tells: in order, with those of a child in its place. Empty for an
    /// exec that there is not.
    pub fn kernel_priorities(&self, exec: CUgraphExec) -> Vec<i32> {
        let state = self.state();
        state.execs.get(&(exec as usize)).map_or_else(Vec::new, |exec| super::graph::kernel_priorities(&exec.nodes))
    }

    /// Whether no work waits to run.
    pub fn is_idle(&self) -> bool {
        self.state().tasks.is_idle()
    }

    /// Runs all work that waits.
    pub fn run_all(&self) {
        let mut state = self.state();
        let all = state.tasks.of_context(None);
        state.wait_for(&all);
    }
}

impl Backend for RefDriver {
    fn export(&self, name: &str) -> *const c_void {
        super::entry::export(name, &self.options)
    }

    fn enter(&self) {
        active::set(&self.state);
    }

    fn id(&self) -> u64 {
        self.id
    }
}

impl std::fmt::Debug for RefDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RefDriver").field("id", &self.id).field("live", &self.object_counts()).finish_non_exhaustive()
    }
}
