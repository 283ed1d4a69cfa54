//! Graphs.

use super::context::Context;
use super::deferred_drop::Destroy;
use super::launch_list::LaunchRef;
use crate::error::Result;
use crate::sys::{CUgraph, CUgraphNode, CUgraphNodeType, CUlaunchAttributeID, CUlaunchAttributeValue, Driver};
use std::fmt;

/// A graph, destroyed when dropped.
///
/// It can be sent to another thread and not be used by two at once: the driver's graph objects are
/// [not synchronised](https://docs.nvidia.com/cuda/cuda-driver-api/graphs-thread-safety.html), not even for instantiation.
///
/// ```compile_fail,E0277
/// fn shared<T: Sync>() {}
/// shared::<breakable_cuda_graph::driver::Graph>();
/// ```
pub struct Graph {
    context: Context,
    raw: CUgraph,
}

// SAFETY: a graph may be used from any thread, one at a time (T1 of `docs/DESIGN.md`): it is not `Sync`.
unsafe impl Send for Graph {}

/// How many nodes of each kind a graph has, those inside child graphs counted in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct NodeCounts {
    /// Kernel launches.
    pub kernels: usize,
    /// Copies.
    pub copies: usize,
    /// Memsets.
    pub memsets: usize,
    /// Allocations and frees: a graph with any can be launched once only, and can't be a child.
    pub memory: usize,
    /// All others: host functions, events, empty nodes, conditional nodes. Child graph nodes are not counted themselves.
    pub others: usize,
}

impl NodeCounts {
    /// All nodes.
    pub fn total(&self) -> usize {
        self.kernels + self.copies + self.memsets + self.memory + self.others
    }
}

impl std::ops::AddAssign for NodeCounts {
    fn add_assign(&mut self, other: NodeCounts) {
        self.kernels += other.kernels;
        self.copies += other.copies;
        self.memsets += other.memsets;
        self.memory += other.memory;
        self.others += other.others;
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("raw", &self.raw).finish_non_exhaustive()
    }
}

impl Graph {
    /// An empty graph ([`cuGraphCreate`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html)).
    ///
    /// # Errors
    /// What the driver returns.
    #[doc(alias = "cuGraphCreate")]
    pub fn new(context: &Context) -> Result<Graph> {
        let _bound = context.bind()?;
        let mut raw = core::ptr::null_mut();
        // SAFETY: `raw` is a valid place.
        unsafe { context.driver().cuGraphCreate(&mut raw, 0)? };
        Ok(Graph { context: context.clone(), raw })
    }

    /// Takes over a graph and destroys it in the end.
    ///
    /// # Safety
    /// `raw` is a graph that nobody else destroys. The graph of an open capture (`cuStreamGetCaptureInfo`) is the driver's and must not be
    /// given.
    #[doc(alias = "cuStreamGetCaptureInfo")]
    pub unsafe fn from_raw(context: &Context, raw: CUgraph) -> Graph {
        Graph { context: context.clone(), raw }
    }

    /// The driver's handle. It stays valid as long as this value lives.
    pub fn as_raw(&self) -> CUgraph {
        self.raw
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Counts the nodes ([`cuGraphGetNodes`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html)).
    ///
    /// # Errors
    /// What the driver returns.
    #[doc(alias = "cuGraphGetNodes")]
    pub fn node_counts(&self) -> Result<NodeCounts> {
        let _bound = self.context.bind()?;
        let mut counts = NodeCounts::default();
        count_nodes(self.context.driver(), self.raw, &mut counts)?;
        Ok(counts)
    }
}

/// A node of a graph. It is valid as long as the graph is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Node(pub(super) CUgraphNode);

// SAFETY: a number that is used only with the graph or the exec that it belongs to, which one thread has at a time (T1 of `docs/DESIGN.md`).
unsafe impl Send for Node {}
// SAFETY: likewise.
unsafe impl Sync for Node {}

impl Graph {
    /// Adds a copy of a graph as a node that comes after another one
    /// ([`cuGraphAddChildGraphNode`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html)).
    pub(crate) fn add_child(&mut self, child: &Graph, after: Option<Node>) -> Result<Node> {
        let _bound = self.context.bind()?;
        let after = after.map(|node| node.0);
        let (dependencies, count) = (after.as_ref().map_or(core::ptr::null(), core::ptr::from_ref), after.iter().len());
        let mut node = core::ptr::null_mut();
        // SAFETY: two live graphs, a node of this one, and a valid place. The driver copies the child.
        unsafe {
            self.context.driver().cuGraphAddChildGraphNode(&mut node, self.raw, dependencies, count, child.raw)?;
        }
        Ok(Node(node))
    }

