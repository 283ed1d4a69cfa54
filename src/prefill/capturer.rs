//! How buckets are captured: warm-ups, the recording, smoke replays, within the bounds; on all ranks or on none.

use super::agreement::{Agreement, Power};
use super::capture_set::{CaptureSet, Captured};
use super::dispatch::CaptureState;
use super::error::PrefillError;
use super::forward::ModelForward;
use super::inputs::Saved;
use super::keys::Keys;
use super::ladder::Bucket;
use super::model::{Batch, Mode, PrefillModel};
use super::options::{CaptureProgress, OnFailure, Planning, RunnerOptions};
use super::planning::{Failure, Plans};
use super::stats::Counters;
use crate::capture::{BreakableCapture, CaptureExecution, CaptureOptions, GraphOptions, ReplayOptions, active_forward};
use crate::driver::Stream;
use crate::error::{Error, Result};
use crate::memory::TracePlan;
use crate::pool::CapturePool;
use crate::tensor::Tensor;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

/// The captures of a runner, how they are made, and how many there may be.
pub(super) struct Capturer<'m> {
    set: CaptureSet<'m>,
    plans: Plans,
    planning: Planning,
    warm_ups: usize,
    graph: GraphOptions,
    name: Option<String>,
    max_captures: Option<usize>,
    max_bytes: Option<usize>,
    on_failure: OnFailure,
}

/// What capturing needs of the runner.
pub(super) struct With<'r, 'm, M: PrefillModel> {
    pub(super) forward: &'r mut ModelForward<'m, M>,
    pub(super) pool: &'r CapturePool,
    pub(super) agreement: &'r mut Agreement,
    pub(super) counters: &'r mut Counters,
    /// Rows of the largest bucket.
    pub(super) largest: usize,
    pub(super) keys: &'r Keys<M::Key>,
}

impl<M: PrefillModel> With<'_, '_, M> {
    /// The key of a bucket's capture.
    fn key_of(&self, bucket: Bucket) -> Result<&M::Key> {
        self.keys.of(bucket).ok_or_else(|| PrefillError::NotCaptured { bucket: bucket.rows }.into())
    }

    /// A dummy for a bucket, which must be of the bucket's key where there are several.
    fn dummy(&self, stream: &Stream, bucket: Bucket) -> Result<M::Context> {
        let (model, key) = (self.forward.model(), self.key_of(bucket)?);
        let dummy = model.dummy_for(stream, bucket.rows, key)?;
        if self.keys.are_several() && model.mode(&dummy) != Mode::Eligible(key.clone()) {
            return Err(PrefillError::DummyKey { bucket: bucket.rows, key: format!("{key:?}") }.into());
        }
        Ok(dummy)
    }
}

/// What one rank has made of a bucket.
struct Made<'m> {
    captured: Captured<'m>,
    pool_bytes: usize,
}

/// What is known before a recording.
struct Prepared {
    plan: Option<TracePlan>,
    /// Of the pool, before the plan took its memory.
    reserved_before: usize,
}

