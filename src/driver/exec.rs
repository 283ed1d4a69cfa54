//! Graph execs: instantiated graphs.

use super::capture_mode::relaxed;
use super::capture_state::NodeKind;
use super::context::Context;
use super::current::Bound;
use super::deferred_drop::Destroy;
use super::graph::{self, Graph, Node};
use super::launch_list::LaunchRef;
use super::operation;
use super::stream::Stream;
use crate::error::{Error, Result};
use crate::sys::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUgraphExec, CUgraphExecUpdateResultInfo, CUgraphInstantiate_flags_enum,
    CUgraphInstantiateResult, CUgraphNode, CUgraphNodeType, CUresult, CallError, Driver, first_failure, zeroed,
};
use std::fmt;

bitflags::bitflags! {
    /// How a graph is instantiated ([`CUgraphInstantiate_flags`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html)).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct InstantiateFlags: u64 {
        /// Each node runs with the priority that its stream had when it was captured, and not with that of the stream that the exec is launched on.
        /// Nodes that a capture makes of launches, those of patched breaks say, have its capture stream's.
        const USE_NODE_PRIORITY = CUgraphInstantiate_flags_enum::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY.0 as u64;
    }
}

/// Whether an update was refused as the nodes are others.
fn is_of_other_nodes(error: &CallError) -> bool {
    error.code() == CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
}

/// An executable graph, destroyed when dropped. The driver puts the destruction off while a launch of it is running.
///
/// It can be sent to another thread and not be used by two at once, as a [`Graph`].
///
/// ```compile_fail,E0277
/// fn shared<T: Sync>() {}
/// shared::<breakable_cuda_graph::driver::GraphExec>();
/// ```
pub struct GraphExec {
    context: Context,
    raw: CUgraphExec,
    /// Device memory that making it took, where that was measured.
    bytes: usize,
}

/// The most that one exec is taken to cost in device memory: drivers take pieces of some MiB, and a few KiB for each node. What goes beyond it was taken
/// by others at the same moment.
const MOST_BYTES: usize = 8 << 20;
const MOST_NODE_BYTES: usize = 16 << 10;

// SAFETY: an exec may be used from any thread, one at a time (T1 of `docs/DESIGN.md`): it is not `Sync`.
unsafe impl Send for GraphExec {}

impl fmt::Debug for GraphExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphExec").field("raw", &self.raw).finish_non_exhaustive()
    }
}

/// Why a graph could not be instantiated: all that the driver tells.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct InstantiateError {
    /// The call and its code.
    pub error: CallError,
    /// The driver's result kind ([`CUgraphInstantiateResult`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html)).
    pub result: CUgraphInstantiateResult,
    /// The node that it names, if any.
    pub node: Option<FailedNode>,
}

/// The node that the driver names when it can't instantiate a graph.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FailedNode {
    /// Its place in the list of its graph's nodes ([`cuGraphGetNodes`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html)),
    /// counted from 0. Before it the places of the child graphs that it is inside of, outermost first.
    pub path: Vec<usize>,
    /// Its kind ([`CUgraphNodeType`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html)).
    pub kind: CUgraphNodeType,
}

impl fmt::Display for InstantiateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (result kind {})", self.error, self.result.0)?;
        if let Some(FailedNode { path, kind }) = &self.node {
            let path: Vec<_> = path.iter().map(usize::to_string).collect();
            write!(f, " at node {} of kind {}", path.join("/"), kind.0)?;
        }
        Ok(())
    }
}

impl std::error::Error for InstantiateError {}

impl FailedNode {
    fn find(driver: &Driver, graph: &Graph, node: CUgraphNode) -> Result<Option<FailedNode>> {
        let Some(path) = graph::path_to(driver, graph.as_raw(), node)? else { return Ok(None) };
        Ok(Some(FailedNode { path, kind: graph::node_type(driver, node)? }))
    }
}

impl GraphExec {
    /// Instantiates a graph ([`cuGraphInstantiateWithParams`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html)). The
    /// exec does not need the graph afterwards.
    ///
    /// # Errors
    /// [`Error::Instantiate`] with all that the driver tells.
    #[doc(alias = "cuGraphInstantiateWithParams")]
    pub fn new(graph: &Graph, flags: InstantiateFlags) -> Result<GraphExec> {
        let context = graph.context();
        let driver = context.driver();
        let _bound = context.bind()?;
        let _relaxed = relaxed(driver)?;
        let mut parameters: CUDA_GRAPH_INSTANTIATE_PARAMS = zeroed();
        parameters.flags = flags.bits();
        // Should a call fail without a word.
        parameters.result_out = CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_ERROR;
        let mut raw = core::ptr::null_mut();
        // SAFETY: a live graph and two valid places.
        match unsafe { driver.cuGraphInstantiateWithParams(&mut raw, graph.as_raw(), &mut parameters) } {
            Ok(()) => Ok(GraphExec { context: context.clone(), raw, bytes: 0 }),
            Err(error) => {
                let failing = parameters.hErrNode_out;
                // What can't be found out of the node leaves the failure as it is.
                let node =
                    if failing.is_null() { None } else { FailedNode::find(driver, graph, failing).ok().flatten() };
                Err(Error::Instantiate(InstantiateError { error, result: parameters.result_out, node }))
            }
        }
    }

