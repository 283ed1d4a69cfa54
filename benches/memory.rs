//! Memory of captures: what plans take beside the lower bound and online placement, what planning and an allocation cost, and how long memory takes to
//! go and come back.
//!
//! `cargo bench --bench memory [-- --json] [--instances FOLDER]`

#[path = "support/common.rs"]
mod common;
#[path = "../examples/support/instance.rs"]
mod instance;
#[path = "../examples/support/programs.rs"]
mod programs;
#[path = "../examples/support/mod.rs"]
mod support;

use breakable_cuda_graph::driver::{Context, Stream};
use breakable_cuda_graph::memory::planner::{PlanOptions, SearchBudget, plan};
use breakable_cuda_graph::memory::{PoolPlan, Trace, online_footprint};
use breakable_cuda_graph::pool::Backing;
use breakable_cuda_graph::prefill::{Ladder, LadderOptions};
use breakable_cuda_graph::{
    BreakableCapture, CaptureOptions, CapturePool, DType, PoolOptions, Result, Tensor, eager, empty, trace,
};
use clap::{Parser, ValueEnum};
use common::Common;
use programs::Program;
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use support::demo::Ops;

/// Measures the memory of captures, and what planning it costs.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    /// A folder of instances of static memory allocation, as CSV files of `id,lower,upper,size`.
    #[arg(long)]
    instances: Option<PathBuf>,
    /// The times for each instance, in seconds.
    #[arg(long, value_delimiter = ',', default_values_t = [1.0, 10.0])]
    seconds: Vec<f64>,
    /// Releases and restores.
    #[arg(long, default_value_t = 100)]
    releases: usize,
}

const PROGRAMS: [Program; 3] = [Program::Stack, Program::Decoder8b, Program::Decoder70bEighth];

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let (driver, line) = support::driver(arguments.common.driver)?;
    if !arguments.common.json {
        println!("{line}");
    }
    let context = support::context(&driver, 0)?;
    let bench = Bench {
        json: arguments.common.json,
        driver: driver.origin().to_string(),
        ops: Ops::load(&context)?,
        stream: Stream::new(&context)?,
        pool: CapturePool::new(&context)?,
        context,
    };
    bench.pools()?;
    bench.planning()?;
    bench.allocations()?;
    bench.releases(arguments.releases)?;
    if let Some(folder) = &arguments.instances {
        for &seconds in &arguments.seconds {
            bench.instances(folder, seconds)?;
        }
    }
    Ok(())
}

struct Bench {
    json: bool,
    driver: String,
    ops: Ops,
    stream: Stream,
    pool: CapturePool,
    context: Context,
}

impl Bench {
    fn title(&self, title: &str, columns: &[&str]) {
        if !self.json {
            println!("\n{title}\n\n| {} |\n|{}", columns.join(" | "), "---|".repeat(columns.len()));
        }
    }

    /// One row: as text, or as an object with the values' names.
    fn row(&self, table: &str, text: &[String], values: serde_json::Value) {
        if self.json {
            let mut row = json!({ "bench": "memory", "table": table, "driver": self.driver });
            if let (Some(row), serde_json::Value::Object(values)) = (row.as_object_mut(), values) {
                row.extend(values);
            }
            println!("{row}");
        } else {
            println!("| {} |", text.join(" | "));
        }
    }

    /// What the largest bucket of each program takes: at its peak, planned, and placed online.
    fn pools(&self) -> Result<()> {
        self.title("Pool of 8192 rows", &["program", "peak of live bytes", "planned", "online best fit"]);
        for program in PROGRAMS {
            let trace = program.trace_of_one_row(&self.ops, &self.pool, &self.stream)?.scaled(8192);
            let plan = PoolPlan::new([trace.clone()], &PlanOptions::new())?;
            let (peak, planned, online) = (plan.lower_bound(), plan.bytes(), online(&trace));
            let over = |bytes: usize| format!("{} ({:+.1}%)", mebibytes(bytes), percent(bytes, peak));
            let name = name(program);
            self.row(
                "pools",
                &[name.clone(), mebibytes(peak), over(planned), over(online)],
                json!({ "program": name, "rows": 8192, "peak": peak, "planned": planned, "online": online }),
            );
        }
        Ok(())
    }

