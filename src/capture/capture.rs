//! [`BreakableCapture`]: a forward pass that is recorded once and replayed as often as wanted.

use super::breaks::step::BreakStep;
use super::composite::{ExecMemory, PatchStats};
use super::forward::allocator::Allocator;
use super::forward::frame::{self, Frame};
use super::options::{CaptureOptions, EagerOptions};
use super::program::{Program, Step};
use super::record::session::{Session, refuse_nested};
use super::replay::run;
use super::report::CaptureReport;
use super::scope::Scope;
use super::state::State;
use crate::driver::live_break;
use crate::driver::stream_order::order_after;
use crate::driver::{Context, Event, GraphExec, KeepAlive, RecordingId, Stream, StreamKind};
use crate::error::{Misuse, Result};
use crate::pool::{CapturePool, MappingHold, PoolHandle, Results, settle_stubbornly};
use crate::tensor::{Element, Tensor};
use std::fmt;
use std::sync::Arc;

/// A forward pass as an ordered list of segments and breaks. Recorded once, replayed as often as wanted.
///
/// `'env` is what its breaks borrow. It is `Send`: it can be replayed from any thread, whatever is current there.
///
/// ```
/// # use breakable_cuda_graph::driver::{Device, Stream};
/// # use breakable_cuda_graph::Driver;
/// # let context = Device::get(&Driver::reference()?, 0)?.primary_context()?;
/// # let stream = Stream::new(&context)?;
/// # use breakable_cuda_graph::{BreakableCapture, CapturePool, DType, ReplayOptions, Tensor, active_forward};
/// # let pool = CapturePool::new(&context)?;
/// let input = Tensor::zeros(&stream, DType::F32, &[4, 2])?; // Replays read this address.
/// let mut capture = BreakableCapture::new(&pool)?;
/// let output = active_forward(&1.0_f32, || {
///     capture.record(&stream, |scope| {
///         let h = scope.empty(DType::F32, &[4, 2])?;
///         h.copy_from(&scope.stream()?, &input)?; // Into the first segment.
///         scope.break_point("scale", [&h], |b| {
///             let (h, factor) = (b.input(0)?, *b.forward_ctx::<f32>()?); // On every replay.
///             let values: Vec<f32> = h.read::<f32>(b.stream())?.iter().map(|value| value * factor).collect();
///             let scaled = b.empty(DType::F32, h.shape())?;
///             scaled.write(b.stream(), &values)?;
///             Ok(scaled)
///         })
///     })
/// })?;
/// assert_eq!((capture.num_segments(), capture.num_launches()), (3, 1));
///
/// input.write(&stream, &[1.0_f32; 8])?;
/// let options = ReplayOptions::default().valid_rows(3);
/// let _ = active_forward(&5.0_f32, || capture.replay_with(&stream, options))?;
/// assert_eq!(output.read::<f32>(&stream)?, [5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 0.0, 0.0]); // The last row is padding.
/// # Ok::<(), breakable_cuda_graph::Error>(())
/// ```
pub struct BreakableCapture<'env> {
    // The program goes first when the capture is dropped: its execs refer to the pool.
    program: Program<'env>,
    /// What it was asked to keep; dropped after the program.
    keep: Vec<KeepAlive>,
    /// What it is once recorded.
    recorded: Option<Recorded>,
    state: State,
    /// The recording's, among the pool's replays and recordings.
    number: u64,
    options: CaptureOptions,
    stream: Stream,
    pool: CapturePool,
}

/// What is known of a capture once it is recorded.
struct Recorded {
    recording: RecordingId,
    /// Where its last replay went, or what recorded it: what it holds goes after that has run.
    last: Stream,
    /// Keeps the pool's memory mapped, which its execs refer to.
    _mapping: Arc<MappingHold>,
}

/// How a replay runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ReplayOptions {
    /// The valid rows of the batch. The rows after them are the padded tail: after each landing the handoff's tail is zero. `None`: all rows are
    /// valid. Zero: all are padding.
    pub valid_rows: Option<usize>,
}

impl ReplayOptions {
    /// With this many valid rows.
    #[must_use]
    pub fn valid_rows(mut self, rows: usize) -> Self {
        self.valid_rows = Some(rows);
        self
    }
}

