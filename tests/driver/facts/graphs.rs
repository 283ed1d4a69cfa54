//! Graphs: what they hold, what an exec's update may change, and what it may not.

use super::bench::{Bench, Code, INVALID_VALUE, OK, code};
use breakable_cuda_graph::Tensor;
use breakable_cuda_graph::driver::{LaunchConfig, Stream, StreamOptions};
use breakable_cuda_graph::sys::{
    CUDA_KERNEL_NODE_PARAMS, CUgraph, CUgraphExec, CUgraphInstantiate_flags_enum, CUgraphInstantiateResult,
    CUgraphNode, CUlaunchAttributeID, CUlaunchAttributeValue, CUresult, CUstream,
};
use std::ffi::c_void;
use std::ptr::null_mut;

const REFUSED: Code = CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;

/// SAFETY (all raw calls of this file): live handles of the bench and valid places, with the context current; tensors outlive the runs.
struct Child<'b> {
    b: &'b Bench,
    graph: CUgraph,
    node: CUgraphNode,
    exec: CUgraphExec,
}

impl<'b> Child<'b> {
    /// An exec of one child graph.
    fn new(b: &'b Bench, body: impl FnOnce(CUstream)) -> Child<'b> {
        let child = b.capture(body);
        let (mut graph, mut node) = (null_mut(), null_mut());
        unsafe {
            b.driver().cuGraphCreate(&mut graph, 0).expect("a graph");
            b.driver().cuGraphAddChildGraphNode(&mut node, graph, std::ptr::null(), 0, child).expect("a child");
        }
        let exec = b.instantiate(graph).expect("instantiated");
        b.destroy(&[child], &[]);
        Child { b, graph, node, exec }
    }

    /// Patches the child with another body.
    fn patch(&self, body: impl FnOnce(CUstream)) -> Code {
        let child = self.b.capture(body);
        let patched = unsafe { self.b.driver().cuGraphExecChildGraphNodeSetParams(self.exec, self.node, child) };
        self.b.destroy(&[child], &[]);
        code(patched)
    }

    fn run(&self) {
        self.b.run(self.exec).expect("it runs");
    }
}

impl Drop for Child<'_> {
    fn drop(&mut self) {
        self.b.destroy(&[self.graph], &[self.exec]);
    }
}

fn values(b: &Bench, tensor: &Tensor) -> Vec<f32> {
    tensor.read(&b.rig.stream).expect("a read")
}

fn scale(b: &Bench, from: &Tensor, factor: f32, to: &Tensor, stream: CUstream) {
    let (kernel, config, values) = b.rig.ops.scale_raw(from, factor, to).expect("a kernel");
    b.launch_kernel(&kernel, config, values, stream).expect("a node");
}

fn memset(b: &Bench, tensor: &Tensor, value: f32, count: usize, stream: CUstream) {
    unsafe { b.driver().cuMemsetD32Async(tensor.address(), value.to_bits(), count, stream).expect("a node") };
}

fn copy(b: &Bench, to: &Tensor, from: &Tensor, count: usize, stream: CUstream) {
    unsafe { b.driver().cuMemcpyDtoDAsync_v2(to.address(), from.address(), count * 4, stream).expect("a node") };
}

#[test]
fn an_empty_graph_has_no_nodes_and_can_be_launched() {
    let b = Bench::new();
    let graph = b.capture(|_| {});
    assert_eq!(b.nodes(graph), 0);
    let exec = b.instantiate(graph).expect("instantiated");
    assert_eq!(code(b.run(exec)), OK);
    b.destroy(&[graph], &[exec]);
}

