//! Very many replays: how long the slow ones are, and whether the process or the device's use of memory grows.
//!
//! `cargo bench --bench soak [-- --json] [--replays N] [--arm live --arm patched …]`

#[path = "support/arms.rs"]
#[allow(dead_code, reason = "the bench `replay` has more")]
mod arms;
#[path = "support/bare.rs"]
mod bare;
#[path = "support/common.rs"]
mod common;
#[path = "support/program.rs"]
mod program;
#[path = "../examples/support/mod.rs"]
mod support;

use arms::{Arm, Contender};
use clap::{Parser, ValueEnum};
use common::Common;
use program::{Program, Shape};
use std::error::Error;
use std::time::Instant;

/// Replays a program very often.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Replays of each arm.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    replays: u32,
    /// Segments of the program.
    #[arg(long, default_value_t = 5)]
    segments: usize,
    /// Kernels of a segment.
    #[arg(long, default_value_t = 4)]
    kernels: usize,
    /// What replays, an arm each time it is given. All without it.
    #[arg(long = "arm", value_enum)]
    arms: Vec<Chosen>,
}

/// An arm by its name on the command line.
///
/// The bare ones make the driver calls of a live and of a patched replay, with nothing around them: what is slow there is not the
/// crate's. What is slow in arithmetic is the machine's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Chosen {
    /// Live breaks.
    Live,
    /// Patched breaks, whose launches have other arguments on every replay.
    Patched,
    /// Everything in one graph, with nothing live.
    Frozen,
    /// The live arm's driver calls. It needs the live arm, whose graphs it launches.
    BareLive,
    /// The patched arm's driver calls.
    BarePatched,
    /// Arithmetic, without the driver.
    Arithmetic,
}

impl Chosen {
    fn arm(self) -> Arm {
        match self {
            Chosen::Live => arms::LIVE,
            Chosen::Patched => arms::CHANGED,
            Chosen::Frozen => arms::FROZEN,
            Chosen::BareLive => arms::BARE_LOOP,
            Chosen::BarePatched => arms::BARE_CHANGED,
            Chosen::Arithmetic => arms::ARITHMETIC,
        }
    }

    /// The arms of a list, or all; the live one first, since the bare loop is made from it.
    fn arms(mut chosen: Vec<Chosen>) -> Result<Vec<Arm>, &'static str> {
        chosen.sort_unstable();
        chosen.dedup();
        if chosen.is_empty() {
            chosen.extend(Chosen::value_variants());
        }
        if chosen.contains(&Chosen::BareLive) && !chosen.contains(&Chosen::Live) {
            return Err("`bare-live` launches the graphs of the arm `live`: choose that one too");
        }
        Ok(chosen.into_iter().map(Chosen::arm).collect())
    }
}

/// Replays of an arm before the next one's turn.
const TURN: usize = 1000;

/// What an arm took.
#[derive(Default)]
struct Taken {
    times: Vec<f32>,
    /// The 99th percentile over the median, of each turn: other work on the machine comes and goes over many turns.
    tails: Vec<f32>,
    host: Option<i64>,
    device: i64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let arms = Chosen::arms(arguments.arms)?;
    let (driver, line) = support::driver(arguments.common.driver)?;
    let context = support::context(&driver, 0)?;
    let shape = Shape { segments: arguments.segments, kernels: arguments.kernels, break_kernels: 1, elements: 1024 };
    let program = Program::new(&context, shape)?;
    if !arguments.common.json {
        println!("{line}");
        println!("{shape}; {} replays, each after the one before has run", arguments.replays);
        println!(
            "{:<24} {:>8} {:>8} {:>8} {:>10} {:>12} {:>10} {:>14} {:>16}",
            "arm", "median", "p99", "p99.9", "max µs", "p99/median", "in a turn", "host KiB more", "device KiB more"
        );
    }
    let replays = arguments.replays as usize;
    let mut contenders = Contender::all(&program, &arms)?;
    // Written before, so that their pages are there.
    let room = || Taken { times: vec![1.0; replays], tails: vec![1.0; replays.div_ceil(TURN)], ..Taken::default() };
    let mut taken: Vec<Taken> = arms.iter().map(|_| room()).collect();
    taken.iter_mut().for_each(|Taken { times, tails, .. }| {
        times.clear();
        tails.clear();
    });
    let mut turn = vec![1.0_f32; TURN];
    let memory = || -> Result<_, Box<dyn Error>> { Ok((resident(), program.context.memory_info()?.free as i64)) };
    context.with_current(|| -> Result<(), Box<dyn Error>> {
        // The machine is the same for all arms when it is slow. The first turn of each doesn't count.
        for round in 0..=replays.div_ceil(TURN) {
            let count = TURN.min(replays + TURN - round * TURN);
            for (contender, taken) in contenders.iter_mut().zip(&mut taken) {
                let before = memory()?;
                for _ in 0..count {
                    program.stream.synchronize()?;
                    let start = Instant::now();
                    contender.replay(&program)?;
                    let time = start.elapsed().as_secs_f32() * 1e6;
                    if round > 0 {
                        taken.times.push(time);
                    }
                }
                program.stream.synchronize()?;
                let after = memory()?;
                if round > 0 {
                    turn.clear();
                    turn.extend_from_slice(&taken.times[taken.times.len() - count..]);
                    let [median, p99] = [0.5, 0.99].map(percentiles(&mut turn));
                    taken.tails.push(p99 / median);
                    let more = after.0.zip(before.0).map(|(after, before)| after - before);
                    taken.host = more.map(|more| more + taken.host.unwrap_or(0));
                    taken.device += before.1 - after.1;
                }
            }
        }
        Ok(())
    })??;
    for (arm, Taken { mut times, mut tails, host, device }) in arms.iter().zip(taken) {
        let [median, p99, p999, max] = [0.5, 0.99, 0.999, 1.0].map(percentiles(&mut times));
        let tail = percentiles(&mut tails)(0.5);
        let (name, host, device) = (arm.name, host.map(|host| host >> 10), device >> 10);
        if arguments.common.json {
            let row = serde_json::json!({
                "bench": "soak", "arm": name, "replays": arguments.replays, "segments": shape.segments, "kernels": shape.kernels,
                "host_us_median": median, "host_us_p99": p99, "host_us_p999": p999, "host_us_max": max,
                "p99_over_median_of_a_turn": tail,
                "host_kib_more": host, "device_kib_more": device,
            });
            println!("{row}");
        } else {
            let host = host.map_or_else(|| "unknown".into(), |host| host.to_string());
            let ratio = p99 / median;
            println!(
                "{name:<24} {median:>8.2} {p99:>8.2} {p999:>8.2} {max:>10.1} {ratio:>12.2} {tail:>10.2} {host:>14} {device:>16}"
            );
        }
    }
    Ok(())
}

/// Sorts the values, and gives the one below which such a share of them is.
fn percentiles(values: &mut [f32]) -> impl Fn(f64) -> f32 {
    values.sort_unstable_by(f32::total_cmp);
    |share| values[((values.len() - 1) as f64 * share) as usize]
}

/// Bytes of this process that are in memory, where the system tells.
fn resident() -> Option<i64> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(pages.split(' ').nth(1)?.parse::<i64>().ok()? * 4096)
}
