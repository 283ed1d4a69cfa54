//! The example `embed` on a small made model: captured equals eager, sentences do not see each other, and what is wrong with files and text is
//! said. The real model is run by `.ci/run`.

// Some of the example is used by its main program alone.
#![allow(dead_code)]

#[path = "../examples/embed/blas.rs"]
mod blas;
#[path = "../examples/embed/encoder.rs"]
mod encoder;
#[path = "../examples/embed/error.rs"]
mod error;
#[path = "../examples/embed/golden.rs"]
mod golden;
#[path = "../examples/embed/model_files.rs"]
mod model_files;
mod support;
#[path = "../examples/embed/text.rs"]
mod text;

use encoder::{Encoder, Model};
use error::EmbedError;
use model_files::ModelFiles;
use safetensors::{Dtype, tensor::TensorView};
use std::path::PathBuf;
use support::{Rig, random_values};
use text::{Packed, pack, sentences};

const HIDDEN: usize = 32;
const INNER: usize = 64;
const WORDS: [&str; 12] =
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "graph", "replays", "a", "break", "runs", "live", "pool"];
const TEXT: &str = "the graph replays\n\n  a break runs live \nthe pool\nlive live live live live live\n";

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
fn model(name: &str, dtype: Dtype, change: impl Fn(&str, &mut Vec<usize>)) -> PathBuf {
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

fn packed(files: &ModelFiles, text: &str, limit: usize) -> Result<Packed, EmbedError> {
    pack(&files.tokenizer()?, sentences(text), files.config()?.max_tokens, limit)
}

#[test]
fn text_is_packed_with_its_offsets() {
    let files = ModelFiles::open(&model("packed", Dtype::F32, |_, _| {})).expect("the folder");
    let batch = packed(&files, TEXT, 64).expect("a batch");
    assert_eq!(
        batch.sentences,
        ["the graph replays", "a break runs live", "the pool", "live live live live live live"]
    );
    assert_eq!(batch.offsets, [0, 5, 11, 15, 23]);
    assert_eq!(batch.ids[..5], [2, 4, 5, 6, 3]);
    assert_eq!(batch.places[5..11], [0, 1, 2, 3, 4, 5]);
    let longer = packed(&files, "live live live live live live live live unknown", 64).expect("a batch");
    assert_eq!(longer.tokens(), 8, "longer ones are cut");
}

#[test]
fn captured_equals_eager_for_every_batch_of_the_bucket() {
    let files = ModelFiles::open(&model("captured", Dtype::F32, |_, _| {})).expect("the folder");
    support::for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let model = Model::load(&files, &rig.context, None).expect("the model");
        let mut encoder = Encoder::new(&model, &rig.context, 32).expect("an encoder");
        assert!(encoder.report().is_none());
        for text in [TEXT, "the pool", "a break\nthe graph", TEXT] {
            let batch = packed(&files, text, 32).expect("a batch");
            let captured = encoder.captured(&batch).expect("captured");
            let eager = encoder.eager(&batch).expect("eager");
            assert_eq!(captured, eager, "{text:?}");
            assert_eq!(captured.len(), batch.sentences.len());
            for (index, vector) in captured.iter().enumerate() {
                let length: f32 = vector.iter().map(|value| value * value).sum();
                assert!((length - 1.0).abs() < 1e-5, "{length}");
                // Alone it is the same: sentences do not see each other, nor the padding.
                let alone = packed(&files, &batch.sentences[index], 32).expect("a batch");
                let alone = encoder.captured(&alone).expect("captured");
                let cosine = golden::cosine(vector, &alone[0]);
                assert!(cosine > 0.999_999, "{text:?}, sentence {index}: {cosine}");
            }
        }
        assert!(encoder.report().is_some_and(|report| report.starts_with("5 segments and breaks, 3 launches")));
    });
}

#[test]
fn weights_of_half_the_size_give_nearly_the_same() {
    let rig = Rig::new(&support::driver());
    let vectors = |dtype, name: &str| {
        let files = ModelFiles::open(&model(name, dtype, |_, _| {})).expect("the folder");
        let model = Model::load(&files, &rig.context, None).expect("the model");
        let mut encoder = Encoder::new(&model, &rig.context, 32).expect("an encoder");
        encoder.captured(&packed(&files, TEXT, 32).expect("a batch")).expect("captured")
    };
    let full = vectors(Dtype::F32, "full");
    for (dtype, name, least) in [(Dtype::F16, "f16", 0.9999), (Dtype::BF16, "bf16", 0.99)] {
        let half = vectors(dtype, name);
        assert_ne!(half, full, "{name} is rounded");
        for (a, b) in full.iter().zip(&half) {
            let cosine = golden::cosine(a, b);
            assert!(cosine > least, "{name}: {cosine}");
        }
    }
}

#[test]
fn what_is_wrong_with_text_is_said() {
    let files = ModelFiles::open(&model("text", Dtype::F32, |_, _| {})).expect("the folder");
    for text in ["", "\n \n\t\n"] {
        assert!(matches!(packed(&files, text, 32), Err(EmbedError::EmptyText)));
    }
    let error = packed(&files, TEXT, 22).expect_err("one token too many");
    assert!(matches!(error, EmbedError::TooLong { tokens: 23, limit: 22 }), "{error}");
    assert!(error.to_string().contains("--max-tokens"));
}

#[test]
fn what_is_wrong_with_files_is_said() {
    let rig = Rig::new(&support::driver());
    let load = |folder: &PathBuf| -> EmbedError {
        let files = match ModelFiles::open(folder) {
            Ok(files) => files,
            Err(error) => return error,
        };
        Model::load(&files, &rig.context, None).map(drop).expect_err("it does not load")
    };
    assert!(matches!(load(&PathBuf::from("nowhere/at/all")), EmbedError::NoFolder(_)));

    let folder = model("truncated", Dtype::F32, |_, _| {});
    let path = folder.join("model.safetensors");
    let bytes = std::fs::read(&path).expect("the file");
    for length in [bytes.len() - 1, bytes.len() / 2, 100, 4, 0] {
        std::fs::write(&path, &bytes[..length]).expect("cut");
        assert!(matches!(load(&folder), EmbedError::Damaged { .. }), "{length} bytes");
    }
    std::fs::remove_file(&path).expect("removed");
    assert!(matches!(load(&folder), EmbedError::Unreadable { .. }));
    std::fs::write(folder.join("config.json"), "{\"hidden_size\": 32}").expect("written");
    assert!(matches!(load(&folder), EmbedError::Damaged { .. }));

    let folder = model("shape", Dtype::F32, |name, shape| {
        if name.ends_with("1.attention.self.key.weight") {
            *shape = vec![HIDDEN, HIDDEN + 1];
        }
    });
    let error = load(&folder);
    assert!(matches!(&error, EmbedError::WeightShape { got, .. } if got == &[HIDDEN, HIDDEN + 1]), "{error}");
    let error = load(&model("type", Dtype::I32, |_, _| {}));
    assert!(matches!(error, EmbedError::WeightType { .. }), "{error}");
    let folder = model("config", Dtype::F32, |_, _| {});
    let text =
        std::fs::read_to_string(folder.join("config.json")).expect("the file").replace("layers\":2", "layers\":3");
    std::fs::write(folder.join("config.json"), text).expect("written");
    let error = load(&folder);
    assert!(matches!(&error, EmbedError::NoWeight { name } if name.contains("layer.2")), "{error}");
}
