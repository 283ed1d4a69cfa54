//! Embeddings as JSON, one line a sentence.

use crate::text::Packed;
use std::io::{Result, Write};

/// Writes `{"index":0,"text":"..","tokens":7,"embedding":[..]}` for each sentence, with the fewest digits that give the same f32 again.
pub fn write(out: &mut dyn Write, packed: &Packed, vectors: &[Vec<f32>]) -> Result<()> {
    for (index, (sentence, vector)) in packed.sentences.iter().zip(vectors).enumerate() {
        let tokens = packed.offsets[index + 1] - packed.offsets[index];
        let (text, embedding) = (serde_json::to_string(sentence)?, serde_json::to_string(vector)?);
        writeln!(out, r#"{{"index":{index},"text":{text},"tokens":{tokens},"embedding":{embedding}}}"#)?;
    }
    out.flush()
}
