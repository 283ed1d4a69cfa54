//! What the program does with its arguments.

use super::args::Arguments;
use super::picture::{self, Block};
use super::programs::Program;
use super::support::demo::Ops;
use super::{instance, support};
use breakable_cuda_graph::CapturePool;
use breakable_cuda_graph::driver::Stream;
use breakable_cuda_graph::memory::Role;
use breakable_cuda_graph::memory::planner::{PlanOptions, SearchBudget, plan};
use breakable_cuda_graph::memory::{PlannedBlock, PoolPlan, TracePlan};
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    match &arguments.csv {
        Some(file) => plan_instance(arguments, file, out),
        None => plan_program(arguments, out),
    }
}

fn plan_instance(arguments: &Arguments, file: &Path, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let instance = instance::read(file)?;
    let started = Instant::now();
    let budget = SearchBudget::Time(Duration::from_secs_f64(arguments.seconds));
    let placement = plan(&instance.specs, &PlanOptions::new().alignment(1).budget(budget))?;
    let took = started.elapsed().as_secs_f64();
    writeln!(
        out,
        "planned {}, lower bound {}, overhead {:.2}%, {took:.3} s",
        placement.bytes(),
        placement.lower_bound(),
        100.0 * placement.overhead()
    )?;
    let Some(picture) = &arguments.out else { return Ok(()) };
    let buffers = instance.ids.iter().zip(&instance.specs).zip(placement.offsets());
    let blocks: Vec<Block> = buffers
        .map(|((name, spec), &offset)| Block {
            name: name.clone(),
            role: Role::Intermediate,
            begin: spec.begin,
            end: spec.end,
            offset,
            bytes: spec.bytes,
        })
        .collect();
    Ok(picture::draw(picture, &file.display().to_string(), &blocks, placement.bytes(), placement.lower_bound())?)
}

fn plan_program(arguments: &Arguments, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let (driver, line) = support::driver(arguments.driver)?;
    writeln!(out, "{line}")?;
    let context = support::context(&driver, 0)?;
    let (stream, pool, ops) = (Stream::new(&context)?, CapturePool::new(&context)?, Ops::load(&context)?);
    let mut rows: Vec<usize> = arguments.rows.iter().map(|&rows| rows as usize).collect();
    rows.sort_unstable_by(|a, b| b.cmp(a));
    rows.dedup();
    let one = arguments.program.trace_of_one_row(&ops, &pool, &stream)?;
    let started = Instant::now();
    let plan = PoolPlan::new(rows.iter().map(|&rows| one.scaled(rows)), &PlanOptions::new())?;
    let took = started.elapsed();
    writeln!(out, "{}: {} requests, planned in {took:.1?}", title(arguments.program), one.requests().len())?;
    writeln!(out, "| rows | peak of live bytes | planned | waste | by |\n|---|---|---|---|---|")?;
    for (rows, trace) in rows.iter().zip(plan.traces()) {
        let (peak, planned) = (trace.lower_bound(), trace.bytes());
        let waste = 100.0 * (planned as f64 / peak.max(1) as f64 - 1.0);
        writeln!(
            out,
            "| {rows} | {} | {} | {waste:.2}% | {:?} |",
            mebibytes(peak),
            mebibytes(planned),
            trace.method()
        )?;
    }
    let sum: usize = plan.traces().iter().map(TracePlan::bytes).sum();
    writeln!(out, "one range for all: {}; each its own: {}", mebibytes(plan.bytes()), mebibytes(sum))?;
    let (Some(picture), Some(largest)) = (&arguments.out, plan.traces().first()) else { return Ok(()) };
    let title = format!("{}, {} rows", title(arguments.program), rows[0]);
    picture::draw(picture, &title, &blocks(largest), largest.bytes(), largest.lower_bound())?;
    writeln!(out, "drawn in {}", picture.display())?;
    Ok(())
}

fn blocks(plan: &TracePlan) -> Vec<Block> {
    let trace = plan.trace();
    let end = trace.steps().len();
    plan.blocks()
        .map(|PlannedBlock { request, offset, bytes, .. }| {
            let traced = &trace.requests()[request];
            Block {
                name: trace.name(request).unwrap_or_default().to_owned(),
                role: traced.role,
                begin: traced.allocated as u64,
                end: traced.released.unwrap_or(end).max(traced.allocated + 1) as u64,
                offset,
                bytes,
            }
        })
        .collect()
}

fn mebibytes(bytes: usize) -> String {
    format!("{:.2} MiB", bytes as f64 / (1 << 20) as f64)
}

/// What a program is, in a few words.
fn title(program: Program) -> &'static str {
    match program {
        Program::Stack => "four layers 512 → 2048 → 512, float32",
        Program::Decoder8b => "decoder of 8B, 32 layers, bfloat16",
        Program::Decoder70bEighth => "one eighth of a decoder of 70B, 80 layers, bfloat16",
    }
}
