//! One rank's work: its share of the batches, on its device.

use super::args::Arguments;
use super::batches::Packed;
use super::blas::Blas;
use super::encoder::{Encoder, How, Model};
use super::error::{EmbedError, Result};
use super::model_files::ModelFiles;
use super::progress::Bars;
use super::support;
use breakable_cuda_graph::Driver;
use breakable_cuda_graph::RunnerOptions;
use breakable_cuda_graph::driver::{Context, Device};
use breakable_cuda_graph::prefill::{
    CaptureProgress, Ladder, MemoryPlan, PrefillError, Ranks, RanksError, RunnerStats, ThreadRank,
};
use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

/// What all ranks work on.
pub struct Job<'a> {
    pub arguments: &'a Arguments,
    pub files: &'a ModelFiles,
    pub batches: &'a [Packed],
    pub ladder: &'a Ladder,
    pub bars: &'a Bars,
}

/// What a rank has done.
#[derive(Default)]
pub struct Outcome {
    /// The vector of each of its sentences, by the sentence's place in the text.
    pub vectors: Vec<(usize, Vec<f32>)>,
    pub stats: RunnerStats,
    /// What was captured, in words.
    pub captured: Option<String>,
    /// Where it was asked for: what the captures were to take of the pool and of all, and what the pool has in the end.
    pub plan: Option<Planned>,
    /// How matrix products were computed.
    pub products: String,
    /// Where it was asked for: whether captured and eager are equal bit for bit.
    pub equal: Option<bool>,
    /// From the first batch to the last, for each repetition.
    pub forward: Vec<Duration>,
    /// Captures at start-up: all of them, and each.
    pub start_up: Duration,
    pub captures: Vec<CaptureProgress>,
}

/// A plan, and what came of it.
pub struct Planned {
    pub plan: MemoryPlan,
    /// The pool's bytes, and recordings that differed from their plan.
    pub pool: usize,
    pub divergences: u64,
}

/// Runs the job on as many ranks as are asked for, each on a thread.
pub fn run(job: &Job<'_>, driver: &Driver) -> Result<Vec<Outcome>> {
    let ranks = job.arguments.ranks as usize;
    let devices = Device::count(driver)?.max(1);
    let outcomes = thread::scope(|scope| {
        let start = |(number, rank): (usize, ThreadRank)| {
            scope.spawn(move || one_rank(job, &support::context(driver, number % devices)?, rank))
        };
        let threads: Vec<_> = ThreadRank::group(ranks).into_iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect::<Vec<_>>()
    });
    // What one rank's error does to the others says less than that error.
    let is_echo = |error: &EmbedError| matches!(error, EmbedError::Library(error) if echoes(error));
    let mut errors: Vec<(usize, EmbedError)> = Vec::new();
    let mut done = Vec::new();
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(outcome) => done.push(outcome),
            Err(error) => errors.push((rank, error)),
        }
    }
    errors.sort_by_key(|(rank, error)| (is_echo(error), *rank));
    match errors.into_iter().next() {
        None => Ok(done),
        Some((_, error)) if ranks == 1 => Err(error),
        Some((rank, error)) => Err(EmbedError::Rank { rank, ranks, why: error.to_string() }),
    }
}

fn echoes(error: &breakable_cuda_graph::Error) -> bool {
    matches!(
        error,
        breakable_cuda_graph::Error::Prefill(
            PrefillError::OtherRankFailed { .. } | PrefillError::Ranks(RanksError::Gone { .. })
        )
    )
}

fn one_rank(job: &Job<'_>, context: &Context, rank: ThreadRank) -> Result<Outcome> {
    let arguments = job.arguments;
    let (number, ranks) = (rank.rank(), rank.size());
    let use_blas = !context.driver().is_reference() && !arguments.no_cublas;
    let blas = if use_blas { Blas::load(context, arguments.tf32)? } else { None };
    let model = Model::load(job.files, context, blas)?;
    let options = RunnerOptions::new(job.ladder.clone()).when(arguments.capture.into());
    let options = if ranks > 1 { options.ranks(rank) } else { options };
    let mut encoder = Encoder::new(&model, context, options)?;
    let mut outcome = Outcome { products: model.products().to_owned(), ..Outcome::default() };

    // In turn, so that all ranks take the same number of steps.
    let idle = Packed::empty();
    let steps = job.batches.len().div_ceil(ranks);
    let mine: Vec<&Packed> = (0..steps).map(|step| job.batches.get(step * ranks + number).unwrap_or(&idle)).collect();
    let how = if arguments.eager { How::Eager } else { How::Runner };
    let plan = if arguments.plan { Some(encoder.plan()?) } else { None };
    if !arguments.eager && arguments.capture == super::args::Capture::Start {
        let started = Instant::now();
        let captures = &mut outcome.captures;
        encoder.capture(|progress| {
            job.bars.captured(number, progress);
            captures.push(*progress);
        })?;
        outcome.start_up = started.elapsed();
    }
    let mut buckets = Vec::new();
    for repetition in 0..arguments.repeat {
        let started = Instant::now();
        for packed in &mine {
            let (vectors, bucket) = encoder.run(packed, how)?;
            job.bars.embedded(vectors.len());
            if repetition == 0 {
                outcome.vectors.extend(packed.members.iter().copied().zip(vectors));
                buckets.push(bucket);
            }
        }
        outcome.forward.push(started.elapsed());
    }
    outcome.stats = encoder.runner().stats();
    outcome.captured = captured(&encoder)?;
    if let Some(plan) = plan {
        let usage = encoder.runner().pool().usage()?;
        outcome.plan = Some(Planned { plan, pool: usage.reserved, divergences: usage.divergences });
    }
    if arguments.compare {
        let mut equal = true;
        let mut vectors = outcome.vectors.iter();
        for (packed, bucket) in mine.iter().zip(buckets) {
            // The same shapes: a library may compute a row otherwise where there are other rows.
            let padded = bucket.map_or(How::Eager, How::Padded);
            let (eager, _) = encoder.run(packed, padded)?;
            equal &= eager.iter().all(|vector| vectors.next().is_some_and(|(_, own)| bits(own) == bits(vector)));
        }
        outcome.equal = Some(equal);
    }
    Ok(outcome)
}

fn captured(encoder: &Encoder<'_>) -> Result<Option<String>> {
    let runner = encoder.runner();
    let buckets: Vec<usize> = runner.buckets().iter().copied().filter(|bucket| runner.is_captured(*bucket)).collect();
    let Some(report) = buckets.last().and_then(|largest| runner.report(*largest)) else { return Ok(None) };
    Ok(Some(format!(
        "{} buckets of {} segments and breaks, {} launches, {} nodes each; {} pool bytes",
        buckets.len(),
        report.segments,
        report.launches,
        report.nodes.total(),
        runner.pool().usage()?.reserved
    )))
}

fn bits(vector: &[f32]) -> Vec<u32> {
    vector.iter().map(|value| value.to_bits()).collect()
}
