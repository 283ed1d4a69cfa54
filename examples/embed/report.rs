//! What a run did, in figures.

use super::batches::Packed;
use super::session::Outcome;
use breakable_cuda_graph::prefill::CaptureProgress;
use serde_json::json;
use std::fmt;

/// What a run did.
pub struct Report {
    pub sentences: usize,
    pub tokens: usize,
    pub batches: usize,
    /// Padded rows over valid rows, of what was replayed.
    pub padding: f64,
    /// Replays by bucket, those that were used.
    pub replays: Vec<(usize, u64)>,
    /// Batches that ran eagerly, by reason.
    pub eager: Vec<(&'static str, u64)>,
    /// Captures at start-up, and in all.
    pub start_up_seconds: f64,
    pub capture_seconds: f64,
    /// Each capture at start-up, of the first rank.
    pub captures: Vec<CaptureProgress>,
    /// All batches once: the median of the repetitions, of the slowest rank.
    pub forward_seconds: f64,
}

impl Report {
    pub fn new(batches: &[Packed], outcomes: &[Outcome]) -> Report {
        let sum = |pick: fn(&Outcome) -> u64| outcomes.iter().map(pick).sum::<u64>();
        let (real, bucket) = (sum(|o| o.stats.replayed_rows), sum(|o| o.stats.bucket_rows));
        let mut replays: Vec<(usize, u64)> = Vec::new();
        let mut eager: Vec<(&'static str, u64)> = Vec::new();
        for stats in outcomes.iter().map(|outcome| &outcome.stats) {
            stats.replays.iter().for_each(|one| add(&mut replays, one.bucket, one.replays));
            stats.eager.iter().for_each(|one| add(&mut eager, one.reason.name(), one.batches));
        }
        let most = |pick: fn(&Outcome) -> f64| outcomes.iter().map(pick).fold(0.0, f64::max);
        Report {
            sentences: batches.iter().map(|batch| batch.members.len()).sum(),
            tokens: batches.iter().map(Packed::tokens).sum(),
            batches: batches.len(),
            padding: if real == 0 { 0.0 } else { (bucket - real) as f64 / real as f64 },
            replays,
            eager,
            start_up_seconds: most(|outcome| outcome.start_up.as_secs_f64()),
            capture_seconds: most(|outcome| outcome.stats.capturing.as_secs_f64()),
            captures: outcomes.first().map_or_else(Vec::new, |outcome| outcome.captures.clone()),
            forward_seconds: most(|outcome| {
                let mut seconds: Vec<f64> = outcome.forward.iter().map(std::time::Duration::as_secs_f64).collect();
                seconds.sort_by(f64::total_cmp);
                seconds.get(seconds.len() / 2).copied().unwrap_or(0.0)
            }),
        }
    }

    fn sentences_per_second(&self) -> f64 {
        if self.forward_seconds > 0.0 { self.sentences as f64 / self.forward_seconds } else { 0.0 }
    }

    pub fn json(&self) -> serde_json::Value {
        let capture = |one: &CaptureProgress| json!({ "bucket": one.bucket, "seconds": one.took.as_secs_f64(), "bytes": one.bytes, "pool_bytes": one.pool_bytes });
        json!({
            "sentences": self.sentences,
            "tokens": self.tokens,
            "batches": self.batches,
            "padding": self.padding,
            "replays": self.replays.iter().map(|(bucket, count)| (bucket.to_string(), json!(count))).collect::<serde_json::Map<_, _>>(),
            "eager": self.eager.iter().map(|(reason, count)| ((*reason).to_owned(), json!(count))).collect::<serde_json::Map<_, _>>(),
            "captures": self.captures.iter().map(capture).collect::<Vec<_>>(),
            "start_up_seconds": self.start_up_seconds,
            "capture_seconds": self.capture_seconds,
            "forward_seconds": self.forward_seconds,
            "sentences_per_second": self.sentences_per_second(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |pairs: Vec<String>| if pairs.is_empty() { "none".to_owned() } else { pairs.join(", ") };
        writeln!(f, "{} sentences, {} tokens in {} batches", self.sentences, self.tokens, self.batches)?;
        let replays = list(self.replays.iter().map(|(bucket, count)| format!("{count} of {bucket}")).collect());
        writeln!(f, "replays by bucket: {replays}; {:.2}% padding", 100.0 * self.padding)?;
        let eager = list(self.eager.iter().map(|(reason, count)| format!("{count} {reason}")).collect());
        writeln!(f, "eager by reason: {eager}")?;
        writeln!(f, "captures: {:.3} s, of it {:.3} s at start-up", self.capture_seconds, self.start_up_seconds)?;
        let rate = self.sentences_per_second();
        write!(f, "all batches: {:.3} s, {rate:.0} sentences a second", self.forward_seconds)
    }
}

/// Adds to a key's count; a key of no count is left out.
fn add<K: PartialEq>(pairs: &mut Vec<(K, u64)>, key: K, count: u64) {
    if count == 0 {
        return;
    }
    match pairs.iter_mut().find(|(other, _)| *other == key) {
        Some((_, sum)) => *sum += count,
        None => pairs.push((key, count)),
    }
}
