//! Arguments.

use super::programs::Program;
use super::support::Choice;
use clap::Parser;
use std::path::PathBuf;

/// Plans the memory of a program's captures: a table of its buckets, and a picture of the largest one's plan. Nothing is captured.
#[derive(Parser)]
pub struct Arguments {
    /// The program.
    #[arg(long, value_enum, default_value_t)]
    pub program: Program,
    /// The buckets, in rows.
    #[arg(long, value_delimiter = ',', default_values_t = [8192, 4096, 2048, 1024, 512, 256],
          value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub rows: Vec<u64>,
    /// Where to draw the largest bucket's plan, as SVG: blocks over time and address, the live bytes and the lower bound.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Plan this instance instead: a CSV file of `id,lower,upper,size`. With --out it is drawn too.
    #[arg(long, conflicts_with_all = ["program", "rows"])]
    pub csv: Option<PathBuf>,
    /// The time for planning an instance, in seconds.
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    pub seconds: f64,
    /// Which driver traces the program.
    #[arg(long, value_enum, default_value_t)]
    pub driver: Choice,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=86400.0).contains(&seconds) => Ok(seconds),
        _ => Err("give a number of seconds from 0 to 86400".to_owned()),
    }
}
