//! [`PrefillRunner`], and its dispatch.

use super::agreement::Agreement;
use super::capturer::{Capturer, With};
use super::dispatch::{CaptureState, Choice, Dispatch, Verdict};
use super::error::PrefillError;
use super::forward::ModelForward;
use super::keys::Keys;
use super::ladder::Bucket;
use super::model::{Batch, Mode, PrefillModel};
use super::options::{CaptureProgress, OnReplayFailure, RunnerOptions};
use super::outputs::BatchOutputs;
use super::planning::{Failure, MemoryPlan};
use super::reason::{Decision, EagerReason};
use super::stats::{Counters, RunnerStats};
use super::telling::Telling;
use super::verify::verify;
use crate::capture::{
    BreakableCapture, CaptureReport, PatchStats, ReplayOptions, Verified, VerifyOptions, active_forward,
};
use crate::driver::{Context, Stream, live_break};
use crate::error::{Error, Result};
use crate::pool::{CapturePool, PoolOptions};
use crate::tensor::Tensor;
use std::fmt;
use std::sync::Arc;

/// Runs a model's batches: each replays the capture of the smallest bucket that holds it, or runs eagerly for a reason that is counted.
///
/// It has its static inputs, its captures and the pool that these share. It works in its own context, whatever is current on the thread.
///
/// With several [`Ranks`](super::Ranks), [`new`](PrefillRunner::new), [`capture_all`](PrefillRunner::capture_all),
/// [`capture_next`](PrefillRunner::capture_next), [`decide`](PrefillRunner::decide) and [`run`](PrefillRunner::run) are collective: every rank calls
/// them in the same order. All choose the same bucket, that of the rank with most rows; a capture succeeds on all ranks or on none.
///
/// ```
/// use breakable_cuda_graph::driver::{Device, Stream};
/// use breakable_cuda_graph::prefill::{Batch, InputData, InputSpec, Ladder, LadderOptions, Mode, OutputSpec, TailRule};
/// use breakable_cuda_graph::{BreakOptions, DType, Driver, PrefillModel, PrefillRunner, Result, RunnerOptions, Scope, Tensor};
///
/// /// A model that adds nothing of its own: its break gives each row the row of a cache page.
/// struct Model {
///     cache: Tensor, // [pages, 1, 2]
/// }
///
/// impl PrefillModel for Model {
///     type Context = usize; // The page, which breaks read live.
///     type Key = (); // What captures depend on: an adapter, a precision.
///
///     fn inputs(&self) -> Vec<InputSpec> {
///         vec![InputSpec::rows("x", DType::F32, &[2]).tail(TailRule::Zero)]
///     }
///     fn outputs(&self) -> Vec<OutputSpec> {
///         vec![OutputSpec::rows("x", DType::F32, &[2]), OutputSpec::fixed("found", DType::F32, &[1, 2])]
///     }
///     fn key(&self) {}
///     fn dummy(&self, _: &Stream, _rows: usize) -> Result<usize> {
///         Ok(0)
///     }
///     fn mode(&self, _: &usize) -> Mode<()> {
///         Mode::Eligible(())
///     }
///     fn forward<'m>(&'m self, scope: &Scope<'_, 'm>, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
///         let x = scope.empty(DType::F32, inputs[0].shape())?;
///         x.copy_from(&scope.stream()?, &inputs[0])?;
///         let options = BreakOptions::new("attention").not_rows(); // Its handoff is one page, whatever the bucket.
///         let found = scope.break_point(options, [&x], |b| self.cache.narrow(0, *b.forward_ctx()?, 1)?.reshape(&[1, 2]))?;
///         Ok(vec![x, found])
///     }
/// }
///
/// # fn main() -> Result<()> {
/// let context = Device::get(&Driver::reference()?, 0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let model = Model { cache: Tensor::from_slice(&stream, &[1.0_f32, 1.0, 2.0, 2.0], &[2, 1, 2])? };
/// let options = RunnerOptions::new(Ladder::new(&LadderOptions::new(64)));
/// let mut runner = PrefillRunner::new(&model, &context, options)?;
/// runner.capture_all(&stream, |one| println!("{} rows: {} bytes in {:?}", one.bucket, one.bytes, one.took))?;
///
/// let x = [5.0_f32; 3 * 2];
/// let outputs = runner.run(&stream, &Batch { rows: 3, context: &1, inputs: &[InputData::host(&x)] })?;
/// assert_eq!((outputs.bucket(), outputs.read::<f32>(0, &stream)?), (Some(16), vec![5.0; 6]));
/// assert_eq!(outputs.read::<f32>(1, &stream)?, [2.0, 2.0]);
/// assert_eq!(runner.stats().total_replays(), 1);
/// # Ok(())
/// # }
/// ```
pub struct PrefillRunner<'m, M: PrefillModel> {
    // Captures go before the static inputs that they read, and these before the pool (D1).
    captures: Capturer<'m>,
    forward: ModelForward<'m, M>,
    pool: CapturePool,
    owns_pool: bool,
    keys: Keys<M::Key>,
    dispatch: Dispatch,
    agreement: Agreement,
    counters: Counters,
    on_replay_failure: OnReplayFailure,
    /// Of a runner that owns its model: it goes last, as captures and the forward borrow from it.
    _model: Option<Arc<dyn Send + Sync + 'm>>,
}