/// A replay that was enqueued. The outputs hold its results, in the stream's order, until the next replay of any capture of the pool.
#[derive(Debug)]
#[must_use = "the results are valid until the next replay of the pool: `check` tells whether there was one"]
pub struct Replayed<'a> {
    pool: &'a CapturePool,
    stream: &'a Stream,
    number: u64,
}

impl Replayed<'_> {
    /// Its number in the pool.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Whether the results are still this replay's.
    ///
    /// # Errors
    /// [`Misuse::OutputsOverwritten`] after a later replay or recording of the pool.
    pub fn check(&self) -> Result<()> {
        self.pool.handle().expect_latest(self.number)
    }

    /// The stream that it was enqueued on.
    pub fn stream(&self) -> &Stream {
        self.stream
    }

    /// Makes later work on another stream wait for the replay
    /// ([`cuStreamWaitEvent`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html)): the results can be used there.
    ///
    /// # Errors
    /// As for [`check`](Replayed::check); [`Misuse::ContextMismatch`], [`Misuse::CaptureInProgress`], and what the driver returns.
    #[doc(alias = "cuStreamWaitEvent")]
    pub fn wait_on(&self, stream: &Stream) -> Result<()> {
        self.check()?;
        self.pool.context().expect_same(stream.context(), "stream")?;
        order_after(stream, self.stream, &Event::new(self.pool.context())?)
    }

    /// An event after the replay
    /// ([`cuEventRecord`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html)), for a host or a stream to wait for.
    ///
    /// # Errors
    /// As for [`check`](Replayed::check), and what the driver returns.
    #[doc(alias = "cuEventRecord")]
    pub fn event(&self) -> Result<Event> {
        self.check()?;
        let event = Event::new(self.pool.context())?;
        event.record(self.stream)?;
        Ok(event)
    }

    /// An output's values in row-major order, read on any stream of the context: after the replay, and checked again after the copy. Waits for it.
    ///
    /// # Errors
    /// As for [`wait_on`](Replayed::wait_on) and [`Tensor::read`].
    ///
    /// ```
    /// # use breakable_cuda_graph::driver::{Device, Stream};
    /// # use breakable_cuda_graph::{BreakableCapture, CapturePool, DType, Driver, Tensor};
    /// # let context = Device::get(&Driver::reference()?, 0)?.primary_context()?;
    /// # let (stream, pool) = (Stream::new(&context)?, CapturePool::new(&context)?);
    /// # let input = Tensor::from_slice(&stream, &[1.0_f32, 2.0], &[2])?;
    /// let mut capture = BreakableCapture::new(&pool)?;
    /// let output = capture.record(&stream, |scope| {
    ///     let output = scope.empty(DType::F32, &[2])?;
    ///     output.copy_from(&scope.stream()?, &input)?;
    ///     Ok(output)
    /// })?;
    /// let downloads = Stream::new(&context)?;
    /// let replayed = capture.replay(&stream)?;
    /// assert_eq!(replayed.read::<f32>(&output, &downloads)?, [1.0, 2.0]);
    /// # Ok::<(), breakable_cuda_graph::Error>(())
    /// ```
    pub fn read<T: Element>(&self, output: &Tensor, stream: &Stream) -> Result<Vec<T>> {
        if stream == self.stream {
            self.check()?
        } else {
            self.wait_on(stream)?
        }
        let _alone = live_break::suspend();
        let values = output.read(stream)?;
        // A replay that began meanwhile may have written while this was copied.
        self.check()?;
        Ok(values)
    }
}

impl fmt::Debug for BreakableCapture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BreakableCapture")
            .field("state", &self.state)
            .field("report", &self.report())
            .finish_non_exhaustive()
    }
}

impl<'env> BreakableCapture<'env> {
    /// A capture with a pool of its own, which [`pool`](BreakableCapture::pool) gives for the next one.
    ///
    /// # Errors
    /// As for [`CapturePool::new`].
    pub fn with_own_pool(context: &Context) -> Result<Self> {
        BreakableCapture::with_options(&CapturePool::new(context)?, CaptureOptions::default())
    }

    /// A capture on this pool.
    ///
    /// # Errors
    /// As for [`with_options`](BreakableCapture::with_options).
    pub fn new(pool: &CapturePool) -> Result<Self> {
        BreakableCapture::with_options(pool, CaptureOptions::default())
    }

