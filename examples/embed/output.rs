//! Embeddings as JSON, one line a sentence, or as a NumPy array.

use super::args::Format;
use super::error::{EmbedError, Result};
use super::text::Sentence;
use npyz::WriterBuilder;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Writes the vectors to the file, which gets its name when it is whole, or to `out`.
pub fn write(
    out: &mut dyn Write,
    file: Option<&Path>,
    format: Format,
    sentences: &[Sentence],
    vectors: &[Vec<f32>],
) -> Result<()> {
    let Some(path) = file else {
        return write_to(out, format, sentences, vectors).map_err(EmbedError::Output);
    };
    let failed = |reason| EmbedError::Unwritable { path: path.into(), reason };
    let mut name = path.file_name().map(std::ffi::OsStr::to_owned).unwrap_or_default();
    name.push(".partial");
    let partial = path.with_file_name(name);
    let written = (|| {
        let mut file = BufWriter::new(File::create(&partial)?);
        write_to(&mut file, format, sentences, vectors)?;
        file.into_inner()?.sync_all()?;
        std::fs::rename(&partial, path)
    })();
    if written.is_err() {
        // The error to tell is the first.
        let _ = std::fs::remove_file(&partial);
    }
    written.map_err(failed)
}

fn write_to(out: &mut dyn Write, format: Format, sentences: &[Sentence], vectors: &[Vec<f32>]) -> io::Result<()> {
    match format {
        Format::Jsonl => json_lines(out, sentences, vectors),
        Format::Npy => npy(out, vectors),
    }
}

/// `{"index":0,"text":"..","tokens":7,"embedding":[..]}` for each sentence, with the fewest digits that give the same f32 again.
fn json_lines(out: &mut dyn Write, sentences: &[Sentence], vectors: &[Vec<f32>]) -> io::Result<()> {
    for (index, (sentence, vector)) in sentences.iter().zip(vectors).enumerate() {
        let (text, embedding) = (serde_json::to_string(&sentence.text)?, serde_json::to_string(vector)?);
        let tokens = sentence.ids.len();
        writeln!(out, r#"{{"index":{index},"text":{text},"tokens":{tokens},"embedding":{embedding}}}"#)?;
    }
    out.flush()
}

fn npy(out: &mut dyn Write, vectors: &[Vec<f32>]) -> io::Result<()> {
    let shape = [vectors.len() as u64, vectors.first().map_or(0, Vec::len) as u64];
    let mut writer = npyz::WriteOptions::new().default_dtype().shape(&shape).writer(&mut *out).begin_nd()?;
    writer.extend(vectors.iter().flatten().copied())?;
    writer.finish()?;
    out.flush()
}
