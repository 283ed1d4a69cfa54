//! What the runner has done, in figures.

use super::ladder::Bucket;
use super::reason::{EagerReason, ReasonKind};
use crate::capture::ExecMemory;
use std::time::Duration;

/// What a runner has done since it was made, as plain data.
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct RunnerStats {
    /// Replays of each bucket of the ladder, ascending.
    pub replays: Vec<BucketReplays>,
    /// Batches that ran eagerly, for each reason.
    pub eager: Vec<EagerCount>,
    /// Valid rows of batches that were replayed, and the rows of their buckets.
    pub replayed_rows: u64,
    /// See [`replayed_rows`](RunnerStats::replayed_rows).
    pub bucket_rows: u64,
    /// Rows of batches that ran eagerly.
    pub eager_rows: u64,
    /// Captures made.
    pub captured: u64,
    /// Captures that failed.
    pub failed: u64,
    /// Captures that were made and took more memory than all may: dropped again, to be tried later.
    pub over_budget: u64,
    /// Captures dropped to keep to the bounds.
    pub evicted: u64,
    /// Captures there are now.
    pub live: usize,
    /// Their execs, with the device memory that these take as it was measured.
    pub execs: ExecMemory,
    /// Time spent in warm-ups, captures and smoke replays.
    pub capturing: Duration,
}

/// Replays of one bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BucketReplays {
    /// The bucket in rows.
    pub bucket: usize,
    /// How often it was replayed.
    pub replays: u64,
}

/// Batches that ran eagerly for one reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct EagerCount {
    /// The reason.
    pub reason: ReasonKind,
    /// How many batches.
    pub batches: u64,
}

impl RunnerStats {
    /// Replays of all buckets.
    pub fn total_replays(&self) -> u64 {
        self.replays.iter().map(|bucket| bucket.replays).sum()
    }

    /// Eager batches, for all reasons.
    pub fn total_eager(&self) -> u64 {
        self.eager.iter().map(|count| count.batches).sum()
    }

    /// Eager batches for one reason.
    pub fn eager_for(&self, kind: ReasonKind) -> u64 {
        self.eager.iter().find(|count| count.reason == kind).map_or(0, |count| count.batches)
    }

    /// Padded rows over valid rows, of what was replayed.
    pub fn padding(&self) -> f64 {
        if self.replayed_rows == 0 {
            return 0.0;
        }
        (self.bucket_rows - self.replayed_rows) as f64 / self.replayed_rows as f64
    }
}

/// Counts, without allocating.
#[derive(Default)]
pub(super) struct Counters {
    replays: Vec<u64>,
    eager: [u64; ReasonKind::ALL.len()],
    totals: RunnerStats,
}

impl Counters {
    pub(super) fn new(buckets: usize) -> Counters {
        Counters { replays: vec![0; buckets], ..Counters::default() }
    }

    pub(super) fn replayed(&mut self, bucket: Bucket, rows: usize) {
        if let Some(count) = self.replays.get_mut(bucket.index) {
            *count += 1;
        }
        self.totals.replayed_rows += rows as u64;
        self.totals.bucket_rows += bucket.rows as u64;
    }

    pub(super) fn captured(&mut self) {
        self.totals.captured += 1;
    }

    pub(super) fn failed(&mut self) {
        self.totals.failed += 1;
    }

    pub(super) fn over_budget(&mut self) {
        self.totals.over_budget += 1;
    }

    pub(super) fn evicted(&mut self) {
        self.totals.evicted += 1;
    }

    /// Counts the time that a capture took, whether or not it succeeded.
    pub(super) fn captured_for(&mut self, time: Duration) {
        self.totals.capturing += time;
    }

    /// Counts an eager batch. The first of each reason is logged.
    pub(super) fn eager(&mut self, reason: &EagerReason, rows: usize) {
        let count = &mut self.eager[reason.kind() as usize];
        *count += 1;
        if *count == 1 {
            match reason {
                EagerReason::NoRows => log::info!("a batch is not run: {reason}; further ones are counted only"),
                _ => log::warn!("a batch of {rows} rows runs eagerly: {reason}; further ones are counted only"),
            }
        }
        self.totals.eager_rows += rows as u64;
    }

    pub(super) fn snapshot(&self, buckets: &[usize], live: usize, execs: ExecMemory) -> RunnerStats {
        let replays = buckets.iter().zip(&self.replays).map(|(&bucket, &replays)| BucketReplays { bucket, replays });
        RunnerStats {
            replays: replays.collect(),
            eager: ReasonKind::ALL.map(|reason| EagerCount { reason, batches: self.eager[reason as usize] }).to_vec(),
            live,
            execs,
            ..self.totals.clone()
        }
    }
}
