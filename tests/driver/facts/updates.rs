//! Execs of kernel nodes and children that take turns: what addresses their nodes, and what those may become.

use super::bench::{Bench, OK, code};
use breakable_cuda_graph::Tensor;
use breakable_cuda_graph::driver::{Stream, StreamOptions};
use breakable_cuda_graph::pool::Backing;
use breakable_cuda_graph::sys::{
    CUDA_KERNEL_NODE_PARAMS, CUgraph, CUgraphExec, CUgraphExecUpdateResult, CUgraphExecUpdateResultInfo,
    CUgraphInstantiate_flags_enum, CUgraphNode, CUresult, CUstream, CUstreamCaptureMode,
};
use breakable_cuda_graph::{CapturePool, DType, PoolOptions};
use std::ptr::null_mut;

/// A child graph that fills `x`, and after it a kernel node that makes `y` of it.
struct Pair {
    graph: CUgraph,
    child: CUgraphNode,
    kernel: CUgraphNode,
}

impl Pair {
    fn new(b: &Bench, x: &Tensor, y: &Tensor, value: f32, factor: f32) -> Pair {
        let body = filling(b, x, value);
        let launch = b.capture(|stream| scaling(b, x, y, factor, stream));
        let (mut graph, mut child, mut kernel) = (null_mut(), null_mut(), null_mut());
        unsafe {
            b.driver().cuGraphCreate(&mut graph, 0).expect("a graph");
            b.driver().cuGraphAddChildGraphNode(&mut child, graph, std::ptr::null(), 0, body).expect("a child");
            let params = kernel_of(b, launch);
            b.driver().cuGraphAddKernelNode_v2(&mut kernel, graph, &child, 1, &params).expect("a kernel");
        }
        b.destroy(&[body, launch], &[]);
        Pair { graph, child, kernel }
    }
}

fn filling(b: &Bench, x: &Tensor, value: f32) -> CUgraph {
    b.capture(|stream| unsafe {
        b.driver().cuMemsetD32Async(x.address(), value.to_bits(), 64, stream).expect("a node");
    })
}

fn scaling(b: &Bench, x: &Tensor, y: &Tensor, factor: f32, stream: CUstream) {
    let (kernel, config, values) = b.rig.ops.scale_raw(x, factor, y).expect("a kernel");
    b.launch_kernel(&kernel, config, values, stream).expect("a node");
}

/// The parameters of a graph's one kernel node, valid as long as the graph is.
unsafe fn kernel_of(b: &Bench, graph: CUgraph) -> CUDA_KERNEL_NODE_PARAMS {
    unsafe {
        let mut params: CUDA_KERNEL_NODE_PARAMS = std::mem::zeroed();
        b.driver().cuGraphKernelNodeGetParams_v2(b.only_node(graph), &mut params).expect("its parameters");
        params
    }
}

/// Gives a kernel node of an exec what a graph's one kernel node does.
fn set(b: &Bench, exec: CUgraphExec, node: CUgraphNode, graph: CUgraph) {
    unsafe {
        let params = kernel_of(b, graph);
        b.driver().cuGraphExecKernelNodeSetParams_v2(exec, node, &params).expect("set");
    }
    b.destroy(&[graph], &[]);
}

#[test]
fn an_exec_is_addressed_by_the_nodes_it_was_made_from_whatever_it_holds() {
    let b = Bench::new();
    let tensor = || Tensor::from_slice(&b.rig.stream, &[9.0_f32; 64], &[64]).expect("a tensor");
    let (x, y, z) = (tensor(), tensor(), tensor());
    let first = Pair::new(&b, &x, &y, 1.0, 2.0);
    let second = Pair::new(&b, &x, &y, 4.0, 3.0);
    let exec = b.instantiate(first.graph).expect("instantiated");
    let run = |expected: [f32; 2]| {
        b.run(exec).expect("it runs");
        let values = |tensor: &Tensor| tensor.read::<f32>(&b.rig.stream).expect("a read");
        assert_eq!((values(&x)[63], values(&y)[63]), (expected[0], expected[1]));
    };
    run([1.0, 2.0]);
    let update = |graph: CUgraph| {
        let mut info: CUgraphExecUpdateResultInfo = unsafe { std::mem::zeroed() };
        code(unsafe { b.driver().cuGraphExecUpdate_v2(exec, graph, &mut info) })
    };
    assert_eq!(update(second.graph), OK);
    run([4.0, 12.0]);
    // Another argument, then another function on another grid, then another child: by the first graph's nodes.
    set(&b, exec, first.kernel, b.capture(|stream| scaling(&b, &x, &y, 5.0, stream)));
    run([4.0, 20.0]);
    set(&b, exec, first.kernel, b.capture(|_| b.rig.ops.relu_into(&b.other, &x, &y).expect("a node")));
    run([4.0, 4.0]);
    let body = filling(&b, &x, -1.0);
    assert_eq!(code(unsafe { b.driver().cuGraphExecChildGraphNodeSetParams(exec, first.child, body) }), OK);
    run([-1.0, 0.0]);
    // The graph that the exec got last may go.
    b.destroy(&[body, second.graph], &[]);
    set(&b, exec, first.kernel, b.capture(|stream| scaling(&b, &x, &z, 1.0, stream)));
    b.run(exec).expect("it runs");
    assert_eq!(z.read::<f32>(&b.rig.stream).expect("a read"), [-1.0; 64]);
    assert_eq!(update(first.graph), OK);
    run([1.0, 2.0]);
    b.destroy(&[first.graph], &[exec]);
}

