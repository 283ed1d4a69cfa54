//! The main job in small: a forward of several layers, with an attention-like break in each, is captured once for each bucket of padded rows and
//! replayed for batches of any size that fits. Every result is compared with the same forward run without capture.
//!
//! `cargo run --release --example prefill`

#[path = "support/mod.rs"]
mod support;

use breakable_cuda_graph::driver::Stream;
use breakable_cuda_graph::memory::PoolPlan;
use breakable_cuda_graph::memory::planner::PlanOptions;
use breakable_cuda_graph::{
    BreakableCapture, CaptureOptions, CapturePool, DType, ReplayOptions, Result, Scope, Tensor, eager, trace,
};
use clap::Parser;
use std::process::ExitCode;
use support::demo::{Ops, Weight};

const WIDTH: usize = 64;
const LAYERS: usize = 4;
const BUCKETS: [usize; 3] = [4, 8, 16];

/// Captures a small model for the buckets 4, 8 and 16, and replays it for batches of 1 to 16 rows.
#[derive(Parser)]
struct Arguments {
    /// Which driver to use.
    #[arg(long, value_enum, default_value_t)]
    driver: support::Choice,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => {
            println!("parity: ok");
            ExitCode::SUCCESS
        }
        Ok(false) => {
            println!("parity: FAILED");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("prefill: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The model: a matrix product, a break and a residual sum in each layer, and one more product at the end.
struct Model {
    ops: Ops,
    weights: Vec<Tensor>,
}

impl Model {
    fn new(ops: Ops, stream: &Stream) -> Result<Model> {
        let weights = (0..=LAYERS)
            .map(|layer| Tensor::from_slice(stream, &values(layer as u64, WIDTH * WIDTH, 0.2), &[WIDTH, WIDTH]))
            .collect::<Result<_>>()?;
        Ok(Model { ops, weights })
    }

    /// Into `y`, one buffer of the largest size for all buckets.
    fn forward<'env>(&'env self, scope: &Scope<'_, 'env>, x: &Tensor, y: &Tensor) -> Result<()> {
        let mut x = x.clone();
        for weight in &self.weights[..LAYERS] {
            let h = self.ops.matmul(&x, weight)?;
            let attended = scope.break_point("attention", [&h], move |b| self.ops.relu(b.input(0)?))?;
            x = self.ops.add(&attended, &x)?;
        }
        self.ops.linear_into(&scope.stream()?, &x, Weight::RowMajor(&self.weights[LAYERS]), None, y)
    }
}

fn run(arguments: &Arguments) -> std::result::Result<bool, Box<dyn std::error::Error>> {
    let (driver, line) = support::driver(arguments.driver)?;
    println!("{line}");
    let context = support::context(&driver, 0)?;
    let stream = Stream::new(&context)?;
    let pool = CapturePool::new(&context)?;
    let model = Model::new(Ops::load(&context)?, &stream)?;
    let largest = BUCKETS[BUCKETS.len() - 1];
    let input = Tensor::zeros(&stream, DType::F32, &[largest, WIDTH])?;
    let output = Tensor::zeros(&stream, DType::F32, &[largest, WIDTH])?;

    // A warm-up of each bucket, traced: what all captures will take of the pool is known before there is one.
    let mut traces = Vec::new();
    for bucket in BUCKETS {
        let (x, y) = (input.leading_rows(bucket), output.leading_rows(bucket));
        traces.push(trace(&pool, &stream, |scope| model.forward(scope, &x, &y))?.0);
    }
    let plan = PoolPlan::new(traces, &PlanOptions::default())?;
    pool.take_plan(&plan)?;

    let mut captures = Vec::new();
    println!(
        "\n{:>6} {:>8} {:>6} {:>8} {:>5} {:>10}",
        "bucket", "segments", "breaks", "launches", "nodes", "pool bytes"
    );
    for (bucket, trace) in BUCKETS.into_iter().zip(plan.traces()) {
        let (x, y) = (input.leading_rows(bucket), output.leading_rows(bucket));
        let options = CaptureOptions::default().bucket(bucket).plan(trace);
        let mut capture = BreakableCapture::with_options(&pool, options)?;
        capture.record(&stream, |scope| model.forward(scope, &x, &y))?;
        let report = capture.report();
        println!(
            "{bucket:>6} {:>8} {:>6} {:>8} {:>5} {:>10}",
            report.segments,
            report.breaks.len(),
            report.launches,
            report.nodes.total(),
            pool.usage()?.reserved
        );
        captures.push((bucket, capture));
    }
    let usage = pool.usage()?;
    let planned = usage.reserved == usage.planned && usage.divergences == 0;
    let (bytes, verdict) = (plan.bytes(), if planned { "as planned" } else { "NOT AS PLANNED" });
    println!("pool: {bytes} bytes planned, in {} of slabs, {verdict}", usage.planned);

    println!("\n{:>6} {:>6}  largest difference", "rows", "bucket");
    let mut parity = planned;
    for (batch, rows) in [3, 4, 5, 8, 11, 16, 1].into_iter().enumerate() {
        let real = values(100 + batch as u64, rows * WIDTH, 1.0);
        // The smallest bucket that holds the batch.
        let fitting = captures.iter_mut().find(|(bucket, _)| *bucket >= rows).ok_or("no bucket is large enough")?;
        let (bucket, capture) = fitting;
        input.fill_bytes(&stream, 0)?;
        input.leading_rows(rows).write(&stream, &real)?;
        let _ = capture.replay_with(&stream, ReplayOptions::default().valid_rows(rows))?;
        let replayed = output.leading_rows(rows).read::<f32>(&stream)?;

        let x = Tensor::from_slice(&stream, &real, &[rows, WIDTH])?;
        let y = Tensor::zeros(&stream, DType::F32, &[rows, WIDTH])?;
        eager(&pool, &stream, |scope| model.forward(scope, &x, &y))?;
        let expected = y.read::<f32>(&stream)?;
        let difference = replayed.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // The same kernels on the same rows: nothing but equality will do. NaN is not equal.
        let same = replayed == expected;
        parity &= same;
        println!("{rows:>6} {bucket:>6}  {difference:e}{}", if same { "" } else { "  DIFFERS" });
    }
    Ok(parity)
}

/// Values between `-scale` and `scale` that depend on the seed alone.
fn values(seed: u64, count: usize, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0) * scale
    };
    (0..count).map(|_| next()).collect()
}
