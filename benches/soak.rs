//! Very many replays: how long the slow ones are, and whether the process or the device's use of memory grows.
//!
//! `cargo bench --bench soak [-- --json] [--replays N]`

#[path = "support/program.rs"]
mod program;
#[path = "../examples/support/mod.rs"]
mod support;

use breakable_cuda_graph::{BreakKind, CaptureOptions};
use clap::Parser;
use program::{Launches, Program, Shape};
use std::error::Error;
use std::time::Instant;

/// Replays a program very often.
#[derive(Parser)]
struct Arguments {
    /// Print one JSON object a row instead of a table.
    #[arg(long)]
    json: bool,
    /// Replays of each arm.
    #[arg(long, default_value_t = 1_000_000)]
    replays: usize,
    /// Segments of the program.
    #[arg(long, default_value_t = 5)]
    segments: usize,
    /// Kernels of a segment.
    #[arg(long, default_value_t = 4)]
    kernels: usize,
    /// Which driver to use.
    #[arg(long, value_enum, default_value_t)]
    driver: support::Choice,
    /// What `cargo bench` passes on.
    #[arg(long, hide = true)]
    bench: bool,
}

const ARMS: [(&str, BreakKind, Launches); 3] = [
    ("live", BreakKind::Live, Launches::Prepared),
    ("recorded, changed", BreakKind::Recorded, Launches::Changing),
    ("one frozen graph", BreakKind::Inline, Launches::Prepared),
];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let (driver, line) = support::driver(arguments.driver)?;
    let context = support::context(&driver, 0)?;
    let shape = Shape { segments: arguments.segments, kernels: arguments.kernels, break_kernels: 1, elements: 1024 };
    let program = Program::new(&context, shape)?;
    if !arguments.json {
        println!("{line}");
        println!("{shape}; {} replays, each after the one before has run", arguments.replays);
        println!(
            "{:<24} {:>8} {:>8} {:>8} {:>10} {:>12} {:>14} {:>16}",
            "arm", "median", "p99", "p99.9", "max µs", "p99/median", "host KiB more", "device KiB more"
        );
    }
    for (name, kind, launches) in ARMS {
        let mut capture = program.capture(kind, launches, CaptureOptions::default())?;
        // Written once before, so that its pages are there.
        let mut times = vec![1.0_f32; arguments.replays];
        let mut replay = || -> Result<f32, Box<dyn Error>> {
            program.stream.synchronize()?;
            let start = Instant::now();
            let _ = capture.replay(&program.stream)?;
            Ok(start.elapsed().as_secs_f32() * 1e6)
        };
        for _ in 0..arguments.replays.min(1000) {
            replay()?;
        }
        let memory = || -> Result<_, Box<dyn Error>> { Ok((resident(), program.context.memory_info()?.free as i64)) };
        let before = memory()?;
        for time in &mut times {
            *time = replay()?;
        }
        let after = memory()?;
        times.sort_by(f32::total_cmp);
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        let [median, p99, p999, max] = [0.5, 0.99, 0.999, 1.0].map(at);
        let host = before.0.zip(after.0).map(|(before, after)| (after - before) >> 10);
        let device = (before.1 - after.1) >> 10;
        if arguments.json {
            let row = serde_json::json!({
                "bench": "soak", "arm": name, "replays": arguments.replays, "segments": shape.segments, "kernels": shape.kernels,
                "host_us_median": median, "host_us_p99": p99, "host_us_p999": p999, "host_us_max": max,
                "host_kib_more": host, "device_kib_more": device,
            });
            println!("{row}");
        } else {
            let host = host.map_or_else(|| "unknown".into(), |host| host.to_string());
            let ratio = p99 / median;
            println!(
                "{name:<24} {median:>8.2} {p99:>8.2} {p999:>8.2} {max:>10.1} {ratio:>12.2} {host:>14} {device:>16}"
            );
        }
    }
    Ok(())
}

/// Bytes of this process that are in memory, where the system tells.
fn resident() -> Option<i64> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(pages.split(' ').nth(1)?.parse::<i64>().ok()? * 4096)
}