    /// A capture on this pool. Nothing is recorded yet.
    ///
    /// # Errors
    /// [`LegacyStream`](crate::Misuse::LegacyStream), [`BlockingStream`](crate::Misuse::BlockingStream) and
    /// [`ContextMismatch`](crate::Misuse::ContextMismatch) for a stream that can't be captured with this pool.
    pub fn with_options(pool: &CapturePool, options: CaptureOptions) -> Result<Self> {
        let stream = options.stream.clone().unwrap_or_else(|| pool.capture_stream().clone());
        pool.context().expect_same(stream.context(), "capture stream")?;
        stream.refuse_for_capture()?;
        Ok(BreakableCapture {
            keep: Vec::new(),
            recorded: None,
            program: Program::default(),
            state: State::New,
            number: 0,
            options,
            stream,
            pool: pool.clone(),
        })
    }

    /// Records a forward. Its operations go to the scope's stream and are recorded as segments; its breaks run now, and again on every replay.
    ///
    /// The capture stream first waits for what is on `caller`, and `caller` then waits for the capture stream. The tensors that the forward
    /// returns are its outputs: they lie in the pool, and each replay writes them anew.
    ///
    /// Run the forward once or twice before, with [`eager`](super::eager): what a library creates at its first use (handles, workspaces, lazily
    /// loaded kernels) can't be created in a segment.
    ///
    /// # Errors
    /// [`Misuse::NestedCapture`], [`Misuse::AlreadyRecorded`], [`Misuse::Poisoned`], [`Misuse::PoolBusy`], [`Misuse::PoolReleased`] and [`Misuse::PoolLent`]
    /// before anything is done.
    /// [`Error::Capture`](crate::Error::Capture) with the first cause, segment and operation when the forward, a break or a driver call fails: then the segment is
    /// ended, everything recorded is released, the pool and the thread are as before, the streams can be used, and this capture is poisoned.
    /// The same is done when the forward panics.
    pub fn record<T>(&mut self, caller: &Stream, forward: impl FnOnce(&Scope<'_, 'env>) -> Result<T>) -> Result<T> {
        refuse_nested()?;
        self.pool.context().expect_same(caller.context(), "caller's stream")?;
        self.state.begin()?;
        let context = self.pool.context().clone();
        let _current = context.bind()?;
        let _alone = live_break::suspend();
        let pool = self.pool.handle().clone();
        let mut session = Session::begin(&pool, &self.stream, caller, &self.options)?;
        self.number = session.number();
        // It stays so on errors, and when the forward panics.
        self.state = State::Poisoned;
        let recorded = session.open().and_then(|()| {
            let value = forward(&Scope::recording(session.recorder()))?;
            Ok((session.end(caller)?, value))
        });
        match recorded {
            Ok(((program, recording), value)) => {
                let recorded = Recorded { recording, last: self.stream.clone(), _mapping: pool.retain_mapping() };
                (self.program, self.recorded, self.state) = (program, Some(recorded), State::Recorded);
                Ok(value)
            }
            Err(error) => Err(session.fail(error, &self.options)),
        }
    }