impl<M: PrefillModel> fmt::Debug for PrefillRunner<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefillRunner")
            .field("dispatch", &self.dispatch)
            .field("inputs", &self.forward.declared().specs())
            .field("outputs", &self.forward.outputs())
            .field("keys", &self.keys.all().collect::<Vec<_>>())
            .field("power", &self.agreement.power())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl<'m, M: PrefillModel> PrefillRunner<'m, M> {
    /// A runner for the model on the context. It takes no memory for captures before the first one, and none for inputs before the first batch.
    ///
    /// # Errors
    /// [`PrefillError::NoTailRule`] and [`TensorError::UnfitTail`](crate::TensorError::UnfitTail) for what the model declares, [`PrefillError::RunnersDiffer`] and
    /// [`PrefillError::Ranks`] between ranks, [`Misuse::ContextMismatch`](crate::Misuse::ContextMismatch) for a pool of another context, and as for [`CapturePool::new`].
    pub fn new(model: &'m M, context: &Context, options: RunnerOptions) -> Result<Self> {
        let forward = ModelForward::new(model, context)?;
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
        let captures = Capturer::new(&options);
        let bounds = [options.max_captures, options.max_bytes].map(|most| most.map_or(u64::MAX, |most| most as u64));
        let on_failure = options.on_failure as u64;
        let agreement = Agreement::new(options.ranks, !options.ladder.buckets().is_empty());
        let counters = Counters::new(options.ladder.buckets().len());
        let dispatch = Dispatch::new(options.ladder, options.when, options.padding_limit);
        agreement.expect_alike(dispatch.numbers().chain(bounds).chain([on_failure]))?;
        let (owns_pool, on_replay_failure) = (options.pool.is_none(), options.on_replay_failure);
        let keys = Keys::new(model.key(), dispatch.ladder().buckets().len());
        let _model = None;
        Ok(PrefillRunner {
            captures,
            forward,
            pool,
            owns_pool,
            keys,
            dispatch,
            agreement,
            counters,
            on_replay_failure,
            _model,
        })
    }

    /// As [`new`](PrefillRunner::new), with a share in the model: for engines that keep model and runner side by side, in a class of another language say.
    ///
    /// ```
    /// # use breakable_cuda_graph::driver::{Context, Stream};
    /// # use breakable_cuda_graph::{PrefillModel, PrefillRunner, Result, RunnerOptions};
    /// # use std::sync::Arc;
    /// struct Engine<M: PrefillModel + Send + 'static> {
    ///     model: Arc<M>,
    ///     runner: PrefillRunner<'static, M>,
    /// }
    ///
    /// impl<M: PrefillModel + Send> Engine<M> {
    ///     fn new(model: M, context: &Context, options: RunnerOptions) -> Result<Engine<M>> {
    ///         let model = Arc::new(model);
    ///         let runner = PrefillRunner::owning(model.clone(), context, options)?;
    ///         Ok(Engine { model, runner })
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// As for [`new`](PrefillRunner::new).
    pub fn owning(model: Arc<M>, context: &Context, options: RunnerOptions) -> Result<Self>
    where
        M: Send,
    {
        // SAFETY: the model stays where it is as long as the runner has its share, which goes after all that borrows from it: captures, whose breaks may,
        // and the forward. Nothing else can keep such a borrow: the model is handed it as one of any lifetime, and can store it only in breaks.
        let borrowed: &'m M = unsafe { &*Arc::as_ptr(&model) };
        let mut runner = PrefillRunner::new(borrowed, context, options)?;
        runner._model = Some(model);
        Ok(runner)
    }

    /// The model.
    pub fn model(&self) -> &M {
        self.forward.model()
    }

    /// The context.
    pub fn context(&self) -> &Context {
        self.forward.context()
    }

    /// The pool that its captures share. Eager work of the engine can take temporaries from its side.
    pub fn pool(&self) -> &CapturePool {
        &self.pool
    }

    /// The buckets, ascending.
    pub fn buckets(&self) -> &[usize] {
        self.dispatch.ladder().buckets()
    }

    /// Whether this bucket is captured, under every key.
    pub fn is_captured(&self, bucket: usize) -> bool {
        self.dispatch.ladder().exactly(bucket).is_some()
            && self.keys.all().all(|key| self.capture_of(bucket, key).is_some())
    }

    /// What this bucket's capture is made of: under the first key, where there are several.
    pub fn report(&self, bucket: usize) -> Option<CaptureReport> {
        Some(self.capture_of(bucket, self.keys.all().next()?)?.report())
    }

    /// The capture of this bucket under this key, for looking at: what it is made of, its execs and their memory, what its patched breaks cost.
    pub fn capture_of(&self, bucket: usize, key: &M::Key) -> Option<&BreakableCapture<'m>> {
        let bucket = self.dispatch.ladder().exactly(bucket)?;
        let bucket = self.dispatch.ladder().under(bucket, self.keys.number_of(key)?);
        Some(&self.captures.set().get(bucket.slot)?.capture)
    }

    /// What the patched breaks of all captures cost and saved so far.
    pub fn patch_stats(&self) -> PatchStats {
        self.captures.set().patch_stats()
    }

    /// The keys under which captures are made.
    pub fn keys(&self) -> impl Iterator<Item = &M::Key> {
        self.keys.all()
    }

    /// The static inputs, with room for the largest bucket: none before the first batch or capture, and
    /// after the runner was turned off.
    pub fn inputs(&self) -> &[Tensor] {
        self.forward.inputs().map_or(&[], |inputs| inputs.tensors())
    }

    /// What it has done so far.
    pub fn stats(&self) -> RunnerStats {
        self.counters.snapshot(self.buckets(), self.captures.set().live(), self.captures.set().execs())
    }

    /// The error of the last capture that failed while a batch was run, or of the exchange between ranks.
    pub fn last_failure(&self) -> Option<&Error> {
        self.agreement.failure()
    }

    /// Whether it is on. A runner with an empty ladder never is.
    pub fn is_on(&self) -> bool {
        self.agreement.is_on()
    }

    /// Drops all captures and static inputs and gives the memory of its pool back; a pool that it was given keeps its memory. Every batch runs eagerly
    /// from now on: one that a bucket would hold padded to it, in tensors of its own, so that its results are those of the same forward.
    ///
    /// # Errors
    /// [`Misuse::PoolInUse`](crate::Misuse::PoolInUse) where a clone of an output still refers to the pool's memory: then that is kept, and the rest is done.
    pub fn turn_off(&mut self) -> Result<()> {
        self.agreement.turn_off();
        self.free()
    }

    /// Turns it on again, also after a capture failed. Nothing is captured yet. Unless the environment says that runners are off.
    pub fn turn_on(&mut self) {
        if !self.buckets().is_empty() {
            self.agreement.turn_on();
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

    /// Drops all captures; those made from now on are under this key alone. Where it is the only one already, nothing is done.
    pub fn set_key(&mut self, key: M::Key) {
        if self.keys.are_several() || self.keys.number_of(&key).is_none() {
            self.captures.start_anew();
            self.keys = Keys::new(key, self.buckets().len());
        }
    }

    /// From now on captures are also made under this key, beside those of the others: an adapter's, say. The model makes dummies of it by
    /// [`dummy_for`](PrefillModel::dummy_for). All share the pool, and the bounds.
    ///
    /// # Errors
    /// [`PrefillError::RunnersDiffer`] where the ranks have different keys by number, and [`PrefillError::Ranks`]: it is collective.
    pub fn add_key(&mut self, key: M::Key) -> Result<()> {
        if self.keys.number_of(&key).is_none() {
            self.keys.add(key.clone());
            self.captures.grow_to(self.keys.places());
        }
        let number = self.keys.number_of(&key).unwrap_or_default() as u64;
        self.agreement.expect_alike([number, self.keys.places() as u64])
    }

    /// Drops the captures of this key, and makes none under it any more. Whether it was there. With several ranks: on all of them, at the same point.
    pub fn remove_key(&mut self, key: &M::Key) -> bool {
        match self.keys.remove(key) {
            Some(places) => {
                self.captures.clear_range(places);
                true
            }
            None => false,
        }
    }

    /// Changes the bound on the captures' device memory, and tries again what was over budget. The limit of the runner's own pool stays what it was made
    /// with. With several ranks: on all of them, at the same point.
    pub fn set_max_bytes(&mut self, bytes: Option<usize>) {
        self.captures.set_max_bytes(bytes);
    }

    /// What this batch does. An eager reason is counted, and logged the first time. For engines that run eager batches themselves; others call
    /// [`run`](PrefillRunner::run), which decides too.
    pub fn decide(&mut self, batch: &Batch<'_, M::Context>) -> Decision {
        let choice = self.choose(batch, true);
        if let Choice::Eager(reason) = &choice {
            self.counters.eager(reason, batch.rows, self.dispatch.ladder().find(batch.rows));
        }
        choice.into()
    }

    /// Captures all buckets that are not captured yet, largest first, up to the bounds; smaller ones then fit into the memory of larger ones. Tells
    /// `progress` of each. Where the runner is off, on any rank, nothing is done.
    ///
    /// # Errors
    /// [`Error::Capture`](crate::Error::Capture) with bucket and segment, or what the model returns, when a capture fails: then all captures are
    /// dropped and every batch runs eagerly, on all ranks, unless [`OnFailure::KeepOthers`](super::OnFailure::KeepOthers) was asked for, by which the other buckets are still
    /// captured and the first error is returned. [`PrefillError::OtherRankFailed`] and [`PrefillError::RecordingsDiffer`] where this rank was not
    /// the one that failed. A panic of the model goes on after the other ranks were told; one of `progress` at once, or, with other ranks, after all was
    /// captured, as they would wait. What was captured before stays.
    pub fn capture_all(&mut self, stream: &Stream, mut progress: impl FnMut(&CaptureProgress)) -> Result<()> {
        if !self.all_on()? {
            return Ok(());
        }
        let todo = self.captures.not_captured(self.keys.descending(self.dispatch.ladder()), true);
        self.trace_all(stream, &todo);
        let of = todo.len();
        let (mut first_error, mut telling) = (None, Telling::new(&mut progress, self.agreement.has_others()));
        for (done, bucket) in todo.into_iter().enumerate() {
            match self.capture(stream, bucket, None).map_err(Failure::into_error) {
                Ok(one) => telling.tell(&CaptureProgress { done: done + 1, of, ..one }),
                Err(error) if self.agreement.is_on() => {
                    first_error.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        telling.end();
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
        let all = self.keys.descending(self.dispatch.ladder());
        for &bucket in &all {
            self.captures.wanted(bucket);
        }
        match self.captures.not_captured(all, false).first() {
            Some(&bucket) => {
                self.trace_all(stream, &[bucket]);
                self.capture(stream, bucket, None).map(Some).map_err(Failure::into_error)
            }
            None => Ok(None),
        }
    }

    /// Captures a bucket anew, under every key, where what was recorded is no longer right: after weights moved, say. The old capture serves until there is
    /// the new one, and stays where that fails, or fails on another rank. Both are there for a moment. Tells `progress` of each. Where the runner is off,
    /// nothing is done.
    ///
    /// # Errors
    /// [`PrefillError::NotCaptured`] for what is no bucket, and what the capture fails with: then those under keys that come later are not made anew.
    pub fn recapture(
        &mut self,
        stream: &Stream,
        bucket: usize,
        mut progress: impl FnMut(&CaptureProgress),
    ) -> Result<()> {
        if !self.all_on()? {
            return Ok(());
        }
        let mut all = self.keys.descending(self.dispatch.ladder());
        all.retain(|one| one.rows == bucket);
        if all.is_empty() {
            return Err(PrefillError::NotCaptured { bucket }.into());
        }
        let (of, mut telling) = (all.len(), Telling::new(&mut progress, self.agreement.has_others()));
        for (done, bucket) in all.into_iter().enumerate() {
            let one = self.capture(stream, bucket, None).map_err(Failure::into_error)?;
            telling.tell(&CaptureProgress { done: done + 1, of, ..one });
        }
        telling.end();
        Ok(())
    }

    /// What the captures of all buckets will take, before there is one: traces a warm-up of each bucket that has not been traced, plans their blocks,
    /// and captures the largest bucket once to estimate the execs. The pool's memory is given back afterwards. Captures made from now on,
    /// also at first use, follow the plan.
    ///
    /// Sizes of what the captures take in the pool are exact, unless the model asks for other memory when it is captured: see
    /// [`CapturePool::last_divergence`](crate::CapturePool::last_divergence). Not collective: with several ranks each has its own plan.
    ///
    /// # Errors
    /// [`PrefillError::TurnedOff`], what the model, the planner and the driver return.
    pub fn plan(&mut self, stream: &Stream) -> Result<MemoryPlan> {
        let all = self.keys.descending(self.dispatch.ladder());
        let (true, Some(&largest)) = (self.is_on(), all.first()) else {
            return Err(PrefillError::TurnedOff.into());
        };
        let places = all.len();
        let (captures, mut with) = self.capturing();
        for bucket in all {
            captures.trace(&mut with, stream, bucket)?;
        }
        let exec_bytes = captures.exec_bytes(&mut with, stream, largest)?;
        if self.owns_pool && self.captures.set().live() == 0 {
            self.pool.trim()?;
        }
        let exec_bytes = exec_bytes.saturating_mul(self.captures.execs_of(places));
        Ok(self.captures.plans().report(self.dispatch.ladder(), &self.forward, exec_bytes))
    }

    /// Runs a batch on the stream: replays it, or runs it eagerly. Returns when all is enqueued.
    ///
    /// A batch of no rows does not run, and has no outputs; but where another rank has rows, it replays with all rows padding. Where the runner
    /// captures at first use, the capture is the batch's run; where that fails, the batch runs eagerly and [`last_failure`](PrefillRunner::last_failure) says why.
    ///
    /// # Errors
    /// Before anything is copied: [`PrefillError::InputCount`] and [`PrefillError::Input`] for a batch that is not as the model declares,
    /// [`Misuse::ContextMismatch`](crate::Misuse::ContextMismatch). [`PrefillError::Output`] when the forward returns something else than declared; what the forward and
    /// [`replay_with`](crate::BreakableCapture::replay_with) return.
    pub fn run(&mut self, stream: &Stream, batch: &Batch<'_, M::Context>) -> Result<BatchOutputs<'_>> {
        // The other ranks are told before this one returns.
        let sound = self.forward.check(stream, batch);
        let mut choice = self.choose(batch, sound.is_ok());
        sound?;
        if let Choice::Replay(bucket) = choice
            && !self.captures.set().has(bucket.slot)
        {
            match self.capture(stream, bucket, Some(batch)) {
                Ok(_) => {
                    let captured = self.captures.set().get(bucket.slot);
                    let number = captured.map_or(0, |captured| captured.capture.recorded_as());
                    return self.replayed(stream, batch, bucket, number);
                }
                Err(Failure::OverBudget(error, Some(outputs))) => {
                    log::warn!("bucket {} was captured at its first use and dropped: {error}", bucket.rows);
                    self.agreement.note_failure(error);
                    self.counters.eager(&EagerReason::OverBudget { bucket: bucket.rows }, batch.rows, Some(bucket));
                    return Ok(BatchOutputs::eager(self.forward.outputs(), outputs, batch.rows, &self.pool, stream));
                }
                Err(failure) => {
                    let error = failure.into_error();
                    log::error!("bucket {} was not captured at its first use: {error}", bucket.rows);
                    self.agreement.note_failure(error);
                    choice = Choice::Eager(EagerReason::CaptureFailed { bucket: bucket.rows });
                }
            }
        }
        match choice {
            Choice::Replay(bucket) => match self.replay_now(stream, batch, bucket) {
                Ok(number) => self.replayed(stream, batch, bucket, number),
                Err(error) if self.on_replay_failure == OnReplayFailure::RunEagerly => {
                    let reason = EagerReason::ReplayFailed { bucket: bucket.rows };
                    self.counters.eager(&reason, batch.rows, Some(bucket));
                    self.agreement.note_failure(error);
                    self.eagerly(stream, batch, bucket.rows)
                }
                Err(error) => Err(error),
            },
            Choice::Eager(reason) => {
                self.counters.eager(&reason, batch.rows, self.dispatch.ladder().find(batch.rows));
                if reason == EagerReason::NoRows {
                    return Ok(BatchOutputs::eager(self.forward.outputs(), Vec::new(), 0, &self.pool, stream));
                }
                let padded = match reason {
                    EagerReason::TurnedOff => self.dispatch.ladder().find(batch.rows).map(|bucket| bucket.rows),
                    _ => None,
                };
                self.eagerly(stream, batch, padded.unwrap_or(batch.rows))
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
        let bucket = self.bucket_for(stream, batch, bucket)?;
        let number = self.replay_now(stream, batch, bucket)?;
        self.replayed(stream, batch, bucket, number)
    }

    /// Compares a bucket's capture with the eager forward, with two different batches that it holds: at the start of an engine, say, for each bucket. Both are
    /// of the same key where there are several, and have their data elsewhere than in the static inputs. Counts nothing.
    ///
    /// With several ranks all call it alike; a difference is then told without its cause, as the runs that find it are not collective.
    ///
    /// ```
    /// # use breakable_cuda_graph::prefill::{Batch, FnModel, InputData, InputSpec, Ladder, LadderOptions, OutputSpec, TailRule};
    /// # use breakable_cuda_graph::{CapturePool, DType, Driver, PrefillRunner, Result, RunnerOptions, VerifyOptions, driver::{Device, Stream}};
    /// # let context = Device::get(&Driver::reference()?, 0)?.primary_context()?;
    /// # let stream = Stream::new(&context)?;
    /// # let model = FnModel::new((), 0_usize, |_, scope, inputs| {
    /// #     Ok(vec![scope.break_point("pass", [&inputs[0]], |b| b.input(0).cloned())?])
    /// # });
    /// # let model = model.input(InputSpec::rows("x", DType::F32, &[1]).tail(TailRule::Zero)).output(OutputSpec::rows("y", DType::F32, &[1]));
    /// # let mut runner = PrefillRunner::new(&model, &context, RunnerOptions::new(Ladder::new(&LadderOptions::new(8))))?;
    /// runner.capture_all(&stream, |_| {})?;
    /// for bucket in runner.buckets().to_vec() {
    ///     let (ones, twos) = (vec![1.0_f32; bucket], vec![2.0_f32; bucket - 1]);
    ///     let full = Batch { rows: bucket, context: &0, inputs: &[InputData::host(&ones)] };
    ///     let padded = Batch { rows: bucket - 1, context: &1, inputs: &[InputData::host(&twos)] };
    ///     let verified = runner.verify(&stream, bucket, [&full, &padded], VerifyOptions::new())?;
    ///     assert_eq!((verified.handoffs, verified.outputs), (2, 2));
    /// }
    /// # Ok::<(), breakable_cuda_graph::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`PrefillError::NotCaptured`] and [`PrefillError::Bucket`], [`Error::Verify`], and as for [`BreakableCapture::verify`].
    pub fn verify(
        &mut self,
        stream: &Stream,
        bucket: usize,
        batches: [&Batch<'_, M::Context>; 2],
        options: VerifyOptions,
    ) -> Result<Verified> {
        let [first, second] = batches;
        let place = self.bucket_for(stream, first, bucket)?;
        self.bucket_for(stream, second, bucket)?;
        let captured = self.captures.use_now(place).ok_or(PrefillError::NotCaptured { bucket })?;
        let options = if self.agreement.has_others() { options.only_compare() } else { options };
        verify(captured, &mut self.forward, stream, bucket, batches, options)
    }

    /// Where the capture of a checked batch is, in this bucket.
    fn bucket_for(&self, stream: &Stream, batch: &Batch<'_, M::Context>, bucket: usize) -> Result<Bucket> {
        self.forward.check(stream, batch)?;
        if batch.rows > bucket {
            return Err(PrefillError::Bucket { rows: batch.rows, bucket }.into());
        }
        let not_captured = PrefillError::NotCaptured { bucket };
        let Some(bucket) = self.dispatch.ladder().exactly(bucket) else { return Err(not_captured.into()) };
        let number = match self.forward.model().mode(batch.context) {
            Mode::Eligible(key) if self.keys.are_several() => self.keys.number_of(&key),
            _ => self.keys.all().next().and_then(|key| self.keys.number_of(key)),
        };
        let number = number.ok_or(not_captured)?;
        Ok(self.dispatch.ladder().under(bucket, number))
    }

    /// Runs a batch eagerly, whatever its rows. Counts nothing.
    ///
    /// # Errors
    /// As for [`run`](PrefillRunner::run).
    pub fn run_eager(&mut self, stream: &Stream, batch: &Batch<'_, M::Context>) -> Result<BatchOutputs<'_>> {
        self.forward.check(stream, batch)?;
        self.eagerly(stream, batch, batch.rows)
    }

    /// Runs a batch eagerly in this bucket's rows, padded as a replay would be: the same kernels on the same shapes, for comparing a replay with. Breaks are
    /// told the valid rows, and what they return is scrubbed. Counts nothing.
    ///
    /// # Errors
    /// [`PrefillError::Bucket`] where the batch, or the static inputs, have not these rows, and as for [`run`](PrefillRunner::run).
    pub fn run_eager_in(
        &mut self,
        stream: &Stream,
        batch: &Batch<'_, M::Context>,
        bucket: usize,
    ) -> Result<BatchOutputs<'_>> {
        self.forward.check(stream, batch)?;
        self.make_inputs(stream, bucket)?;
        let capacity = self.forward.inputs().map_or(0, |inputs| inputs.capacity());
        if batch.rows > bucket || bucket > capacity {
            return Err(PrefillError::Bucket { rows: batch.rows, bucket }.into());
        }
        self.eagerly(stream, batch, bucket)
    }

    /// What every rank does with its batch. `sound`: whether this rank's can be run at all.
    fn choose(&mut self, batch: &Batch<'_, M::Context>, sound: bool) -> Choice {
        let (model, keys, captures, dispatch) = (self.forward.model(), &self.keys, self.captures.set(), &self.dispatch);
        let verdict = || match model.mode(batch.context) {
            Mode::NotEligible => Verdict::NotEligible,
            Mode::Eligible(key) => match keys.number_of(&key) {
                None => Verdict::OtherKey,
                Some(key) => model.reject(batch.context, batch.rows).map_or(Verdict::Eligible(key), Verdict::Rejected),
            },
        };
        let mut asked = None;
        let state = |bucket: Bucket| -> CaptureState {
            asked = Some(bucket);
            captures.state(bucket.slot)
        };
        let own = |on, rows| dispatch.choose(on, rows, verdict, state);
        let choice = self.agreement.choose(batch.rows, sound, keys.are_several(), own);
        if let (Choice::Eager(EagerReason::OverBudget { .. }), Some(bucket)) = (&choice, asked) {
            self.captures.wanted(bucket);
        }
        self.free_if_given_up();
        choice
    }

    /// Replays a checked batch in this bucket; gives the replay's number in the pool.
    fn replay_now(&mut self, stream: &Stream, batch: &Batch<'_, M::Context>, bucket: Bucket) -> Result<u64> {
        let _alone = live_break::suspend();
        let not_captured = || PrefillError::NotCaptured { bucket: bucket.rows };
        let captured = self.captures.use_now(bucket).ok_or_else(not_captured)?;
        self.forward.fill(stream, Some(batch.inputs), batch.rows, bucket.rows)?;
        let options = ReplayOptions::default().valid_rows(batch.rows);
        let capture = &mut captured.capture;
        active_forward(batch.context, || Ok::<_, Error>(capture.replay_with(stream, options)?.number()))
    }

    /// What a bucket's capture has left for the batch, by its replay or recording of this number in the pool.
    fn replayed(
        &mut self,
        stream: &Stream,
        batch: &Batch<'_, M::Context>,
        bucket: Bucket,
        number: u64,
    ) -> Result<BatchOutputs<'_>> {
        let not_captured = || PrefillError::NotCaptured { bucket: bucket.rows };
        let captured = self.captures.set().get(bucket.slot).ok_or_else(not_captured)?;
        self.counters.replayed(bucket, batch.rows);
        let (specs, outputs) = (self.forward.outputs(), &captured.outputs);
        Ok(BatchOutputs::replayed(specs, outputs, batch.rows, bucket.rows, &self.pool, (stream, number)))
    }

    /// A checked batch, eagerly with the inputs padded to `padded` rows, for which more than the batch's there is room.
    fn eagerly(&mut self, stream: &Stream, batch: &Batch<'_, M::Context>, padded: usize) -> Result<BatchOutputs<'_>> {
        let _alone = live_break::suspend();
        self.make_inputs(stream, padded)?;
        let outputs = self.forward.eagerly(&self.pool, stream, batch, padded)?;
        Ok(BatchOutputs::eager(self.forward.outputs(), outputs, batch.rows, &self.pool, stream))
    }

    /// Makes the static inputs, unless they are there, these rows don't fit, or the runner is off.
    fn make_inputs(&mut self, stream: &Stream, rows: usize) -> Result<()> {
        match self.dispatch.ladder().largest() {
            Some(largest) if rows <= largest && self.agreement.is_on() => self.forward.make_inputs(stream, largest),
            _ => Ok(()),
        }
    }

    /// The captures, and what capturing needs beside them.
    fn capturing(&mut self) -> (&mut Capturer<'m>, With<'_, 'm, M>) {
        let with = With {
            forward: &mut self.forward,
            pool: &self.pool,
            agreement: &mut self.agreement,
            counters: &mut self.counters,
            largest: self.dispatch.ladder().largest().unwrap_or(0),
            keys: &self.keys,
        };
        (&mut self.captures, with)
    }

    fn trace_all(&mut self, stream: &Stream, buckets: &[Bucket]) {
        let (captures, mut with) = self.capturing();
        captures.trace_all(&mut with, stream, buckets);
    }

    /// Captures a bucket on all ranks or on none. A panic of the model goes on when the rest is done.
    fn capture(
        &mut self,
        stream: &Stream,
        bucket: Bucket,
        batch: Option<&Batch<'_, M::Context>>,
    ) -> Result<CaptureProgress, Failure> {
        let _alone = live_break::suspend();
        let (captures, mut with) = self.capturing();
        let captured = captures.capture(&mut with, stream, bucket, batch);
        self.free_if_given_up();
        captured
    }

    /// Whether every rank is on.
    fn all_on(&mut self) -> Result<bool> {
        let on = self.agreement.all_on();
        self.free_if_given_up();
        on
    }

    /// Frees what captures have where the runner runs eagerly from now on.
    fn free_if_given_up(&mut self) {
        if self.agreement.take_gave_up()
            && let Err(error) = self.free()
        {
            log::warn!("the capture pool keeps its memory: {error}");
        }
    }

    /// Drops captures and inputs, and gives back what the pool has.
    fn free(&mut self) -> Result<()> {
        self.captures.clear();
        self.forward.drop_inputs();
        if self.owns_pool { self.pool.trim() } else { Ok(()) }
    }
}
