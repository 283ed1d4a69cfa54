//! Text to tokens.

use super::error::{EmbedError, Result};
use super::model_files::Config;
use std::io::Read;
use std::path::Path;
use tokenizers::{PostProcessor, Tokenizer, TruncationParams};

/// A sentence with its tokens.
#[derive(Clone, PartialEq, Debug)]
pub struct Sentence {
    pub text: String,
    pub ids: Vec<i32>,
}

/// What a file holds; `-` is standard input.
pub fn read(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let done = if path == Path::new("-") {
        std::io::stdin().read_to_end(&mut bytes).map(drop)
    } else {
        std::fs::read(path).map(|read| bytes = read)
    };
    done.map_err(|reason| EmbedError::Unreadable { path: path.into(), reason })?;
    String::from_utf8(bytes)
        .map_err(|error| EmbedError::NotText { path: path.into(), at: error.utf8_error().valid_up_to() })
}

/// The lines that are not blank.
pub fn sentences(text: &str) -> Vec<String> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Tokenizes sentences. Each is cut at the model's limit.
pub fn tokenize(tokenizer: &[u8], sentences: Vec<String>, config: &Config) -> Result<Vec<Sentence>> {
    let failed = |error: tokenizers::Error| EmbedError::Tokenizer(error.to_string());
    let mut tokenizer = Tokenizer::from_bytes(tokenizer).map_err(failed)?;
    // The tokenizer subtracts what it adds to a sentence from the limit without a check.
    let added = tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(false));
    if config.max_tokens <= added {
        let limit = config.max_tokens;
        return Err(EmbedError::Tokenizer(format!(
            "a limit of {limit} tokens a sentence leaves none beside the {added} added"
        )));
    }
    let truncation = TruncationParams { max_length: config.max_tokens, ..TruncationParams::default() };
    tokenizer.with_truncation(Some(truncation)).map_err(failed)?;
    tokenizer.with_padding(None);
    if sentences.is_empty() {
        return Err(EmbedError::EmptyText);
    }
    let tokenize = |text: String| {
        let encoding = tokenizer.encode(text.as_str(), true).map_err(failed)?;
        // The embedding takes an id that its table lacks for padding.
        if let Some(&id) = encoding.get_ids().iter().find(|&&id| id as usize >= config.vocabulary) {
            return Err(EmbedError::Vocabulary { id, vocabulary: config.vocabulary });
        }
        Ok(Sentence { ids: encoding.get_ids().iter().map(|&id| id as i32).collect(), text })
    };
    sentences.into_iter().map(tokenize).collect()
}