impl<'m> Capturer<'m> {
    pub(super) fn new(options: &RunnerOptions) -> Capturer<'m> {
        let buckets = options.ladder.buckets().len();
        Capturer {
            set: CaptureSet::new(buckets),
            plans: Plans::new(buckets),
            planning: options.planning,
            warm_ups: options.warm_ups,
            graph: options.graph,
            name: options.name.clone(),
            max_captures: options.max_captures,
            max_bytes: options.max_bytes,
            on_failure: options.on_failure,
        }
    }

    pub(super) fn set(&self) -> &CaptureSet<'m> {
        &self.set
    }

    pub(super) fn plans(&self) -> &Plans {
        &self.plans
    }

    /// The capture of a bucket, as the one used last.
    pub(super) fn use_now(&mut self, bucket: Bucket) -> Option<&mut Captured<'m>> {
        self.set.use_now(bucket.slot)
    }

    /// A bucket was wanted that has no capture.
    pub(super) fn wanted(&mut self, bucket: Bucket) {
        self.set.wanted(bucket.slot);
    }

    /// Changes the bound, and tries again what was over it.
    pub(super) fn set_max_bytes(&mut self, bytes: Option<usize>) {
        self.max_bytes = bytes;
        self.set.forget_budget();
    }

    /// How many buckets' execs there will be, of those of a ladder.
    pub(super) fn execs_of(&self, buckets: usize) -> usize {
        if self.graph.share_execs { 1 } else { buckets }
    }

    /// Drops all captures, and forgets what failed.
    pub(super) fn clear(&mut self) {
        self.set.clear();
    }

    /// Drops all captures and plans: another forward is captured from now on.
    pub(super) fn start_anew(&mut self) {
        self.set.clear();
        self.plans.clear();
    }

    /// Those of these buckets that are neither captured nor failed, as many as the bound on captures leaves room for. `all`: those too that were over budget
    /// of late.
    pub(super) fn not_captured(&self, buckets: Vec<Bucket>, all: bool) -> Vec<Bucket> {
        let room = self.max_captures.map_or(usize::MAX, |most| most.saturating_sub(self.set.live()));
        let missing = |bucket: &Bucket| match self.set.state(bucket.slot) {
            CaptureState::Missing => true,
            CaptureState::OverBudget { again } => again || all,
            CaptureState::Captured | CaptureState::Failed => false,
        };
        buckets.into_iter().filter(missing).take(room).collect()
    }

    /// Makes room for the captures of another key.
    pub(super) fn grow_to(&mut self, places: usize) {
        self.set.grow_to(places);
        self.plans.grow_to(places);
    }

    /// Drops the captures and plans of a key.
    pub(super) fn clear_range(&mut self, places: Range<usize>) {
        self.set.clear_range(places.clone());
        self.plans.clear_range(places);
    }

    /// Traces these buckets and plans their blocks, up to the first that fails, which will be told in its turn.
    pub(super) fn trace_all<M: PrefillModel>(
        &mut self,
        with: &mut With<'_, 'm, M>,
        stream: &Stream,
        buckets: &[Bucket],
    ) {
        if self.planning == Planning::Online || self.warm_ups == 0 {
            return;
        }
        for &bucket in buckets {
            if self.plans.has(bucket) {
                continue;
            }
            let failure = match catch_unwind(AssertUnwindSafe(|| self.trace(with, stream, bucket))) {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => Failure::Error(error),
                Err(panic) => Failure::Panic(panic),
            };
            self.plans.set_failure(bucket, failure);
            return;
        }
    }

    /// Traces a bucket and plans its blocks, unless that was done.
    ///
    /// # Errors
    /// What the model, the planner and the driver return.
    pub(super) fn trace<M: PrefillModel>(
        &mut self,
        with: &mut With<'_, 'm, M>,
        stream: &Stream,
        bucket: Bucket,
    ) -> Result<()> {
        if self.plans.has(bucket) {
            return Ok(());
        }
        let key = with.keys.of(bucket).ok_or(PrefillError::NotCaptured { bucket: bucket.rows })?;
        self.plans.trace(with.forward, with.pool, stream, bucket, key, with.largest)
    }

    /// Captures a bucket on all ranks, with a dummy batch, or with the batch that needs it first. A capture of the bucket that is there stays until there is
    /// the new one, and where there is none.
    pub(super) fn capture<M: PrefillModel>(
        &mut self,
        with: &mut With<'_, 'm, M>,
        stream: &Stream,
        bucket: Bucket,
        batch: Option<&Batch<'_, M::Context>>,
    ) -> Result<CaptureProgress, Failure> {
        let started = Instant::now();
        if let Some(most) = self.max_captures
            && !self.set.has(bucket.slot)
        {
            // A bound of zero is a bound of one: the batch that runs has to be captured somewhere.
            while self.set.live() >= most.max(1) && self.set.evict(None) {
                with.counters.evicted();
            }
        }
        // Whatever the model does, the other ranks must not wait.
        let made = catch_unwind(AssertUnwindSafe(|| self.make(with, stream, bucket, batch)));
        let took = started.elapsed();
        with.counters.captured_for(took);
        let own = made.as_ref().ok().and_then(|made| made.as_ref().ok());
        let fingerprint = own.map(|made| made.captured.capture.fingerprint());
        let agreed = with.agreement.expect_captured(bucket.rows, fingerprint);
        let failure = match (made, agreed) {
            (Ok(Ok(made)), Ok(())) => {
                let Made { captured, pool_bytes } = made;
                let bytes = pool_bytes.saturating_add(captured.exec_bytes());
                let before = self.set.put(bucket.slot, captured);
                match self.keep_to_budget(with, bucket) {
                    Ok(()) => {
                        with.counters.captured();
                        drop(before);
                        return Ok(CaptureProgress { bucket: bucket.rows, done: 1, of: 1, bytes, pool_bytes, took });
                    }
                    Err(error @ Error::Prefill(PrefillError::OverBudget { .. })) => {
                        let failure = self.over_budget(with, stream, bucket, error, batch.is_some());
                        if let Some(before) = before {
                            drop(self.set.put(bucket.slot, before));
                        }
                        return Err(failure);
                    }
                    Err(error) => {
                        // The ranks have lost each other.
                        self.set.remove(bucket.slot);
                        Failure::Error(error)
                    }
                }
            }
            (Ok(Ok(_)), Err(error)) | (Ok(Err(error)), _) => Failure::Error(error),
            (Err(panic), _) => Failure::Panic(panic),
        };
        if self.set.has(bucket.slot) {
            // It was to be captured anew, and stays as it is.
            with.counters.failed();
        } else {
            self.give_up(with, bucket);
        }
        Err(failure)
    }

    /// What becomes of the rest when a capture failed, on all ranks alike.
    fn give_up<M: PrefillModel>(&mut self, with: &mut With<'_, 'm, M>, bucket: Bucket) {
        with.counters.failed();
        self.set.remove(bucket.slot);
        if with.agreement.power() == Power::Alone {
            return;
        }
        match self.on_failure {
            OnFailure::KeepOthers => self.set.set_failed(bucket.slot),
            OnFailure::RunEagerly => with.agreement.fail(bucket.rows),
        }
    }

    /// Drops a capture that takes too much, on all ranks alike: nothing has failed, and it is tried again later. A batch that it was recorded with has
    /// run; what it gave is copied.
    fn over_budget<M: PrefillModel>(
        &mut self,
        with: &mut With<'_, 'm, M>,
        stream: &Stream,
        bucket: Bucket,
        error: Error,
        has_run: bool,
    ) -> Failure {
        with.counters.over_budget();
        let outputs = self.set.get(bucket.slot).filter(|_| has_run).map(|captured| {
            let copies = captured.outputs.iter().map(|output| {
                let copy = with.pool.handle().temporary(stream, output.dtype(), output.shape())?;
                copy.copy_from(stream, output)?;
                Ok(copy)
            });
            let copies = copies.collect::<Result<Vec<_>>>();
            // The pool does not know of the copies, and may give its memory back.
            stream.settle().and(copies)
        });
        self.set.remove(bucket.slot);
        self.set.set_over_budget(bucket.slot);
        // What it took of the pool is not left for others to be charged with, as far as none of them is there.
        self.plans.forget(bucket);
        if let Err(error) = with.pool.trim() {
            log::info!("the capture pool keeps its memory: {error}");
        }
        match outputs {
            Some(Err(error)) => Failure::Error(error),
            Some(Ok(outputs)) => Failure::OverBudget(error, Some(outputs)),
            None => Failure::OverBudget(error, None),
        }
    }

    /// Drops captures that were not used of late until all fit into the bound on bytes, on every rank the same.
    fn keep_to_budget<M: PrefillModel>(&mut self, with: &mut With<'_, 'm, M>, newest: Bucket) -> Result<()> {
        let Some(limit) = self.max_bytes else { return Ok(()) };
        loop {
            let bytes = with.pool.handle().arena_usage().reserved.saturating_add(self.set.execs().bytes);
            if with.agreement.all(bytes <= limit)? {
                return Ok(());
            }
            if !self.set.evict(Some(newest.slot)) {
                return Err(PrefillError::OverBudget { bucket: newest.rows, bytes, limit }.into());
            }
            with.counters.evicted();
        }
    }

    /// The device memory of a bucket's execs: of its capture, or of one that is made for it and dropped.
    ///
    /// # Errors
    /// What the model and the driver return.
    pub(super) fn exec_bytes<M: PrefillModel>(
        &mut self,
        with: &mut With<'_, 'm, M>,
        stream: &Stream,
        bucket: Bucket,
    ) -> Result<usize> {
        match self.set.get(bucket.slot) {
            Some(captured) => Ok(captured.exec_bytes()),
            None => Ok(self.make(with, stream, bucket, None)?.captured.exec_bytes()),
        }
    }

    /// This rank's part.
    fn make<M: PrefillModel>(
        &mut self,
        with: &mut With<'_, 'm, M>,
        stream: &Stream,
        bucket: Bucket,
        batch: Option<&Batch<'_, M::Context>>,
    ) -> Result<Made<'m>> {
        with.forward.context().expect_same(stream.context(), "stream")?;
        self.plans.take_failure(bucket)?;
        with.forward.make_inputs(stream, with.largest)?;
        let Some(batch) = batch else {
            let dummy = with.dummy(stream, bucket)?;
            let inputs = with.forward.filled(stream, None, 0, bucket.rows)?;
            let (forward, pool) = (&*with.forward, with.pool);
            let made = active_forward(&dummy, || {
                let prepared = self.warm_up(forward, pool, stream, bucket, &inputs)?;
                let options = CaptureOptions::default().valid_rows(0);
                let made = self.record(forward, pool, stream, bucket, &inputs, prepared, options)?;
                self.try_out(stream, made)
            });
            if made.is_err() {
                // The dummy's memory goes now; warm-ups may still read it.
                let _ = stream.settle();
            }
            return made;
        };
        let saved = with.forward.save(with.pool, stream, batch.inputs, bucket.rows)?;
        // Whatever happens, the batch finds its inputs as they were.
        let made = catch_unwind(AssertUnwindSafe(|| self.make_with_batch(with, stream, bucket, batch, &saved)));
        if !matches!(made, Ok(Ok(_))) {
            saved.put_back(stream)?;
        }
        made.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Warm-ups on a dummy, and a recording that is the batch's run.
    fn make_with_batch<M: PrefillModel>(
        &mut self,
        with: &mut With<'_, 'm, M>,
        stream: &Stream,
        bucket: Bucket,
        batch: &Batch<'_, M::Context>,
        saved: &Saved,
    ) -> Result<Made<'m>> {
        let mut inputs = Vec::new();
        let prepared = if self.warm_ups > 0 {
            let dummy = with.dummy(stream, bucket)?;
            inputs = with.forward.filled(stream, None, 0, bucket.rows)?;
            let (forward, pool) = (&*with.forward, with.pool);
            let prepared = active_forward(&dummy, || self.warm_up(forward, pool, stream, bucket, &inputs));
            if prepared.is_err() {
                let _ = stream.settle();
            }
            let prepared = prepared?;
            saved.put_back(stream)?;
            prepared
        } else {
            self.prepare(with.pool, bucket)?
        };
        drop(inputs);
        let inputs = with.forward.filled(stream, Some(batch.inputs), batch.rows, bucket.rows)?;
        let (forward, pool) = (&*with.forward, with.pool);
        let options = CaptureOptions::default().valid_rows(batch.rows).execution(CaptureExecution::RunThrough);
        active_forward(batch.context, || self.record(forward, pool, stream, bucket, &inputs, prepared, options))
    }

    /// What is known before a recording.
    fn prepare(&self, pool: &CapturePool, bucket: Bucket) -> Result<Prepared> {
        let reserved_before = pool.handle().arena_usage().reserved;
        Ok(Prepared { plan: self.plans.take_for(bucket, pool)?, reserved_before })
    }

    /// Warm-ups, on a dummy's inputs.
    fn warm_up<M: PrefillModel>(
        &self,
        forward: &ModelForward<'m, M>,
        pool: &CapturePool,
        stream: &Stream,
        bucket: Bucket,
        inputs: &[Tensor],
    ) -> Result<Prepared> {
        let prepared = self.prepare(pool, bucket)?;
        // A run that was traced was a warm-up.
        let warm_ups = self.warm_ups.saturating_sub(usize::from(prepared.plan.is_some()));
        for _ in 0..warm_ups {
            forward.warm_up(pool, stream, inputs, bucket.rows)?;
        }
        // What they read, the dummy's own memory say, may go now.
        stream.synchronize()?;
        Ok(prepared)
    }

    /// The recording.
    #[allow(clippy::too_many_arguments)] // Each is one thing, and none outlives the call.
    fn record<M: PrefillModel>(
        &self,
        forward: &ModelForward<'m, M>,
        pool: &CapturePool,
        stream: &Stream,
        bucket: Bucket,
        inputs: &[Tensor],
        prepared: Prepared,
        options: CaptureOptions,
    ) -> Result<Made<'m>> {
        let mut options = options.bucket(bucket.rows).graph(self.graph);
        (options.name, options.plan) = (self.name.clone(), prepared.plan);
        let mut capture = BreakableCapture::with_options(pool, options)?;
        let outputs = capture.record(stream, |scope| forward.run(scope, inputs, bucket.rows))?;
        let outputs = outputs.iter().map(|output| output.unheld(pool.handle().retain_mapping())).collect();
        let reserved = pool.handle().arena_usage().reserved;
        let pool_bytes = reserved.saturating_sub(prepared.reserved_before);
        Ok(Made { captured: Captured::new(capture, outputs), pool_bytes })
    }

    /// Smoke replays, with no row valid. The first of them is also the one that makes an exec for bodies that scrub padding: these have other nodes, and
    /// no batch is to be the first to need it.
    fn try_out(&self, stream: &Stream, mut made: Made<'m>) -> Result<Made<'m>> {
        let _ = made.captured.capture.replay_with(stream, ReplayOptions::default().valid_rows(0))?;
        stream.synchronize()?;
        Ok(made)
    }
}
