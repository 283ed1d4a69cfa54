//! What can go wrong, each with what to do.

use super::blas::BlasError;
use std::path::PathBuf;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    #[error("the model's folder {} is not there: fetch it with scripts/fetch_model.py, or name another with --model", .0.display())]
    NoFolder(PathBuf),
    #[error("{} can't be read: {reason}", path.display())]
    Unreadable { path: PathBuf, reason: std::io::Error },
    #[error("{} is damaged or cut short: {reason}. Fetch the model anew", path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("the weights have no {name}: is this a BERT sentence encoder?")]
    NoWeight { name: String },
    #[error("weight {name} has shape {got:?}, the configuration asks for {expected:?}")]
    WeightShape { name: String, expected: Vec<usize>, got: Vec<usize> },
    #[error("weight {name} is of type {got}: f32, f16 and bf16 are supported")]
    WeightType { name: String, got: String },
    #[error(
        "the tokenizer gives token {id}, and the model knows {vocabulary}: tokenizer.json and config.json do not belong together"
    )]
    Vocabulary { id: u32, vocabulary: usize },
    #[error("there is no text: give at least one line that is not blank")]
    EmptyText,
    #[error("{} is not UTF-8 text: byte {at} is wrong", path.display())]
    NotText { path: PathBuf, at: usize },
    #[error("tokenizing: {0}")]
    Tokenizer(String),
    #[error("{} holds no golden vectors: {reason}", path.display())]
    Golden { path: PathBuf, reason: String },
    #[error("the text is not that of the golden vectors: leave out --text, or compare with vectors made of this text")]
    GoldenText,
    #[error("the embeddings can't be written: {0}")]
    Output(std::io::Error),
    #[error("{} can't be written: {reason}", path.display())]
    Unwritable { path: PathBuf, reason: std::io::Error },
    #[error(transparent)]
    Blas(#[from] BlasError),
    #[error("rank {rank} of {ranks} stopped: {why}")]
    Rank { rank: usize, ranks: usize, why: String },
    #[error(transparent)]
    Library(#[from] breakable_cuda_graph::Error),
}

/// A result with that error.
pub type Result<T, E = EmbedError> = std::result::Result<T, E>;
