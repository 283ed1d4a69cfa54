//! The example `embed` on a small made model: captured equals eager and agrees with plain Rust, sentences do not see each other, and what is wrong with
//! files, text and arguments is said. The real model is run by `.ci/run`.
//!
//! - `made`: the model. `oracle`: the encoder in plain Rust. `cli`: the program as a user meets it. `packing`: sentences to batches.

#[path = "../../../examples/embed/main.rs"]
#[allow(dead_code)]
mod program;

mod cli;
mod made;
mod oracle;
mod packing;

use crate::support::{Rig, assert_close};
use breakable_cuda_graph::RunnerOptions;
use breakable_cuda_graph::prefill::{Ladder, LadderOptions};
use made::{HIDDEN, TEXT, model};
use program::batches::Packed;
use program::encoder::{Encoder, How, Model};
use program::error::EmbedError;
use program::model_files::ModelFiles;
use program::text::{Sentence, sentences, tokenize};
use program::{error, golden, model_files};
use safetensors::Dtype;
use std::path::PathBuf;

fn tokens(files: &ModelFiles, text: &str) -> Result<Vec<Sentence>, EmbedError> {
    tokenize(&files.tokenizer()?, sentences(text), &files.config()?)
}

/// All sentences as one batch, in the text's order.
fn packed(files: &ModelFiles, text: &str) -> Packed {
    let sentences = tokens(files, text).expect("tokens");
    Packed::of(&sentences, (0..sentences.len()).collect())
}

/// One bucket of 32 tokens, captured at start-up.
fn encoder<'m>(model: &'m Model, rig: &Rig) -> Encoder<'m> {
    let ladder = Ladder::new(&LadderOptions::new(32).explicit([32]));
    let mut encoder = Encoder::new(model, &rig.context, RunnerOptions::new(ladder)).expect("an encoder");
    encoder.capture(|_| {}).expect("captured");
    encoder
}

/// A batch's vectors, replayed.
fn captured(encoder: &mut Encoder<'_>, batch: &Packed) -> Vec<Vec<f32>> {
    let (vectors, bucket) = encoder.run(batch, How::Runner).expect("a batch");
    assert_eq!(bucket, Some(32));
    vectors
}

/// What the oracle makes of each sentence.
fn expected(files: &ModelFiles, batch: &Packed) -> Vec<Vec<f32>> {
    let config = files.config().expect("a configuration");
    let embed = |weights: &model_files::Weights<'_>| {
        let sentences = batch.offsets.windows(2).map(|at| &batch.ids[at[0] as usize..at[1] as usize]);
        sentences.map(|ids| oracle::embed(weights, config, ids)).collect::<error::Result<Vec<_>>>()
    };
    let vectors = files.with_weights(embed).expect("vectors");
    vectors.into_iter().map(|vector| vector.into_iter().map(|value| value as f32).collect()).collect()
}

#[test]
fn text_is_packed_with_its_offsets() {
    let files = ModelFiles::open(&model("packed", Dtype::F32, |_, _| {})).expect("the folder");
    let texts: Vec<String> = tokens(&files, TEXT).expect("tokens").into_iter().map(|sentence| sentence.text).collect();
    assert_eq!(texts, ["the graph replays", "a break runs live", "the pool", "live live live live live live"]);
    let batch = packed(&files, TEXT);
    assert_eq!(batch.offsets, [0, 5, 11, 15, 23]);
    assert_eq!(batch.ids[..5], [2, 4, 5, 6, 3]);
    assert_eq!(batch.places[5..11], [0, 1, 2, 3, 4, 5]);
    let longer = packed(&files, "live live live live live live live live unknown");
    assert_eq!(longer.tokens(), 8, "longer ones are cut");
}

#[test]
fn captured_equals_eager_for_every_batch_of_the_bucket() {
    let files = ModelFiles::open(&model("captured", Dtype::F32, |_, _| {})).expect("the folder");
    crate::support::for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let model = Model::load(&files, &rig.context, None).expect("the model");
        let mut encoder = encoder(&model, &rig);
        for text in [TEXT, "the pool", "a break\nthe graph", TEXT] {
            let batch = packed(&files, text);
            let captured = captured(&mut encoder, &batch);
            for how in [How::Eager, How::Padded(32)] {
                assert_eq!(captured, encoder.run(&batch, how).expect("eager").0, "{text:?}, {how:?}");
            }
            assert_eq!(captured.len(), batch.members.len());
            let lines = sentences(text);
            for (index, vector) in captured.iter().enumerate() {
                let length: f32 = vector.iter().map(|value| value * value).sum();
                assert!((length - 1.0).abs() < 1e-5, "{length}");
                // Alone it is the same: sentences do not see each other, nor the padding.
                let alone = self::captured(&mut encoder, &packed(&files, &lines[index]));
                let cosine = golden::cosine(vector, &alone[0]);
                assert!(cosine > 0.999_999, "{text:?}, sentence {index}: {cosine}");
            }
        }
        let report = encoder.runner().report(32).expect("a capture");
        assert_eq!((report.segments, report.launches), (5, 3));
    });
}

#[test]
fn what_the_encoder_computes_is_what_plain_rust_does() {
    let rig = Rig::new(&crate::support::driver());
    for (dtype, name) in [(Dtype::F32, "oracle32"), (Dtype::F16, "oracle16"), (Dtype::BF16, "oraclebf16")] {
        let files = ModelFiles::open(&model(name, dtype, |_, _| {})).expect("the folder");
        let model = Model::load(&files, &rig.context, None).expect("the model");
        let batch = packed(&files, TEXT);
        let (captured, expected) = (captured(&mut encoder(&model, &rig), &batch), expected(&files, &batch));
        for (got, expected) in captured.iter().zip(&expected) {
            assert_close(got, expected, 1e-5);
        }
        assert_eq!(captured.len(), expected.len());
    }
}

#[test]
fn weights_of_half_the_size_give_nearly_the_same() {
    let rig = Rig::new(&crate::support::driver());
    let vectors = |dtype, name: &str| {
        let files = ModelFiles::open(&model(name, dtype, |_, _| {})).expect("the folder");
        let model = Model::load(&files, &rig.context, None).expect("the model");
        captured(&mut encoder(&model, &rig), &packed(&files, TEXT))
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
        assert!(matches!(tokens(&files, text), Err(EmbedError::EmptyText)));
    }
}

#[test]
fn what_is_wrong_with_files_is_said() {
    let rig = Rig::new(&crate::support::driver());
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
