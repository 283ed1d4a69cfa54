//! The program as a user meets it: what it prints, what it says, and its exit status.

use super::made::{TEXT, WORDS, model};
use super::program::args::Arguments;
use super::program::blas::{BlasError, Exports};
use super::program::golden::Golden;
use super::program::model_files::ModelFiles;
use super::program::{run, text};
use super::{expected, packed};
use clap::Parser;
use safetensors::Dtype;
use std::io::{Error, ErrorKind, Write};
use std::path::{Path, PathBuf};

struct Done {
    status: u8,
    out: String,
    log: String,
}

impl Done {
    /// That it failed with this in the one line that says so, having printed nothing.
    #[track_caller]
    fn refused_with(&self, part: &str) {
        assert_eq!((self.status, self.out.as_str()), (2, ""), "{}", self.log);
        let said: Vec<&str> = self.log.lines().filter(|line| line.starts_with("embed: ")).collect();
        assert!(matches!(said[..], [line] if line.contains(part)), "{part:?} is not in {}", self.log);
        assert!(self.log.ends_with(&format!("{}\n", said[0])), "nothing after it: {}", self.log);
    }
}

fn arguments(given: &[&str]) -> Arguments {
    let driver = if cfg!(feature = "driver-tests") { "libcuda" } else { "reference" };
    Arguments::try_parse_from(["embed", "--driver", driver].iter().chain(given)).expect("good arguments")
}

fn embed(given: &[&str]) -> Done {
    let (mut out, mut log) = (Vec::new(), Vec::new());
    let status = run::status(&arguments(given), &mut out, &mut log);
    let [out, log] = [out, log].map(|bytes| String::from_utf8(bytes).expect("text"));
    Done { status, out, log }
}

/// A model's folder with the text in it.
struct Location {
    folder: PathBuf,
}

impl Location {
    fn new(name: &str) -> Location {
        let place = Location { folder: model(&format!("cli-{name}"), Dtype::F32, |_, _| {}) };
        place.write("text", TEXT);
        place
    }

    fn write(&self, name: &str, content: &str) -> String {
        let path = self.folder.join(name);
        std::fs::write(&path, content).expect("written");
        path.display().to_string()
    }

    /// Replaces a part of a file.
    fn change(&self, name: &str, from: &str, to: &str) {
        let content = std::fs::read_to_string(self.folder.join(name)).expect("the file");
        assert!(content.contains(from), "{from} is in {name}");
        self.write(name, &content.replace(from, to));
    }

    /// Runs the program on the folder's model and text, in a bucket of 32, but for what is given.
    fn embed(&self, given: &[&str]) -> Done {
        let (model, text) = (self.folder.display().to_string(), self.folder.join("text").display().to_string());
        let usual = [["--model", &model], ["--text", &text], ["--max-tokens", "32"]];
        let usual = usual.iter().filter(|[name, _]| !given.contains(name)).flatten().copied();
        embed(&usual.chain(given.iter().copied()).collect::<Vec<_>>())
    }

    /// A golden file with what plain Rust computes, after `change`.
    fn golden(&self, name: &str, change: impl Fn(&mut Vec<serde_json::Value>)) -> String {
        let files = ModelFiles::open(&self.folder).expect("the folder");
        let sentences = text::sentences(TEXT);
        let entries = sentences.iter().zip(expected(&files, &packed(&files, TEXT)));
        let mut vectors: Vec<_> =
            entries.map(|(text, vector)| serde_json::json!({ "text": text, "embedding": vector })).collect();
        change(&mut vectors);
        self.write(name, &serde_json::json!({ "vectors": vectors }).to_string())
    }
}

