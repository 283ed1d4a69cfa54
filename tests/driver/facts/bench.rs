//! A device, streams and kernels behind the raw calls, and the asking of one call in a fresh capture.

use crate::support::Rig;
use breakable_cuda_graph::Tensor;
use breakable_cuda_graph::driver::{DeviceBuffer, Event, Kernel, LaunchConfig, MemoryPool, Stream};
use breakable_cuda_graph::sys::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUgraph, CUgraphExec, CUgraphInstantiate_flags_enum, CUgraphNode, CUresult,
    CUstream, CUstream_flags_enum, CUstreamCaptureMode, CUstreamCaptureStatus, CallError, Driver,
};
use std::cell::RefCell;
use std::ffi::CStr;

pub type Code = CUresult;
pub const OK: Code = CUresult::CUDA_SUCCESS;
pub const INVALID_VALUE: Code = CUresult::CUDA_ERROR_INVALID_VALUE;
pub const UNSUPPORTED: Code = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
pub const INVALIDATED: Code = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;

/// A module of one empty kernel that both drivers know.
pub const SPARE_PTX: &CStr = c".version 8.0
.target sm_70
.address_size 64
.visible .entry demo_fill(.param .u64 y, .param .f32 value, .param .u64 count) { ret; }
";

pub const MODES: [(&str, CUstreamCaptureMode); 3] = [
    ("Global", CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL),
    ("ThreadLocal", CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
    ("Relaxed", CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED),
];

/// What a call answers in an open capture, and what becomes of that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The capture goes on.
    Survives(Code),
    /// The capture ends with 901 and a null graph.
    Invalidates(Code),
    /// Not measured.
    Unasked,
}

type Undo = Box<dyn FnOnce(&Driver)>;

/// What the rows use. The context is current on the thread.
pub struct Bench {
    pub rig: Rig,
    pub other: Stream,
    pub pool: MemoryPool,
    pub before: Event,
    pub tensor: Tensor,
    pub spare: DeviceBuffer,
    /// What a row has made, undone after its capture has ended.
    undo: RefCell<Vec<Undo>>,
}

/// Launches behind the raw calls.
#[derive(Clone, Copy)]
pub struct Launcher<'b> {
    rig: &'b Rig,
    tensor: &'b Tensor,
}

impl Launcher<'_> {
    /// Adds one to nothing: a kernel on the tensor.
    pub fn launch(&self, stream: CUstream) -> Result<(), CallError> {
        let (kernel, config, values) = self.rig.ops.scale_raw(self.tensor, 1.0, self.tensor).expect("a kernel");
        self.launch_kernel(&kernel, config, values, stream)
    }

    pub fn launch_kernel(
        &self,
        kernel: &Kernel,
        config: LaunchConfig,
        values: [u64; 4],
        stream: CUstream,
    ) -> Result<(), CallError> {
        let mut pointers = values.each_ref().map(|value| std::ptr::from_ref(value).cast_mut().cast());
        let none = std::ptr::null_mut();
        let LaunchConfig { grid: [gx, gy, gz], block: [bx, by, bz], .. } = config;
        // SAFETY: the kernel's own parameters, on a live tensor.
        unsafe {
            self.rig.driver.cuLaunchKernel(
                kernel.as_raw(),
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                0,
                stream,
                pointers.as_mut_ptr(),
                none,
            )
        }
    }
}

impl Bench {
    pub fn new() -> Bench {
        let rig = Rig::new(&crate::support::driver());
        let other = Stream::new(&rig.context).expect("a stream");
        let pool = MemoryPool::new(&rig.context).expect("a pool");
        let before = Event::new(&rig.context).expect("an event");
        before.record(&other).expect("a record");
        let tensor = rig.zeros(&[64]);
        let spare = DeviceBuffer::new(&rig.context, 4096).expect("a buffer");
        rig.context.synchronize().expect("set-up");
        // SAFETY: a live context.
        unsafe { rig.driver.cuCtxSetCurrent(rig.context.as_raw()).expect("current") };
        Bench { rig, other, pool, before, tensor, spare, undo: RefCell::default() }
    }

    pub fn driver(&self) -> &Driver {
        &self.rig.driver
    }

    pub fn later(&self, undo: impl FnOnce(&Driver) + 'static) {
        self.undo.borrow_mut().push(Box::new(undo));
    }

    fn tidy(&self) {
        for undo in self.undo.take() {
            undo(self.driver());
        }
    }

    /// A non-blocking stream.
    pub fn stream(&self, flags: u32) -> CUstream {
        let mut stream = std::ptr::null_mut();
        // SAFETY: a valid place, with the context current.
        unsafe { self.driver().cuStreamCreate(&mut stream, flags).expect("a stream") };
        stream
    }