    /// Instantiates a graph of so many nodes and uploads it, and measures what that takes: the device's free memory just before and just after, so that
    /// what others take while a forward is recorded is no cost of its execs.
    pub(crate) fn measured(graph: &Graph, nodes: usize, flags: InstantiateFlags, stream: &Stream) -> Result<GraphExec> {
        let context = graph.context();
        let before = context.memory_info()?.free;
        let mut exec = GraphExec::new(graph, flags)?;
        exec.upload(stream)?;
        let taken = before.saturating_sub(context.memory_info()?.free);
        exec.bytes = taken.min(MOST_BYTES.saturating_add(nodes.saturating_mul(MOST_NODE_BYTES)));
        Ok(exec)
    }

    /// Device memory that making it took, where that was measured: for an exec of a capture. Drivers take it in pieces, so that one exec may be told the piece
    /// that others use too, and these nothing.
    pub fn device_bytes(&self) -> usize {
        self.bytes
    }

    /// Takes over a foreign exec and destroys it in the end.
    ///
    /// # Safety
    /// `raw` is an exec of this context that nobody else destroys.
    pub unsafe fn from_raw(context: &Context, raw: CUgraphExec) -> GraphExec {
        GraphExec { context: context.clone(), raw, bytes: 0 }
    }

    /// The driver's handle. It stays valid as long as this value lives.
    #[inline]
    pub fn as_raw(&self) -> CUgraphExec {
        self.raw
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Sends the exec to the device, so that the first launch does not
    /// ([`cuGraphUpload`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html)).
    ///
    /// # Errors
    /// [`ContextMismatch`](crate::Misuse::ContextMismatch), and what the driver returns.
    #[doc(alias = "cuGraphUpload")]
    pub fn upload(&self, stream: &Stream) -> Result<()> {
        self.context.expect_same(stream.context(), "stream")?;
        let _bound = self.context.bind()?;
        // SAFETY: both handles are live.
        unsafe { self.context.driver().cuGraphUpload(self.raw, stream.as_raw())? };
        Ok(())
    }

    /// Puts a graph in the place of a child
    /// ([`cuGraphExecChildGraphNodeSetParams`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html)): other parameters of the same
    /// nodes. `false`, with the exec as before, where the driver refuses as the nodes are others. Launches that are under way are not touched.
    ///
    /// # Safety
    /// The node is a child of the graph that this exec was made from, which is still there.
    pub(crate) unsafe fn patch(&self, node: Node, child: &Graph) -> Result<bool> {
        let patched = first_failure::unless(is_of_other_nodes, || {
            // SAFETY: live handles; the caller vouches for the node. The call is about them alone, whatever is current.
            unsafe { self.context.driver().cuGraphExecChildGraphNodeSetParams(self.raw, node.0, child.as_raw()) }
        })?;
        Ok(patched.is_some())
    }

    /// Gives a kernel node another launch
    /// ([`cuGraphExecKernelNodeSetParams`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html)). Launches that are under way are not
    /// touched. `false` where the driver refuses as the node can't become that. The context is to be current, as the guard shows: the driver crashes where
    /// none is.
    ///
    /// # Safety
    /// The node is a kernel of the graph that this exec was made from, which is still there; the launch's parameters are those of its function.
    pub(crate) unsafe fn set_kernel(&self, _bound: &Bound<'_>, node: Node, launch: LaunchRef<'_>) -> Result<bool> {
        // A function of another kind: with launches of its own on the device, or in clusters.
        let is_of_another_kind = |error: &CallError| {
            let code = error.code();
            is_of_other_nodes(error)
                || code == CUresult::CUDA_ERROR_INVALID_VALUE
                || code == CUresult::CUDA_ERROR_NOT_SUPPORTED
        };
        let set = first_failure::unless(is_of_another_kind, || {
            // SAFETY: live handles; the caller vouches for the rest.
            launch.with_node_parameters(|parameters| unsafe {
                self.context.driver().cuGraphExecKernelNodeSetParams_v2(self.raw, node.0, parameters)
            })
        })?;
        Ok(set.is_some())
    }

    /// Gives all nodes the parameters of another graph's
    /// ([`cuGraphExecUpdate`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html)). `false`, with the exec as before, where the
    /// driver refuses as the nodes are others.
    pub(crate) fn update(&self, graph: &Graph) -> Result<bool> {
        let _bound = self.context.bind()?;
        let mut info: CUgraphExecUpdateResultInfo = zeroed();
        let updated = first_failure::unless(is_of_other_nodes, || {
            // SAFETY: live handles and a valid place.
            unsafe { self.context.driver().cuGraphExecUpdate_v2(self.raw, graph.as_raw(), &mut info) }
        })?;
        Ok(updated.is_some())
    }

    /// Launches the exec ([`cuGraphLaunch`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html)).
    ///
    /// # Errors
    /// [`ContextMismatch`](crate::Misuse::ContextMismatch), and what the driver returns.
    ///
    /// # Safety
    /// All device and host memory that the graph's nodes name is valid until the launch has run.
    #[inline]
    #[doc(alias = "cuGraphLaunch")]
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        self.context.expect_same(stream.context(), "stream")?;
        let to = operation::admit(&self.context, stream.as_raw(), "the launch of a graph")?;
        // SAFETY: both handles are live; the caller vouches for the memory.
        unsafe { self.context.driver().cuGraphLaunch(self.raw, stream.as_raw())? };
        to.done(stream.as_raw(), NodeKind::Other);
        Ok(())
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        self.context.destroy(Destroy::Exec(self.raw));
    }
}
