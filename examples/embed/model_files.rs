//! The model's files: configuration, and weights from f32, f16 or bf16 safetensors as f32.

use super::error::{EmbedError, Result};
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// What the encoder looks like.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Config {
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub inner: usize,
    pub vocabulary: usize,
    pub positions: usize,
    pub types: usize,
    pub epsilon: f32,
    /// The most tokens of a sentence; longer ones are cut.
    pub max_tokens: usize,
}

/// A model's folder.
pub struct ModelFiles {
    folder: PathBuf,
}

impl ModelFiles {
    pub fn open(folder: &Path) -> Result<ModelFiles> {
        if folder.is_dir() {
            Ok(ModelFiles { folder: folder.into() })
        } else {
            Err(EmbedError::NoFolder(folder.into()))
        }
    }

    fn read(&self, name: &str) -> Result<(PathBuf, Vec<u8>)> {
        let path = self.folder.join(name);
        match std::fs::read(&path) {
            Ok(bytes) => Ok((path, bytes)),
            Err(reason) => Err(EmbedError::Unreadable { path, reason }),
        }
    }

    /// The bytes of tokenizer.json.
    pub fn tokenizer(&self) -> Result<Vec<u8>> {
        Ok(self.read("tokenizer.json")?.1)
    }

    /// config.json, with the limit on tokens of sentence_bert_config.json where there is one.
    pub fn config(&self) -> Result<Config> {
        let (path, bytes) = self.read("config.json")?;
        let damaged = |reason: String| EmbedError::Damaged { path: path.clone(), reason };
        let json: serde_json::Value = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        let number = |name: &str| {
            let value = json.get(name).and_then(serde_json::Value::as_u64);
            value.map(|value| value as usize).ok_or_else(|| damaged(format!("no {name}")))
        };
        let positions = number("max_position_embeddings")?;
        let limit = match self.read("sentence_bert_config.json") {
            Ok((path, bytes)) => {
                let json: serde_json::Value = serde_json::from_slice(&bytes)
                    .map_err(|error| EmbedError::Damaged { path, reason: error.to_string() })?;
                json.get("max_seq_length").and_then(serde_json::Value::as_u64).map_or(positions, |limit| limit as usize)
            }
            Err(EmbedError::Unreadable { reason, .. }) if reason.kind() == ErrorKind::NotFound => positions,
            Err(error) => return Err(error),
        };
        let config = Config {
            hidden: number("hidden_size")?,
            layers: number("num_hidden_layers")?,
            heads: number("num_attention_heads")?,
            inner: number("intermediate_size")?,
            vocabulary: number("vocab_size")?,
            positions,
            types: number("type_vocab_size")?,
            epsilon: json.get("layer_norm_eps").and_then(serde_json::Value::as_f64).unwrap_or(1e-12) as f32,
            max_tokens: limit.min(positions),
        };
        if [config.hidden, config.heads, config.inner, config.types].contains(&0)
            || !config.hidden.is_multiple_of(config.heads)
        {
            let Config { hidden, heads, inner, types, .. } = config;
            let reason =
                format!("{hidden} wide, {heads} heads, {inner} wide within, {types} types: no such encoder exists");
            return Err(damaged(reason));
        }
        Ok(config)
    }

    /// What `read` makes of the weights.
    pub fn with_weights<T>(&self, read: impl FnOnce(&Weights<'_>) -> Result<T>) -> Result<T> {
        let (path, bytes) = self.read("model.safetensors")?;
        let tensors = SafeTensors::deserialize(&bytes)
            .map_err(|error| EmbedError::Damaged { path: path.clone(), reason: error.to_string() })?;
        read(&Weights { tensors })
    }
}

/// The weights of a file.
pub struct Weights<'a> {
    tensors: SafeTensors<'a>,
}

impl Weights<'_> {
    /// A weight of this shape, as f32.
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let view = self.tensors.tensor(name).map_err(|_| EmbedError::NoWeight { name: name.into() })?;
        if view.shape() != shape {
            let (expected, got) = (shape.to_vec(), view.shape().to_vec());
            return Err(EmbedError::WeightShape { name: name.into(), expected, got });
        }
        let bytes = view.data();
        let halves = || bytes.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]]));
        Ok(match view.dtype() {
            Dtype::F32 => {
                bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
            }
            Dtype::F16 => halves().map(|bits| f16::from_bits(bits).to_f32()).collect(),
            Dtype::BF16 => halves().map(|bits| bf16::from_bits(bits).to_f32()).collect(),
            other => return Err(EmbedError::WeightType { name: name.into(), got: format!("{other:?}") }),
        })
    }
}
