//! The two ways of recording a body: launches listed as data, and a stream capture for whatever else it enqueues.

use super::model::{Captured, Live};
use crate::support::demo::Ops;
use crate::support::{Rig, assert_same, driver, for_each_driver};
use breakable_cuda_graph::BreakKind::Patched;
use breakable_cuda_graph::driver::{Event, InstantiateFlags, Kernel, LaunchConfig, Stream};
use breakable_cuda_graph::sys::intercept::Fault;
use breakable_cuda_graph::sys::{CUresult, Call};
use breakable_cuda_graph::{
    Break, BreakOptions, BreakableCapture, CaptureOptions, DType, Error, Misuse, PoolOptions, Result, Tensor,
    active_forward,
};

/// How the body doubles its input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// By the crate's launch.
    Launch,
    /// By pointers to the parameters.
    Raw,
    /// On another stream, forked and joined.
    Forked,
    /// By a call of the driver's that the crate doesn't see.
    Foreign,
    /// By the crate's launch, after a call that breaks the capture, whose error it passes over.
    Careless,
}

struct Doubling {
    kernel: Kernel,
    config: LaunchConfig,
    side: Stream,
    events: [Event; 2],
}

impl Doubling {
    fn body(&self, rig: &Rig, b: &Break<'_>) -> Result<Tensor> {
        let y = match b.output(0) {
            Some(y) => y,
            None => b.empty(DType::F32, b.input(0)?.shape())?,
        };
        let x = b.input(0)?;
        let values = [x.address(), y.address(), u64::from(2.0_f32.to_bits()), y.elements() as u64];
        let mut pointers = values.each_ref().map(|value| core::ptr::from_ref(value).cast_mut().cast());
        match *b.forward_ctx::<Way>()? {
            Way::Launch => rig.ops.scale_into(b.stream(), x, 2.0, &y)?,
            // SAFETY: the kernel's own parameters, on tensors that live whenever the break runs.
            Way::Raw => unsafe { self.kernel.launch_raw(b.stream(), self.config, &mut pointers)? },
            Way::Forked => {
                self.events[0].record(b.stream())?;
                self.side.wait(&self.events[0])?;
                rig.ops.scale_into(&self.side, x, 2.0, &y)?;
                self.events[1].record(&self.side)?;
                b.stream().wait(&self.events[1])?;
            }
            Way::Foreign => {
                let LaunchConfig { grid, block, shared_bytes, .. } = self.config;
                // SAFETY: likewise.
                unsafe {
                    rig.driver.cuLaunchKernel(
                        self.kernel.as_raw(),
                        grid[0],
                        grid[1],
                        grid[2],
                        block[0],
                        block[1],
                        block[2],
                        shared_bytes,
                        b.stream().as_raw(),
                        pointers.as_mut_ptr(),
                        core::ptr::null_mut(),
                    )?;
                }
            }
            Way::Careless => {
                // SAFETY: a live stream.
                let _ = unsafe { rig.driver.cuStreamSynchronize(b.stream().as_raw()) };
                rig.ops.scale_into(b.stream(), x, 2.0, &y)?;
            }
        }
        Ok(y)
    }
}

fn capture<'m>(rig: &'m Rig, doubling: &'m Doubling, x: &Tensor, first: Way) -> (BreakableCapture<'m>, Tensor) {
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let out = active_forward(&first, || {
        capture.record(&rig.stream, |scope| {
            let mut h = rig.ops.scale(x, 1.0)?;
            for name in ["first", "second"] {
                h = scope.break_point(BreakOptions::new(name).patched(), [&h], move |b| doubling.body(rig, b))?;
            }
            rig.ops.relu(&h)
        })
    });
    (capture, out.expect("a recording"))
}

fn doubling(rig: &Rig, x: &Tensor) -> Doubling {
    let (kernel, config, _) = rig.ops.scale_raw(x, 1.0, x).expect("a kernel");
    let event = || Event::new(&rig.context).expect("an event");
    Doubling { kernel, config, side: Stream::new(&rig.context).expect("a stream"), events: [event(), event()] }
}

