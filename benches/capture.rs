//! What a capture costs: the time to record, instantiate and upload, and the device memory of many buckets' execs.
//!
//! The program is that of the bench `replay`: segments of small kernels with breaks of a few kernels between them. Each row is measured by a process of
//! its own, as the driver keeps the memory of execs that are gone for the next ones.
//!
//! `cargo bench --bench capture [-- --json]`

#[path = "support/common.rs"]
mod common;
#[path = "support/measure.rs"]
mod measure;
#[path = "support/program.rs"]
mod program;
#[path = "../examples/support/mod.rs"]
mod support;

use breakable_cuda_graph::driver::{Graph, GraphExec, InstantiateFlags};
use breakable_cuda_graph::sys::CUstreamCaptureMode;
use breakable_cuda_graph::{
    BreakKind, BreakableCapture, CaptureOptions, CapturePool, DType, GraphOptions, Tensor, current_stream,
};
use clap::Parser;
use common::Common;
use measure::quartiles;
use program::{Launches, Program, Shape, pointers_to};
use std::error::Error;
use std::process::Command;
use std::time::Instant;

/// Measures time and memory of captures.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    shape: Shape,
    /// Captures that are alive together.
    #[arg(long, default_value_t = 30)]
    buckets: usize,
    /// Measure this row only, in this process.
    #[arg(long, hide = true)]
    arm: Option<usize>,
}

/// What is captured: what breaks are, and whether captures share execs.
const ARMS: [(&str, BreakKind, bool); 5] = [
    ("live", BreakKind::Live, false),
    ("patched", BreakKind::Patched, false),
    ("one frozen graph", BreakKind::Inline, false),
    ("live, shared execs", BreakKind::Live, true),
    ("patched, shared execs", BreakKind::Patched, true),
];

/// Nodes of the graphs whose capture is taken apart.
const NODES: [usize; 4] = [1, 8, 64, 512];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let (driver, line) = support::driver(arguments.common.driver)?;
    if let Some(arm) = arguments.arm {
        let context = support::context(&driver, 0)?;
        return match ARMS.get(arm) {
            Some(arm) => buckets(&arguments, &Program::new(&context, arguments.shape)?, *arm),
            None => {
                floor(&arguments, &Program::new(&context, arguments.shape)?)?;
                let program = Program::new(&context, Shape { segments: 1, ..arguments.shape })?;
                steps(&arguments, &program)?;
                memsets(&arguments, &program)
            }
        };
    }
    if !arguments.common.json {
        println!("{line}");
        println!("{}; {} captures", arguments.shape, arguments.buckets);
        println!(
            "{:<24} {:>12} {:>16} {:>14} {:>7} {:>14} {:>12}",
            "breaks", "ms a capture", "quartiles", "MiB of execs", "execs", "µs a switch", "µs otherwise"
        );
    }
    drop(driver);
    for arm in 0..=ARMS.len() {
        let mut command = Command::new(std::env::current_exe()?);
        let status = command.args(std::env::args_os().skip(1)).arg(format!("--arm={arm}")).status()?;
        if !status.success() {
            return Err(format!("row {arm}: {status}").into());
        }
    }
    Ok(())
}

/// Many captures of the program at once, and replays of one after another.
fn buckets(
    arguments: &Arguments,
    program: &Program,
    (name, kind, share): (&str, BreakKind, bool),
) -> Result<(), Box<dyn Error>> {
    let options = || CaptureOptions::default().graph(GraphOptions::default().share_execs(share));
    // The first takes the pool's memory, and what the driver loads with a first graph of a kind. It goes again: only its pool stays.
    let first = program.capture(kind, Launches::Prepared, options())?;
    let execs = first.num_launches();
    drop(first);
    program.stream.synchronize()?;
    let before = program.context.memory_info()?.free;
    let (mut captures, mut times) = (Vec::new(), Vec::new());
    for _ in 0..arguments.buckets {
        let started = Instant::now();
        captures.push(program.capture(kind, Launches::Prepared, options())?);
        times.push(started.elapsed().as_secs_f64() * 1e3);
    }
    program.stream.synchronize()?;
    let bytes = before.saturating_sub(program.context.memory_info()?.free);
    // A replay after another capture's, and one after its own.
    let (mut others, mut own) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        for capture in &mut captures {
            for times in [&mut others, &mut own] {
                program.stream.synchronize()?;
                let started = Instant::now();
                let _ = capture.replay(&program.stream)?;
                times.push(started.elapsed().as_secs_f64() * 1e6);
            }
        }
    }
    program.stream.synchronize()?;
    let [low, median, high] = quartiles(&mut times);
    let [others, own] = [others, own].map(|mut times| quartiles(&mut times)[1]);
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    if arguments.common.json {
        let Shape { segments, kernels, break_kernels, .. } = arguments.shape;
        let row = serde_json::json!({
            "bench": "capture", "breaks": name, "segments": segments, "kernels": kernels, "break_kernels": break_kernels,
            "captures": arguments.buckets, "ms_median": median, "ms_quartiles": [low, high], "exec_bytes": bytes, "execs": execs,
            "replay_after_another_us": others, "replay_after_its_own_us": own,
        });
        println!("{row}");
    } else {
        let spread = format!("{low:.2} to {high:.2}");
        println!("{name:<24} {median:>12.2} {spread:>16} {mebibytes:>14.1} {execs:>7} {others:>14.1} {own:>12.1}");
    }
    Ok(())
}

