//! What a replay costs: host time beside bare driver calls, those of a live replay on the very same execs, and time back to back.
//!
//! The program: 33 segments of 8 small kernels with 32 breaks of 2 kernels between them; each break writes its handoff itself. A second program with
//! breaks of no kernels shows what an empty break and the gap between two launches cost.
//!
//! `cargo bench --bench replay [-- --json] [--sweep]`

#[path = "support/arms.rs"]
#[allow(dead_code, reason = "the bench `soak` has more")]
mod arms;
#[path = "support/bare.rs"]
mod bare;
#[path = "support/common.rs"]
mod common;
#[path = "support/measure.rs"]
mod measure;
#[path = "support/program.rs"]
mod program;
#[path = "../examples/support/mod.rs"]
mod support;

use arms::{Arm, Contender};
use breakable_cuda_graph::driver::{Context, Event, EventFlags};
use clap::Parser;
use common::Common;
use measure::quartiles;
use program::{Program, Shape};
use std::error::Error;
use std::time::Instant;

/// Compares replays with a bare loop of the same driver calls.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    shape: Shape,
    /// Interleaved blocks of each arm.
    #[arg(long, default_value_t = 200)]
    blocks: usize,
    /// Replays in a block.
    #[arg(long, default_value_t = 10)]
    replays: usize,
    /// Also 1 to 129 segments of 1 to 16 kernels.
    #[arg(long)]
    sweep: bool,
}

/// The first is live, which the bare loop goes over.
const ALL: [Arm; 14] = [
    arms::LIVE,
    arms::LIVE_CHECKED,
    arms::PATCHED,
    arms::CHANGED,
    arms::OTHER_GRIDS,
    arms::RECURRING_GRIDS,
    arms::PATCHED_CHECKED,
    arms::PRIORITIES,
    arms::CAPTURED,
    arms::CAPTURED_CHANGED,
    arms::FROZEN,
    arms::BARE_CHANGED,
    arms::BARE_OTHER_GRIDS,
    arms::BARE_LOOP,
];
const FEW: [Arm; 4] = [arms::LIVE, arms::CHANGED, arms::FROZEN, arms::BARE_LOOP];

/// What an arm took.
struct Row {
    name: &'static str,
    host: [f64; 3],
    over_bare: [f64; 3],
    back_to_back: [f64; 3],
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let (driver, line) = support::driver(arguments.common.driver)?;
    if !arguments.common.json {
        println!("{line}");
    }
    let context = support::context(&driver, 0)?;
    let (shape, blocks) = (arguments.shape, arguments.blocks);
    let rows = run(&context, shape, &ALL, blocks, arguments.replays)?;
    print(&arguments, shape, blocks, &rows);
    let difference = |a: &str, b: &str, of: &dyn Fn(&Row) -> f64| {
        let find = |name| rows.iter().find(|row| row.name == name).map_or(f64::NAN, of);
        find(a) - find(b)
    };
    let nodes = (shape.breaks() * shape.break_kernels) as f64;
    let patch = difference("patched, changed", "patched", &|row| row.host[1]) / nodes;
    let captured = difference("captured, changed", "patched, changed", &|row| row.host[1]) / shape.breaks() as f64;

    let empty = Shape { break_kernels: 0, ..shape };
    let rows = run(&context, empty, &FEW, blocks, arguments.replays)?;
    print(&arguments, empty, blocks, &rows);
    let [live, _, frozen, bare] = &rows[..] else { return Err("four rows".into()) };
    let breaks = shape.breaks() as f64;
    let dispatch = (live.host[1] - bare.host[1]) / breaks;
    let gap = (live.back_to_back[1] - frozen.back_to_back[1]) / breaks;
    let singles = [
        ("patch of a kernel node", patch),
        ("stream capture of a body, over its notes", captured),
        ("dispatch of an empty break", dispatch),
        ("gap between two launches on the device", gap),
    ];
    for (what, microseconds) in singles {
        if arguments.common.json {
            println!("{}", serde_json::json!({ "bench": "replay", "single": what, "us": microseconds }));
        } else {
            println!("{what}: {microseconds:.3} µs");
        }
    }
    if arguments.sweep {
        for segments in [1, 9, 33, 129] {
            for kernels in [1, 4, 16] {
                let shape = Shape { segments, kernels, ..shape };
                let blocks = blocks.min(20);
                let rows = run(&context, shape, &FEW, blocks, arguments.replays)?;
                print(&arguments, shape, blocks, &rows);
            }
        }
    }
    Ok(())
}

