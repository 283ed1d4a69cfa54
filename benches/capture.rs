//! What a capture costs: the time to record and instantiate one bucket, and the device memory of many buckets' execs.
//!
//! The program is that of the bench `replay`: segments of small kernels with breaks of a few kernels between them.
//!
//! `cargo bench --bench capture [-- --json]`

#[path = "support/shape.rs"]
mod shape;
#[path = "../examples/support/mod.rs"]
mod support;

use breakable_cuda_graph::demo::Ops;
use breakable_cuda_graph::driver::Stream;
use breakable_cuda_graph::{
    BreakKind, BreakOptions, BreakableCapture, CapturePool, DType, Error, Result, Tensor, break_here, eager,
};
use clap::Parser;
use shape::Shape;
use std::time::Instant;

/// Measures time and memory of captures.
#[derive(Parser)]
struct Arguments {
    /// Print one JSON object a row instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    shape: Shape,
    /// Captures that are alive together.
    #[arg(long, default_value_t = 30)]
    buckets: usize,
    /// Which driver to use.
    #[arg(long, value_enum, default_value_t)]
    driver: support::Choice,
    /// What `cargo bench` passes on.
    #[arg(long, hide = true)]
    bench: bool,
}

const KINDS: [(&str, BreakKind); 3] =
    [("live", BreakKind::Live), ("recorded", BreakKind::Recorded), ("one frozen graph", BreakKind::Inline)];

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let (driver, line) = support::driver(arguments.driver)?;
    let context = support::context(&driver, 0)?;
    let (stream, pool, ops) = (Stream::new(&context)?, CapturePool::new(&context)?, Ops::load(&context)?);
    let input = Tensor::from_slice(&stream, &vec![1.0_f32; arguments.shape.elements], &[arguments.shape.elements])?;
    eager(&pool, &stream, |_| forward(&ops, &input, &arguments, BreakKind::Live))?;
    if !arguments.json {
        println!("{line}");
        println!("{}; {} captures", arguments.shape, arguments.buckets);
        println!("{:<18} {:>12} {:>18} {:>16} {:>8}", "breaks", "ms a capture", "quartiles", "MiB of execs", "execs");
    }
    for (name, kind) in KINDS {
        // The first takes the pool's memory, and what the driver loads with a first graph of a kind.
        let first = capture(&pool, &stream, &ops, &input, &arguments, kind)?;
        stream.synchronize()?;
        let before = context.memory_info()?.free;
        let (mut captures, mut times) = (Vec::new(), Vec::new());
        for _ in 0..arguments.buckets {
            let started = Instant::now();
            captures.push(capture(&pool, &stream, &ops, &input, &arguments, kind)?);
            times.push(started.elapsed().as_secs_f64() * 1e3);
        }
        stream.synchronize()?;
        let bytes = before.saturating_sub(context.memory_info()?.free);
        let execs = first.num_launches();
        times.sort_unstable_by(f64::total_cmp);
        let [low, median, high] = [1, 2, 3].map(|quarter| times[times.len() * quarter / 4]);
        let mebibytes = bytes as f64 / f64::from(1 << 20);
        if arguments.json {
            let row = serde_json::json!({
                "bench": "capture", "breaks": name, "driver": driver.origin().to_string(), "segments": arguments.shape.segments,
                "kernels": arguments.shape.kernels, "break_kernels": arguments.shape.break_kernels, "captures": arguments.buckets,
                "ms_median": median, "ms_quartiles": [low, high], "exec_bytes": bytes, "execs_a_capture": execs,
            });
            println!("{row}");
        } else {
            let spread = format!("{low:.2} to {high:.2}");
            println!("{name:<18} {median:>12.2} {spread:>18} {mebibytes:>16.1} {execs:>8}");
        }
    }
    Ok(())
}

/// Records the program, with one replay, so that all of its memory is taken.
fn capture(
    pool: &CapturePool,
    stream: &Stream,
    ops: &Ops,
    input: &Tensor,
    arguments: &Arguments,
    kind: BreakKind,
) -> Result<BreakableCapture<'static>> {
    let mut capture = BreakableCapture::on_pool(pool)?;
    drop(capture.record(stream, |_| forward(ops, input, arguments, kind))?);
    let _ = capture.replay(stream)?;
    Ok(capture)
}

fn forward(ops: &Ops, input: &Tensor, arguments: &Arguments, kind: BreakKind) -> Result<Tensor> {
    let mut h = input.clone();
    for segment in 0..arguments.shape.segments {
        for _ in 0..arguments.shape.kernels {
            h = ops.scale(&h, 1.0)?;
        }
        if segment + 1 < arguments.shape.segments {
            let handoff = breakable_cuda_graph::empty(DType::F32, h.shape())?;
            let (ops, kernels) = (ops.clone(), arguments.shape.break_kernels);
            h = break_here(BreakOptions::new("attention").kind(kind), handoff, [&h], move |b| {
                let handoff = b.output(0).ok_or(Error::NoForward)?;
                for _ in 0..kernels {
                    ops.scale_into(b.stream(), b.input(0)?, 1.0, &handoff)?;
                }
                Ok(handoff)
            })?;
        }
    }
    Ok(h)
}