    /// The time for planning a ladder of 40 buckets.
    fn planning(&self) -> Result<()> {
        self.title("Planning the 40 buckets up to 2048 rows", &["program", "requests a bucket", "ms", "quartiles"]);
        let ladder = Ladder::new(&LadderOptions::new(2048));
        for program in PROGRAMS {
            let one = program.trace_of_one_row(&self.ops, &self.pool, &self.stream)?;
            let traces: Vec<Trace> = ladder.buckets().iter().map(|&rows| one.scaled(rows)).collect();
            let mut times = Vec::new();
            for _ in 0..21 {
                let traces = traces.clone();
                let started = Instant::now();
                let plan = PoolPlan::new(traces, &PlanOptions::new())?;
                times.push(started.elapsed().as_secs_f64() * 1e3);
                assert_eq!(plan.traces().len(), 40);
            }
            let [low, median, high] = quartiles(&mut times);
            let (name, requests) = (name(program), one.requests().len());
            self.row(
                "planning",
                &[name.clone(), requests.to_string(), format!("{median:.2}"), format!("{low:.2} to {high:.2}")],
                json!({ "program": name, "requests": requests, "buckets": 40, "ms": median, "ms_quartiles": [low, high] }),
            );
        }
        Ok(())
    }

    /// The time of one allocation in a segment: a tensor of the pool.
    fn allocations(&self) -> Result<()> {
        self.title("A tensor in a segment", &["placed", "ns", "quartiles"]);
        const TENSORS: usize = 2000;
        // Eight are live at once, of sizes that repeat.
        let forward = |times: &mut Vec<f64>| -> Result<Option<Tensor>> {
            let mut live: [Option<Tensor>; 8] = Default::default();
            for turn in 0..TENSORS {
                live[turn % 8] = None;
                let started = Instant::now();
                let tensor = empty(DType::F32, &[64 << (turn % 5), 128])?;
                times.push(started.elapsed().as_secs_f64() * 1e9);
                live[turn % 8] = Some(tensor);
            }
            Ok(live[0].take())
        };
        let (traced, _) = trace(&self.pool, &self.stream, |_| forward(&mut Vec::new()))?;
        let plan = PoolPlan::new([traced], &PlanOptions::new())?;
        for planned in [true, false] {
            let pool = CapturePool::new(&self.context)?;
            let mut times = Vec::new();
            for round in 0..6 {
                let mut options = CaptureOptions::default();
                if planned {
                    pool.take_plan(&plan)?;
                    options = options.plan(&plan.traces()[0]);
                }
                let mut capture = BreakableCapture::with_options(&pool, options)?;
                let mut taken = Vec::with_capacity(TENSORS);
                drop(capture.record(&self.stream, |_| forward(&mut taken))?);
                // The first takes the memory.
                if round > 0 {
                    times.extend(taken);
                }
            }
            assert_eq!(pool.usage()?.divergences, 0);
            let [low, median, high] = quartiles(&mut times);
            let how = if planned { "from the plan" } else { "by online best fit" };
            self.row(
                "allocations",
                &[how.to_owned(), format!("{median:.0}"), format!("{low:.0} to {high:.0}")],
                json!({ "placed": how, "ns": median, "ns_quartiles": [low, high] }),
            );
        }
        Ok(())
    }

