//! A real model on real text: the sentence encoder all-MiniLM-L6-v2, captured once and replayed.
//!
//! `scripts/fetch_model.py`, then `cargo run --release --example embed -- --text FILE`

#[path = "../support/mod.rs"]
mod support;

mod args;
mod blas;
mod encoder;
mod error;
mod golden;
mod model_files;
mod text;

use args::Arguments;
use clap::Parser;
use encoder::{Encoder, Model};
use error::EmbedError;
use golden::Golden;
use model_files::ModelFiles;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

/// The least cosine with a golden vector that passes.
const LEAST_COSINE: f64 = 0.9999;

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("embed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool, Box<dyn std::error::Error>> {
    let (driver, line) = support::driver(arguments.driver)?;
    eprintln!("{line}");
    let golden = arguments.golden.as_deref().map(Golden::read).transpose()?;
    let files = ModelFiles::open(&arguments.model)?;
    let sentences = match (&arguments.text, &golden) {
        (Some(path), _) => text::sentences(&read(path)?),
        (None, Some(golden)) => golden.sentences.clone(),
        (None, None) => text::sentences(&read(Path::new("-"))?),
    };
    let packed = text::pack(&files.tokenizer()?, sentences, files.config()?.max_tokens, arguments.max_tokens)?;

    let context = support::context(&driver)?;
    let use_blas = !driver.is_reference() && !arguments.no_cublas;
    let blas = if use_blas { blas::Blas::load(&context)? } else { None };
    let model = Model::load(&files, &context, blas)?;
    eprintln!(
        "{} sentences, {} tokens in a bucket of {}; {} layers, {} wide; products by {}",
        packed.sentences.len(),
        packed.tokens(),
        arguments.max_tokens,
        model.config().layers,
        model.config().hidden,
        model.products()
    );
    let mut encoder = Encoder::new(&model, &context, arguments.max_tokens)?;
    let vectors = if arguments.eager { encoder.eager(&packed)? } else { encoder.captured(&packed)? };
    if let Some(report) = encoder.report() {
        eprintln!("captured: {report}");
    }
    for (index, (sentence, vector)) in packed.sentences.iter().zip(&vectors).enumerate() {
        let tokens = packed.offsets[index + 1] - packed.offsets[index];
        println!("{}", serde_json::json!({ "index": index, "text": sentence, "tokens": tokens, "embedding": vector }));
    }

    let mut good = true;
    if arguments.compare {
        let eager = encoder.eager(&packed)?;
        let bits = |vectors: &[Vec<f32>]| vectors.iter().flatten().map(|value| value.to_bits()).collect::<Vec<_>>();
        let same = bits(&vectors) == bits(&eager);
        eprintln!("captured and eager: {}", if same { "equal bit for bit" } else { "DIFFERENT" });
        good &= same;
    }
    if let Some(golden) = golden.filter(|golden| golden.sentences == packed.sentences) {
        let least = golden.cosines(&vectors).into_iter().fold(1.0, f64::min);
        // NaN is not at least anything.
        let close = golden.cosines(&vectors).iter().all(|&cosine| cosine >= LEAST_COSINE);
        eprintln!(
            "golden vectors: least cosine {least:.7} of {}{}",
            golden.vectors.len(),
            if close { "" } else { ": TOO LOW" }
        );
        good &= close;
    }
    Ok(good)
}

fn read(path: &Path) -> Result<String, EmbedError> {
    let mut text = String::new();
    let done = if path == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).map(drop)
    } else {
        std::fs::read_to_string(path).map(|read| text = read)
    };
    done.map_err(|reason| EmbedError::Unreadable { path: path.into(), reason })?;
    Ok(text)
}
