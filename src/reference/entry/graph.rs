//! Graphs and their nodes.

use super::context::{GREATEST_PRIORITY, LEAST_PRIORITY};
use super::{as_pointer, entries, put};
use crate::kernels::{LaunchAttributes, LaunchConfig};
use crate::reference::graph::{Graph, Node, Payload, in_order};
use crate::reference::ids::{Handle, new_handle};
use crate::reference::state::{Outcome, State};
use crate::reference::work::{Launch, Work};
use crate::sys::{
    CUDA_KERNEL_NODE_PARAMS, CUDA_MEMSET_NODE_PARAMS, CUgraph, CUgraphNode, CUgraphNodeType, CUlaunchAttributeID,
    CUlaunchAttributeValue, CUresult,
};
use core::ffi::{c_char, c_uint, c_void};
use std::cell::RefCell;

/// `CUDA_ERROR_LOSSY_QUERY`, which headers before CUDA 12.3 lack.
const LOSSY_QUERY: CUresult = CUresult(402);

thread_local! {
    /// What `cuGraphKernelNodeGetParams` gives pointers to: valid until the thread's next such call.
    static POINTERS: RefCell<Vec<*mut c_void>> = const { RefCell::new(Vec::new()) };
}

impl State {
    pub(super) fn graph(&self, graph: CUgraph) -> Outcome<&Graph> {
        self.graphs.get(&(graph as usize)).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    fn node(&self, node: CUgraphNode) -> Outcome<&Node> {
        let graph = self.nodes.get(&(node as usize)).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let nodes = self.graphs.get(graph).map(|graph| graph.nodes.as_slice()).unwrap_or_default();
        nodes.iter().find(|found| found.handle == node as usize).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    fn node_mut(&mut self, node: CUgraphNode) -> Outcome<&mut Node> {
        let graph = self.nodes.get(&(node as usize)).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let nodes = self.graphs.get_mut(graph).map(|graph| graph.nodes.as_mut_slice()).unwrap_or_default();
        nodes.iter_mut().find(|found| found.handle == node as usize).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// Adds a node after others of the same graph.
    ///
    /// # Safety
    /// `after` is an array of this length.
    unsafe fn add_node(
        &mut self,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        payload: Payload,
    ) -> Outcome<Handle> {
        let found = self.graph(graph)?;
        let mut indices = Vec::new();
        for at in 0..count {
            // SAFETY: as the caller says.
            let wanted = unsafe { *after.add(at) } as usize;
            let index = found.nodes.iter().position(|node| node.handle == wanted);
            indices.push(index.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?);
        }
        let handle = new_handle();
        self.nodes.insert(handle, graph as usize);
        if let Some(found) = self.graphs.get_mut(&(graph as usize)) {
            found.nodes.push(Node { handle, payload, after: indices });
        }
        Ok(handle)
    }

    /// A copy of a graph, children too, that is not the caller's to destroy.
    fn clone_graph(&mut self, graph: Handle) -> Outcome<Handle> {
        let nodes = self.graphs.get(&graph).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?.nodes.clone();
        let copy = new_handle();
        let mut copied = Vec::new();
        for node in nodes {
            let payload = match node.payload {
                Payload::Child(child) => Payload::Child(self.clone_graph(child)?),
                other => other,
            };
            let handle = new_handle();
            self.nodes.insert(handle, copy);
            copied.push(Node { handle, payload, after: node.after });
        }
        self.graphs.insert(copy, Graph { nodes: copied, borrowed: true });
        Ok(copy)
    }

    /// Whether a graph or a child of it allocates or frees.
    fn graph_has_memory_nodes(&self, graph: Handle) -> bool {
        let nodes = self.graphs.get(&graph).map(|graph| graph.nodes.as_slice()).unwrap_or_default();
        nodes.iter().any(|node| match node.payload {
            Payload::Alloc { .. } | Payload::Free { .. } => true,
            Payload::Child(child) => self.graph_has_memory_nodes(child),
            _ => false,
        })
    }

    /// What a kernel node's parameters say.
    ///
    /// # Safety
    /// `params` is null or valid, with an argument for each parameter of the function.
    pub(super) unsafe fn kernel_of(&self, params: *const CUDA_KERNEL_NODE_PARAMS) -> Outcome<Launch> {
        if params.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, so the caller vouches for it.
        let params = unsafe { &*params };
        let geometry = LaunchConfig {
            grid: [params.gridDimX, params.gridDimY, params.gridDimZ],
            block: [params.blockDimX, params.blockDimY, params.blockDimZ],
            shared_bytes: params.sharedMemBytes,
            attributes: LaunchAttributes::NONE,
        };
        // SAFETY: likewise.
        unsafe { self.launch(params.func, geometry, params.kernelParams, params.extra) }
    }
}

entries! {
    fn cuGraphCreate(state, graph: *mut CUgraph, flags: c_uint) {
        if flags != 0 || graph.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let handle = new_handle();
        state.graphs.insert(handle, Graph::default());
        // SAFETY: not null, so the caller gives a valid place.
        unsafe { put(graph, as_pointer(handle)) }
    }

    fn cuGraphDestroy(state, graph: CUgraph) {
        if state.graph(graph)?.borrowed {
            state.diagnostics.push("a graph was destroyed that is an open capture's or a node's".into());
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        state.remove_graph(graph as usize);
        Ok(())
    }

    fn cuGraphGetNodes(state, graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) {
        let found = state.graph(graph)?;
        if count.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, so the caller gives a valid place, and an array that is as long as it says.
        unsafe {
            if !nodes.is_null() {
                for at in 0..count.read() {
                    let handle = found.nodes.get(at).map_or(core::ptr::null_mut(), |node| as_pointer(node.handle));
                    nodes.add(at).write(handle);
                }
                count.write(count.read().min(found.nodes.len()));
            } else {
                count.write(found.nodes.len());
            }
        }
        Ok(())
    }

    fn cuGraphGetEdges(state, graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, count: *mut usize) {
        let nodes = &state.graph(graph)?.nodes;
        let edges: Vec<(Handle, Handle)> =
            nodes.iter().flat_map(|node| node.after.iter().map(|&before| (nodes[before].handle, node.handle))).collect();
        if count.is_null() || from.is_null() != to.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if nodes.iter().any(|node| !node.after.is_empty() && node.payload.is_programmatic()) {
            // An edge that lets a kernel begin early has more to it than this form of the call tells.
            return Err(LOSSY_QUERY);
        }
        // SAFETY: not null, so the caller gives a valid place, and arrays that are as long as it says.
        unsafe {
            if from.is_null() {
                count.write(edges.len());
                return Ok(());
            }
            for at in 0..count.read() {
                let (before, after) = edges.get(at).copied().unwrap_or((0, 0));
                from.add(at).write(as_pointer(before));
                to.add(at).write(as_pointer(after));
            }
            count.write(count.read().min(edges.len()));
        }
        Ok(())
    }

    fn cuGraphAddDependencies(state, graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, count: usize) {
        let mut nodes = state.graph(graph)?.nodes.clone();
        for at in 0..count {
            // SAFETY: the caller gives two arrays of this length.
            let ends = unsafe { [*from.add(at), *to.add(at)] };
            let [Some(before), Some(after)] = ends.map(|end| nodes.iter().position(|node| node.handle == end as usize)) else {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            };
            if before == after || nodes[after].after.contains(&before) {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            nodes[after].after.push(before);
        }
        let sorted = in_order(nodes).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if let Some(found) = state.graphs.get_mut(&(graph as usize)) {
            found.nodes = sorted;
        }
        Ok(())
    }

    fn cuGraphDestroyNode(state, node: CUgraphNode) {
        let graph = *state.nodes.get(&(node as usize)).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if state.graph_has_memory_nodes(graph) {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let Payload::Work(_) = state.node(node)?.payload else { return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) };
        let found = state.graphs.get_mut(&graph).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let gone = found.nodes.iter().position(|found| found.handle == node as usize);
        let gone = gone.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        found.nodes.remove(gone);
        for node in &mut found.nodes {
            node.after.retain(|&before| before != gone);
            node.after.iter_mut().filter(|before| **before > gone).for_each(|before| *before -= 1);
        }
        state.nodes.remove(&(node as usize));
        Ok(())
    }

    fn cuGraphNodeGetType(state, node: CUgraphNode, kind: *mut CUgraphNodeType) {
        let found = state.node(node)?.payload.kind();
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(kind, found) }
    }

    fn cuGraphAddKernelNode_v2(state, node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, params: *const CUDA_KERNEL_NODE_PARAMS) {
        // SAFETY: the caller gives an array of this length, valid parameters, and null or a valid place.
        unsafe {
            let work = Work::Kernel(state.kernel_of(params)?);
            let handle = state.add_node(graph, after, count, Payload::Work(work))?;
            put(node, as_pointer(handle))
        }
    }

    fn cuGraphAddChildGraphNode(state, node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, child: CUgraph) {
        state.graph(child)?;
        state.graph(graph)?;
        if state.graph_has_memory_nodes(child as usize) {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let copy = state.clone_graph(child as usize)?;
        // SAFETY: the caller gives an array of this length, and null or a valid place.
        unsafe {
            let handle = state.add_node(graph, after, count, Payload::Child(copy))?;
            put(node, as_pointer(handle))
        }
    }

    fn cuGraphChildGraphNodeGetGraph(state, node: CUgraphNode, graph: *mut CUgraph) {
        let Payload::Child(child) = state.node(node)?.payload else { return Err(CUresult::CUDA_ERROR_INVALID_VALUE) };
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(graph, as_pointer(child)) }
    }

    fn cuGraphKernelNodeGetParams_v2(state, node: CUgraphNode, params: *mut CUDA_KERNEL_NODE_PARAMS) {
        let Payload::Work(Work::Kernel(launch)) = &state.node(node)?.payload else { return Err(CUresult::CUDA_ERROR_INVALID_VALUE) };
        let LaunchConfig { grid, block, shared_bytes, .. } = launch.geometry;
        let keep = |kept: &RefCell<Vec<_>>| {
            let mut kept = kept.borrow_mut();
            *kept = launch.arguments.pointers();
            kept.as_mut_ptr()
        };
        let pointers = POINTERS.try_with(keep).map_err(|_| CUresult::CUDA_ERROR_DEINITIALIZED)?;
        // SAFETY: all-zero is a value of this plain structure.
        let mut found: CUDA_KERNEL_NODE_PARAMS = unsafe { core::mem::zeroed() };
        found.func = as_pointer(launch.function);
        [found.gridDimX, found.gridDimY, found.gridDimZ] = grid;
        [found.blockDimX, found.blockDimY, found.blockDimZ] = block;
        found.sharedMemBytes = shared_bytes;
        found.kernelParams = pointers;
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(params, found) }
    }

    fn cuGraphKernelNodeGetAttribute(state, node: CUgraphNode, attribute: CUlaunchAttributeID, value: *mut CUlaunchAttributeValue) {
        let Payload::Work(Work::Kernel(launch)) = &state.node(node)?.payload else { return Err(CUresult::CUDA_ERROR_INVALID_VALUE) };
        let attributes = launch.geometry.attributes;
        // SAFETY: all-zero is a value of this plain union.
        let mut found: CUlaunchAttributeValue = unsafe { core::mem::zeroed() };
        match attribute {
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY => found.priority = launch.priority,
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE => found.cooperative = attributes.is_cooperative().into(),
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
                let [x, y, z] = attributes.cluster().unwrap_or_default();
                (found.clusterDim.x, found.clusterDim.y, found.clusterDim.z) = (x, y, z);
            }
            _ => return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        }
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(value, found) }
    }

    fn cuGraphKernelNodeSetAttribute(state, node: CUgraphNode, attribute: CUlaunchAttributeID, value: *const CUlaunchAttributeValue) {
        if value.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let Payload::Work(Work::Kernel(launch)) = &mut state.node_mut(node)?.payload else { return Err(CUresult::CUDA_ERROR_INVALID_VALUE) };
        if attribute != CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        // SAFETY: not null, so the caller gives the attribute's value.
        launch.priority = unsafe { (*value).priority }.clamp(GREATEST_PRIORITY, LEAST_PRIORITY);
        Ok(())
    }

    fn cuGraphMemsetNodeGetParams(state, node: CUgraphNode, params: *mut CUDA_MEMSET_NODE_PARAMS) {
        let Payload::Work(Work::Fill { address, value, width, count }) = state.node(node)?.payload else {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        };
        // SAFETY: all-zero is a value of this plain structure.
        let mut found: CUDA_MEMSET_NODE_PARAMS = unsafe { core::mem::zeroed() };
        (found.dst, found.value, found.elementSize, found.width, found.height) = (address, value, width as c_uint, count, 1);
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(params, found) }
    }

    fn cuGraphDebugDotPrint(state, graph: CUgraph, path: *const c_char, _flags: c_uint) {
        let found = state.graph(graph)?;
        if path.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let mut text = String::from("digraph {\n");
        for (at, node) in found.nodes.iter().enumerate() {
            text += &format!("  n{at} [label=\"{:?}\"];\n", node.payload.kind());
            for before in &node.after {
                text += &format!("  n{before} -> n{at};\n");
            }
        }
        text += "}\n";
        // SAFETY: the caller gives a path that ends in NUL.
        let path = unsafe { core::ffi::CStr::from_ptr(path) }.to_string_lossy();
        std::fs::write(&*path, text).map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)
    }
}