#[test]
fn whatever_a_body_enqueues_is_run_in_its_place() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let x = rig.random(1, &[6, 10]);
        let doubling = doubling(&rig, &x);
        let expected: Vec<f32> = rig.read(&x).iter().map(|x| (4.0 * x).max(0.0)).collect();
        let ways = [Way::Launch, Way::Raw, Way::Forked, Way::Foreign];
        for first in ways {
            let (mut capture, out) = capture(&rig, &doubling, &x, first);
            for way in ways.into_iter().chain(ways) {
                // What an earlier replay left there would do.
                rig.ops.fill(&rig.stream, &out, -1.0).expect("a fill");
                active_forward(&way, || capture.replay(&rig.stream).map(|_| ())).expect("a replay");
                assert_same(&rig.read(&out), &expected);
            }
            let stats = capture.patch_stats();
            assert_eq!(stats.fell_back, 0, "from {first:?}: {stats:?}");
        }
    });
}

/// Equal launches are found equal whether they were made by values or by pointers, and no call of the driver is made for them.
#[test]
fn unchanged_launches_cost_no_call() {
    let rig = Rig::new(&driver().intercepted());
    let x = rig.random(1, &[4]);
    let doubling = doubling(&rig, &x);
    let (mut capture, _) = capture(&rig, &doubling, &x, Way::Launch);
    let mut replay = |way: Way| active_forward(&way, || capture.replay(&rig.stream).map(|_| ())).expect("a replay");
    replay(Way::Raw);
    let watch = rig.driver.intercept().expect("a watched driver");
    let calls = [
        Call::cuLaunchKernel,
        Call::cuGraphExecKernelNodeSetParams_v2,
        Call::cuGraphExecChildGraphNodeSetParams,
        Call::cuStreamBeginCapture_v2,
        Call::cuGraphLaunch,
    ];
    let count = || calls.map(|call| watch.count(call));
    let before = count();
    replay(Way::Launch);
    replay(Way::Raw);
    let made: Vec<_> = count().into_iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(made, [0, 0, 0, 2, 2], "one empty capture and one launch a replay");
    let stats = capture.patch_stats();
    assert_eq!((stats.patched, stats.unchanged, stats.execs), (0, 6, 1), "{stats:?}");
}

/// The driver refuses to make some functions of others in an exec: such a body has an exec of its own.
#[test]
fn a_launch_that_a_node_can_not_become_is_in_another_exec() {
    let driver = driver().intercepted();
    let rig = Rig::new(&driver);
    let watch = driver.intercept().expect("a watched driver");
    let mut captured = Captured::new(&rig, &[Patched; 3], CaptureOptions::default());
    captured.check(Live::new(2.0), None);
    let call = Some(Call::cuGraphExecKernelNodeSetParams_v2);
    for (round, after) in [0, 1, 2].into_iter().enumerate() {
        watch.fail(Fault { call, after, code: CUresult::CUDA_ERROR_INVALID_VALUE });
        captured.check(Live::new(3.0 + round as f32), None);
        assert_eq!(watch.clear_fault().len(), 1);
        captured.check(Live::new(-1.0 - round as f32), None);
    }
    let stats = captured.capture.patch_stats();
    assert_eq!((stats.rebuilt, stats.fell_back), (1, 0), "later ones fit the other exec: {stats:?}");
}