#[test]
fn a_sentence_is_a_line_of_json() {
    let place = Location::new("json");
    place.write("text", "the graph \"replays\"\n\nthe pool\n");
    let done = place.embed(&[]);
    assert_eq!(done.status, 0, "{}", done.log);
    assert!(done.log.starts_with("driver: "), "{}", done.log);
    assert!(done.log.contains("captured: 2 buckets of 5 segments and breaks, 3 launches"), "{}", done.log);
    let lines: Vec<&str> = done.out.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(
        lines[0].starts_with(r#"{"index":0,"text":"the graph \"replays\"","tokens":7,"embedding":["#),
        "{}",
        lines[0]
    );
    assert!(lines[1].starts_with(r#"{"index":1,"text":"the pool","tokens":4,"embedding":["#), "{}", lines[1]);
    for line in lines {
        let json: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let values =
            json["embedding"].as_array().expect("an array").iter().map(|value| value.as_f64().expect("a number"));
        let length: f64 = values.map(|value| value * value).sum();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
    }
    let eager = place.embed(&["--eager"]);
    assert_eq!((eager.status, &eager.out), (0, &done.out), "the digits give the same bits again");
    assert!(!eager.log.contains("captured"), "{}", eager.log);
}

#[test]
fn comparisons_decide_the_status() {
    let place = Location::new("compare");
    let golden = place.golden("golden.json", |_| {});
    let done = place.embed(&["--compare", "--golden", &golden]);
    assert_eq!(done.status, 0, "{}", done.log);
    assert!(done.log.contains("captured and eager: equal bit for bit\n"), "{}", done.log);
    assert!(done.log.ends_with("golden vectors: least cosine 1.0000000 of 4\n"), "{}", done.log);

    let negated = place.golden("negated.json", |vectors| {
        let values = vectors[2]["embedding"].as_array_mut().expect("an array");
        values.iter_mut().for_each(|value| *value = (-value.as_f64().expect("a number")).into());
    });
    let done = place.embed(&["--golden", &negated]);
    assert_eq!((done.status, done.out.lines().count()), (1, 4), "{}", done.log);
    assert!(done.log.ends_with("least cosine -1.0000000 of 4: TOO LOW\n"), "{}", done.log);

    let short =
        place.golden("short.json", |vectors| drop(vectors[0]["embedding"].as_array_mut().expect("an array").pop()));
    let done = place.embed(&["--golden", &short]);
    assert_eq!(done.status, 1, "{}", done.log);
    assert!(done.log.ends_with("least cosine NaN of 4: TOO LOW\n"), "{}", done.log);
}

#[test]
fn golden_vectors_of_other_text_are_not_passed_over() {
    let place = Location::new("other");
    let fewer = place.golden("fewer.json", |vectors| drop(vectors.pop()));
    place.embed(&["--golden", &fewer]).refused_with("not that of the golden vectors");
    let words = place.golden("words.json", |vectors| vectors[1]["embedding"][0] = "a word".into());
    place.embed(&["--golden", &words]).refused_with("not all numbers");
    let cut = place.write("cut.json", "{\"vectors\":[");
    place.embed(&["--golden", &cut]).refused_with("no golden vectors");
    place.embed(&["--golden", "nowhere.json"]).refused_with("nowhere.json");
    let none = place.golden("none.json", Vec::clear);
    embed(&["--model", &place.folder.display().to_string(), "--golden", &none]).refused_with("no text");
}

#[test]
fn what_cannot_be_embedded_is_refused_in_a_line() {
    embed(&["--model", "nowhere/at/all"]).refused_with("scripts/fetch_model.py");
    let place = Location::new("refused");
    place.embed(&["--text", "nowhere.txt"]).refused_with("nowhere.txt");
    place.write("text", " \n");
    place.embed(&[]).refused_with("there is no text");
    std::fs::write(place.folder.join("text"), [0xff, b'\n']).expect("written");
    place.embed(&[]).refused_with("is not UTF-8 text: byte 0 is wrong");
    std::fs::write(place.folder.join("text"), b"the pool\n\xc3\n").expect("written");
    place.embed(&[]).refused_with("is not UTF-8 text: byte 9 is wrong");
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    for given in [
        ["--max-tokens", "0"],
        ["--max-tokens", "-1"],
        ["--max-tokens", "18446744073709551615"],
        ["--buckets", ""],
        ["--buckets", "0"],
        ["--buckets", "16,0"],
        ["--buckets", "16,-1"],
        ["--buckets", "16;32"],
        ["--buckets", "fit:0"],
        ["--buckets", "fit:"],
        ["--ranks", "0"],
        ["--repeat", "0"],
        ["--format", "csv"],
    ] {
        let joined = format!("{}={}", given[0], given[1]);
        let error = Arguments::try_parse_from(["embed", &joined]).map(drop).expect_err("refused");
        let kinds = [clap::error::ErrorKind::ValueValidation, clap::error::ErrorKind::InvalidValue];
        assert!(kinds.contains(&error.kind()), "{joined}: {error}");
    }
}

#[test]
fn long_text_is_cut_into_batches() {
    let place = Location::new("batches");
    let lines: Vec<String> = (0..60).map(|line| WORDS[4..][..line % 8 + 1].join(" ")).collect();
    place.write("text", &lines.join("\n"));
    let json = place.folder.join("stats.json").display().to_string();
    // Batches of other shapes have the same bits with our kernel; cuBLAS has other kernels for other numbers of rows.
    let whole = place.embed(&["--max-tokens", "512", "--eager", "--no-cublas"]);
    assert_eq!(whole.status, 0, "{}", whole.log);
    for buckets in ["default", "8,16", "fit:3"] {
        for capture in ["start", "first-use"] {
            let given = ["--max-tokens", "16", "--buckets", buckets, "--capture", capture, "--compare", "--stats"];
            let done = place.embed(&[&given[..], &["--stats-json", &json, "--repeat", "2", "--no-cublas"]].concat());
            assert_eq!(done.status, 0, "{}", done.log);
            assert!(done.log.contains("captured and eager: equal bit for bit"), "{}", done.log);
            assert!(done.out == whole.out, "in the text's order, and the same bits");
            let stats: serde_json::Value =
                serde_json::from_str(&std::fs::read_to_string(&json).expect("a file")).expect("JSON");
            let batches = stats["batches"].as_u64().expect("a number");
            let replays: u64 =
                stats["replays"].as_object().expect("pairs").values().filter_map(|count| count.as_u64()).sum();
            assert_eq!((stats["sentences"].as_u64(), replays), (Some(60), 2 * batches), "{stats}");
            assert!(stats["eager"].as_object().is_some_and(serde_json::Map::is_empty), "{stats}");
            assert!(done.log.contains("sentences a second"), "{}", done.log);
        }
    }
}

/// What the captures take of the pool is known to the byte before they are made.
#[test]
fn the_plan_is_what_the_captures_take() {
    let place = Location::new("plan");
    for capture in ["start", "first-use"] {
        let done = place.embed(&["--plan", "--capture", capture, "--max-tokens", "32", "--compare"]);
        assert_eq!(done.status, 0, "{}", done.log);
        let line = done.log.lines().find(|line| line.starts_with("planned: ")).expect("a line");
        let numbers: Vec<&str> = line.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty()).collect();
        // Pool, peak, outputs, inputs, scratch, execs, and what the pool took; then the recordings that differed.
        let [pool, peak, .., took, differed] = numbers[..] else { panic!("{line}") };
        assert_eq!((took, differed), (pool, "0"), "{line}");
        let [pool, peak] = [pool, peak].map(|number| number.parse::<usize>().expect("a number"));
        assert_eq!(pool, peak.next_multiple_of(2 << 20), "{line}");
    }
}

/// A sentence that no bucket holds runs eagerly, and is counted.
#[test]
fn sentences_above_the_largest_bucket_run_eagerly() {
    let place = Location::new("above");
    // Batches of other shapes have the same bits with our kernel; cuBLAS has other kernels for other numbers of rows.
    let all = place.embed(&["--eager", "--no-cublas"]);
    let done = place.embed(&["--max-tokens", "6", "--stats", "--compare", "--no-cublas"]);
    assert_eq!(done.status, 0, "{}", done.log);
    assert!(done.out == all.out, "the same bits");
    assert!(done.log.contains("eager by reason: 1 above_largest"), "{}", done.log);
    assert!(done.log.contains("replays by bucket: 3 of 6"), "{}", done.log);
}

#[test]
fn ranks_share_the_batches() {
    let place = Location::new("ranks");
    let lines: Vec<String> = (0..21).map(|line| WORDS[4..][..line % 6 + 1].join(" ")).collect();
    place.write("text", &lines.join("\n"));
    let one = place.embed(&["--max-tokens", "16"]);
    assert_eq!(one.status, 0, "{}", one.log);
    for ranks in ["2", "3"] {
        for more in [&["--compare"][..], &["--capture", "first-use"], &["--eager"]] {
            let done = place.embed(&[&["--max-tokens", "16", "--stats", "--ranks", ranks], more].concat());
            assert_eq!((done.status, &done.out), (0, &one.out), "{more:?}: {}", done.log);
        }
    }
    place.change("config.json", "heads\":4", "heads\":5");
    place.embed(&["--ranks", "2"]).refused_with("no such encoder");
}

#[test]
fn a_numpy_array_and_a_file() {
    let place = Location::new("npy");
    let file = place.folder.join("vectors.npy");
    let path = file.display().to_string();
    let lines = place.embed(&[]);
    let done = place.embed(&["--format", "npy", "--out", &path]);
    assert_eq!((done.status, done.out.as_str()), (0, ""), "{}", done.log);
    let bytes = std::fs::read(&file).expect("the file");
    assert!(bytes.starts_with(b"\x93NUMPY\x01\x00"), "version 1.0");
    let array = npyz::NpyFile::new(&bytes[..]).expect("an array");
    assert_eq!(array.shape(), [4, super::HIDDEN as u64]);
    let values: Vec<f32> = array.into_vec().expect("f32");
    let expected: Vec<f32> = lines
        .out
        .lines()
        .flat_map(|line| {
            let json: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let vector: Vec<f32> = serde_json::from_value(json["embedding"].clone()).expect("numbers");
            vector
        })
        .collect();
    assert_eq!(values, expected);
    assert!(!place.folder.join("vectors.npy.partial").exists());
    place
        .embed(&["--out", &place.folder.join("no/such/folder").display().to_string()])
        .refused_with("can't be written");
}

#[test]
fn models_that_cannot_be_are_refused() {
    let place = Location::new("heads");
    place.change("config.json", "heads\":4", "heads\":5");
    place.embed(&[]).refused_with("no such encoder");
    place.change("config.json", "heads\":5", "heads\":0");
    place.embed(&[]).refused_with("no such encoder");

    let place = Location::new("limit");
    for limit in ["0", "1", "2"] {
        place.write("sentence_bert_config.json", &format!("{{\"max_seq_length\":{limit}}}"));
        place.embed(&[]).refused_with("leaves none beside the 2 added");
    }
    place.write("sentence_bert_config.json", "{");
    place.embed(&[]).refused_with("sentence_bert_config.json is damaged");
    std::fs::remove_file(place.folder.join("sentence_bert_config.json")).expect("removed");
    assert_eq!(place.embed(&[]).status, 0, "the limit is that of the positions");

    let place = Location::new("vocabulary");
    place.change("config.json", &format!("vocab_size\":{}", WORDS.len()), "vocab_size\":11");
    place.embed(&[]).refused_with("the tokenizer gives token 11, and the model knows 11");

    let place = Location::new("tokenizer");
    place.write("tokenizer.json", "{}");
    place.embed(&[]).refused_with("tokenizing");
}

/// Nobody reads what is written.
struct Closed;

impl Write for Closed {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(Error::from(ErrorKind::BrokenPipe))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_closed_output_is_an_error_and_no_panic() {
    let place = Location::new("closed");
    let (model, text) = (place.folder.display().to_string(), place.folder.join("text").display().to_string());
    let arguments = arguments(&["--model", &model, "--text", &text, "--max-tokens", "32"]);
    let mut log = Vec::new();
    assert_eq!(run::status(&arguments, &mut Closed, &mut log), 2);
    assert!(String::from_utf8_lossy(&log).contains("embed: the embeddings can't be written"));
    assert_eq!(run::status(&arguments, &mut Closed, &mut Closed), 2, "nor where nothing can be said");
}

#[test]
fn eager_and_compare_exclude_each_other() {
    let error = Arguments::try_parse_from(["embed", "--eager", "--compare"]).map(drop).expect_err("refused");
    assert_eq!(error.kind(), clap::error::ErrorKind::ArgumentConflict);
}

#[test]
fn a_named_cublas_must_be_usable() {
    let place = Location::new("cublas");
    let reason = |path: &Path| match Exports::find(Some(path)).map(|found| found.is_some()) {
        Err(BlasError::Unusable { path: named, reason }) if named == path => reason,
        other => panic!("{other:?}"),
    };
    assert!(reason(&place.folder).contains("none under a known name"));
    reason(&place.folder.join("nowhere.so"));
    let name = if cfg!(windows) { "cublas64_12.dll" } else { "libcublas.so.12" };
    place.write(name, "no library");
    assert!(!reason(&place.folder).contains("known name"), "the file is found, and does not load");
}

#[test]
fn the_golden_vectors_are_whole() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let golden = Golden::read(&folder.join("minilm.json")).expect("golden vectors");
    let text = std::fs::read_to_string(folder.join("sentences.txt")).expect("the sentences");
    assert_eq!(golden.sentences, text.lines().collect::<Vec<_>>());
    for vector in &golden.vectors {
        assert_eq!(vector.len(), 384);
        let length: f64 = vector.iter().map(|&value| f64::from(value).powi(2)).sum();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
    }
    let mut turned = golden.vectors.clone();
    turned.rotate_left(1);
    assert!(golden.least_cosine(&turned) < 0.9, "sentences differ");
    assert!(golden.least_cosine(&golden.vectors) > 0.999_999);
    assert!(golden.least_cosine(&[]).is_nan());
}
