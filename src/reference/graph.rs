//! Graphs, execs, what their nodes do, and the rules of updating them.

use super::ids::{Handle, TaskId};
use super::memory::Region;
use super::work::{CopyEnd, Work};
use crate::sys::{CUgraphInstantiateResult, CUgraphNodeType, CUresult};

/// What a node is.
#[derive(Clone)]
pub(super) enum Payload {
    Work(Work),
    /// A graph of its own, which the node owns.
    Child(Handle),
    Alloc {
        address: u64,
        region: Region,
    },
    Free {
        address: u64,
    },
    EventRecord(Handle),
    EventWait(Handle),
}

impl Payload {
    pub(super) fn kind(&self) -> CUgraphNodeType {
        match self {
            Payload::Work(Work::Kernel(_)) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL,
            Payload::Work(Work::Copy { .. }) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY,
            Payload::Work(Work::Fill { .. }) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET,
            Payload::Work(Work::Host { .. }) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST,
            Payload::Work(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY,
            Payload::Child(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH,
            Payload::Alloc { .. } => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC,
            Payload::Free { .. } => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE,
            Payload::EventRecord(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_EVENT_RECORD,
            Payload::EventWait(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_WAIT_EVENT,
        }
    }

    /// Whether it is a kernel that may begin before what it comes after has ended.
    pub(super) fn is_programmatic(&self) -> bool {
        matches!(self, Payload::Work(Work::Kernel(launch)) if launch.geometry.attributes.is_programmatic())
    }

    fn priority(&self) -> Option<i32> {
        match self {
            Payload::Work(Work::Kernel(launch)) => Some(launch.priority),
            _ => None,
        }
    }

    /// Which memory a copy is from and to: an exec can't change it.
    fn copy_kind(&self) -> Option<(bool, bool)> {
        match self {
            Payload::Work(Work::Copy { to, from, .. }) => {
                Some((matches!(to, CopyEnd::Device(_)), matches!(from, CopyEnd::Device(_))))
            }
            _ => None,
        }
    }
}

/// A node of a graph.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) handle: Handle,
    pub(super) payload: Payload,
    /// Nodes of the same graph that come before, by index.
    pub(super) after: Vec<usize>,
}

/// The nodes so that each comes after those that it waits for, else in the order that they have. `None`: they wait for one another.
pub(super) fn in_order(nodes: Vec<Node>) -> Option<Vec<Node>> {
    // Where each node goes.
    let mut places: Vec<Option<usize>> = vec![None; nodes.len()];
    for place in 0..nodes.len() {
        let is_next =
            |at: &usize| places[*at].is_none() && nodes[*at].after.iter().all(|&before| places[before].is_some());
        let next = (0..nodes.len()).find(is_next)?;
        places[next] = Some(place);
    }
    let mut sorted: Vec<(usize, Node)> = Vec::new();
    for (at, mut node) in nodes.into_iter().enumerate() {
        node.after.iter_mut().for_each(|before| *before = places[*before].unwrap_or(*before));
        sorted.push((places[at]?, node));
    }
    sorted.sort_by_key(|(place, _)| *place);
    Some(sorted.into_iter().map(|(_, node)| node).collect())
}

/// A graph.
#[derive(Default)]
pub(super) struct Graph {
    pub(super) nodes: Vec<Node>,
    /// A capture's in-progress graph, or a child's: it is not the caller's to destroy.
    pub(super) borrowed: bool,
}

/// A node of an exec.
#[derive(Clone)]
pub(super) struct ExecNode {
    /// The node of the graph that it was made from.
    pub(super) source: Handle,
    pub(super) payload: Payload,
    pub(super) after: Vec<usize>,
    pub(super) enabled: bool,
    /// The child's own nodes.
    pub(super) child: Vec<ExecNode>,
}

/// An executable graph.
pub(super) struct Exec {
    pub(super) nodes: Vec<ExecNode>,
    /// Whether a launch has allocated memory that nothing has freed.
    pub(super) holds_memory: bool,
    /// Whether its nodes have priorities of their own, which stay.
    pub(super) node_priorities: bool,
    /// The last task of the latest launch.
    pub(super) last: Option<TaskId>,
    pub(super) context: Handle,
    /// Device memory that it is charged with.
    pub(super) bytes: usize,
}

/// Device memory of an exec: about what was measured, 130 KiB with 8 kernels and 170 KiB with 24.
pub(super) fn exec_bytes(nodes: &[ExecNode]) -> usize {
    (112 << 10) + nodes.len() * (5 << 9)
}

/// Looks for the node that was made from `source`, inside children too.
pub(super) fn find(nodes: &mut [ExecNode], source: Handle) -> Option<&mut ExecNode> {
    for node in nodes {
        if node.source == source {
            return Some(node);
        }
        if let Some(found) = find(&mut node.child, source) {
            return Some(found);
        }
    }
    None
}

/// The first node that an exec which kernels can launch must not have, and what the driver says of it: all but kernels, memsets and copies between
/// memory that the device can reach.
pub(super) fn not_for_device_launch(nodes: &[ExecNode]) -> Option<(Handle, CUgraphInstantiateResult)> {
    nodes.iter().find_map(|node| match &node.payload {
        Payload::Child(_) => not_for_device_launch(&node.child),
        Payload::Work(
            Work::Kernel(_) | Work::Fill { .. } | Work::Copy { to: CopyEnd::Device(_), from: CopyEnd::Device(_), .. },
        ) => None,
        Payload::Work(Work::Copy { .. }) => {
            Some((node.source, CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_MULTIPLE_CTXS_NOT_SUPPORTED))
        }
        _ => Some((node.source, CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED)),
    })
}

/// Whether an exec's nodes can take the parameters of `new`: the same kinds in the same order with the same edges.
/// `priorities`: and of the same priorities. The first node that can't is told.
pub(super) fn can_become(old: &[ExecNode], new: &[ExecNode], priorities: bool) -> Result<(), usize> {
    if old.len() != new.len() {
        return Err(old.len().min(new.len()));
    }
    for (at, (old, new)) in old.iter().zip(new).enumerate() {
        let same = old.payload.kind() == new.payload.kind()
            && old.payload.copy_kind() == new.payload.copy_kind()
            && old.after == new.after
            && (!priorities || old.payload.priority() == new.payload.priority())
            && can_become(&old.child, &new.child, priorities).is_ok();
        if !same {
            return Err(at);
        }
    }
    Ok(())
}

/// Gives an exec's nodes the parameters of `new`, which [`can_become`] them; the old nodes' names stay.
pub(super) fn become_like(old: &mut [ExecNode], new: Vec<ExecNode>) {
    for (old, new) in old.iter_mut().zip(new) {
        old.payload = new.payload;
        become_like(&mut old.child, new.child);
    }
}

/// The priorities of the kernel nodes, inside children too.
pub(super) fn kernel_priorities(nodes: &[ExecNode]) -> Vec<i32> {
    nodes.iter().flat_map(|node| node.payload.priority().into_iter().chain(kernel_priorities(&node.child))).collect()
}

/// The functions of the kernel nodes, inside children too.
pub(super) fn kernel_functions(nodes: &[ExecNode]) -> Box<dyn Iterator<Item = Handle> + '_> {
    Box::new(nodes.iter().flat_map(|node| {
        let own = match &node.payload {
            Payload::Work(Work::Kernel(launch)) => Some(launch.function),
            _ => None,
        };
        own.into_iter().chain(kernel_functions(&node.child))
    }))
}

/// Whether any node, inside children too, allocates or frees.
pub(super) fn has_memory_nodes(nodes: &[ExecNode]) -> bool {
    nodes.iter().any(|node| {
        matches!(node.payload, Payload::Alloc { .. } | Payload::Free { .. }) || has_memory_nodes(&node.child)
    })
}

/// The code for an update that the rules refuse.
pub(super) const UPDATE_REFUSED: CUresult = CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
