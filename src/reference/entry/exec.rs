//! Execs: instantiating graphs, launching them and updating them.

use super::{as_pointer, entries, put};
use crate::reference::capture::Target;
use crate::reference::graph::{self, Exec, ExecNode, Payload, UPDATE_REFUSED};
use crate::reference::handles::Recorded;
use crate::reference::ids::Handle;
use crate::reference::ids::TaskId;
use crate::reference::state::{Outcome, State};
use crate::reference::work::Work;
use crate::sys::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUgraph, CUgraphExec, CUgraphExecUpdateResult,
    CUgraphExecUpdateResultInfo, CUgraphInstantiate_flags_enum, CUgraphInstantiateResult, CUgraphNode, CUresult,
    CUstream,
};
use core::ffi::c_uint;

/// The flag of execs that kernels can launch.
const DEVICE_LAUNCH: u64 = CUgraphInstantiate_flags_enum::CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH.0 as u64;

/// The flag of execs whose nodes have priorities of their own.
const NODE_PRIORITIES: u64 = CUgraphInstantiate_flags_enum::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY.0 as u64;

impl State {
    /// The nodes of a graph as an exec has them.
    fn exec_nodes(&self, graph: Handle) -> Vec<ExecNode> {
        let nodes = self.graphs.get(&graph).map(|graph| graph.nodes.as_slice()).unwrap_or_default();
        nodes
            .iter()
            .map(|node| ExecNode {
                source: node.handle,
                payload: node.payload.clone(),
                after: node.after.clone(),
                enabled: true,
                child: match node.payload {
                    Payload::Child(child) => self.exec_nodes(child),
                    _ => Vec::new(),
                },
            })
            .collect()
    }

