//! A real model on real text: the sentence encoder all-MiniLM-L6-v2, captured once and replayed.
//!
//! `scripts/fetch_model.py`, then `cargo run --release --example embed -- --text FILE`
//!
//! The exit status is 0 where all went well, 1 where a comparison that was asked for failed, and 2 where there is nothing to compare: an error, told in
//! one line.

#[path = "../support/blas.rs"]
pub(crate) mod blas;
#[path = "../support/mod.rs"]
pub(crate) mod support;

pub(crate) mod args;
pub(crate) mod batches;
pub(crate) mod encoder;
pub(crate) mod error;
pub(crate) mod golden;
pub(crate) mod model_files;
pub(crate) mod output;
pub(crate) mod progress;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod session;
pub(crate) mod text;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = args::Arguments::parse();
    let (mut out, mut log) = (std::io::stdout().lock(), std::io::stderr());
    ExitCode::from(run::status(&arguments, &mut out, &mut log))
}
