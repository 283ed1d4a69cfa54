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
    /// Batches that ran eagerly, for each reason and bucket that there were any of. See [`eager_for`](RunnerStats::eager_for) for sums.
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

/// Batches of one bucket that ran eagerly for one reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct EagerCount {
    /// The reason.
    pub reason: ReasonKind,
    /// The bucket that would have held them, in rows; `None` where none would.
    pub bucket: Option<usize>,
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
        self.eager.iter().filter(|count| count.reason == kind).map(|count| count.batches).sum()
    }

    /// Eager batches for one reason that this bucket would have held; `None`: no bucket would.
    pub fn eager_in(&self, kind: ReasonKind, bucket: Option<usize>) -> u64 {
        let found = self.eager.iter().find(|count| count.reason == kind && count.bucket == bucket);
        found.map_or(0, |count| count.batches)
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
    /// For each bucket, and at last for what none holds.
    eager: Vec<[u64; ReasonKind::ALL.len()]>,
    logged: [bool; ReasonKind::ALL.len()],
    totals: RunnerStats,
}

impl Counters {
    pub(super) fn new(buckets: usize) -> Counters {
        let eager = vec![[0; ReasonKind::ALL.len()]; buckets + 1];
        Counters { replays: vec![0; buckets], eager, ..Counters::default() }
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

    /// Counts an eager batch, which this bucket would hold. The first of each reason is logged.
    pub(super) fn eager(&mut self, reason: &EagerReason, rows: usize, bucket: Option<Bucket>) {
        let (kind, none) = (reason.kind() as usize, self.replays.len());
        if let Some(counts) = self.eager.get_mut(bucket.map_or(none, |bucket| bucket.index)) {
            counts[kind] += 1;
        }
        if !std::mem::replace(&mut self.logged[kind], true) {
            match reason {
                EagerReason::NoRows => log::info!("a batch is not run: {reason}; further ones are counted only"),
                _ => log::warn!("a batch of {rows} rows runs eagerly: {reason}; further ones are counted only"),
            }
        }
        self.totals.eager_rows = self.totals.eager_rows.saturating_add(rows as u64);
    }

    pub(super) fn snapshot(&self, buckets: &[usize], live: usize, execs: ExecMemory) -> RunnerStats {
        let replays = buckets.iter().zip(&self.replays).map(|(&bucket, &replays)| BucketReplays { bucket, replays });
        let eager = ReasonKind::ALL.into_iter().flat_map(|reason| {
            let buckets = buckets.iter().copied().map(Some).chain([None]);
            let count = move |(bucket, counts): (Option<usize>, &[u64; ReasonKind::ALL.len()])| EagerCount {
                reason,
                bucket,
                batches: counts[reason as usize],
            };
            buckets.zip(&self.eager).map(count)
        });
        RunnerStats {
            replays: replays.collect(),
            eager: eager.filter(|count| count.batches > 0).collect(),
            live,
            execs,
            ..self.totals.clone()
        }
    }
}
