//! How buckets are captured: warm-ups, the recording, smoke replays, within the bounds; on all ranks or on none.

use super::agreement::{Agreement, Power};
use super::capture_set::{CaptureSet, Captured};
use super::dispatch::CaptureState;
use super::error::PrefillError;
use super::forward::ModelForward;
use super::ladder::{Bucket, Ladder};
use super::model::{Batch, PrefillModel};
use super::options::{CaptureProgress, OnFailure, Planning, RunnerOptions};
use super::planning::{Failure, Plans};
use super::stats::Counters;
use crate::capture::{
    BreakableCapture, CaptureExecution, CaptureOptions, GraphOptions, ReplayOptions, active_forward, eager,
};
use crate::driver::Stream;
use crate::error::{Error, Result};
use crate::pool::CapturePool;
use crate::tensor::Tensor;
use std::panic::{AssertUnwindSafe, catch_unwind};
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
}

/// What one rank has made of a bucket.
struct Made<'m> {
    captured: Captured<'m>,
    pool_bytes: usize,
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
        self.set.use_now(bucket.index)
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

    /// Buckets that are neither captured nor failed, largest first, as many as the bound on captures leaves room for.
    pub(super) fn not_captured(&self, ladder: &Ladder) -> Vec<Bucket> {
        let room = self.max_captures.map_or(usize::MAX, |most| most.saturating_sub(self.set.live()));
        let missing = |bucket: &Bucket| self.set.state(bucket.index) == CaptureState::Missing;
        ladder.descending().filter(missing).take(room).collect()
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
        self.plans.trace(with.forward, with.pool, stream, bucket, with.largest)
    }

    /// Captures a bucket on all ranks, with a dummy batch, or with the batch that needs it first.
    pub(super) fn capture<M: PrefillModel>(
        &mut self,
        with: &mut With<'_, 'm, M>,
        stream: &Stream,
        bucket: Bucket,
        batch: Option<&Batch<'_, M::Context>>,
    ) -> Result<CaptureProgress, Failure> {
        let started = Instant::now();
        if let Some(most) = self.max_captures {
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
                let bytes = pool_bytes + captured.exec_bytes;
                self.set.put(bucket.index, captured);
                match self.keep_to_budget(with, bucket) {
                    Ok(()) => {
                        with.counters.captured();
                        return Ok(CaptureProgress { bucket: bucket.rows, done: 1, of: 1, bytes, pool_bytes, took });
                    }
                    Err(error) => Failure::Error(error),
                }
            }
            (Ok(Ok(_)), Err(error)) | (Ok(Err(error)), _) => Failure::Error(error),
            (Err(panic), _) => Failure::Panic(panic),
        };
        self.give_up(with, bucket);
        Err(failure)
    }

    /// What becomes of the rest when a capture failed, on all ranks alike.
    fn give_up<M: PrefillModel>(&mut self, with: &mut With<'_, 'm, M>, bucket: Bucket) {
        with.counters.failed();
        self.set.remove(bucket.index);
        if with.agreement.power() == Power::Alone {
            return;
        }
        match self.on_failure {
            OnFailure::KeepOthers => self.set.set_failed(bucket.index),
            OnFailure::RunEagerly => with.agreement.fail(bucket.rows),
        }
    }

    /// Drops captures that were not used of late until all fit into the bound on bytes, on every rank the same.
    fn keep_to_budget<M: PrefillModel>(&mut self, with: &mut With<'_, 'm, M>, newest: Bucket) -> Result<()> {
        let Some(limit) = self.max_bytes else { return Ok(()) };
        loop {
            let bytes = with.pool.handle().arena_usage().reserved + self.set.exec_bytes();
            if with.agreement.all(bytes <= limit)? {
                return Ok(());
            }
            if !self.set.evict(Some(newest.index)) {
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
        match self.set.get(bucket.index) {
            Some(captured) => Ok(captured.exec_bytes),
            None => Ok(self.make(with, stream, bucket, None)?.captured.exec_bytes),
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
        let dummy;
        let (context, data, rows) = match batch {
            Some(batch) => (batch.context, Some(batch.inputs), batch.rows),
            None => {
                dummy = with.forward.model().dummy(stream, bucket.rows)?;
                (&dummy, None, 0)
            }
        };
        let inputs = with.forward.filled(stream, data, rows, bucket.rows)?;
        let (forward, pool) = (&*with.forward, with.pool);
        let made = active_forward(context, || self.record(forward, pool, stream, bucket, &inputs, batch.is_some()));
        if made.is_err() && batch.is_none() {
            // The dummy's memory goes now; warm-ups may still read it.
            let _ = stream.settle();
        }
        made
    }

    /// Warm-ups, the recording, and smoke replays. A batch that captures at first use is replayed by its caller anyway.
    fn record<M: PrefillModel>(
        &self,
        forward: &ModelForward<'m, M>,
        pool: &CapturePool,
        stream: &Stream,
        bucket: Bucket,
        inputs: &[Tensor],
        run_through: bool,
    ) -> Result<Made<'m>> {
        let rows = bucket.rows;
        let reserved = || pool.handle().arena_usage().reserved;
        let free = || -> Result<usize, Error> { Ok(forward.context().memory_info()?.free) };
        let before = reserved();
        let plan = self.plans.take_for(bucket, pool)?;
        // A run that was traced was a warm-up.
        let warm_ups = self.warm_ups.saturating_sub(usize::from(plan.is_some()));
        for _ in 0..warm_ups {
            drop(eager(pool, stream, |scope| forward.run(scope, inputs, rows))?);
        }
        stream.synchronize()?;
        let (reserved_before, free_before) = (reserved(), free()?);
        let execution = if run_through { CaptureExecution::RunThrough } else { CaptureExecution::Record };
        let mut options = CaptureOptions::default().bucket(rows).execution(execution).graph(self.graph);
        (options.name, options.plan) = (self.name.clone(), plan);
        let mut capture = BreakableCapture::with_options(pool, options)?;
        let outputs = capture.record(stream, |scope| forward.run(scope, inputs, rows))?;
        let outputs = outputs.iter().map(|output| output.unheld(pool.handle().retain_mapping())).collect();
        if !run_through {
            let _ = capture.replay(stream)?;
            if capture.patch_stats().execs > 0 && rows > 1 {
                // Bodies that scrub padding have other nodes: no batch is the first to need an exec for them.
                let _ = capture.replay_with(stream, ReplayOptions::default().valid_rows(rows - 1))?;
            }
            stream.synchronize()?;
        }
        let taken = free_before.saturating_sub(free()?);
        let now = reserved();
        let captured = Captured::new(capture, outputs, taken.saturating_sub(now.saturating_sub(reserved_before)));
        Ok(Made { captured, pool_bytes: now.saturating_sub(before) })
    }
}
