//! A small model made from a seed: two layers, a dozen words.

use crate::support::random_values;
use safetensors::{Dtype, tensor::TensorView};
use std::path::PathBuf;

pub const HIDDEN: usize = 32;
const INNER: usize = 64;
pub const WORDS: [&str; 12] =
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "graph", "replays", "a", "break", "runs", "live", "pool"];
pub const TEXT: &str = "the graph replays\n\n  a break runs live \nthe pool\nlive live live live live live\n";

/// The shapes of all weights.
fn shapes() -> Vec<(String, Vec<usize>)> {
    let mut shapes = vec![
        ("embeddings.word_embeddings.weight".to_owned(), vec![WORDS.len(), HIDDEN]),
        ("embeddings.position_embeddings.weight".to_owned(), vec![16, HIDDEN]),
        ("embeddings.token_type_embeddings.weight".to_owned(), vec![2, HIDDEN]),
    ];
    let norm = |name: String| {
        [("weight", vec![HIDDEN]), ("bias", vec![HIDDEN])].map(|(part, shape)| (format!("{name}.{part}"), shape))
    };
    let linear = |name: String, columns: usize, inner: usize| {
        [("weight", vec![columns, inner]), ("bias", vec![columns])]
            .map(|(part, shape)| (format!("{name}.{part}"), shape))
    };
    shapes.extend(norm("embeddings.LayerNorm".into()));
    for layer in 0..2 {
        let at = |name: &str| format!("encoder.layer.{layer}.{name}");
        for name in ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"] {
            shapes.extend(linear(at(name), HIDDEN, HIDDEN));
        }
        shapes.extend(norm(at("attention.output.LayerNorm")));
        shapes.extend(linear(at("intermediate.dense"), INNER, HIDDEN));
        shapes.extend(linear(at("output.dense"), HIDDEN, INNER));
        shapes.extend(norm(at("output.LayerNorm")));
    }
    shapes
}

/// A folder with the model, whose weights are of this type; `change` may change what is written.
pub fn model(name: &str, dtype: Dtype, change: impl Fn(&str, &mut Vec<usize>)) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("embed-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let weights: Vec<(String, Vec<usize>, Vec<u8>)> = shapes()
        .into_iter()
        .enumerate()
        .map(|(seed, (name, mut shape))| {
            change(&name, &mut shape);
            let values = random_values(seed as u64, shape.iter().product());
            let bytes = values.iter().flat_map(|&value| match dtype {
                Dtype::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
                Dtype::BF16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
                _ => value.to_le_bytes().to_vec(),
            });
            let bytes = bytes.collect();
            (name, shape, bytes)
        })
        .collect();
    let views = weights
        .iter()
        .map(|(name, shape, bytes)| (name.clone(), TensorView::new(dtype, shape.clone(), bytes).expect("a view")));
    std::fs::write(folder.join("model.safetensors"), safetensors::serialize(views, None).expect("bytes"))
        .expect("a file");
    let config = serde_json::json!({
        "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": INNER,
        "vocab_size": WORDS.len(), "max_position_embeddings": 16, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).expect("a file");
    std::fs::write(folder.join("sentence_bert_config.json"), r#"{"max_seq_length": 8}"#).expect("a file");
    let vocabulary: serde_json::Map<String, serde_json::Value> =
        WORDS.iter().enumerate().map(|(id, word)| ((*word).to_owned(), id.into())).collect();
    let special = |token: &str, id: usize| serde_json::json!({ "id": token, "ids": [id], "tokens": [token] });
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "decoder": null,
        "pre_tokenizer": { "type": "Whitespace" },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                { "SpecialToken": { "id": "[CLS]", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } },
                { "SpecialToken": { "id": "[SEP]", "type_id": 0 } }
            ],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
            "special_tokens": { "[CLS]": special("[CLS]", 2), "[SEP]": special("[SEP]", 3) }
        },
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]" }
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).expect("a file");
    folder
}
