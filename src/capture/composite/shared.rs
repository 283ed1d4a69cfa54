//! Execs that graphs of the same nodes take turns in: the memory of one for many.
//!
//! An exec is made from one graph, its *source*, and addressed by the source's nodes whatever it holds. Another graph of the same nodes gets in with
//! `cuGraphExecUpdate`. When the graph that it holds goes, or its source, the exec goes too, so that it never refers to what nobody keeps; the next one
//! makes it anew.

use super::stats::ExecMemory;
use crate::driver::graph::Node;
use crate::driver::{Graph, GraphExec, InstantiateFlags, Stream};
use crate::error::Result;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The shared execs of one pool.
#[derive(Default)]
pub(crate) struct SharedExecs {
    /// Those that some member still uses, and some that none does.
    list: Mutex<Vec<Weak<SharedExec>>>,
}

/// A graph that takes part, alone or with others.
pub(super) struct Member {
    id: u64,
    /// Members of different places never share: what runs in one replay.
    place: usize,
    pub(super) graph: Graph,
    /// In the order in which they were added.
    pub(super) nodes: Vec<Node>,
    pub(super) flags: InstantiateFlags,
}

impl Member {
    pub(super) fn new(graph: Graph, nodes: Vec<Node>, flags: InstantiateFlags, place: usize) -> Member {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Member { id: NEXT.fetch_add(1, Ordering::Relaxed), place, graph, nodes, flags }
    }
}

/// An exec that several members use.
pub(super) struct SharedExec {
    flags: InstantiateFlags,
    place: usize,
    state: Mutex<Option<State>>,
}

struct State {
    exec: GraphExec,
    source: u64,
    /// The source's.
    nodes: Vec<Node>,
    /// Whose graph is in it. `None`: an update failed, and nobody knows.
    holder: Option<u64>,
}

/// Held while a member uses a shared exec.
pub(crate) struct SharedExecGuard<'a> {
    state: MutexGuard<'a, Option<State>>,
    /// Whether another graph was in it before, or none.
    pub(super) switched: bool,
}

impl SharedExecGuard<'_> {
    /// The exec, with the nodes that address it.
    pub(super) fn parts(&self) -> Option<(&GraphExec, &[Node])> {
        self.state.as_ref().map(|state| (&state.exec, &*state.nodes))
    }
}

impl SharedExecs {
    /// An exec that takes the member's graph: one that there is, or a new one.
    pub(super) fn join(&self, member: &Member, stream: &Stream) -> Result<Arc<SharedExec>> {
        let mut list = locked(&self.list);
        list.retain(|shared| shared.strong_count() > 0);
        for shared in list.iter().filter_map(Weak::upgrade) {
            let may = shared.flags == member.flags && shared.place == member.place;
            if may && shared.lock(member, stream)?.is_some() {
                return Ok(shared);
            }
        }
        let shared = Arc::new(SharedExec { flags: member.flags, place: member.place, state: Mutex::default() });
        shared.lock(member, stream)?;
        list.push(Arc::downgrade(&shared));
        Ok(shared)
    }
}

impl SharedExec {
    /// Takes the exec for a member, whose graph is in it then. `None`: it has other nodes.
    pub(super) fn lock(&self, member: &Member, stream: &Stream) -> Result<Option<SharedExecGuard<'_>>> {
        let mut guard = locked(&self.state);
        let switched = match &mut *guard {
            Some(state) if state.holder == Some(member.id) => false,
            Some(state) => {
                if state.nodes.len() != member.nodes.len() {
                    return Ok(None);
                }
                // Should the call fail, nobody knows what is in it: whoever comes next puts its own graph in.
                let holder = state.holder.take();
                if !state.exec.update(&member.graph)? {
                    state.holder = holder;
                    return Ok(None);
                }
                state.holder = Some(member.id);
                true
            }
            none => {
                let exec = GraphExec::measured(&member.graph, member.nodes.len(), member.flags, stream)?;
                let (source, nodes) = (member.id, member.nodes.clone());
                *none = Some(State { exec, source, nodes, holder: Some(source) });
                true
            }
        };
        Ok(Some(SharedExecGuard { state: guard, switched }))
    }

    /// What the exec takes, for the member that it was made from: it goes with that.
    pub(super) fn memory_of(&self, member: &Member) -> ExecMemory {
        let guard = locked(&self.state);
        let own = guard.as_ref().filter(|state| state.source == member.id);
        own.map_or_else(ExecMemory::default, |state| ExecMemory::of(&state.exec))
    }

    /// The member's graph is about to go.
    pub(super) fn leave(&self, member: &Member) {
        let mut guard = locked(&self.state);
        let refers = |state: &State| state.source == member.id || state.holder.is_none_or(|holder| holder == member.id);
        if guard.as_ref().is_some_and(refers) {
            *guard = None;
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