/// In an exec whose nodes have priorities of their own, they stay.
#[test]
fn a_graph_of_other_priorities_is_refused_where_nodes_have_priorities() {
    let b = Bench::new();
    let streams = [0, -3].map(|priority| {
        Stream::with_options(&b.rig.context, StreamOptions::default().priority(priority)).expect("a stream")
    });
    let bodies = streams.each_ref().map(|stream| b.capture_on(stream, |stream| b.launch(stream).expect("a node")));
    let around = |body: CUgraph| unsafe {
        let (mut graph, mut child) = (null_mut(), null_mut());
        b.driver().cuGraphCreate(&mut graph, 0).expect("a graph");
        b.driver().cuGraphAddChildGraphNode(&mut child, graph, std::ptr::null(), 0, body).expect("a child");
        (graph, child)
    };
    let outer = bodies.map(around);
    let none = (OK, CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS);
    let refused = CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    let changed = (refused, CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED);
    let own = CUgraphInstantiate_flags_enum::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    for (flags, expected) in [(CUgraphInstantiate_flags_enum(0), none), (own, changed)] {
        for from in [0, 1] {
            let make = |graph: CUgraph| b.instantiate_with(graph, flags).0.expect("instantiated");
            let update = |exec: CUgraphExec, graph: CUgraph| unsafe {
                let mut info: CUgraphExecUpdateResultInfo = std::mem::zeroed();
                (code(b.driver().cuGraphExecUpdate_v2(exec, graph, &mut info)), info.result)
            };
            let (flat, nested) = (make(bodies[from]), make(outer[from].0));
            assert_eq!(update(flat, bodies[1 - from]), expected, "{flags:?}");
            assert_eq!(update(nested, outer[1 - from].0), expected, "{flags:?}");
            let patch = |body: CUgraph| {
                code(unsafe { b.driver().cuGraphExecChildGraphNodeSetParams(nested, outer[from].1, body) })
            };
            assert_eq!(patch(bodies[1 - from]), expected.0, "{flags:?}");
            assert_eq!((patch(bodies[from]), update(flat, bodies[from])), (OK, none), "its own");
            b.destroy(&[], &[flat, nested]);
        }
    }
    b.destroy(&[bodies[0], bodies[1], outer[0].0, outer[1].0], &[]);
}

/// What a pool that grows in a recording does.
#[test]
fn memory_is_mapped_in_an_open_capture_under_the_relaxed_exchange() {
    for mode in [
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
    ] {
        let b = Bench::new();
        let stream = b.other.as_raw();
        let options = PoolOptions::default().backing(Backing::ReservedAddresses).max_bytes(4 << 20);
        let pool = CapturePool::with_options(&b.rig.context, options).expect("a pool");
        let mut relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        b.begin(stream, mode);
        unsafe { b.driver().cuThreadExchangeStreamCaptureMode(&mut relaxed).expect("exchanged") };
        let tensor = pool.persistent(DType::U32, &[16]).expect("memory under reserved addresses");
        let address = tensor.address();
        unsafe { b.driver().cuThreadExchangeStreamCaptureMode(&mut relaxed).expect("exchanged") };
        unsafe { b.driver().cuMemsetD32Async(address, 7, 16, stream).expect("a node") };
        let (ended, graph) = b.end(stream);
        assert_eq!((ended, b.nodes(graph)), (OK, 1));
        let exec = b.instantiate(graph).expect("instantiated");
        b.run(exec).expect("it runs");
        let mut value = 0_u32;
        unsafe { b.driver().cuMemcpyDtoH_v2((&raw mut value).cast(), address, 4).expect("a read") };
        assert_eq!(value, 7);
        b.destroy(&[graph], &[exec]);
    }
}