    /// Replays the capture on the stream, with all rows valid.
    ///
    /// # Errors
    /// As for [`replay_with`](BreakableCapture::replay_with).
    pub fn replay(&mut self, stream: &Stream) -> Result<Replayed<'_>> {
        self.replay_with(stream, ReplayOptions::default())
    }

    /// Replays the capture on the stream: each segment is launched
    /// ([`cuGraphLaunch`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html)) and each break run, in order. Returns when all is
    /// enqueued.
    ///
    /// Fill the static inputs before, in the same stream's order. A replay of any other capture of the pool comes after this one on the device,
    /// on whatever stream.
    ///
    /// While it enqueues it holds the pool's replay lock, also while its breaks run: one atomic exchange where no other thread replays or records with the
    /// pool; a thread that does waits until this one is done. It takes no other lock, but that of each shared exec with
    /// [`share_execs`](crate::GraphOptions::share_execs), and waits for nothing else. It allocates nothing on the heap and looks nothing up, other than
    /// what breaks do: a patched break whose body has to be captured by the driver, or takes a new exec, allocates.
    ///
    /// # Errors
    /// Before anything runs: [`Misuse::NotRecorded`], [`Misuse::Poisoned`], [`Misuse::ReplayWhileRecording`], [`Misuse::PoolBusy`] from inside a
    /// break that uses the pool, [`Misuse::PoolsInterlocked`] from a break that would wait for one which waits for it, [`Misuse::PoolReleased`],
    /// [`Misuse::PoolLent`], [`Misuse::LegacyStream`], [`Misuse::ContextMismatch`], [`Misuse::CaptureInProgress`] where another thread captures this
    /// stream or that of the pool's last replay, [`Misuse::ReplayInOthersCapture`] where code outside the crate does.
    /// [`Error::Break`](crate::Error::Break) when a break fails and [`Error::Segment`](crate::Error::Segment) when a launch does: later steps do not run,
    /// the thread's state is restored, and the capture can be replayed again. Its outputs can't be read until then ([`Misuse::ReplayFailed`]).
    #[doc(alias = "cuGraphLaunch")]
    pub fn replay_with(&mut self, stream: &Stream, options: ReplayOptions) -> Result<Replayed<'_>> {
        self.replay_by(stream, |steps, pool, replaced| run(steps, stream, options.valid_rows, pool, replaced))
    }

    /// Replays the capture on the stream by a loop over its steps, which is given where to put what patched breaks referred to before.
    #[inline]
    pub(super) fn replay_by(
        &mut self,
        stream: &Stream,
        run: impl FnOnce(&mut [Step<'env>], &PoolHandle, &mut Vec<KeepAlive>) -> Result<()>,
    ) -> Result<Replayed<'_>> {
        self.state.replayable()?;
        if frame::is_capturing() {
            return Err(Misuse::ReplayWhileRecording.into());
        }
        if stream.kind() == StreamKind::Legacy {
            return Err(Misuse::LegacyStream.into());
        }
        let pool = self.pool.handle();
        pool.context().expect_same(stream.context(), "replay's stream")?;
        stream.expect_not_captured()?;
        let Some(recorded) = &mut self.recorded else { return Err(Misuse::NotRecorded.into()) };
        // What breaks call may need it.
        let _current = pool.context().bind()?;
        let _alone = live_break::suspend();
        let mut guard = pool.lock()?;
        guard.order(stream)?;
        let number = pool.next_replay();
        if recorded.last != *stream {
            recorded.last = stream.clone();
        }
        let outcome = ReplayOutcome::begin(&pool.results, recorded.recording);
        let frame = Frame {
            allocator: Allocator::StreamOrdered,
            stream: stream.clone(),
            pool: pool.clone(),
            recorder: None,
            padding: EagerOptions::default(),
            observer: None,
        };
        let _frame = frame::enter(frame);
        // Empty without patched breaks, and then it is no allocation.
        let mut replaced = Vec::new();
        let ran = run(&mut self.program.steps, pool, &mut replaced);
        if !replaced.is_empty() {
            drop(guard);
            pool.free_after_replay(replaced, stream);
        }
        ran?;
        outcome.ends_well();
        Ok(Replayed { pool: &self.pool, stream: &recorded.last, number })
    }

    /// The number under which the pool knows what its recording wrote, by running through.
    pub(crate) fn recorded_as(&self) -> u64 {
        self.number
    }

    /// Its steps, for tools that look at them between replays.
    pub(super) fn steps_mut(&mut self) -> &mut [Step<'env>] {
        &mut self.program.steps
    }

    /// A break, by its place among the breaks.
    pub(super) fn break_at(&self, index: usize) -> Option<&BreakStep<'_>> {
        self.program.breaks().nth(index)
    }

    /// Drops execs that tools have made of segments alone. None of them runs.
    pub(super) fn drop_execs_alone(&mut self) {
        for step in &mut self.program.steps {
            if let Step::Composite(composite) = step {
                composite.drop_execs_alone();
            }
        }
    }

    /// How it is made.
    pub(super) fn options(&self) -> &CaptureOptions {
        &self.options
    }

    /// Its pool.
    pub fn pool(&self) -> &CapturePool {
        &self.pool
    }

    /// The stream that it is recorded on.
    pub fn capture_stream(&self) -> &Stream {
        &self.stream
    }

    /// Fails unless the capture is one of this pool, for code that keeps several captures on one.
    ///
    /// # Errors
    /// [`Misuse::ForeignPool`].
    pub fn expect_pool(&self, pool: &CapturePool) -> Result<()> {
        if self.pool == *pool { Ok(()) } else { Err(Misuse::ForeignPool.into()) }
    }

    /// Segments and breaks together: `2n + 1` for n breaks, 0 before it was recorded.
    pub fn num_segments(&self) -> usize {
        self.program.segments + self.program.breaks
    }

    /// Breaks.
    pub fn num_breaks(&self) -> usize {
        self.program.breaks
    }

    /// Execs that a replay launches: segments without nodes are recorded and not launched, and those with patched breaks between them are one.
    pub fn num_launches(&self) -> usize {
        self.program.launches()
    }

    /// Keeps something alive until the capture's last replay has run and its execs are gone: a communicator whose operations it holds, say.
    pub fn keep_alive(&mut self, owner: KeepAlive) {
        self.keep.push(owner);
    }

    /// The execs that a replay launches, in order and without those that are shared, for measuring and for tools.
    pub fn execs(&self) -> impl Iterator<Item = &GraphExec> {
        self.program.steps.iter().filter_map(|step| match step {
            Step::Segment { exec, .. } => Some(exec),
            Step::Break(_) => None,
            Step::Composite(composite) => composite.exec(),
        })
    }

    /// How many execs it has, shared ones and those of other configurations counted in, and the device memory that they take.
    pub fn exec_memory(&self) -> ExecMemory {
        let of_step = |step: &Step<'_>| match step {
            Step::Segment { exec, .. } => ExecMemory::of(exec),
            Step::Break(_) => ExecMemory::default(),
            Step::Composite(composite) => composite.execs(),
        };
        self.program.steps.iter().map(of_step).fold(ExecMemory::default(), ExecMemory::and)
    }

    /// What its patched breaks cost and saved so far.
    pub fn patch_stats(&self) -> PatchStats {
        let mut stats = PatchStats::default();
        for step in &self.program.steps {
            if let Step::Composite(composite) = step {
                stats += composite.stats();
            }
        }
        stats
    }

    /// Whether it can be replayed.
    pub fn is_recorded(&self) -> bool {
        self.state == State::Recorded
    }

    /// Whether its recording failed.
    pub fn is_poisoned(&self) -> bool {
        self.state == State::Poisoned
    }

    /// A hash of its segments' sizes and its breaks' names and shapes, without addresses: equal for equal forwards on several devices or ranks.
    pub fn fingerprint(&self) -> u64 {
        self.program.fingerprint()
    }

    /// What it is made of.
    pub fn report(&self) -> CaptureReport {
        let breaks = self.program.breaks().map(|step| step.options.name.to_string());
        CaptureReport {
            name: self.options.name.clone(),
            bucket: self.options.bucket,
            segments: self.num_segments(),
            breaks: breaks.collect(),
            launches: self.num_launches(),
            nodes: self.program.nodes,
        }
    }
}