    /// What launches, for another thread.
    pub fn launcher(&self) -> Launcher<'_> {
        Launcher { rig: &self.rig, tensor: &self.tensor }
    }

    /// A kernel on the tensor.
    pub fn launch(&self, stream: CUstream) -> Result<(), CallError> {
        self.launcher().launch(stream)
    }

    pub fn launch_kernel(
        &self,
        kernel: &Kernel,
        config: LaunchConfig,
        values: [u64; 4],
        stream: CUstream,
    ) -> Result<(), CallError> {
        self.launcher().launch_kernel(kernel, config, values, stream)
    }

    pub fn begin(&self, stream: CUstream, mode: CUstreamCaptureMode) {
        // SAFETY: a live stream.
        unsafe { self.driver().cuStreamBeginCapture_v2(stream, mode).expect("a capture begins") };
    }

    pub fn end(&self, stream: CUstream) -> (Code, CUgraph) {
        let mut graph = std::ptr::null_mut();
        // SAFETY: a live stream and a valid place.
        let ended = unsafe { self.driver().cuStreamEndCapture(stream, &mut graph) };
        (code(ended), graph)
    }

    pub fn status(&self, stream: CUstream) -> CUstreamCaptureStatus {
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: a live stream and a valid place.
        unsafe { self.driver().cuStreamIsCapturing(stream, &mut status).expect("a status") };
        status
    }

    /// Work goes onto the stream and runs.
    pub fn check_usable(&self, stream: CUstream, what: &str) {
        let none = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        assert_eq!(self.status(stream), none, "{what}: it is captured no more");
        self.launch(stream).unwrap_or_else(|error| panic!("{what}: afterwards: {error}"));
        // SAFETY: a live stream.
        unsafe { self.driver().cuStreamSynchronize(stream) }
            .unwrap_or_else(|error| panic!("{what}: afterwards: {error}"));
    }

    pub fn nodes(&self, graph: CUgraph) -> usize {
        let mut count = 0;
        // SAFETY: a live graph and a valid place.
        unsafe { self.driver().cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count).expect("nodes") };
        count
    }

    pub fn node_list(&self, graph: CUgraph) -> Vec<CUgraphNode> {
        let mut count = self.nodes(graph);
        let mut nodes = vec![std::ptr::null_mut(); count];
        // SAFETY: a live graph, and as many places as there are nodes.
        unsafe { self.driver().cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count).expect("nodes") };
        nodes
    }

    /// The node of a graph that has one.
    pub fn only_node(&self, graph: CUgraph) -> CUgraphNode {
        match self.node_list(graph)[..] {
            [node] => node,
            ref nodes => panic!("one node, not {}", nodes.len()),
        }
    }

    /// Captures what `body` puts on a stream.
    pub fn capture(&self, body: impl FnOnce(CUstream)) -> CUgraph {
        self.capture_on(&self.other, body)
    }

    pub fn capture_on(&self, stream: &Stream, body: impl FnOnce(CUstream)) -> CUgraph {
        let stream = stream.as_raw();
        self.begin(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
        let body = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(stream)));
        let (code, graph) = self.end(stream);
        // A stream that stays in capture would fail other tests too.
        body.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        assert_eq!(code, OK);
        graph
    }

    pub fn instantiate(&self, graph: CUgraph) -> Result<CUgraphExec, CallError> {
        self.instantiate_with(graph, CUgraphInstantiate_flags_enum(0)).0
    }

    /// With all that the driver says.
    pub fn instantiate_with(
        &self,
        graph: CUgraph,
        flags: CUgraphInstantiate_flags_enum,
    ) -> (Result<CUgraphExec, CallError>, CUDA_GRAPH_INSTANTIATE_PARAMS) {
        let mut exec = std::ptr::null_mut();
        // SAFETY: all-zero is a value of this plain structure.
        let mut params: CUDA_GRAPH_INSTANTIATE_PARAMS = unsafe { std::mem::zeroed() };
        params.flags = flags.0.into();
        // SAFETY: a live graph and valid places.
        let made = unsafe { self.driver().cuGraphInstantiateWithParams(&mut exec, graph, &mut params) };
        (made.map(|()| exec), params)
    }

    /// Launches and waits.
    pub fn run(&self, exec: CUgraphExec) -> Result<(), CallError> {
        let stream = self.rig.stream.as_raw();
        // SAFETY: live handles; the tensors are the bench's.
        unsafe {
            self.driver().cuGraphLaunch(exec, stream)?;
            self.driver().cuStreamSynchronize(stream)
        }
    }

    pub fn destroy(&self, graphs: &[CUgraph], execs: &[CUgraphExec]) {
        // SAFETY: made by the caller, destroyed once.
        unsafe {
            graphs.iter().for_each(|graph| self.driver().cuGraphDestroy(*graph).expect("destroyed"));
            execs.iter().for_each(|exec| self.driver().cuGraphExecDestroy(*exec).expect("destroyed"));
        }
    }
}

/// The code of a raw call.
pub fn code(result: Result<(), CallError>) -> Code {
    result.map_or_else(|error| error.code(), |()| OK)
}

/// Asks one call, alone, in a fresh capture of each mode. `call` gets the capturing stream.
pub fn ask(row: &str, strict: Answer, relaxed: Answer, call: impl Fn(&Bench, CUstream) -> Result<(), CallError>) {
    let bench = Bench::new();
    for (name, mode) in MODES {
        let expected = if mode == CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED { relaxed } else { strict };
        let what = format!("{row}, {name}");
        let (answer, survives) = match expected {
            Answer::Survives(answer) => (answer, true),
            Answer::Invalidates(answer) => (answer, false),
            Answer::Unasked => continue,
        };
        let stream = bench.stream(CUstream_flags_enum::CU_STREAM_NON_BLOCKING.0);
        bench.begin(stream, mode);
        bench.launch(stream).expect("a node");
        let got = code(call(&bench, stream));
        assert_eq!(got, answer, "{what}: answer");
        let next = code(bench.launch(stream));
        assert_eq!(next, if survives { OK } else { INVALIDATED }, "{what}: the next launch into the capture");
        let (end, graph) = bench.end(stream);
        assert_eq!(end, if survives { OK } else { INVALIDATED }, "{what}: the end");
        assert_eq!(graph.is_null(), !survives, "{what}: the graph");
        if survives {
            assert!(bench.nodes(graph) >= 2, "{what}: both launches are in it");
            bench.destroy(&[graph], &[]);
        }
        bench.check_usable(stream, &what);
        bench.check_usable(bench.other.as_raw(), &what);
        bench.tidy();
        // SAFETY: made above.
        unsafe { bench.driver().cuStreamDestroy_v2(stream).expect("destroyed") };
    }
}
