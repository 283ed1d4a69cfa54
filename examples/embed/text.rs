//! Text to one packed batch of tokens.

use crate::error::{EmbedError, Result};
use crate::model_files::Config;
use tokenizers::{PostProcessor, Tokenizer, TruncationParams};

/// Sentences as one run of tokens.
#[derive(Clone, PartialEq, Debug)]
pub struct Packed {
    pub sentences: Vec<String>,
    pub ids: Vec<i32>,
    /// The place of each token in its sentence.
    pub places: Vec<i32>,
    /// Where each sentence begins, and where the last ends.
    pub offsets: Vec<i32>,
}

impl Packed {
    /// Real tokens.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }
}

/// The lines that are not blank.
pub fn sentences(text: &str) -> Vec<String> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Tokenizes sentences and packs them into one batch of at most `limit` tokens. Each sentence is cut at the model's limit.
pub fn pack(tokenizer: &[u8], sentences: Vec<String>, config: &Config, limit: usize) -> Result<Packed> {
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
    let mut packed = Packed { sentences, ids: Vec::new(), places: Vec::new(), offsets: vec![0] };
    if packed.sentences.is_empty() {
        return Err(EmbedError::EmptyText);
    }
    for sentence in &packed.sentences {
        let encoding = tokenizer.encode(sentence.as_str(), true).map_err(failed)?;
        // The embedding takes an id that its table lacks for padding.
        if let Some(&id) = encoding.get_ids().iter().find(|&&id| id as usize >= config.vocabulary) {
            return Err(EmbedError::Vocabulary { id, vocabulary: config.vocabulary });
        }
        packed.ids.extend(encoding.get_ids().iter().map(|&id| id as i32));
        packed.places.extend(0..encoding.get_ids().len() as i32);
        packed.offsets.push(packed.ids.len() as i32);
    }
    let tokens = packed.tokens();
    if tokens > limit { Err(EmbedError::TooLong { tokens, limit }) } else { Ok(packed) }
}