    fn exec(&mut self, exec: CUgraphExec) -> Outcome<&mut Exec> {
        self.execs.get_mut(&(exec as usize)).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// Enqueues one task for each node; gives the tasks that nothing in the graph comes after.
    fn launch_nodes(&mut self, context: Handle, nodes: &[ExecNode], before: &[TaskId]) -> Vec<TaskId> {
        let mut tasks: Vec<Vec<TaskId>> = Vec::with_capacity(nodes.len());
        let mut is_last = vec![true; nodes.len()];
        for node in nodes {
            let mut after: Vec<TaskId> = before.to_vec();
            for &earlier in &node.after {
                after.extend(&tasks[earlier]);
                is_last[earlier] = false;
            }
            if let Payload::EventWait(event) = node.payload {
                // An event from outside the graph: what it was last recorded on.
                if let Some(Recorded::Work(recorded)) = self.events.get(&event).map(|event| event.recorded.clone()) {
                    after.extend(recorded);
                }
            }
            let ids = match &node.payload {
                Payload::Child(_) if node.enabled => {
                    let last = self.launch_nodes(context, &node.child, &after);
                    if last.is_empty() { vec![self.enqueue(context, after, Work::Nothing)] } else { last }
                }
                payload => {
                    let work = match payload {
                        _ if !node.enabled => Work::Nothing,
                        Payload::Work(work) => work.clone(),
                        Payload::Alloc { address, region } => Work::Open { address: *address, region: *region },
                        Payload::Free { address } => Work::Close { address: *address },
                        Payload::EventRecord(event) => Work::Record { event: *event },
                        Payload::Child(_) | Payload::EventWait(_) => Work::Nothing,
                    };
                    vec![self.enqueue(context, after, work)]
                }
            };
            if let (Payload::EventRecord(event), true) = (&node.payload, node.enabled)
                && let Some(event) = self.events.get_mut(event)
            {
                event.recorded = Recorded::Work(ids.clone());
            }
            tasks.push(ids);
        }
        let last = tasks.into_iter().zip(is_last).filter(|(_, last)| *last);
        last.flat_map(|(ids, _)| ids).collect()
    }

    /// Reports an update of an exec where it, or what it is to become, has a node whose function is gone with its module: the driver looks at both, and may
    /// crash.
    fn expect_functions(&mut self, exec: CUgraphExec, new: &[ExecNode]) -> Outcome {
        let old = self.execs.get(&(exec as usize)).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let is_gone = |function: Handle| !self.functions.contains_key(&function);
        let what = if graph::kernel_functions(&old.nodes).any(is_gone) {
            "of the exec"
        } else if graph::kernel_functions(new).any(is_gone) {
            "that it is to have"
        } else {
            return Ok(());
        };
        self.diagnostics.push(format!("an exec was updated after the module of a node {what} was unloaded"));
        Err(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    fn launch_exec(&mut self, handle: CUgraphExec, target: Target) -> Outcome {
        let context = self.context_of(target);
        self.healthy(context)?;
        let exec = self.exec(handle)?;
        if exec.holds_memory {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let (nodes, previous) = (exec.nodes.clone(), exec.last);
        let before: Vec<TaskId> = self.tails(target).into_iter().chain(previous).collect();
        let last = self.launch_nodes(context, &nodes, &before);
        let after: Vec<TaskId> = before.into_iter().chain(last).collect();
        let end = self.enqueue(context, after, Work::Nothing);
        self.set_tail(target, end);
        let frees = nodes.iter().any(|node| matches!(node.payload, Payload::Free { .. }));
        let exec = self.exec(handle)?;
        exec.last = Some(end);
        exec.holds_memory = graph::has_memory_nodes(&nodes) && !frees;
        Ok(())
    }
}

entries! {
    fn cuGraphInstantiateWithParams(state, exec: *mut CUgraphExec, graph: CUgraph, params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS) {
        if exec.is_null() || params.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, so the caller gives valid parameters.
        let params = unsafe { &mut *params };
        params.hErrNode_out = core::ptr::null_mut();
        params.result_out = CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_ERROR;
        state.unsafe_call()?;
        let context = state.current()?;
        if state.graph(graph)?.borrowed || params.flags & !0xf != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let handle = crate::reference::ids::new_handle();
        let nodes = state.exec_nodes(graph as usize);
        if params.flags & DEVICE_LAUNCH != 0 {
            if nodes.is_empty() {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            if let Some((node, result)) = graph::not_for_device_launch(&nodes) {
                (params.hErrNode_out, params.result_out) = (as_pointer(node), result);
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
        }
        let bytes = graph::exec_bytes(&nodes);
        state.charge(state.device_of(context), bytes)?;
        let node_priorities = params.flags & NODE_PRIORITIES != 0;
        state.execs.insert(handle, Exec { nodes, holds_memory: false, node_priorities, last: None, context, bytes });
        params.result_out = CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_SUCCESS;
        // SAFETY: not null, so the caller gives a valid place.
        unsafe { put(exec, as_pointer(handle)) }
    }

    fn cuGraphExecDestroy(state, exec: CUgraphExec) {
        state.exec(exec)?;
        state.unsafe_call()?;
        // Launches that are running have their own copies of what to do.
        if let Some(exec) = state.execs.remove(&(exec as usize)) {
            state.refund(state.device_of(exec.context), exec.bytes);
        }
        Ok(())
    }

    fn cuGraphUpload(state, exec: CUgraphExec, stream: CUstream) {
        let target = state.target(stream)?;
        state.refuse_capturing(target)?;
        state.exec(exec).map(drop)
    }

    fn cuGraphLaunch(state, exec: CUgraphExec, stream: CUstream) {
        let target = state.target(stream)?;
        state.exec(exec)?;
        state.refuse_capturing(target)?;
        state.launch_exec(exec, target)
    }

    fn cuGraphExecUpdate_v2(state, exec: CUgraphExec, graph: CUgraph, info: *mut CUgraphExecUpdateResultInfo) {
        state.graph(graph)?;
        let nodes = state.exec_nodes(graph as usize);
        state.expect_functions(exec, &nodes)?;
        let exec = state.exec(exec)?;
        let refused = graph::can_become(&exec.nodes, &nodes, exec.node_priorities);
        let result = match refused {
            Ok(()) => CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS,
            Err(_) if exec.nodes.len() != nodes.len() => CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED,
            Err(at) if exec.nodes[at].payload.kind() != nodes[at].payload.kind() => {
                CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED
            }
            Err(at) if exec.nodes[at].after != nodes[at].after => CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED,
            Err(_) if graph::can_become(&exec.nodes, &nodes, false).is_ok() => {
                CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED
            }
            Err(_) => CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED,
        };
        let failing = refused.err().and_then(|at| Some(as_pointer(nodes.get(at)?.source)));
        if refused.is_ok() {
            graph::become_like(&mut exec.nodes, nodes);
        }
        if !info.is_null() {
            // SAFETY: not null, so the caller gives a valid place.
            unsafe {
                (*info).result = result;
                (*info).errorNode = failing.unwrap_or(core::ptr::null_mut());
                (*info).errorFromNode = core::ptr::null_mut();
            }
        }
        refused.map_err(|_| UPDATE_REFUSED)
    }

    fn cuGraphExecKernelNodeSetParams_v2(state, exec: CUgraphExec, node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS) {
        // libcuda crashes without one.
        state.current()?;
        // SAFETY: the caller gives valid parameters.
        let mut launch = unsafe { state.kernel_of(params)? };
        let found = graph::find(&mut state.exec(exec)?.nodes, node as usize).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let Payload::Work(Work::Kernel(before)) = &mut found.payload else { return Err(CUresult::CUDA_ERROR_INVALID_VALUE) };
        // These are the node's, and no parameters.
        launch.priority = before.priority;
        launch.geometry.attributes = before.geometry.attributes;
        *before = launch;
        Ok(())
    }

    fn cuGraphExecChildGraphNodeSetParams(state, exec: CUgraphExec, node: CUgraphNode, child: CUgraph) {
        state.graph(child)?;
        let nodes = state.exec_nodes(child as usize);
        state.expect_functions(exec, &nodes)?;
        let exec = state.exec(exec)?;
        let found = graph::find(&mut exec.nodes, node as usize).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if !matches!(found.payload, Payload::Child(_)) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        graph::can_become(&found.child, &nodes, exec.node_priorities).map_err(|_| UPDATE_REFUSED)?;
        graph::become_like(&mut found.child, nodes);
        Ok(())
    }

    fn cuGraphNodeSetEnabled(state, exec: CUgraphExec, node: CUgraphNode, enabled: c_uint) {
        let found = graph::find(&mut state.exec(exec)?.nodes, node as usize).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if !can_be_disabled(found) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        found.enabled = enabled != 0;
        Ok(())
    }

    fn cuGraphNodeGetEnabled(state, exec: CUgraphExec, node: CUgraphNode, enabled: *mut c_uint) {
        let found = graph::find(&mut state.exec(exec)?.nodes, node as usize).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if !can_be_disabled(found) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let answer = c_uint::from(found.enabled);
        // SAFETY: the caller gives null or a valid place.
        unsafe { put(enabled, answer) }
    }
}

fn can_be_disabled(node: &ExecNode) -> bool {
    matches!(node.payload, Payload::Work(Work::Kernel(_) | Work::Copy { .. } | Work::Fill { .. }))
}
