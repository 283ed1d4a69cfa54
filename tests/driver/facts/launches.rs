//! What launches carry beside their geometry: attributes, and more shared memory than a block has by itself.

use super::bench::{Code, INVALID_VALUE, OK};
use crate::support::{Rig, clusters};
use breakable_cuda_graph::driver::{Kernel, LaunchConfig};
use breakable_cuda_graph::sys::{
    CUgraph, CUgraphExec, CUgraphNode, CUlaunchAttributeID, CUlaunchAttributeValue, CUresult, CUstreamCaptureMode,
};
use breakable_cuda_graph::tensor::Arg;
use breakable_cuda_graph::{Error, Result, Tensor};
use std::ptr::null_mut;

const INVALID_CLUSTER_SIZE: Code = CUresult(912);
const LOSSY_QUERY: Code = CUresult(402);
const TOO_LARGE: Code = CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;

struct Bench {
    rig: Rig,
    kernel: Kernel,
    out: Tensor,
}

impl Bench {
    fn new() -> Bench {
        let rig = Rig::new(&clusters::driver());
        let (kernel, out) = (clusters::kernel(&rig.context), rig.zeros(&[1]));
        // SAFETY: a live context.
        unsafe { rig.driver.cuCtxSetCurrent(rig.context.as_raw()).expect("current") };
        Bench { rig, kernel, out }
    }

    fn launch(&self, config: LaunchConfig) -> Result<()> {
        // SAFETY: the kernel's one parameter.
        unsafe { self.kernel.launch(&self.rig.stream, config, &[Arg::from(&self.out)]) }
    }

    fn code(&self, config: LaunchConfig) -> Code {
        code(self.launch(config))
    }

    /// What was written last.
    fn written(&self) -> u32 {
        self.rig.read(&self.out)[0].to_bits()
    }

    fn capture(&self, launches: &[LaunchConfig]) -> CUgraph {
        let (driver, stream, mut graph) = (&self.rig.driver, self.rig.stream.as_raw(), null_mut());
        unsafe {
            driver
                .cuStreamBeginCapture_v2(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)
                .expect("a capture");
            launches.iter().for_each(|config| self.launch(*config).expect("a node"));
            driver.cuStreamEndCapture(stream, &mut graph).expect("a graph");
        }
        graph
    }

    fn nodes(&self, graph: CUgraph) -> Vec<CUgraphNode> {
        let mut count = 0;
        unsafe {
            self.rig.driver.cuGraphGetNodes(graph, null_mut(), &mut count).expect("their number");
            let mut nodes = vec![null_mut(); count];
            self.rig.driver.cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count).expect("nodes");
            nodes
        }
    }

    fn attribute(&self, node: CUgraphNode, attribute: CUlaunchAttributeID) -> CUlaunchAttributeValue {
        unsafe {
            let mut value = std::mem::zeroed();
            self.rig.driver.cuGraphKernelNodeGetAttribute(node, attribute, &mut value).expect("the attribute");
            value
        }
    }

    fn cluster_of(&self, node: CUgraphNode) -> [u32; 3] {
        let value = self.attribute(node, CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
        unsafe { [value.clusterDim.x, value.clusterDim.y, value.clusterDim.z] }
    }

    fn is_cooperative(&self, node: CUgraphNode) -> bool {
        unsafe { self.attribute(node, CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE).cooperative != 0 }
    }

    fn instantiate(&self, graph: CUgraph) -> CUgraphExec {
        let mut exec = null_mut();
        unsafe {
            self.rig.driver.cuGraphInstantiateWithParams(&mut exec, graph, &mut std::mem::zeroed()).expect("an exec");
        }
        exec
    }

    fn run(&self, exec: CUgraphExec) -> u32 {
        unsafe { self.rig.driver.cuGraphLaunch(exec, self.rig.stream.as_raw()).expect("a launch") };
        self.written()
    }
}

fn code(done: Result<()>) -> Code {
    match done {
        Ok(()) => OK,
        Err(Error::Call(error)) => error.code(),
        Err(error) => panic!("{error}"),
    }
}

const fn blocks(count: u32) -> LaunchConfig {
    LaunchConfig::new([count, 1, 1], [32, 1, 1])
}