/// A capture with live breaks, its first replay and the reading of its result; and in turn with it what that takes without a capture around: the same
/// number of graphs, execs and launches.
fn floor(arguments: &Arguments, program: &Program) -> Result<(), Box<dyn Error>> {
    const ROUNDS: usize = 30;
    let (stream, Shape { segments, kernels, break_kernels, elements }) = (&program.stream, program.shape);
    let buffer = Tensor::zeros(stream, DType::F32, &[elements])?;
    let (kernel, config, values) = program.ops.scale_raw(&buffer, 1.0, &buffer)?;
    let launch = |count: usize| -> Result<(), Box<dyn Error>> {
        // SAFETY: the kernel's own parameters, on a buffer that outlives the launches and the execs.
        (0..count).try_for_each(|_| unsafe { kernel.launch_raw(stream, config, &mut pointers_to(&values)) })?;
        Ok(())
    };
    let calls = || -> Result<Vec<GraphExec>, Box<dyn Error>> {
        let mut execs = Vec::new();
        for _ in 0..segments {
            let exec = GraphExec::new(&record(program, || launch(kernels))?, InstantiateFlags::default())?;
            exec.upload(stream)?;
            execs.push(exec);
        }
        for (segment, exec) in execs.iter().enumerate() {
            // SAFETY: likewise.
            unsafe { exec.launch(stream)? };
            launch(if segment < program.shape.breaks() { break_kernels } else { 0 })?;
        }
        drop(buffer.read::<f32>(stream)?);
        Ok(execs)
    };
    let mut times: [Vec<f64>; 2] = Default::default();
    for round in 0..=ROUNDS {
        let started = Instant::now();
        let capture = program.capture(BreakKind::Live, Launches::Prepared, CaptureOptions::default())?;
        let captured = started.elapsed();
        drop(capture);
        stream.synchronize()?;
        let started = Instant::now();
        let execs = calls()?;
        let called = started.elapsed();
        drop(execs);
        stream.synchronize()?;
        // The first round loads what the driver loads once.
        if round > 0 {
            for (times, time) in times.iter_mut().zip([captured, called]) {
                times.push(time.as_secs_f64() * 1e3);
            }
        }
    }
    let mut ratios: Vec<f64> = times[0].iter().zip(&times[1]).map(|(captured, called)| captured / called).collect();
    let [ratio_low, ratio, ratio_high] = quartiles(&mut ratios);
    let [[low, captured, high], [calls_low, called, calls_high]] = times.map(|mut times| quartiles(&mut times));
    if arguments.common.json {
        let row = serde_json::json!({
            "bench": "capture", "floor": "live", "segments": segments, "kernels": kernels, "break_kernels": break_kernels,
            "ms_median": captured, "ms_quartiles": [low, high], "calls_ms_median": called, "calls_ms_quartiles": [calls_low, calls_high],
            "over_calls_median": ratio, "over_calls_quartiles": [ratio_low, ratio_high],
        });
        println!("{row}");
    } else {
        println!("\na live capture alone: {captured:.2} ms ({low:.2} to {high:.2})");
        println!("its driver calls alone: {called:.2} ms ({calls_low:.2} to {calls_high:.2})");
        println!("one over the other: {ratio:.3} ({ratio_low:.3} to {ratio_high:.3})");
    }
    Ok(())
}

