//! Golden vectors: sentences with what an independent implementation made of them.

use super::error::{EmbedError, Result};
use std::path::Path;

/// Sentences and their vectors.
pub struct Golden {
    pub sentences: Vec<String>,
    pub vectors: Vec<Vec<f32>>,
}

impl Golden {
    pub fn read(path: &Path) -> Result<Golden> {
        let failed = |reason: String| EmbedError::Golden { path: path.into(), reason };
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let json: serde_json::Value = serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
        let entries =
            json.get("vectors").and_then(serde_json::Value::as_array).ok_or_else(|| failed("no vectors".into()))?;
        let mut golden = Golden { sentences: Vec::new(), vectors: Vec::new() };
        for entry in entries {
            let sentence =
                entry.get("text").and_then(serde_json::Value::as_str).ok_or_else(|| failed("no text".into()))?;
            let vector = entry
                .get("embedding")
                .and_then(serde_json::Value::as_array)
                .ok_or_else(|| failed("no embedding".into()))?;
            golden.sentences.push(sentence.to_owned());
            let numbers: Option<Vec<f32>> =
                vector.iter().map(|value| value.as_f64().map(|value| value as f32)).collect();
            golden.vectors.push(numbers.ok_or_else(|| failed("an embedding that is not all numbers".into()))?);
        }
        Ok(golden)
    }

    /// The least cosine of a vector with the golden one; NaN where one is.
    pub fn least_cosine(&self, vectors: &[Vec<f32>]) -> f64 {
        if self.vectors.len() != vectors.len() {
            return f64::NAN;
        }
        // `f64::min` would pass over NaN.
        let least = |a: f64, b: f64| if a.is_nan() || a <= b { a } else { b };
        self.vectors.iter().zip(vectors).map(|(golden, vector)| cosine(golden, vector)).fold(f64::INFINITY, least)
    }
}

/// The cosine of two vectors; NaN where a value is.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    if a.len() != b.len() {
        return f64::NAN;
    }
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}