/// Whether a replay wrote all its results. One that ends in any other way than well leaves some that are an earlier one's.
struct ReplayOutcome<'p> {
    results: &'p Results,
    recording: RecordingId,
    whole: bool,
}

impl<'p> ReplayOutcome<'p> {
    #[inline]
    fn begin(results: &'p Results, recording: RecordingId) -> ReplayOutcome<'p> {
        results.replay_begins(recording);
        ReplayOutcome { results, recording, whole: false }
    }

    #[inline]
    fn ends_well(mut self) {
        self.whole = true;
    }
}

impl Drop for ReplayOutcome<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.whole {
            self.results.replay_failed(self.recording);
        }
    }
}

impl Drop for BreakableCapture<'_> {
    /// Waits on the host until the last replay has run: only then nothing uses any more what the capture holds, the operations of its breaks and what
    /// [`keep_alive`](BreakableCapture::keep_alive) was given counted in, whoever is to give it back. Takes no lock that a replay holds.
    fn drop(&mut self) {
        let Some(recorded) = &self.recorded else { return };
        if let Err(error) = settle_stubbornly(&recorded.last) {
            self.pool.context().report_in_drop("capture", &error);
            // Nobody knows whether it still runs: what it uses is not given back.
            std::mem::forget((std::mem::take(&mut self.program), std::mem::take(&mut self.keep)));
            return;
        }
        // The execs go before what they refer to (D1).
        let kept = self.program.take_kept();
        self.program.steps.clear();
        drop(kept);
    }
}