#[test]
fn clusters_are_of_so_many_blocks_and_others_are_refused() {
    let b = Bench::new();
    for (config, written) in [(blocks(4), 1), (blocks(4).cluster([2, 1, 1]), 2), (blocks(8).cluster([8, 1, 1]), 8)] {
        b.launch(config).expect("a launch");
        assert_eq!(b.written(), written);
    }
    for (config, code) in [
        (blocks(3).cluster([2, 1, 1]), INVALID_VALUE),
        (blocks(4).cluster([2, 0, 0]), INVALID_VALUE),
        (blocks(16).cluster([16, 1, 1]), INVALID_CLUSTER_SIZE),
        (blocks(9).cluster([9, 1, 1]), INVALID_CLUSTER_SIZE),
        (blocks(4).cluster([1 << 20, 1, 1]), INVALID_VALUE),
    ] {
        assert_eq!(b.code(config), code, "{config:?}");
    }
    assert_eq!(b.code(blocks(1)), OK);
}

#[test]
fn a_cooperative_grid_fits_on_the_device() {
    let b = Bench::new();
    b.launch(blocks(2).cooperative()).expect("a launch");
    assert_eq!(b.code(blocks(1 << 20).cooperative()), TOO_LARGE);
    b.launch(blocks(2).programmatic()).expect("a launch");
    assert_eq!(b.written(), 1);
}

#[test]
fn nodes_have_the_attributes_of_their_launches() {
    let b = Bench::new();
    let driver = &b.rig.driver;
    let pair = blocks(4).cluster([2, 1, 1]);
    let graph = b.capture(&[blocks(4), pair, blocks(2).cooperative()]);
    let asked: Vec<_> = b.nodes(graph).iter().map(|node| (b.cluster_of(*node), b.is_cooperative(*node))).collect();
    assert_eq!(asked, [([0, 0, 0], false), ([2, 1, 1], false), ([0, 0, 0], true)]);

    // An edge to one that may begin early is no mere order.
    let programmatic = b.capture(&[blocks(4), pair.programmatic()]);
    let mut count = 0;
    let edges = |graph, count| unsafe { driver.cuGraphGetEdges(graph, null_mut(), null_mut(), count) };
    assert_eq!(code(edges(graph, &mut count).map_err(Error::from)), OK);
    assert_eq!(code(edges(programmatic, &mut count).map_err(Error::from)), LOSSY_QUERY);
    let exec = b.instantiate(programmatic);
    assert_eq!(b.run(exec), 2);
}

/// What a captured body rests on.
#[test]
fn a_child_takes_the_attributes_of_another() {
    let b = Bench::new();
    let driver = &b.rig.driver;
    let pairs = blocks(4).cluster([2, 1, 1]);
    let bodies = [blocks(4), pairs, blocks(4).cluster([4, 1, 1]), blocks(4).cooperative()];
    let graphs = bodies.map(|config| b.capture(&[config]));
    for (first, config) in graphs.iter().zip(bodies) {
        let (mut parent, mut node) = (null_mut(), null_mut());
        unsafe {
            driver.cuGraphCreate(&mut parent, 0).expect("a graph");
            driver.cuGraphAddChildGraphNode(&mut node, parent, null_mut(), 0, *first).expect("a child");
        }
        let exec = b.instantiate(parent);
        let blocks = |config: LaunchConfig| config.attributes.cluster().map_or(1, |[x, ..]| x);
        assert_eq!(b.run(exec), blocks(config));
        for (next, config) in graphs.iter().zip(bodies) {
            unsafe { driver.cuGraphExecChildGraphNodeSetParams(exec, node, *next).expect("the same nodes") };
            assert_eq!(b.run(exec), blocks(config), "{config:?}");
        }
    }
}

#[test]
fn a_kernel_has_as_much_shared_memory_as_it_was_allowed() {
    let b = Bench::new();
    let with = |kib: u32| blocks(1).shared_bytes(kib << 10);
    assert_eq!((b.code(with(48)), b.code(with(49))), (OK, INVALID_VALUE));
    for too_many in [300 << 10, u32::MAX] {
        assert_eq!(code(b.kernel.allow_shared_bytes(too_many)), INVALID_VALUE);
    }
    assert_eq!(b.code(with(49)), INVALID_VALUE, "nothing came of it");
    for (kib, next) in [(227, 228), (100, 101)] {
        b.kernel.allow_shared_bytes(kib << 10).expect("a block can have that much");
        assert_eq!((b.code(with(kib)), b.code(with(next))), (OK, INVALID_VALUE));
    }
    assert_eq!(b.code(with(101).cluster([1, 1, 1])), INVALID_VALUE, "by the other call too");
    let exec = b.instantiate(b.capture(&[with(100)]));
    assert_eq!(b.run(exec), 1);
}
