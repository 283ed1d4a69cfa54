//! Arguments.

use super::support::Choice;
use breakable_cuda_graph::prefill::CaptureWhen;
use clap::Parser;
use std::path::PathBuf;
use std::str::FromStr;

/// The most tokens that a batch can be asked to have.
const MOST_TOKENS: u64 = 1 << 20;

/// Embeds sentences, one a line, with all-MiniLM-L6-v2: the encoder is captured for a ladder of batch sizes and replayed, with attention as a live
/// break.
///
/// Prints one JSON object a sentence, in the text's order; what it says of itself goes to standard error.
#[derive(Parser)]
pub struct Arguments {
    /// The model's folder, as scripts/fetch_model.py makes it.
    #[arg(long, default_value = "models/all-MiniLM-L6-v2")]
    pub model: PathBuf,
    /// The text, one sentence a line; `-` is standard input. Blank lines are passed over.
    #[arg(long)]
    pub text: Option<PathBuf>,
    /// The most tokens of a batch. A longer sentence is a batch of its own, which runs eagerly.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=MOST_TOKENS))]
    pub max_tokens: u64,
    /// The buckets: `default`; a list such as `64,256,1024`; or `fit:N`, the N that pad this text's batches least.
    #[arg(long, default_value = "default")]
    pub buckets: Buckets,
    /// When buckets are captured.
    #[arg(long, value_enum, default_value_t)]
    pub capture: Capture,
    /// Run without capture.
    #[arg(long, conflicts_with = "compare")]
    pub eager: bool,
    /// Run both ways, and fail unless they agree bit for bit.
    #[arg(long)]
    pub compare: bool,
    /// Compare with the vectors of this file, and fail under a cosine of 0.9999. Its sentences are the text; --text must hold the same.
    #[arg(long)]
    pub golden: Option<PathBuf>,
    /// How to write the embeddings.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Where to write them, instead of standard output. The file is there when it is whole.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Say what was replayed, what ran eagerly and why, and how fast.
    #[arg(long)]
    pub stats: bool,
    /// The same as JSON, in this file.
    #[arg(long)]
    pub stats_json: Option<PathBuf>,
    /// Say what the captures will take before they are made, and whether they did.
    #[arg(long, conflicts_with = "eager")]
    pub plan: bool,
    /// Run all batches this often; the rate is the median.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
    /// Threads that share the batches, each on its device, or on those that there are in turn.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub ranks: u32,
    /// Which driver to use.
    #[arg(long, value_enum, default_value_t)]
    pub driver: Choice,
    /// Use the crate's demo kernel for matrix products even where cuBLAS is found. It is looked for by the loader, in the toolkit's folder, and first
    /// in the file or folder that the variable BCG_CUBLAS names.
    #[arg(long)]
    pub no_cublas: bool,
    /// Let cuBLAS round the factors of matrix products to TF32 for the tensor cores: faster, and less exact.
    #[arg(long, conflicts_with = "no_cublas")]
    pub tf32: bool,
}

/// Where buckets come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Buckets {
    /// The library's rule.
    Default,
    /// At most this many, fitted to the text's batches.
    Fit(usize),
    /// These.
    List(Vec<usize>),
}

impl FromStr for Buckets {
    type Err = String;

    fn from_str(text: &str) -> Result<Buckets, String> {
        let number = |text: &str| match text.trim().parse::<usize>() {
            Ok(number) if (1..=MOST_TOKENS as usize).contains(&number) => Ok(number),
            _ => {
                Err(format!("{text:?} is no number from 1 to {MOST_TOKENS}; give `default`, `64,256,1024` or `fit:8`"))
            }
        };
        match (text, text.strip_prefix("fit:")) {
            ("default", _) => Ok(Buckets::Default),
            (_, Some(most)) => Ok(Buckets::Fit(number(most)?)),
            (list, None) => list.split(',').map(number).collect::<Result<_, _>>().map(Buckets::List),
        }
    }
}

/// When buckets are captured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Capture {
    /// All of them, before the first batch.
    #[default]
    Start,
    /// Each when a batch first needs it.
    FirstUse,
}

impl From<Capture> for CaptureWhen {
    fn from(capture: Capture) -> CaptureWhen {
        match capture {
            Capture::Start => CaptureWhen::StartUp,
            Capture::FirstUse => CaptureWhen::FirstUse,
        }
    }
}

/// How embeddings are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Format {
    /// One JSON object a line.
    #[default]
    Jsonl,
    /// One NumPy array of f32, `[sentences, width]`.
    Npy,
}