    /// The time in which 512 MiB go and come back under a capture, which is replayed in between.
    fn releases(&self, count: usize) -> Result<()> {
        let bytes: usize = 512 << 20;
        self.title("512 MiB under captures", &["call", "µs", "quartiles"]);
        let options = PoolOptions::default().max_bytes(bytes).backing(Backing::ReservedAddresses);
        let pool = CapturePool::with_options(&self.context, options)?;
        let x = Tensor::from_slice(&self.stream, &[1.0_f32; 1024], &[1024])?;
        let mut capture = BreakableCapture::new(&pool)?;
        let out = capture.record(&self.stream, |_| {
            let big = empty(DType::U8, &[bytes - (1 << 20)])?;
            let y = self.ops.scale(&x, 3.0)?;
            drop(big);
            Ok(y)
        })?;
        assert_eq!(pool.usage()?.reserved, bytes);
        let expected: Vec<f32> = eager(&pool, &self.stream, |_| self.ops.scale(&x, 3.0))?.read(&self.stream)?;
        let mut times: [Vec<f64>; 2] = Default::default();
        for _ in 0..count {
            let _ = capture.replay(&self.stream)?;
            assert_eq!(out.read::<f32>(&self.stream)?, expected);
            let started = Instant::now();
            pool.release()?;
            let released = started.elapsed();
            let started = Instant::now();
            pool.restore()?;
            for (times, took) in times.iter_mut().zip([released, started.elapsed()]) {
                times.push(took.as_secs_f64() * 1e6);
            }
        }
        for (call, mut times) in ["release", "restore"].into_iter().zip(times) {
            let [low, median, high] = quartiles(&mut times);
            self.row(
                "releases",
                &[call.to_owned(), format!("{median:.0}"), format!("{low:.0} to {high:.0}")],
                json!({ "call": call, "bytes": bytes, "count": count, "us": median, "us_quartiles": [low, high] }),
            );
        }
        Ok(())
    }

    /// Each instance of a folder, on one core.
    fn instances(&self, folder: &PathBuf, seconds: f64) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let mut files: Vec<PathBuf> =
            std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<_>>()?;
        files.retain(|file| file.extension().is_some_and(|extension| extension == "csv"));
        files.sort();
        self.title(
            &format!("Instances, {seconds} s each"),
            &["instance", "buffers", "lower bound", "planned", "overhead", "by", "s"],
        );
        let (mut sum, mut count) = (0.0, 0);
        for file in files {
            let instance = instance::read(&file)?;
            let budget = SearchBudget::Time(Duration::from_secs_f64(seconds));
            let started = Instant::now();
            let placement = plan(&instance.specs, &PlanOptions::new().alignment(1).budget(budget))?;
            let took = started.elapsed().as_secs_f64();
            let (bound, bytes) = (placement.lower_bound(), placement.bytes());
            let overhead = percent(bytes, bound);
            let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let method = format!("{:?}", placement.method());
            self.row(
                "instances",
                &[
                    name.clone(),
                    instance.specs.len().to_string(),
                    bound.to_string(),
                    bytes.to_string(),
                    format!("{overhead:.2}%"),
                    method.clone(),
                    format!("{took:.2}"),
                ],
                json!({
                    "instance": name, "buffers": instance.specs.len(), "lower_bound": bound, "planned": bytes,
                    "overhead_percent": overhead, "method": method, "seconds": took, "budget_seconds": seconds,
                }),
            );
            sum += overhead;
            count += 1;
        }
        let mean = if count > 0 { sum / f64::from(count) } else { 0.0 };
        if !self.json {
            println!("\nmean overhead {mean:.2}%");
        }
        Ok(())
    }
}

/// What online best fit takes for a trace, in slabs.
fn online(trace: &Trace) -> usize {
    online_footprint([trace]).and_then(|all| all.last().copied()).unwrap_or(usize::MAX)
}

fn name(program: Program) -> String {
    program.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn mebibytes(bytes: usize) -> String {
    format!("{:.2} MiB", bytes as f64 / (1 << 20) as f64)
}

fn percent(bytes: usize, bound: usize) -> f64 {
    100.0 * (bytes as f64 / bound.max(1) as f64 - 1.0)
}

fn quartiles(values: &mut [f64]) -> [f64; 3] {
    values.sort_unstable_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values.get(values.len() * quarter / 4).copied().unwrap_or(0.0))
}
