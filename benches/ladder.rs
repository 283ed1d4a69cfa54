//! Padding of the default ladder and of fitted ones, for three distributions of batch sizes up to 2048 tokens. Arithmetic; needs no device.
//!
//! `cargo bench --bench ladder`

use breakable_cuda_graph::prefill::{CostModel, Ladder, LadderOptions};
use clap::Parser;

const MAX: usize = 2048;
/// Batches of each distribution.
const BATCHES: f64 = 1e9;

/// Compares ladders.
#[derive(Parser)]
struct Arguments {
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

/// `histogram[rows]` batches, in proportion to a weight.
fn histogram(weight: impl Fn(f64) -> f64) -> Vec<u64> {
    let weights: Vec<f64> = (0..=MAX).map(|rows| if rows == 0 { 0.0 } else { weight(rows as f64) }).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| (weight / sum * BATCHES) as u64).collect()
}

fn normal(x: f64, mean: f64, deviation: f64) -> f64 {
    (-0.5 * ((x - mean) / deviation).powi(2)).exp() / deviation
}

/// Padded rows over valid rows.
fn padding(ladder: &Ladder, histogram: &[u64]) -> f64 {
    let (mut padded, mut real) = (0.0, 0.0);
    for (rows, &count) in histogram.iter().enumerate() {
        if let Some(bucket) = ladder.bucket_for(rows).filter(|_| rows > 0) {
            padded += count as f64 * (bucket - rows) as f64;
            real += count as f64 * rows as f64;
        }
    }
    padded / real
}

fn main() {
    let arguments = Arguments::parse();
    let distributions = [
        ("uniform", histogram(|_| 1.0)),
        ("log-normal, median 200, sigma 1", histogram(|x| normal(x.ln(), 200_f64.ln(), 1.0) / x)),
        ("bimodal, 128 ± 40 and 1500 ± 150", histogram(|x| normal(x, 128.0, 40.0) + normal(x, 1500.0, 150.0))),
    ];
    let default = Ladder::new(&LadderOptions::new(MAX));
    let same = default.buckets().len();
    let counts = [8, 16, 24, same];
    if !arguments.json {
        println!("Mean padding, padded rows over valid rows, up to {MAX} rows\n");
        println!("| distribution | default, {same} | {} |", counts.map(|count| format!("fitted, {count}")).join(" | "));
        println!("|---|---|{}", "---|".repeat(counts.len()));
    }
    for (name, histogram) in distributions {
        let fitted = counts.map(|count| padding(&Ladder::fit(&histogram, count, MAX, &CostModel::Rows), &histogram));
        let rule = padding(&default, &histogram);
        if arguments.json {
            let fitted: Vec<_> = counts.iter().zip(fitted).collect();
            println!("{}", serde_json::json!({ "distribution": name, "default": rule, "fitted": fitted }));
        } else {
            let percent = |padding: f64| format!("{:.2}%", 100.0 * padding);
            println!("| {name} | {} | {} |", percent(rule), fitted.map(percent).join(" | "));
        }
    }
}
