//! Plans the memory of a program's captures, prints a table of its buckets and draws the largest one's plan; or plans an instance from a CSV file.
//!
//! `cargo run --release --example memory_plan -- --out plan.svg`

#[path = "../support/instance.rs"]
pub(crate) mod instance;
#[path = "../support/programs.rs"]
pub(crate) mod programs;
#[path = "../support/mod.rs"]
pub(crate) mod support;

pub(crate) mod args;
pub(crate) mod picture;
pub(crate) mod run;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run::run(&args::Arguments::parse(), &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("memory_plan: {error}");
            ExitCode::FAILURE
        }
    }
}