/// What `work` enqueues on the program's stream, as a graph.
fn record(program: &Program, work: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Result<Graph, Box<dyn Error>> {
    let (context, stream) = (&program.context, program.stream.as_raw());
    let mut graph = core::ptr::null_mut();
    context.with_current(|| -> Result<Graph, Box<dyn Error>> {
        let driver = context.driver();
        // SAFETY: a live stream and a valid place; the graph is no one else's.
        unsafe {
            driver.cuStreamBeginCapture_v2(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
            let worked = work();
            driver.cuStreamEndCapture(stream, &mut graph)?;
            let graph = Graph::from_raw(context, graph);
            worked.map(|()| graph)
        }
    })?
}

/// A straight line of kernels, captured step by step.
fn steps(arguments: &Arguments, program: &Program) -> Result<(), Box<dyn Error>> {
    const ROUNDS: usize = 50;
    let buffer = Tensor::zeros(&program.stream, DType::F32, &[arguments.shape.elements])?;
    let (kernel, config, values) = program.ops.scale_raw(&buffer, 1.0, &buffer)?;
    if !arguments.common.json {
        println!("\nµs a node: {:>11} {:>12} {:>12} {:>14}", "record", "instantiate", "upload", "first launch");
    }
    for nodes in NODES {
        let mut times: [Vec<f64>; 4] = Default::default();
        for _ in 0..ROUNDS {
            program.stream.synchronize()?;
            let mut marks = [Instant::now(); 5];
            let graph = record(program, || {
                for _ in 0..nodes {
                    // SAFETY: the kernel's own parameters, on a buffer that outlives the launches.
                    unsafe { kernel.launch_raw(&program.stream, config, &mut pointers_to(&values))? };
                }
                Ok(())
            })?;
            marks[1] = Instant::now();
            let exec = GraphExec::new(&graph, InstantiateFlags::default())?;
            marks[2] = Instant::now();
            exec.upload(&program.stream)?;
            marks[3] = Instant::now();
            // SAFETY: likewise.
            unsafe { exec.launch(&program.stream)? };
            marks[4] = Instant::now();
            program.stream.synchronize()?;
            for (times, marks) in times.iter_mut().zip(marks.windows(2)) {
                times.push((marks[1] - marks[0]).as_secs_f64() * 1e6 / nodes as f64);
            }
        }
        let [record, instantiate, upload, launch] = times.map(|mut times| quartiles(&mut times)[1]);
        if arguments.common.json {
            let row = serde_json::json!({
                "bench": "capture", "nodes": nodes, "record_us_a_node": record, "instantiate_us_a_node": instantiate,
                "upload_us_a_node": upload, "first_launch_us_a_node": launch,
            });
            println!("{row}");
        } else {
            println!("{nodes:>4} nodes {record:>11.3} {instantiate:>12.3} {upload:>12.3} {launch:>14.3}");
        }
    }
    Ok(())
}

/// A straight line of pairs of a kernel and a memset of 1 KiB: with the memsets as they are captured, and with kernels in their place.
fn memsets(arguments: &Arguments, program: &Program) -> Result<(), Box<dyn Error>> {
    const ROUNDS: usize = 200;
    let stream = &program.stream;
    let buffer = Tensor::zeros(stream, DType::F32, &[arguments.shape.elements.max(256)])?;
    let (kernel, config, values) = program.ops.scale_raw(&buffer, 1.0, &buffer)?;
    let pool = CapturePool::new(&program.context)?;
    let capture = |memset_as_kernel: bool, pairs: usize| -> Result<_, Box<dyn Error>> {
        let mut options = CaptureOptions::default();
        options.graph.memset_as_kernel = memset_as_kernel;
        let mut capture = BreakableCapture::with_options(&pool, options)?;
        capture.record(stream, |_| {
            let recorded_on = current_stream()?;
            (0..pairs).try_for_each(|_| {
                // SAFETY: the kernel's own parameters and the start of the buffer, which outlives the replays.
                unsafe {
                    kernel.launch_raw(&recorded_on, config, &mut pointers_to(&values))?;
                    recorded_on.fill_bytes(buffer.address(), 0, 1024)
                }
            })
        })?;
        let nodes = capture.report().nodes;
        let expected = if memset_as_kernel { (2 * pairs, 0) } else { (pairs, pairs) };
        if (nodes.kernels, nodes.memsets) != expected {
            return Err(format!("{pairs} pairs were captured as {nodes:?}").into());
        }
        Ok(capture)
    };
    if !arguments.common.json {
        println!("\nmemsets, µs: {:>11} {:>14} {:>10} {:>14}", "host", "as kernels", "latency", "as kernels");
    }
    for pairs in [1, 16, 64, 256] {
        let mut captures = [capture(false, pairs)?, capture(true, pairs)?];
        let mut times: [[Vec<f64>; 2]; 2] = Default::default();
        for _ in 0..ROUNDS {
            for (capture, [host, latency]) in captures.iter_mut().zip(&mut times) {
                stream.synchronize()?;
                let started = Instant::now();
                let _ = capture.replay(stream)?;
                host.push(started.elapsed().as_secs_f64() * 1e6);
                stream.synchronize()?;
                latency.push(started.elapsed().as_secs_f64() * 1e6);
            }
        }
        let [[host, latency], [kernel_host, kernel_latency]] =
            times.map(|times| times.map(|mut times| quartiles(&mut times)[1]));
        if arguments.common.json {
            let row = serde_json::json!({
                "bench": "capture", "memsets": pairs, "host_us": host, "host_us_as_kernels": kernel_host,
                "latency_us": latency, "latency_us_as_kernels": kernel_latency,
            });
            println!("{row}");
        } else {
            println!("{pairs:>11} {host:>12.1} {kernel_host:>14.1} {latency:>10.1} {kernel_latency:>14.1}");
        }
    }
    Ok(())
}
