//! How the runner captures: warm-ups, the recording, one smoke replay; on all ranks or on none.

use super::capture_set::Captured;
use super::error::PrefillError;
use super::model::{Batch, InputData, PrefillModel};
use super::options::{CaptureProgress, OnFailure};
use super::ranks::RanksError;
use super::runner::{Power, PrefillRunner};
use super::spec::check_outputs;
use crate::capture::{BreakableCapture, CaptureExecution, ReplayOptions, active_forward, eager};
use crate::driver::Stream;
use crate::error::Result;
use crate::tensor::Tensor;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

/// What one rank has made of a bucket.
pub(super) struct Made<'m> {
    pub(super) captured: Captured<'m>,
    pool_bytes: usize,
}

impl<'m, M: PrefillModel> PrefillRunner<'m, M> {
    /// Captures all buckets that are not captured yet, largest first, up to the bounds; smaller ones then fit into the memory of larger ones. Tells
    /// `progress` of each. Where the runner is off, on any rank, nothing is done.
    ///
    /// # Errors
    /// [`Error::Capture`](crate::Error::Capture) with bucket and segment, or what the model returns, when a capture fails: then all captures are
    /// dropped and every batch runs eagerly, on all ranks, unless [`OnFailure::KeepOthers`] was asked for, by which the other buckets are still
    /// captured and the first error is returned. [`PrefillError::OtherRankFailed`] and [`PrefillError::RecordingsDiffer`] where this rank was not
    /// the one that failed. A panic of the model goes on after the other ranks were told.
    pub fn capture_all(&mut self, stream: &Stream, mut progress: impl FnMut(&CaptureProgress)) -> Result<()> {
        if !self.all_on()? {
            return Ok(());
        }
        let todo = self.not_captured();
        self.trace_all(stream, &todo);
        let of = todo.len();
        let mut first_error = None;
        for (done, index) in todo.into_iter().enumerate() {
            match self.capture_bucket(stream, index, None) {
                Ok(one) => progress(&CaptureProgress { done: done + 1, of, ..one }),
                Err(error) if self.power == Power::On => {
                    first_error.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Captures one bucket that is not captured yet, the largest: for engines that capture between batches. `None` where none is left, the bounds
    /// are reached, or the runner is off on any rank.
    ///
    /// # Errors
    /// As for [`capture_all`](PrefillRunner::capture_all).
    pub fn capture_next(&mut self, stream: &Stream) -> Result<Option<CaptureProgress>> {
        if !self.all_on()? {
            return Ok(None);
        }
        match self.not_captured().first() {
            Some(&index) => {
                self.trace_all(stream, &[index]);
                self.capture_bucket(stream, index, None).map(Some)
            }
            None => Ok(None),
        }
    }

    /// Buckets that are neither captured nor failed, largest first, as many as the bound on captures leaves room for.
    fn not_captured(&self) -> Vec<usize> {
        let room = self.options.max_captures.map_or(usize::MAX, |most| most.saturating_sub(self.store.live()));
        let open = |index: &usize| !self.store.has(*index) && !self.store.has_failed(*index);
        (0..self.buckets().len()).rev().filter(open).take(room).collect()
    }

    /// Captures a bucket on all ranks, with a dummy batch, or with the batch that needs it first.
    pub(super) fn capture_bucket(
        &mut self,
        stream: &Stream,
        index: usize,
        batch: Option<&Batch<'_, M::Context>>,
    ) -> Result<CaptureProgress> {
        let bucket = self.buckets()[index];
        let started = Instant::now();
        if let Some(most) = self.options.max_captures {
            // A bound of zero is a bound of one: the batch that runs has to be captured somewhere.
            while self.store.live() >= most.max(1) && self.store.evict(None) {
                self.counters.totals.evicted += 1;
            }
        }
        // Whatever the model does, the other ranks must not wait.
        let made = catch_unwind(AssertUnwindSafe(|| self.make(stream, index, bucket, batch)));
        let took = started.elapsed();
        self.counters.totals.capturing += took;
        let own = made.as_ref().ok().and_then(|made| made.as_ref().ok());
        let agreed = self.agree_on(bucket, own.map(|made| made.captured.capture.fingerprint()));
        let error = match (made, agreed) {
            (Ok(Ok(made)), Ok(())) => {
                let Made { captured, pool_bytes } = made;
                let bytes = pool_bytes + captured.exec_bytes;
                self.store.put(index, captured);
                match self.keep_to_budget(index, bucket) {
                    Ok(()) => {
                        self.counters.totals.captured += 1;
                        return Ok(CaptureProgress { bucket, done: 1, of: 1, bytes, pool_bytes, took });
                    }
                    Err(error) => error,
                }
            }
            (Ok(Ok(_)), Err(error)) | (Ok(Err(error)), _) => error,
            (Err(panic), _) => {
                self.give_up(index, bucket);
                resume_unwind(panic);
            }
        };
        self.give_up(index, bucket);
        Err(error)
    }

    /// This rank's part.
    pub(super) fn make(
        &mut self,
        stream: &Stream,
        index: usize,
        bucket: usize,
        batch: Option<&Batch<'_, M::Context>>,
    ) -> Result<Made<'m>> {
        self.context.expect_same(stream.context(), "stream")?;
        self.plans.fail(index)?;
        self.make_inputs(stream, bucket)?;
        let dummy;
        let (context, feeds, rows) = match batch {
            Some(batch) => (batch.context, Some(batch.inputs), batch.rows),
            None => {
                dummy = self.model.dummy(stream, bucket)?;
                (&dummy, None, 0)
            }
        };
        let inputs = self.fill_inputs(stream, feeds, rows, bucket)?;
        let result = active_forward(context, || self.record(stream, index, bucket, &inputs, batch.is_some()));
        if result.is_err() && batch.is_none() {
            // The dummy's memory goes now; warm-ups may still read it.
            let _ = stream.settle();
        }
        result
    }

    /// The static inputs of a bucket, filled.
    pub(super) fn fill_inputs(
        &mut self,
        stream: &Stream,
        feeds: Option<&[InputData<'_>]>,
        rows: usize,
        bucket: usize,
    ) -> Result<Vec<Tensor>> {
        let Some(inputs) = &mut self.inputs else { return Err(PrefillError::NotCaptured { bucket }.into()) };
        inputs.fill(&self.declared, stream, feeds, rows, bucket)?;
        Ok(inputs.for_rows(&self.declared, bucket))
    }

    /// Warm-ups, the recording, and smoke replays. A batch that captures at first use is replayed by its caller anyway.
    fn record(
        &self,
        stream: &Stream,
        index: usize,
        bucket: usize,
        inputs: &[Tensor],
        run_through: bool,
    ) -> Result<Made<'m>> {
        let model = self.model;
        let before = self.pool.handle().arena_usage().reserved;
        let plan = self.plan_for(index)?;
        // A run that was traced was a warm-up.
        let warm_ups = self.options.warm_ups.saturating_sub(usize::from(plan.is_some()));
        for _ in 0..warm_ups {
            let outputs = eager(&self.pool, stream, |scope| model.forward(scope, inputs))?;
            check_outputs(&self.outputs, &outputs, bucket)?;
        }
        stream.synchronize()?;
        let reserved = self.pool.handle().arena_usage().reserved;
        let free = self.context.memory_info()?.free;
        let execution = if run_through { CaptureExecution::RunThrough } else { CaptureExecution::Record };
        let mut options = self.options.capture.clone().bucket(bucket).execution(execution);
        (options.stream, options.plan) = (None, plan);
        let mut capture = BreakableCapture::with_options(&self.pool, options)?;
        let outputs = capture.record(stream, |scope| {
            let outputs = model.forward(scope, inputs)?;
            check_outputs(&self.outputs, &outputs, bucket)?;
            Ok(outputs)
        })?;
        let outputs = outputs.iter().map(|output| output.unheld(self.pool.handle().retain_mapping())).collect();
        if !run_through {
            let _ = capture.replay(stream)?;
            if capture.patch_stats().execs > 0 && bucket > 1 {
                // Bodies that scrub padding have other nodes: no batch is the first to need an exec for them.
                let _ = capture.replay_with(stream, ReplayOptions::default().valid_rows(bucket - 1))?;
            }
            stream.synchronize()?;
        }
        let taken = free.saturating_sub(self.context.memory_info()?.free);
        let now = self.pool.handle().arena_usage().reserved;
        let captured = Captured::new(capture, outputs, taken.saturating_sub(now.saturating_sub(reserved)));
        let pool_bytes = now.saturating_sub(before);
        Ok(Made { captured, pool_bytes })
    }

    /// Whether every rank has captured the bucket, and the same list. `own`: this rank's.
    fn agree_on(&mut self, bucket: usize, own: Option<u64>) -> Result<()> {
        let ranks = &self.options.ranks;
        if ranks.size() == 1 {
            return Ok(());
        }
        let agreed = ranks.all(own.is_some()).and_then(|all| match own {
            Some(hash) if all => Ok((true, equal(&**ranks, hash)?)),
            _ => Ok((false, true)),
        });
        match agreed {
            Ok((true, true)) => Ok(()),
            Ok((true, false)) => Err(PrefillError::RecordingsDiffer { bucket }.into()),
            Ok((false, _)) => Err(PrefillError::OtherRankFailed { bucket }.into()),
            Err(error) => {
                self.give_up_ranks(error.clone());
                Err(error.into())
            }
        }
    }

    /// Drops captures that were not used of late until all fit into the bound on bytes, on every rank the same.
    fn keep_to_budget(&mut self, newest: usize, bucket: usize) -> Result<()> {
        let Some(limit) = self.options.max_bytes else { return Ok(()) };
        loop {
            let bytes = self.pool.handle().arena_usage().reserved + self.store.exec_bytes();
            let fits = match self.options.ranks.all(bytes <= limit) {
                Ok(fits) => fits,
                Err(error) => {
                    self.give_up_ranks(error.clone());
                    return Err(error.into());
                }
            };
            if fits {
                return Ok(());
            }
            if !self.store.evict(Some(newest)) {
                return Err(PrefillError::OverBudget { bucket, bytes, limit }.into());
            }
            self.counters.totals.evicted += 1;
        }
    }

    /// What becomes of the rest when a capture failed, on all ranks alike.
    fn give_up(&mut self, index: usize, bucket: usize) {
        self.counters.totals.failed += 1;
        self.store.remove(index);
        if self.power == Power::Alone {
            return;
        }
        match self.options.on_failure {
            OnFailure::KeepOthers => self.store.set_failed(index),
            OnFailure::RunEagerly => {
                log::error!("the capture of bucket {bucket} failed on some rank: every batch runs eagerly from now on");
                self.power = Power::Failed { bucket };
                if let Err(error) = self.free() {
                    log::warn!("the capture pool keeps its memory: {error}");
                }
            }
        }
    }

    /// The ranks can't reach each other: none can know what the others do, so this one runs eagerly from now on.
    pub(super) fn give_up_ranks(&mut self, error: RanksError) {
        log::error!("{error}: every batch runs eagerly from now on");
        self.power = Power::Alone;
        self.failure = Some(error.into());
        if let Err(error) = self.free() {
            log::warn!("the capture pool keeps its memory: {error}");
        }
    }

    /// Drops captures and inputs, and gives back what the pool has.
    pub(super) fn free(&mut self) -> Result<()> {
        self.store.clear();
        self.inputs = None;
        if self.owns_pool { self.pool.trim() } else { Ok(()) }
    }

    fn all_on(&mut self) -> Result<bool> {
        match self.power {
            Power::Failed { .. } | Power::Alone => return Err(PrefillError::TurnedOff.into()),
            Power::On | Power::Off => {}
        }
        match self.options.ranks.all(self.power == Power::On) {
            Ok(on) => Ok(on),
            Err(error) => {
                self.give_up_ranks(error.clone());
                Err(error.into())
            }
        }
    }

    /// That all ranks' runners were made alike.
    pub(super) fn expect_equal_ranks(&self) -> Result<()> {
        let options = &self.options;
        if options.ranks.size() == 1 {
            return Ok(());
        }
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut add = |number: u64| hash = (hash ^ number).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
        options.ladder.buckets().iter().for_each(|bucket| add(*bucket as u64));
        add(options.when as u64);
        add(options.on_failure as u64);
        add(options.max_captures.map_or(u64::MAX, |most| most as u64));
        add(options.max_bytes.map_or(u64::MAX, |most| most as u64));
        add(options.padding_limit.map_or(u64::MAX, f64::to_bits));
        if equal(&*options.ranks, hash)? { Ok(()) } else { Err(PrefillError::RunnersDiffer.into()) }
    }
}

/// Whether every rank has the same number: the largest is then also the smallest.
fn equal(ranks: &dyn super::ranks::Ranks, number: u64) -> Result<bool, RanksError> {
    let largest = ranks.max(number)?;
    let smallest = !ranks.max(!number)?;
    Ok(largest == smallest)
}
