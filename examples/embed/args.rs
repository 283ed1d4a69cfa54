//! Arguments.

use crate::support::Choice;
use clap::Parser;
use std::path::PathBuf;

/// Embeds sentences, one a line, with all-MiniLM-L6-v2: the encoder is captured once and replayed, with attention as a live break.
///
/// Prints one JSON object a sentence; what it says of itself goes to standard error.
#[derive(Parser)]
pub struct Arguments {
    /// The model's folder, as scripts/fetch_model.py makes it.
    #[arg(long, default_value = "models/all-MiniLM-L6-v2")]
    pub model: PathBuf,
    /// The text, one sentence a line; `-` is standard input. Blank lines are passed over.
    #[arg(long)]
    pub text: Option<PathBuf>,
    /// Run without capture.
    #[arg(long, conflicts_with = "compare")]
    pub eager: bool,
    /// Run both ways, and fail unless they agree bit for bit.
    #[arg(long)]
    pub compare: bool,
    /// Compare with the vectors of this file, and fail under a cosine of 0.9999. Its sentences are the text; --text must hold the same.
    #[arg(long)]
    pub golden: Option<PathBuf>,
    /// The bucket: the most tokens of a batch.
    #[arg(long, default_value_t = 1024)]
    pub max_tokens: usize,
    /// Which driver to use.
    #[arg(long, value_enum, default_value_t)]
    pub driver: Choice,
    /// Use the crate's demo kernel for matrix products even where cuBLAS is found. It is looked for by the loader, in the toolkit's folder, and first
    /// in the file or folder that the variable EMBED_CUBLAS names.
    #[arg(long)]
    pub no_cublas: bool,
}