/// Runs the arms in interleaved blocks. The last one is the bare loop.
fn run(
    context: &Context,
    shape: Shape,
    arms: &[Arm],
    blocks: usize,
    replays: usize,
) -> Result<Vec<Row>, Box<dyn Error>> {
    const WARM: usize = 5;
    let program = Program::new(context, shape)?;
    let mut contenders = Contender::all(&program, arms)?;
    let count = arms.len();
    let mut times = vec![Vec::new(); count];
    context.with_current(|| -> Result<(), Box<dyn Error>> {
        for block in 0..blocks + WARM {
            // The arm that goes first alternates, so that none always finds the machine as another left it.
            for turn in 0..count {
                let arm = (turn + block) % count;
                let mut seconds = 0.0;
                for _ in 0..replays {
                    program.stream.synchronize()?;
                    let start = Instant::now();
                    contenders[arm].replay(&program)?;
                    seconds += start.elapsed().as_secs_f64();
                }
                if block >= WARM {
                    times[arm].push(seconds * 1e6 / replays as f64);
                }
            }
        }
        Ok(())
    })??;
    let device = context.with_current(|| back_to_back(&program, &mut contenders, blocks / 10 + 5))??;
    let bare_times = times[count - 1].clone();
    let rows = arms.iter().zip(times).zip(device).map(|((arm, mut host), back_to_back)| {
        let mut ratios: Vec<f64> = host.iter().zip(&bare_times).map(|(arm, bare)| arm / bare).collect();
        Row { name: arm.name, host: quartiles(&mut host), over_bare: quartiles(&mut ratios), back_to_back }
    });
    Ok(rows.collect())
}

/// Quartiles of the microseconds of one replay among many, between two events: the longer of the device's time and the host's.
fn back_to_back(
    program: &Program,
    contenders: &mut [Contender],
    rounds: usize,
) -> Result<Vec<[f64; 3]>, Box<dyn Error>> {
    const REPLAYS: usize = 20;
    let event = || Event::with_flags(&program.context, EventFlags::TIMING);
    let (from, to) = (event()?, event()?);
    let mut times = vec![Vec::new(); contenders.len()];
    for _ in 0..rounds {
        for (contender, times) in contenders.iter_mut().zip(&mut times) {
            program.stream.synchronize()?;
            from.record(&program.stream)?;
            for _ in 0..REPLAYS {
                contender.replay(program)?;
            }
            to.record(&program.stream)?;
            to.synchronize()?;
            times.push(to.elapsed_since(&from)?.as_secs_f64() * 1e6 / REPLAYS as f64);
        }
    }
    Ok(times.iter_mut().map(|times| quartiles(times)).collect())
}

fn print(arguments: &Arguments, shape: Shape, blocks: usize, rows: &[Row]) {
    if !arguments.common.json {
        println!("\n{shape}; {blocks} interleaved blocks of {} replays", arguments.replays);
        println!(
            "{:<29} {:>8} {:>18} {:>10} {:>18} {:>13} {:>18}",
            "arm", "host µs", "quartiles", "over bare", "quartiles", "back to back", "quartiles"
        );
    }
    for Row { name, host: [low, median, high], over_bare, back_to_back } in rows {
        let ([ratio_low, ratio, ratio_high], [least, back_to_back, most]) = (over_bare, back_to_back);
        if arguments.common.json {
            let row = serde_json::json!({
                "bench": "replay", "arm": name, "segments": shape.segments, "kernels": shape.kernels,
                "break_kernels": shape.break_kernels, "elements": shape.elements, "blocks": blocks,
                "host_us_median": median, "host_us_quartiles": [low, high],
                "over_bare_median": ratio, "over_bare_quartiles": [ratio_low, ratio_high], "back_to_back_us": back_to_back,
                "back_to_back_us_quartiles": [least, most],
            });
            println!("{row}");
        } else {
            let (spread, ratio_spread) =
                (format!("{low:.1} to {high:.1}"), format!("{ratio_low:.4} to {ratio_high:.4}"));
            let last = format!("{least:.1} to {most:.1}");
            println!(
                "{name:<29} {median:>8.2} {spread:>18} {ratio:>10.4} {ratio_spread:>18} {back_to_back:>13.1} {last:>18}"
            );
        }
    }
}
