//! What the program does with its arguments.

use super::args::{Arguments, Buckets};
use super::batches::{Packed, pack};
use super::error::EmbedError;
use super::golden::Golden;
use super::model_files::ModelFiles;
use super::progress::Bars;
use super::report::Report;
use super::session::{self, Job, Planned};
use super::{output, support, text};
use breakable_cuda_graph::prefill::{CostModel, Ladder, LadderOptions};
use std::io::Write;
use std::path::Path;

/// The least cosine with a golden vector that passes.
const LEAST_COSINE: f64 = 0.9999;

/// Writes the embeddings to `out` and what is to be said to `log`, and gives the exit status.
pub fn status(arguments: &Arguments, out: &mut dyn Write, log: &mut dyn Write) -> u8 {
    match run(arguments, out, log) {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(error) => {
            // There is nowhere left to say that this could not be said.
            let _ = writeln!(log, "embed: {error}");
            2
        }
    }
}

/// Whether all comparisons that were asked for came out well.
fn run(arguments: &Arguments, out: &mut dyn Write, log: &mut dyn Write) -> Result<bool, Box<dyn std::error::Error>> {
    let (driver, line) = support::driver(arguments.driver)?;
    writeln!(log, "{line}")?;
    let golden = arguments.golden.as_deref().map(Golden::read).transpose()?;
    let files = ModelFiles::open(&arguments.model)?;
    let lines = match (&arguments.text, &golden) {
        (Some(path), _) => text::sentences(&text::read(path)?),
        (None, Some(golden)) => golden.sentences.clone(),
        (None, None) => text::sentences(&text::read(Path::new("-"))?),
    };
    if golden.as_ref().is_some_and(|golden| golden.sentences != lines) {
        return Err(EmbedError::GoldenText.into());
    }
    let config = files.config()?;
    let sentences = text::tokenize(&files.tokenizer()?, lines, &config)?;
    let batches = pack(&sentences, arguments.max_tokens as usize);
    let ladder = ladder(&arguments.buckets, &batches, arguments.max_tokens as usize);

    let bars = Bars::new(sentences.len() as u64 * u64::from(arguments.repeat));
    let job = Job { arguments, files: &files, batches: &batches, ladder: &ladder, bars: &bars };
    let outcomes = session::run(&job, &driver);
    bars.finish();
    let outcomes = outcomes?;
    let products = outcomes.first().map_or("", |outcome| &outcome.products);
    writeln!(
        log,
        "{} sentences in {} batches of at most {} tokens; {} layers, {} wide; products by {products}",
        sentences.len(),
        batches.len(),
        arguments.max_tokens,
        config.layers,
        config.hidden,
    )?;
    if let Some(captured) = outcomes.first().and_then(|outcome| outcome.captured.as_ref()) {
        writeln!(log, "captured: {captured}")?;
    }
    for Planned { plan, pool, divergences } in outcomes.iter().filter_map(|outcome| outcome.plan.as_ref()) {
        writeln!(
            log,
            "planned: {} bytes of pool ({} at the peak), of it {} of outputs; {} of inputs, {} of scratch, about {} of execs; \
             the pool took {pool}, {divergences} recordings differed",
            plan.pool, plan.lower_bound, plan.outputs, plan.inputs, plan.scratch, plan.execs_estimate
        )?;
    }
    let mut vectors = vec![Vec::new(); sentences.len()];
    for (index, vector) in outcomes.iter().flat_map(|outcome| &outcome.vectors) {
        vectors[*index].clone_from(vector);
    }
    output::write(out, arguments.out.as_deref(), arguments.format, &sentences, &vectors)?;

    let report = Report::new(&batches, &outcomes);
    if arguments.stats {
        writeln!(log, "{report}")?;
    }
    if let Some(path) = &arguments.stats_json {
        let written = std::fs::write(path, format!("{:#}\n", report.json()));
        written.map_err(|reason| EmbedError::Unwritable { path: path.clone(), reason })?;
    }
    let mut good = true;
    if arguments.compare {
        let same = outcomes.iter().all(|outcome| outcome.equal == Some(true));
        writeln!(log, "captured and eager: {}", if same { "equal bit for bit" } else { "DIFFERENT" })?;
        good &= same;
    }
    if let Some(golden) = golden {
        let least = golden.least_cosine(&vectors);
        // NaN is not at least anything.
        let close = least >= LEAST_COSINE;
        let verdict = if close { "" } else { ": TOO LOW" };
        writeln!(log, "golden vectors: least cosine {least:.7} of {}{verdict}", golden.vectors.len())?;
        good &= close;
    }
    Ok(good)
}

/// The ladder for these batches.
fn ladder(buckets: &Buckets, batches: &[Packed], max: usize) -> Ladder {
    match buckets {
        Buckets::Default => Ladder::new(&LadderOptions::new(max)),
        Buckets::List(list) => {
            let max = list.iter().copied().max().unwrap_or(max);
            Ladder::new(&LadderOptions::new(max).explicit(list.as_slice()))
        }
        Buckets::Fit(most) => {
            let mut histogram = vec![0; max + 1];
            for tokens in batches.iter().map(Packed::tokens).filter(|tokens| *tokens <= max) {
                histogram[tokens] += 1;
            }
            // The largest batch ends it: nothing larger comes.
            let largest = histogram.iter().rposition(|count| *count > 0).unwrap_or(0);
            Ladder::fit(&histogram, *most, largest, &CostModel::Rows)
        }
    }
}
