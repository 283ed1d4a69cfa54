//! [`PrefillRunner`], and its dispatch.

use super::capture_set::CaptureSet;
use super::error::PrefillError;
use super::inputs::{Declared, Inputs};
use super::model::{Batch, Mode, PrefillModel};
use super::options::{CaptureWhen, RunnerOptions, off_by_environment};
use super::outputs::BatchOutputs;
use super::planning::Plans;
use super::reason::{Decision, EagerReason};
use super::spec::{OutputSpec, check_outputs};
use super::stats::{Counters, RunnerStats};
use crate::capture::{CaptureReport, ReplayOptions, active_forward, eager};
use crate::driver::{Context, Stream};
use crate::error::{Error, Result};
use crate::pool::{CapturePool, PoolOptions};
use crate::tensor::Tensor;
use std::borrow::Cow;
use std::fmt;

/// Runs a model's batches: each replays the capture of the smallest bucket that holds it, or runs eagerly for a reason that is counted.
///
/// It has its static inputs, its captures and the pool that these share. It works in its own context, whatever is current on the thread.
///
/// With several [`Ranks`](super::Ranks), [`new`](PrefillRunner::new), [`capture_all`](PrefillRunner::capture_all),
/// [`capture_next`](PrefillRunner::capture_next), [`decide`](PrefillRunner::decide) and [`run`](PrefillRunner::run) are collective: every rank calls
/// them in the same order. All choose the same bucket, that of the rank with most rows; a capture succeeds on all ranks or on none.
pub struct PrefillRunner<'m, M: PrefillModel> {
    // Captures go before the buffers that they read, and those before the pool.
    pub(super) store: CaptureSet<'m>,
    pub(super) inputs: Option<Inputs>,
    pub(super) plans: Plans,
    pub(super) pool: CapturePool,
    pub(super) owns_pool: bool,
    pub(super) model: &'m M,
    pub(super) key: M::Key,
    pub(super) declared: Declared,
    pub(super) outputs: Vec<OutputSpec>,
    pub(super) context: Context,
    pub(super) options: RunnerOptions,
    pub(super) power: Power,
    pub(super) counters: Counters,
    pub(super) failure: Option<Error>,
}

/// Whether the runner replays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Power {
    On,
    /// By the environment, or by a call. Other ranks may be on.
    Off,
    /// A capture failed: off on all ranks.
    Failed {
        bucket: usize,
    },
    /// The ranks can't reach each other any more.
    Alone,
}