/// An operation that passes over the error of a call which breaks the capture is named, and the next replay is right.
#[test]
fn a_body_that_breaks_the_capture_and_goes_on_is_named() {
    let rig = Rig::new(&driver());
    let x = rig.random(1, &[4]);
    let doubling = doubling(&rig, &x);
    let (mut capture, out) = capture(&rig, &doubling, &x, Way::Launch);
    let expected: Vec<f32> = rig.read(&x).iter().map(|x| (4.0 * x).max(0.0)).collect();
    for _ in 0..2 {
        let failed = active_forward(&Way::Careless, || capture.replay(&rig.stream).map(|_| ()));
        let Err(Error::NotPatchable { name, index: 0, source }) = failed else { panic!("{failed:?}") };
        assert_eq!(name, "first");
        let code = source.driver_call().map(|error| error.code());
        assert_eq!(code, Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED), "{source}");
        active_forward(&Way::Launch, || capture.replay(&rig.stream).map(|_| ())).expect("a replay");
        assert_same(&rig.read(&out), &expected);
    }
}

/// A node's former function stays loaded as long as the exec: the driver may look at it.
#[test]
fn modules_of_earlier_bodies_stay() {
    let driver = driver().intercepted();
    let rig = Rig::new(&driver);
    let x = rig.random(1, &[4]);
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    let first = Ops::load(&rig.context).expect("a module");
    let out = active_forward(&first, || {
        capture.record(&rig.stream, |scope| {
            let h = rig.ops.scale(&x, 2.0)?;
            let handoff = rig.ops.empty_like(&h)?;
            scope.break_here(BreakOptions::new("which").patched(), handoff, [&h], move |b| {
                let y = b.output(0).ok_or(Error::Misuse(Misuse::NoForward))?;
                b.forward_ctx::<Ops>()?.scale_into(b.stream(), b.input(0)?, 3.0, &y)?;
                Ok(y)
            })
        })
    });
    let out = out.expect("a recording");
    drop(first);
    let watch = driver.intercept().expect("a watched driver");
    let unloaded = watch.count(Call::cuModuleUnload);
    for _ in 0..3 {
        let other = Ops::load(&rig.context).expect("a module");
        active_forward(&other, || capture.replay(&rig.stream).map(|_| ())).expect("a replay");
        drop(other);
        let expected: Vec<f32> = rig.read(&x).iter().map(|x| 6.0 * x).collect();
        assert_same(&rig.read(&out), &expected);
    }
    assert_eq!(watch.count(Call::cuModuleUnload), unloaded);
    drop(capture);
    assert_eq!(watch.count(Call::cuModuleUnload), unloaded + 4);
}

/// Nodes that are made of notes have the capture stream's priority where nodes have one, as captured nodes do by themselves.
#[test]
fn all_nodes_have_the_priority_of_the_capture_stream() {
    for_each_driver(|driver| {
        let driver = driver.intercepted();
        let watch = driver.intercept().expect("a watched driver");
        for priority in [0, -2] {
            let rig = Rig::with_pool(&driver, PoolOptions::default().priority(priority));
            for flags in [InstantiateFlags::default(), InstantiateFlags::USE_NODE_PRIORITY] {
                let mut options = CaptureOptions::default();
                options.graph.instantiate = flags;
                let counts = || {
                    let calls = [Call::cuGraphAddKernelNode_v2, Call::cuGraphKernelNodeSetAttribute];
                    calls.map(|call| watch.count(call))
                };
                let before = counts();
                let mut captured = Captured::new(&rig, &[Patched; 3], options);
                // Bodies that are listed; then, for good, captured ones.
                for live in [Live::new(2.0), Live::new(3.0), Live { copies: 7, ..Live::new(2.0) }] {
                    captured.check(live, None);
                    let Some(reference) = driver.ref_driver().filter(|_| !flags.is_empty()) else { continue };
                    for exec in captured.capture.execs() {
                        let priorities = reference.kernel_priorities(exec.as_raw());
                        assert!(!priorities.is_empty());
                        assert!(priorities.iter().all(|&found| found == priority), "{priorities:?}");
                    }
                }
                let [added, set] = [0, 1].map(|at| counts()[at] - before[at]);
                assert!(added > 0);
                assert_eq!(set, if flags.is_empty() { 0 } else { added });
            }
        }
    });
}
