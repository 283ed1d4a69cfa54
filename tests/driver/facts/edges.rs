//! Edges of a captured graph: how a node is put in another one's place.

use super::bench::{Bench, INVALID_VALUE, OK, code};
use breakable_cuda_graph::driver::MemoryPool;
use breakable_cuda_graph::sys::{
    CUDA_KERNEL_NODE_PARAMS, CUgraph, CUgraphNode, CUmemorytype_enum, CUpointer_attribute, CUstream,
};
use breakable_cuda_graph::{DType, Tensor};
use std::ptr::null_mut;

/// SAFETY (all raw calls of this file): live handles of the bench and valid places, with the context current; tensors outlive the runs.
fn edges(b: &Bench, graph: CUgraph) -> Vec<[CUgraphNode; 2]> {
    let mut count = 0;
    unsafe { b.driver().cuGraphGetEdges(graph, null_mut(), null_mut(), &mut count).expect("their number") };
    let (mut from, mut to) = (vec![null_mut(); count], vec![null_mut(); count]);
    unsafe { b.driver().cuGraphGetEdges(graph, from.as_mut_ptr(), to.as_mut_ptr(), &mut count).expect("edges") };
    from.into_iter().zip(to).map(|(from, to)| [from, to]).collect()
}

fn scale(b: &Bench, from: &Tensor, factor: f32, to: &Tensor, stream: CUstream) {
    let (kernel, config, values) = b.rig.ops.scale_raw(from, factor, to).expect("a kernel");
    b.launch_kernel(&kernel, config, values, stream).expect("a node");
}

/// A memset between two kernels; a third kernel takes its place, and runs where it ran.
#[test]
fn a_node_takes_the_place_of_another_in_a_captured_graph() {
    let b = Bench::new();
    let [x, y, z] = [b.rig.random(1, &[64]), b.rig.zeros(&[64]), b.rig.zeros(&[64])];
    let graph = b.capture(|stream| {
        scale(&b, &x, 2.0, &y, stream);
        unsafe { b.driver().cuMemsetD32Async(y.address(), 0, 64, stream).expect("a node") };
        scale(&b, &y, 5.0, &z, stream);
    });
    let stand_in = b.capture(|stream| scale(&b, &x, 3.0, &y, stream));
    let before = edges(&b, graph);
    assert_eq!((before.len(), b.nodes(graph)), (2, 3));
    let memset = before[0].iter().chain(&before[1]).find(|node| before.iter().all(|edge| edge.contains(node)));
    let memset = *memset.expect("it is in both");
    let first = before.iter().find(|edge| edge[1] == memset).expect("an edge to it")[0];
    let last = before.iter().find(|edge| edge[0] == memset).expect("an edge from it")[1];
    unsafe {
        let mut params: CUDA_KERNEL_NODE_PARAMS = std::mem::zeroed();
        b.driver().cuGraphKernelNodeGetParams_v2(b.only_node(stand_in), &mut params).expect("its parameters");
        let mut kernel = null_mut();
        b.driver().cuGraphAddKernelNode_v2(&mut kernel, graph, &first, 1, &params).expect("a node");
        b.driver().cuGraphAddDependencies(graph, &kernel, &last, 1).expect("an edge");
        let again = b.driver().cuGraphAddDependencies(graph, &kernel, &last, 1);
        assert_eq!(code(again), INVALID_VALUE, "there is one already");
        b.driver().cuGraphDestroyNode(memset).expect("destroyed");
        let mut after = edges(&b, graph);
        after.sort();
        let mut expected = vec![[first, kernel], [kernel, last]];
        expected.sort();
        assert_eq!((after, b.nodes(graph)), (expected, 3));
    }
    let exec = b.instantiate(graph).expect("instantiated");
    b.run(exec).expect("it runs");
    let expected: Vec<f32> = b.rig.read(&x).iter().map(|x| x * 3.0 * 5.0).collect();
    assert_eq!(b.rig.read(&z), expected);
    b.destroy(&[graph, stand_in], &[exec]);
}

/// Memory of a pool has its attributes as soon as the call that allocates it has returned.
#[test]
fn memory_of_a_pool_has_attributes_at_once() {
    let b = Bench::new();
    let pool = MemoryPool::new(&b.rig.context).expect("a pool");
    let stream = b.rig.stream.as_raw();
    let x = Tensor::zeros(&b.rig.stream, DType::F32, &[1 << 20]).expect("a tensor");
    // The stream has something to do.
    scale(&b, &x, 2.0, &x, stream);
    let (mut address, mut kind, mut ordinal) = (0, 0_u32, -1_i32);
    unsafe {
        b.driver().cuMemAllocFromPoolAsync(&mut address, 4096, pool.as_raw(), stream).expect("memory");
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        let read = b.driver().cuPointerGetAttribute((&raw mut kind).cast(), attribute, address + 8);
        assert_eq!(code(read), OK);
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        b.driver().cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, address + 8).expect("a device");
        b.driver().cuMemFreeAsync(address, stream).expect("freed");
    }
    assert_eq!(kind, CUmemorytype_enum::CU_MEMORYTYPE_DEVICE.0);
    assert_eq!(usize::try_from(ordinal), Ok(b.rig.context.device().ordinal()));
}
