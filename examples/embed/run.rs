//! What the program does with its arguments.

use crate::args::Arguments;
use crate::blas::Blas;
use crate::encoder::{Encoder, Model};
use crate::error::EmbedError;
use crate::golden::Golden;
use crate::model_files::ModelFiles;
use crate::{output, support, text};
use std::io::{Read, Write};
use std::path::Path;

/// The least cosine with a golden vector that passes.
const LEAST_COSINE: f64 = 0.9999;

/// Writes the embeddings to `out` and what is to be said to `log`, and gives the exit status.
pub fn status(arguments: &Arguments, out: &mut dyn Write, log: &mut dyn Write) -> u8 {
    match run(arguments, out, log) {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(error) => {
            // There is nowhere left to say that this could not be said.
            let _ = writeln!(log, "embed: {error}");
            2
        }
    }
}

/// Whether all comparisons that were asked for came out well.
fn run(arguments: &Arguments, out: &mut dyn Write, log: &mut dyn Write) -> Result<bool, Box<dyn std::error::Error>> {
    let (driver, line) = support::driver(arguments.driver)?;
    writeln!(log, "{line}")?;
    let golden = arguments.golden.as_deref().map(Golden::read).transpose()?;
    let files = ModelFiles::open(&arguments.model)?;
    let sentences = match (&arguments.text, &golden) {
        (Some(path), _) => text::sentences(&read(path)?),
        (None, Some(golden)) => golden.sentences.clone(),
        (None, None) => text::sentences(&read(Path::new("-"))?),
    };
    if golden.as_ref().is_some_and(|golden| golden.sentences != sentences) {
        return Err(EmbedError::GoldenText.into());
    }
    let packed = text::pack(&files.tokenizer()?, sentences, &files.config()?, arguments.max_tokens)?;

    let context = support::context(&driver)?;
    let use_blas = !driver.is_reference() && !arguments.no_cublas;
    let blas = if use_blas { Blas::load(&context)? } else { None };
    let model = Model::load(&files, &context, blas)?;
    writeln!(
        log,
        "{} sentences, {} tokens in a bucket of {}; {} layers, {} wide; products by {}",
        packed.sentences.len(),
        packed.tokens(),
        arguments.max_tokens,
        model.config().layers,
        model.config().hidden,
        model.products()
    )?;
    let mut encoder = Encoder::new(&model, &context, arguments.max_tokens)?;
    let vectors = if arguments.eager { encoder.eager(&packed)? } else { encoder.captured(&packed)? };
    if let Some(report) = encoder.report() {
        writeln!(log, "captured: {report}")?;
    }
    output::write(out, &packed, &vectors).map_err(EmbedError::Output)?;

    let mut good = true;
    if arguments.compare {
        let same = bits(&vectors) == bits(&encoder.eager(&packed)?);
        writeln!(log, "captured and eager: {}", if same { "equal bit for bit" } else { "DIFFERENT" })?;
        good &= same;
    }
    if let Some(golden) = golden {
        let least = golden.least_cosine(&vectors);
        // NaN is not at least anything.
        let close = least >= LEAST_COSINE;
        let verdict = if close { "" } else { ": TOO LOW" };
        writeln!(log, "golden vectors: least cosine {least:.7} of {}{verdict}", golden.vectors.len())?;
        good &= close;
    }
    Ok(good)
}

fn bits(vectors: &[Vec<f32>]) -> Vec<u32> {
    vectors.iter().flatten().map(|value| value.to_bits()).collect()
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