    /// Adds a kernel launch as a node that comes after another one
    /// ([`cuGraphAddKernelNode`, `cuGraphKernelNodeSetAttribute`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html)). `priority`: the
    /// node's, for execs in which nodes have one; a captured node has its stream's.
    ///
    /// # Safety
    /// The launch's parameters are those of its function.
    pub(crate) unsafe fn add_kernel(
        &mut self,
        launch: LaunchRef<'_>,
        after: Option<Node>,
        priority: Option<i32>,
    ) -> Result<Node> {
        let after = after.map(|node| node.0);
        // SAFETY: the caller vouches for the parameters.
        unsafe { self.add_kernel_after(launch, after.as_slice(), priority).map(Node) }
    }

    /// The same after any number of nodes of this graph.
    ///
    /// # Safety
    /// The launch's parameters are those of its function.
    pub(super) unsafe fn add_kernel_after(
        &mut self,
        launch: LaunchRef<'_>,
        after: &[CUgraphNode],
        priority: Option<i32>,
    ) -> Result<CUgraphNode> {
        let _bound = self.context.bind()?;
        let mut node = core::ptr::null_mut();
        // SAFETY: a live graph, nodes of it, and a valid place; the caller vouches for the parameters, which the driver copies.
        launch.with_node_parameters(|parameters| unsafe {
            let driver = self.context.driver();
            driver.cuGraphAddKernelNode_v2(&mut node, self.raw, after.as_ptr(), after.len(), parameters)
        })?;
        if let Some(priority) = priority {
            let attribute = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY;
            // SAFETY: a kernel node of this graph, and the value that belongs to the attribute.
            unsafe {
                let value = CUlaunchAttributeValue { priority };
                self.context.driver().cuGraphKernelNodeSetAttribute(node, attribute, &value)?;
            }
        }
        Ok(node)
    }

    /// How many nodes it has itself.
    pub(crate) fn len(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: a live graph; null asks for the number only. The call is about the graph alone.
        unsafe { self.context.driver().cuGraphGetNodes(self.raw, core::ptr::null_mut(), &mut count)? };
        Ok(count)
    }
}

/// The nodes of a graph, in the driver's order.
pub(super) fn nodes(driver: &Driver, graph: CUgraph) -> Result<Vec<CUgraphNode>> {
    let mut count = 0;
    // SAFETY: a live graph; null asks for the number only.
    unsafe { driver.cuGraphGetNodes(graph, core::ptr::null_mut(), &mut count)? };
    let mut nodes = vec![core::ptr::null_mut(); count];
    if count > 0 {
        // SAFETY: the array holds `count` entries.
        unsafe { driver.cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count)? };
        nodes.truncate(count);
    }
    Ok(nodes)
}

/// The kind of a node.
pub(super) fn node_type(driver: &Driver, node: CUgraphNode) -> Result<CUgraphNodeType> {
    let mut kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
    // SAFETY: a node of a live graph and a valid place.
    unsafe { driver.cuGraphNodeGetType(node, &mut kind)? };
    Ok(kind)
}

/// The graph that a child graph node owns.
fn child_of(driver: &Driver, node: CUgraphNode) -> Result<CUgraph> {
    let mut child = core::ptr::null_mut();
    // SAFETY: a child graph node and a valid place; the graph it gives is borrowed from it.
    unsafe { driver.cuGraphChildGraphNodeGetGraph(node, &mut child)? };
    Ok(child)
}

/// Where a node is among a graph's nodes: its place, and before it those of the children that it is inside of. `None`: it isn't there.
pub(super) fn path_to(driver: &Driver, graph: CUgraph, wanted: CUgraphNode) -> Result<Option<Vec<usize>>> {
    for (place, node) in nodes(driver, graph)?.into_iter().enumerate() {
        if node == wanted {
            return Ok(Some(vec![place]));
        }
        if node_type(driver, node)? == CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH
            && let Some(mut path) = path_to(driver, child_of(driver, node)?, wanted)?
        {
            path.insert(0, place);
            return Ok(Some(path));
        }
    }
    Ok(None)
}

fn count_nodes(driver: &Driver, graph: CUgraph, counts: &mut NodeCounts) -> Result<()> {
    for node in nodes(driver, graph)? {
        match node_type(driver, node)? {
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL => counts.kernels += 1,
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY => counts.copies += 1,
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET => counts.memsets += 1,
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC | CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE => {
                counts.memory += 1
            }
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH => {
                count_nodes(driver, child_of(driver, node)?, counts)?;
            }
            _ => counts.others += 1,
        }
    }
    Ok(())
}

impl Drop for Graph {
    fn drop(&mut self) {
        self.context.destroy(Destroy::Graph(self.raw));
    }
}