impl<M: PrefillModel> fmt::Debug for PrefillRunner<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefillRunner")
            .field("options", &self.options)
            .field("inputs", &self.declared.specs())
            .field("outputs", &self.outputs)
            .field("key", &self.key)
            .field("power", &self.power)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl<'m, M: PrefillModel> PrefillRunner<'m, M> {
    /// A runner for the model on the context. It takes no memory for captures before the first one, and none for inputs before the first batch.
    ///
    /// # Errors
    /// [`PrefillError::NoTailRule`] and [`PrefillError::UnfitTail`] for what the model declares, [`PrefillError::RunnersDiffer`] and
    /// [`PrefillError::Ranks`] between ranks, [`Misuse::ContextMismatch`](crate::Misuse::ContextMismatch) for a pool of another context, and as for [`CapturePool::new`].
    pub fn new(model: &'m M, context: &Context, options: RunnerOptions) -> Result<Self> {
        let declared = Declared::new(model.inputs())?;
        let pool = match &options.pool {
            Some(pool) => {
                context.expect_same(pool.context(), "pool")?;
                pool.clone()
            }
            None => {
                let pool_options = PoolOptions { max_bytes: options.max_bytes, ..options.pool_options };
                CapturePool::with_options(context, pool_options)?
            }
        };
        let off = off_by_environment() || options.ladder.buckets().is_empty();
        let buckets = options.ladder.buckets().len();
        let runner = PrefillRunner {
            store: CaptureSet::new(buckets),
            inputs: None,
            plans: Plans::new(buckets),
            pool,
            owns_pool: options.pool.is_none(),
            model,
            key: model.key(),
            declared,
            outputs: model.outputs(),
            context: context.clone(),
            power: if off { Power::Off } else { Power::On },
            counters: Counters::new(buckets),
            failure: None,
            options,
        };
        runner.expect_equal_ranks()?;
        Ok(runner)
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The pool that its captures share. Eager work of the engine can take temporaries from its side.
    pub fn pool(&self) -> &CapturePool {
        &self.pool
    }

    /// The buckets, ascending.
    pub fn buckets(&self) -> &[usize] {
        self.options.ladder.buckets()
    }

    /// Whether this bucket is captured.
    pub fn is_captured(&self, bucket: usize) -> bool {
        self.index_of(bucket).is_some_and(|index| self.store.has(index))
    }

    /// What this bucket's capture is made of.
    pub fn report(&self, bucket: usize) -> Option<CaptureReport> {
        Some(self.store.get(self.index_of(bucket)?)?.capture.report())
    }

    /// The static inputs, with room for the largest bucket: none before the first batch or capture, and
    /// after the runner was turned off.
    pub fn inputs(&self) -> &[Tensor] {
        self.inputs.as_ref().map_or(&[], Inputs::tensors)
    }

    /// What it has done so far.
    pub fn stats(&self) -> RunnerStats {
        self.counters.snapshot(self.buckets(), self.store.live())
    }

    /// The error of the last capture that failed while a batch was run, or of the exchange between ranks.
    pub fn last_failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Whether it is on. A runner with an empty ladder never is.
    pub fn is_on(&self) -> bool {
        self.power == Power::On
    }

    /// Drops all captures and static inputs and gives the memory of its pool back; a pool that it was given keeps its memory. Every batch runs eagerly
    /// from now on.
    ///
    /// # Errors
    /// [`Misuse::PoolInUse`](crate::Misuse::PoolInUse) where a clone of an output still refers to the pool's memory: then that is kept, and the rest is done.
    pub fn turn_off(&mut self) -> Result<()> {
        self.power = Power::Off;
        self.free()
    }

    /// Turns it on again, also after a capture failed. Nothing is captured yet. Unless the environment says that runners are off.
    pub fn turn_on(&mut self) {
        if !off_by_environment() && !self.buckets().is_empty() && self.power != Power::Alone {
            self.power = Power::On;
            self.failure = None;
        }
    }

    /// Waits for the last replay and gives the pool's memory back to the device; captures and addresses stay. Until
    /// [`restore`](PrefillRunner::restore) batches that would be replayed fail with [`Misuse::PoolReleased`](crate::Misuse::PoolReleased); eager ones run.
    ///
    /// # Errors
    /// As for [`CapturePool::release`]: the runner's [`RunnerOptions::pool_options`] ask for
    /// [`Backing::ReservedAddresses`](crate::pool::Backing::ReservedAddresses).
    pub fn release(&mut self) -> Result<()> {
        self.pool.release()
    }

    /// Takes the pool's memory again, at the same addresses.
    ///
    /// # Errors
    /// As for [`CapturePool::restore`].
    pub fn restore(&mut self) -> Result<()> {
        self.pool.restore()
    }

    /// Drops all captures; those made from now on are under this key.
    pub fn set_key(&mut self, key: M::Key) {
        if self.key != key {
            self.store.clear();
            self.plans.clear();
            self.key = key;
        }
    }

    /// What this batch does. An eager reason is counted, and logged the first time. For engines that run eager batches themselves; others call
    /// [`run`](PrefillRunner::run), which decides too.
    pub fn decide(&mut self, batch: &Batch<'_, M::Context>) -> Decision {
        let decision = self.agree(batch, true);
        if let Decision::Eager(reason) = &decision {
            self.counters.eager(reason, batch.rows);
        }
        decision
    }

    /// Runs a batch on the stream: replays it, or runs it eagerly. Returns when all is enqueued.
    ///
    /// A batch of no rows does not run, and has no outputs; but where another rank has rows, it replays with all rows padding. Where the runner
    /// captures at first use and that fails, the batch runs eagerly and [`last_failure`](PrefillRunner::last_failure) says why.
    ///
    /// # Errors
    /// Before anything is copied: [`PrefillError::InputCount`] and [`PrefillError::Input`] for a batch that is not as the model declares,
    /// [`Misuse::ContextMismatch`](crate::Misuse::ContextMismatch). [`PrefillError::Output`] when the forward returns something else than declared; what the forward and
    /// [`replay_with`](crate::BreakableCapture::replay_with) return.
    pub fn run(&mut self, stream: &Stream, batch: &Batch<'_, M::Context>) -> Result<BatchOutputs<'_>> {
        // The other ranks are told before this one returns.
        let sound = self.check(stream, batch);
        let mut decision = self.agree(batch, sound.is_ok());
        sound?;
        if let Decision::Replay { bucket } = decision
            && let Some(index) = self.index_of(bucket)
            && !self.store.has(index)
        {
            let captured = self.capture_bucket(stream, index, Some(batch));
            if let Err(error) = captured {
                log::error!("bucket {bucket} was not captured at its first use: {error}");
                self.failure = Some(error);
                decision = Decision::Eager(EagerReason::CaptureFailed { bucket });
            }
        }
        match decision {
            Decision::Replay { bucket } => self.replay_checked(stream, batch, bucket),
            Decision::Eager(reason) => {
                self.counters.eager(&reason, batch.rows);
                if reason == EagerReason::NoRows { Ok(self.nothing()) } else { self.run_eager_checked(stream, batch) }
            }
        }
    }

    /// Replays a batch in this bucket, after [`decide`](PrefillRunner::decide) has said so. The bucket must be captured.
    ///
    /// # Errors
    /// [`PrefillError::NotCaptured`] and [`PrefillError::Bucket`], and as for [`run`](PrefillRunner::run).
    pub fn replay(
        &mut self,
        stream: &Stream,
        batch: &Batch<'_, M::Context>,
        bucket: usize,
    ) -> Result<BatchOutputs<'_>> {
        self.check(stream, batch)?;
        if batch.rows > bucket {
            return Err(PrefillError::Bucket { rows: batch.rows, bucket }.into());
        }
        self.replay_checked(stream, batch, bucket)
    }

    /// Runs a batch eagerly, whatever its rows. Counts nothing.
    ///
    /// # Errors
    /// As for [`run`](PrefillRunner::run).
    pub fn run_eager(&mut self, stream: &Stream, batch: &Batch<'_, M::Context>) -> Result<BatchOutputs<'_>> {
        self.check(stream, batch)?;
        self.run_eager_checked(stream, batch)
    }

    /// Runs a batch eagerly in this bucket's rows, padded as a replay would be: the same kernels on the same shapes, for comparing a replay with. Breaks'
    /// handoffs are not scrubbed. Counts nothing.
    ///
    /// # Errors
    /// [`PrefillError::Bucket`] where the batch, or the static inputs, have not these rows, and as for [`run`](PrefillRunner::run).
    pub fn run_eager_in(
        &mut self,
        stream: &Stream,
        batch: &Batch<'_, M::Context>,
        bucket: usize,
    ) -> Result<BatchOutputs<'_>> {
        self.check(stream, batch)?;
        self.make_inputs(stream, bucket)?;
        let capacity = self.inputs.as_ref().map_or(0, Inputs::capacity);
        if batch.rows > bucket || bucket > capacity {
            return Err(PrefillError::Bucket { rows: batch.rows, bucket }.into());
        }
        self.eagerly(stream, batch, bucket)
    }

    /// What every rank does with its batch. `sound`: whether this rank's can be run at all.
    fn agree(&mut self, batch: &Batch<'_, M::Context>, sound: bool) -> Decision {
        match self.power {
            Power::Failed { bucket } => return Decision::Eager(EagerReason::CaptureFailed { bucket }),
            Power::Alone => return Decision::Eager(EagerReason::RanksDisagree),
            Power::On | Power::Off => {}
        }
        if self.options.ranks.size() == 1 {
            return self.own_decision(batch, batch.rows);
        }
        let agreed = self.options.ranks.max(batch.rows as u64).and_then(|rows| {
            let own = self.own_decision(batch, rows as usize);
            let replay = sound && matches!(own, Decision::Replay { .. });
            Ok((self.options.ranks.all(replay)?, own))
        });
        match agreed {
            Ok((true, own)) | Ok((false, own @ Decision::Eager(_))) => own,
            Ok((false, Decision::Replay { .. })) => Decision::Eager(EagerReason::RanksDisagree),
            Err(error) => {
                self.give_up_ranks(error);
                Decision::Eager(EagerReason::RanksDisagree)
            }
        }
    }

    /// What this rank would do. `rows`: the most of any rank.
    fn own_decision(&self, batch: &Batch<'_, M::Context>, rows: usize) -> Decision {
        let ladder = &self.options.ladder;
        let Some(largest) = ladder.largest().filter(|_| self.power == Power::On) else {
            return Decision::Eager(EagerReason::TurnedOff);
        };
        if rows == 0 {
            return Decision::Eager(EagerReason::NoRows);
        }
        let Some(bucket) = ladder.bucket_for(rows) else {
            return Decision::Eager(EagerReason::AboveLargest { rows, largest });
        };
        match self.model.mode(batch.context) {
            Mode::NotEligible => return Decision::Eager(EagerReason::ModeNotEligible),
            Mode::Eligible(key) if key != self.key => return Decision::Eager(EagerReason::KeyMismatch),
            Mode::Eligible(_) => {}
        }
        if let Some(text) = self.model.reject(batch.context, batch.rows) {
            return Decision::Eager(EagerReason::Rejected(text));
        }
        let padding = (bucket - rows) as f64 / rows as f64;
        if self.options.padding_limit.is_some_and(|limit| padding > limit) {
            return Decision::Eager(EagerReason::Padding { rows, bucket });
        }
        match self.index_of(bucket) {
            Some(index) if self.store.has(index) => Decision::Replay { bucket },
            Some(index) if self.store.has_failed(index) => Decision::Eager(EagerReason::CaptureFailed { bucket }),
            Some(_) if self.options.when == CaptureWhen::FirstUse => Decision::Replay { bucket },
            _ => Decision::Eager(EagerReason::NotCaptured { bucket }),
        }
    }

    fn check(&self, stream: &Stream, batch: &Batch<'_, M::Context>) -> Result<()> {
        self.context.expect_same(stream.context(), "stream")?;
        self.declared.check(&self.context, batch.inputs, batch.rows)
    }

    fn replay_checked(
        &mut self,
        stream: &Stream,
        batch: &Batch<'_, M::Context>,
        bucket: usize,
    ) -> Result<BatchOutputs<'_>> {
        let not_captured = || Error::from(PrefillError::NotCaptured { bucket });
        let index = self.index_of(bucket).ok_or_else(not_captured)?;
        let captured = self.store.use_now(index).ok_or_else(not_captured)?;
        let inputs = self.inputs.as_mut().ok_or_else(not_captured)?;
        inputs.fill(&self.declared, stream, Some(batch.inputs), batch.rows, bucket)?;
        let options = ReplayOptions::default().valid_rows(batch.rows);
        let capture = &mut captured.capture;
        let number = active_forward(batch.context, || Ok::<_, Error>(capture.replay_with(stream, options)?.number()))?;
        self.counters.replayed(index, bucket, batch.rows);
        let outputs = self.store.get(index).map_or(&[][..], |captured| &captured.outputs);
        Ok(BatchOutputs {
            specs: &self.outputs,
            outputs: Cow::Borrowed(outputs),
            rows: batch.rows,
            bucket: Some(bucket),
            pool: &self.pool,
            replay: Some(number),
        })
    }

    fn run_eager_checked(&mut self, stream: &Stream, batch: &Batch<'_, M::Context>) -> Result<BatchOutputs<'_>> {
        self.eagerly(stream, batch, batch.rows)
    }

    /// Eagerly with the inputs padded to `padded` rows, for which more than the batch's there is room.
    fn eagerly(&mut self, stream: &Stream, batch: &Batch<'_, M::Context>, padded: usize) -> Result<BatchOutputs<'_>> {
        let (model, rows) = (self.model, batch.rows);
        self.make_inputs(stream, padded)?;
        let inputs = match &mut self.inputs {
            Some(inputs) if padded <= inputs.capacity() => {
                inputs.fill(&self.declared, stream, Some(batch.inputs), rows, padded)?;
                inputs.for_rows(&self.declared, padded)
            }
            _ => self.declared.temporary(self.pool.handle(), stream, batch.inputs, rows)?,
        };
        let outputs =
            active_forward(batch.context, || eager(&self.pool, stream, |scope| model.forward(scope, &inputs)))?;
        check_outputs(&self.outputs, &outputs, padded)?;
        Ok(BatchOutputs {
            specs: &self.outputs,
            outputs: Cow::Owned(outputs),
            rows,
            bucket: None,
            pool: &self.pool,
            replay: None,
        })
    }

    /// Makes the static inputs, unless they are there, these rows don't fit, or the runner is off.
    pub(super) fn make_inputs(&mut self, stream: &Stream, rows: usize) -> Result<()> {
        let largest = self.options.ladder.largest().filter(|largest| rows <= *largest && self.power == Power::On);
        if let (None, Some(largest)) = (&self.inputs, largest) {
            self.inputs = Some(Inputs::new(&self.declared, stream, largest)?);
        }
        Ok(())
    }

    fn nothing(&self) -> BatchOutputs<'_> {
        BatchOutputs {
            specs: &self.outputs,
            outputs: Cow::Borrowed(&[]),
            rows: 0,
            bucket: None,
            pool: &self.pool,
            replay: None,
        }
    }

    pub(super) fn index_of(&self, bucket: usize) -> Option<usize> {
        self.buckets().binary_search(&bucket).ok()
    }
}