#[test]
fn a_child_with_memory_nodes_is_refused() {
    let b = Bench::new();
    let child = b.capture(|stream| unsafe {
        let mut address = 0;
        b.driver().cuMemAllocFromPoolAsync(&mut address, 4096, b.pool.as_raw(), stream).expect("a node");
        b.driver().cuMemFreeAsync(address, stream).expect("a node");
    });
    assert_eq!(b.nodes(child), 2);
    let (mut graph, mut node) = (null_mut(), null_mut());
    let added = unsafe {
        b.driver().cuGraphCreate(&mut graph, 0).expect("a graph");
        b.driver().cuGraphAddChildGraphNode(&mut node, graph, std::ptr::null(), 0, child)
    };
    assert_eq!(code(added), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    assert_eq!(b.nodes(graph), 0);
    b.destroy(&[graph, child], &[]);
}

#[test]
fn a_child_takes_other_arguments_grids_functions_memsets_and_copies() {
    let b = Bench::new();
    let [x, y, z] =
        [1.0_f32, 2.0, 3.0].map(|value| Tensor::from_slice(&b.rig.stream, &[value; 64], &[64]).expect("a tensor"));
    let child = Child::new(&b, |stream| {
        memset(&b, &x, 1.0, 64, stream);
        scale(&b, &x, 2.0, &y, stream);
        copy(&b, &z, &y, 64, stream);
    });
    child.run();
    assert_eq!(values(&b, &z), [2.0; 64]);

    // Other values, a part only, another address.
    assert_eq!(
        child.patch(|stream| {
            memset(&b, &y, 4.0, 32, stream);
            scale(&b, &y, 0.5, &x, stream);
            copy(&b, &z, &x, 16, stream);
        }),
        OK
    );
    child.run();
    let z_values = values(&b, &z);
    assert_eq!((&z_values[..16], &z_values[16..]), (&[2.0; 16][..], &[2.0; 48][..]));
    assert_eq!(values(&b, &y)[..32], [4.0; 32]);

    // Another grid and another function.
    assert_eq!(
        child.patch(|stream| {
            memset(&b, &x, -3.0, 64, stream);
            assert_eq!(stream, b.other.as_raw());
            b.rig.ops.relu_into(&b.other, &x, &y).expect("a node");
            copy(&b, &z, &y, 64, stream);
        }),
        OK
    );
    child.run();
    assert_eq!(values(&b, &z), [0.0; 64]);
    let (kernel, config, arguments) = b.rig.ops.scale_raw(&x, 1.0, &y).expect("a kernel");
    let wide = LaunchConfig { grid: [7, 1, 1], block: [32, 1, 1], ..config };
    assert_eq!(
        child.patch(|stream| {
            memset(&b, &x, 5.0, 64, stream);
            b.launch_kernel(&kernel, wide, arguments, stream).expect("a node");
            copy(&b, &z, &y, 64, stream);
        }),
        OK
    );
    child.run();
    assert_eq!(values(&b, &z), [5.0; 64]);
}

#[test]
fn a_child_of_other_nodes_is_refused_and_the_exec_is_unchanged() {
    let b = Bench::new();
    let [x, y] = [1.0_f32, 2.0].map(|value| Tensor::from_slice(&b.rig.stream, &[value; 64], &[64]).expect("a tensor"));
    let child = Child::new(&b, |stream| {
        memset(&b, &x, 1.0, 64, stream);
        scale(&b, &x, 2.0, &y, stream);
    });
    let refused = |what: &str, body: &dyn Fn(CUstream)| {
        assert_eq!(child.patch(body), REFUSED, "{what}");
        memset(&b, &y, 0.0, 64, b.rig.stream.as_raw());
        child.run();
        assert_eq!(values(&b, &y), [2.0; 64], "{what}: it runs as before");
    };
    refused("an extra node", &|stream| {
        memset(&b, &x, 3.0, 64, stream);
        scale(&b, &x, 2.0, &y, stream);
        scale(&b, &x, 2.0, &y, stream);
    });
    refused("a missing node", &|stream| memset(&b, &x, 3.0, 64, stream));
    refused("another order", &|stream| {
        scale(&b, &x, 2.0, &y, stream);
        memset(&b, &x, 3.0, 64, stream);
    });
    refused("another kind", &|stream| {
        memset(&b, &x, 3.0, 64, stream);
        copy(&b, &y, &x, 64, stream);
    });
}

#[test]
fn a_copy_of_another_kind_is_refused() {
    static SOURCE: [f32; 64] = [9.0; 64];
    let b = Bench::new();
    let [x, y] = [1.0_f32, 2.0].map(|value| Tensor::from_slice(&b.rig.stream, &[value; 64], &[64]).expect("a tensor"));
    let child = Child::new(&b, |stream| copy(&b, &y, &x, 64, stream));
    let from_host = |stream| unsafe {
        b.driver().cuMemcpyHtoDAsync_v2(y.address(), SOURCE.as_ptr().cast(), 256, stream).expect("a node");
    };
    assert_eq!(child.patch(from_host), REFUSED);
    child.run();
    assert_eq!(values(&b, &y), [1.0; 64]);
}

/// What a matrix product does whose number of kernels depends on its size.
#[test]
fn a_body_that_grows_from_one_to_two_nodes_is_refused() {
    let b = Bench::new();
    let [x, y] = [1.0_f32, 2.0].map(|value| Tensor::from_slice(&b.rig.stream, &[value; 64], &[64]).expect("a tensor"));
    let one = Child::new(&b, |stream| scale(&b, &x, 2.0, &y, stream));
    let two = |stream| {
        scale(&b, &x, 2.0, &y, stream);
        scale(&b, &x, 3.0, &y, stream);
    };
    assert_eq!(one.patch(two), REFUSED);
    let both = Child::new(&b, two);
    assert_eq!(both.patch(|stream| scale(&b, &x, 2.0, &y, stream)), REFUSED);
    assert_eq!(both.patch(two), OK);
}

#[test]
fn a_node_inside_a_child_can_be_disabled_and_given_other_parameters() {
    let b = Bench::new();
    let [x, y] = [1.0_f32, 2.0].map(|value| Tensor::from_slice(&b.rig.stream, &[value; 64], &[64]).expect("a tensor"));
    let child = Child::new(&b, |stream| scale(&b, &x, 2.0, &y, stream));
    let mut inner = null_mut();
    unsafe {
        b.driver().cuGraphChildGraphNodeGetGraph(child.node, &mut inner).expect("the child's graph");
        let node = b.only_node(inner);
        b.driver().cuGraphNodeSetEnabled(child.exec, node, 0).expect("disabled");
        let mut enabled = 9;
        b.driver().cuGraphNodeGetEnabled(child.exec, node, &mut enabled).expect("asked");
        assert_eq!(enabled, 0);
        memset(&b, &y, 7.0, 64, b.rig.stream.as_raw());
        child.run();
        assert_eq!(values(&b, &y), [7.0; 64], "it did not run");
        b.driver().cuGraphNodeSetEnabled(child.exec, node, 1).expect("enabled");
        child.run();
        assert_eq!(values(&b, &y), [2.0; 64]);

        let mut params: CUDA_KERNEL_NODE_PARAMS = std::mem::zeroed();
        b.driver().cuGraphKernelNodeGetParams_v2(node, &mut params).expect("its parameters");
        let factor = 5.0_f32;
        let own = [
            *params.kernelParams,
            *params.kernelParams.add(1),
            (&raw const factor).cast_mut().cast(),
            *params.kernelParams.add(3),
        ];
        let mut own: [*mut std::ffi::c_void; 4] = own;
        params.kernelParams = own.as_mut_ptr();
        b.driver().cuGraphExecKernelNodeSetParams_v2(child.exec, node, &params).expect("set");
    }
    child.run();
    assert_eq!(values(&b, &y), [5.0; 64]);
}

#[test]
fn parameters_of_captured_kernels_can_be_asked() {
    let b = Bench::new();
    let (kernel, ..) = b.rig.ops.scale_raw(&b.tensor, 1.0, &b.tensor).expect("a kernel");
    let graph = b.capture(|stream| b.launch(stream).expect("a node"));
    unsafe {
        let mut params: CUDA_KERNEL_NODE_PARAMS = std::mem::zeroed();
        b.driver().cuGraphKernelNodeGetParams_v2(b.only_node(graph), &mut params).expect("its parameters");
        assert_eq!(params.func, kernel.as_raw());
        let (mut offset, mut size) = (9, 9);
        for (index, expected) in [(0, 8), (8, 8), (16, 4), (24, 8)].into_iter().enumerate() {
            b.driver().cuFuncGetParamInfo(params.func, index, &mut offset, &mut size).expect("a parameter");
            assert_eq!((offset, size), expected, "parameter {index}");
        }
        assert_eq!(code(b.driver().cuFuncGetParamInfo(params.func, 4, &mut offset, &mut size)), INVALID_VALUE);
    }
    assert_eq!(kernel.parameters().expect("the same through the crate").len(), 4);
    b.destroy(&[graph], &[]);
}

/// A captured kernel's node has its stream's priority, here and in a copy; one that is added has none until it is given one.
#[test]
fn kernel_nodes_have_priorities() {
    let b = Bench::new();
    let (mut least, mut greatest) = (9, 9);
    unsafe { b.driver().cuCtxGetStreamPriorityRange(&mut least, &mut greatest).expect("the range") };
    assert!(greatest < least, "a greater priority is a lesser number");
    let attribute = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY;
    let priority = |node: CUgraphNode| unsafe {
        let mut value: CUlaunchAttributeValue = std::mem::zeroed();
        value.priority = 9;
        b.driver().cuGraphKernelNodeGetAttribute(node, attribute, &mut value).map(|()| value.priority)
    };
    let give = |node: CUgraphNode, priority: i32| unsafe {
        let value = CUlaunchAttributeValue { priority };
        code(b.driver().cuGraphKernelNodeSetAttribute(node, attribute, &value))
    };
    let stream = Stream::with_options(&b.rig.context, StreamOptions::default().priority(greatest)).expect("a stream");
    let captured = b.capture_on(&stream, |stream| b.launch(stream).expect("a node"));
    assert_eq!(priority(b.only_node(captured)), Ok(greatest));
    let (mut outer, mut child, mut inner, mut added) = (null_mut(), null_mut(), null_mut(), null_mut());
    unsafe {
        b.driver().cuGraphCreate(&mut outer, 0).expect("a graph");
        b.driver().cuGraphAddChildGraphNode(&mut child, outer, std::ptr::null(), 0, captured).expect("a child");
        b.driver().cuGraphChildGraphNodeGetGraph(child, &mut inner).expect("the child's graph");
        let mut params: CUDA_KERNEL_NODE_PARAMS = std::mem::zeroed();
        b.driver().cuGraphKernelNodeGetParams_v2(b.only_node(captured), &mut params).expect("its parameters");
        b.driver().cuGraphAddKernelNode_v2(&mut added, outer, std::ptr::null(), 0, &params).expect("a node");
    }
    assert_eq!(priority(b.only_node(inner)), Ok(greatest));
    assert_eq!(priority(added), Ok(0));
    assert_eq!((give(added, greatest + 1), priority(added)), (OK, Ok(greatest + 1)));
    assert_eq!((give(added, greatest - 72), priority(added)), (OK, Ok(greatest)), "out of the range");
    assert_eq!((code(priority(child).map(drop)), give(child, -1)), (INVALID_VALUE, INVALID_VALUE), "it is no kernel");
    b.destroy(&[outer, captured], &[]);
}

/// The only instantiations that are known to name a node.
#[test]
fn an_exec_for_launches_by_kernels_has_kernels_memsets_and_device_copies_alone() {
    unsafe extern "C" fn nothing(_: *mut c_void) {}
    let b = Bench::new();
    let (y, n) = (b.rig.zeros(&[64]), 64);
    let host = [0_u8; 256];
    let instantiate = |body: &dyn Fn(CUstream), flag: CUgraphInstantiate_flags_enum| {
        let graph = b.capture(|stream| {
            scale(&b, &b.tensor, 2.0, &y, stream);
            body(stream);
        });
        let (made, params) = b.instantiate_with(graph, flag);
        let failing = params.hErrNode_out;
        let named = (!failing.is_null()).then(|| b.node_list(graph).iter().position(|node| *node == failing));
        b.destroy(&[graph], made.ok().as_slice());
        (code(made.map(drop)), params.result_out.0, named)
    };
    let (no_flag, device_launch) =
        (CUgraphInstantiate_flags_enum(0), CUgraphInstantiate_flags_enum::CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH);
    let (unsupported, other_context) = (
        CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED.0,
        CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_MULTIPLE_CTXS_NOT_SUPPORTED.0,
    );
    let refused = |result| (INVALID_VALUE, result, Some(Some(1)));
    let rows: [(&str, &dyn Fn(CUstream), _); 6] = [
        ("kernel", &|_| {}, (OK, 0, None)),
        ("memset", &|stream| memset(&b, &y, 1.0, n, stream), (OK, 0, None)),
        ("copy", &|stream| copy(&b, &b.tensor, &y, n, stream), (OK, 0, None)),
        (
            "copy from ordinary host memory",
            &|stream| unsafe {
                b.driver().cuMemcpyHtoDAsync_v2(y.address(), host.as_ptr().cast(), host.len(), stream).expect("a node");
            },
            refused(other_context),
        ),
        (
            "host function",
            &|stream| unsafe { b.driver().cuLaunchHostFunc(stream, Some(nothing), null_mut()).expect("a node") },
            refused(unsupported),
        ),
        (
            "allocation",
            &|stream| unsafe {
                let mut address = 0;
                b.driver().cuMemAllocFromPoolAsync(&mut address, 4096, b.pool.as_raw(), stream).expect("a node");
                b.driver().cuMemFreeAsync(address, stream).expect("a node");
            },
            refused(unsupported),
        ),
    ];
    for (name, body, expected) in rows {
        assert_eq!(instantiate(body, no_flag), (OK, 0, None), "{name}");
        assert_eq!(instantiate(body, device_launch), expected, "{name}");
    }
    let nothing = b.capture(|_| {});
    let (made, params) = b.instantiate_with(nothing, device_launch);
    let error = CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_ERROR;
    assert_eq!((code(made.map(drop)), params.result_out, params.hErrNode_out), (INVALID_VALUE, error, null_mut()));
    b.destroy(&[nothing], &[]);
}
