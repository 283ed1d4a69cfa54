//! Eight threads at once on three pools and two contexts, in every capture mode: no capture is lost, nothing hangs, and every thread's results are right.
//!
//! What each thread does is drawn from a generator and the same for the same seed; in which order the threads meet is not. `BCG_TEST_SECONDS=60` goes on for
//! as long, each round with the next seed, and `BCG_TEST_SEED` begins with one that failed.

use crate::support::{assert_same, demo};
use breakable_cuda_graph::driver::{Context, Device, Event, Stream};
use breakable_cuda_graph::pool::{Backing, PoolOptions};
use breakable_cuda_graph::{
    BreakKind, BreakOptions, BreakableCapture, CaptureExecution, CaptureMode, CaptureOptions, CapturePool, DType,
    Driver, Error, GraphOptions, Misuse, Result, Tensor, active_forward, eager,
};
use std::sync::{Barrier, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

const THREADS: usize = 8;
/// What each thread does in a round.
const STEPS: usize = 40;
const ELEMENTS: usize = 16;
/// How long a round may take: many times what it takes under a checker.
const PATIENCE: Duration = Duration::from_secs(120);

/// A number of the environment.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn eight_threads_on_three_pools_and_two_contexts() {
    let duration = number("BCG_TEST_SECONDS").map_or(Duration::from_millis(1200), Duration::from_secs);
    let begun = Instant::now();
    let mut seed = number("BCG_TEST_SEED").unwrap_or(1);
    loop {
        // Its thread is left behind where it hangs.
        let (tell, told) = mpsc::channel();
        let running = std::thread::spawn(move || {
            round(seed);
            let _ = tell.send(());
        });
        if told.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            panic!("a round hangs: BCG_TEST_SEED={seed}");
        }
        if let Err(panic) = running.join() {
            eprintln!("BCG_TEST_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
        if begun.elapsed() >= duration {
            break;
        }
        seed += 1;
    }
}

/// Two devices where the driver has them; else two values of one context.
#[cfg(not(feature = "driver-tests"))]
fn driver(seed: u64) -> Driver {
    Driver::reference_with(demo::options().seed(seed).devices(2)).expect("the reference driver loads")
}

#[cfg(feature = "driver-tests")]
fn driver(_: u64) -> Driver {
    crate::support::driver()
}

/// xorshift64*.
struct Choices(u64);

impl Choices {
    fn new(seed: u64, thread: usize) -> Choices {
        let mixed = (seed << 8 | thread as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Choices(mixed | 1)
    }

    fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % count
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn is(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
}

/// A pool, and what is used with it.
struct Place {
    pool: CapturePool,
    context: Context,
    ops: demo::Ops,
}

fn places(driver: &Driver) -> Vec<Place> {
    let devices = Device::count(driver).expect("a count");
    let backings = [(0, Backing::ReservedAddresses), (0, Backing::MemoryPool), (1, Backing::ReservedAddresses)];
    let place = |(device, backing): (usize, Backing)| -> Result<Place> {
        let context = Device::get(driver, device % devices)?.primary_context()?;
        let options = PoolOptions::default().backing(backing).max_bytes(64 << 20);
        Ok(Place { pool: CapturePool::with_options(&context, options)?, ops: demo::Ops::load(&context)?, context })
    };
    backings.into_iter().map(|one| place(one).expect("a pool")).collect()
}

/// What the breaks of a replay read live.
struct Batch {
    factor: f32,
    operand: Tensor,
}

/// A capture with what its replays are to give. Its result is memory of its own, so that replays of other captures leave it alone.
struct Made {
    place: usize,
    capture: BreakableCapture<'static>,
    input: Tensor,
    result: Tensor,
    factor: f32,
    breaks: usize,
}

impl Made {
    /// What comes of an input.
    fn expected(&self, input: f32, batch: (f32, f32)) -> f32 {
        (0..self.breaks).fold(input * self.factor, |value, _| value * batch.0 + batch.1)
    }
}

/// One thread of a round.
struct Worker<'r> {
    places: &'r [Place],
    /// Captures that any thread takes, and drops or replays.
    shared: &'r Mutex<Vec<Made>>,
    choices: Choices,
    /// Two for each pool.
    streams: Vec<[Stream; 2]>,
    made: Vec<Made>,
}

fn round(seed: u64) {
    let driver = driver(seed);
    let (places, _tells) = (places(&driver), Diagnostics(&driver));
    let (shared, start) = (Mutex::default(), Barrier::new(THREADS));
    let workers: Vec<Worker<'_>> = on_threads(0..THREADS, |thread, _| {
        let streams = places.iter().map(|place| [0, 1].map(|_| Stream::new(&place.context).expect("a stream")));
        let (streams, choices) = (streams.collect(), Choices::new(seed, thread));
        let mut worker = Worker { places: &places, shared: &shared, choices, streams, made: Vec::new() };
        start.wait();
        for step in 0..STEPS {
            let _at = At { thread, step };
            worker.step();
        }
        worker
    });
    on_threads(workers, |thread, mut worker| {
        let _at = At { thread, step: STEPS };
        worker.check_all();
    });
    drop(shared);
    for place in &places {
        place.context.synchronize().expect("no capture is left open");
        assert_eq!(place.context.queued_drops(), 0);
        assert_eq!(place.pool.usage().expect("the usage").blocks, 0, "a block is lost");
    }
}

/// Tells what the reference driver has seen, where a round fails.
struct Diagnostics<'r>(&'r Driver);

impl Drop for Diagnostics<'_> {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(reference) = self.0.ref_driver()
        {
            reference.diagnostics().iter().for_each(|text| eprintln!("{text}"));
        }
    }
}

/// Gives each to a thread of its own, and waits for all.
fn on_threads<T: Send, R: Send>(all: impl IntoIterator<Item = T>, work: impl Fn(usize, T) -> R + Sync) -> Vec<R> {
    std::thread::scope(|threads| {
        let work = &work;
        let each = all.into_iter().enumerate();
        let threads: Vec<_> = each.map(|(thread, one)| threads.spawn(move || work(thread, one))).collect();
        let results: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        results.into_iter().map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// Tells where a thread was when it failed.
struct At {
    thread: usize,
    step: usize,
}

impl Drop for At {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("thread {} at step {}", self.thread, self.step);
        }
    }
}

/// The cause of an error.
fn misuse(error: &Error) -> Option<&Misuse> {
    match error {
        Error::Misuse(misuse) => Some(misuse),
        Error::Capture(error) => misuse(&error.source),
        Error::Break { source, .. } => misuse(source),
        _ => None,
    }
}

/// `None` where another thread has released or lent the pool, which is no fault of this one's.
#[track_caller]
fn unless_away<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) if matches!(misuse(&error), Some(Misuse::PoolReleased | Misuse::PoolLent)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Whether it was done: not where another thread captures.
#[track_caller]
fn unless_captured<T>(result: Result<T>) {
    match result {
        Ok(_) | Err(Error::Misuse(Misuse::CaptureInProgress { .. })) => {}
        Err(error) => panic!("{error}"),
    }
}

impl Worker<'_> {
    fn step(&mut self) {
        match self.choices.below(16) {
            0..=3 => self.record(),
            4..=8 => self.replay_one(),
            9 => self.drop_one(),
            10 => self.exchange(),
            11 => self.release(),
            12 => self.lend(),
            13 => self.query(),
            14 => self.eager(),
            _ => self.fail(),
        }
    }

    fn place(&mut self) -> (usize, Stream) {
        let place = self.choices.below(self.places.len());
        (place, self.stream(place))
    }

    fn stream(&mut self, place: usize) -> Stream {
        self.streams[place][self.choices.below(2)].clone()
    }

    fn record(&mut self) {
        let (at, caller) = self.place();
        let place = &self.places[at];
        let (input, result) = [1.0_f32, 0.0].map(|value| tensor(&caller, value)).into();
        let factor = self.choices.one_of(&[2.0_f32, 3.0, -1.0]);
        let kinds: Vec<BreakKind> =
            (0..self.choices.below(3)).map(|_| self.choices.one_of(&[BreakKind::Live, BreakKind::Patched])).collect();
        let graph = GraphOptions::default()
            .mode(self.choices.one_of(&[CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed]))
            .share_execs(self.choices.is(3))
            .max_execs(1 + self.choices.below(3));
        let mut options = CaptureOptions::default().graph(graph);
        if self.choices.is(3) {
            options = options.execution(CaptureExecution::RunThrough);
        }
        if self.choices.is(4) {
            options = options.stream(&self.stream(at));
        }
        // What only the segment holds afterwards.
        let one = tensor(&caller, 0.0);
        let mut capture = BreakableCapture::with_options(&place.pool, options).expect("a capture");
        let batch = Batch { factor: 1.0, operand: tensor(&caller, 0.0) };
        let recorded = active_forward(&batch, || {
            capture.record(&caller, |scope| {
                let ops = &place.ops;
                let mut h = ops.add(&ops.scale(&input, factor)?, &one)?;
                for kind in &kinds {
                    let ops = ops.clone();
                    h = scope.break_point(BreakOptions::new("break").kind(*kind), [&h], move |b| {
                        let Batch { factor, operand } = b.forward_ctx::<Batch>()?;
                        ops.add(&ops.scale(b.input(0)?, *factor)?, operand)
                    })?;
                }
                ops.scale_into(&scope.stream()?, &h, 1.0, &result)
            })
        });
        if unless_away(recorded).is_some() {
            let made = Made { place: at, capture, input, result, factor, breaks: kinds.len() };
            self.made.push(made);
        }
    }

    fn replay_one(&mut self) {
        if self.made.is_empty() {
            return self.record();
        }
        let which = self.choices.below(self.made.len());
        let mut made = self.made.swap_remove(which);
        self.replay(&mut made);
        self.made.push(made);
    }

    fn replay(&mut self, made: &mut Made) {
        let stream = self.stream(made.place);
        let (input, factor, added) =
            (self.choices.below(4) as f32, self.choices.one_of(&[1.0_f32, 2.0]), self.choices.below(3) as f32);
        made.input.write(&stream, &[input; ELEMENTS]).expect("written");
        let batch = Batch { factor, operand: tensor(&stream, added) };
        let replayed = active_forward(&batch, || made.capture.replay(&stream).map(drop));
        // While the replay is in flight.
        drop(batch);
        if unless_away(replayed).is_some() && !self.choices.is(4) {
            let expected = made.expected(input, (factor, added));
            assert_same(&made.result.read::<f32>(&stream).expect("a read"), &[expected; ELEMENTS]);
        }
    }

    fn drop_one(&mut self) {
        if !self.made.is_empty() {
            let which = self.choices.below(self.made.len());
            drop(self.made.swap_remove(which));
        }
    }

    fn shared(&self) -> std::sync::MutexGuard<'_, Vec<Made>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a capture to the other threads, and takes one of theirs.
    fn exchange(&mut self) {
        let given = self.made.pop();
        let taken = {
            let mut shared = self.shared();
            let taken = (!shared.is_empty()).then(|| shared.remove(0));
            shared.extend(given);
            taken
        };
        if let Some(mut taken) = taken {
            self.replay(&mut taken);
            self.made.push(taken);
        }
    }

    fn release(&mut self) {
        let (at, stream) = self.place();
        let place = &self.places[at];
        match place.pool.release() {
            Ok(()) => {}
            Err(Error::Misuse(Misuse::ReleaseUnsupported)) => {
                return match place.pool.trim() {
                    Ok(()) | Err(Error::Misuse(Misuse::PoolInUse { .. } | Misuse::PoolLent)) => {}
                    Err(error) => panic!("{error}"),
                };
            }
            Err(Error::Misuse(Misuse::PoolLent)) => return,
            Err(error) => panic!("{error}"),
        }
        // Other threads may have restored it in between.
        unless_away(place.pool.usage().map(drop));
        unless_captured(stream.is_idle());
        place.pool.restore().expect("restored");
        let Some(state) = unless_away(place.pool.persistent(DType::F32, &[ELEMENTS])) else { return };
        // Each may find it away again, and none uses memory that is.
        if unless_away(state.write(&stream, &[7.0_f32; ELEMENTS])).is_some()
            && let Some(read) = unless_away(state.read::<f32>(&stream))
        {
            assert_same(&read, &[7.0; ELEMENTS]);
        }
    }

    fn lend(&mut self) {
        let (at, stream) = self.place();
        let Some(mut lease) = unless_away(self.places[at].pool.lend(&stream)) else { return };
        if lease.largest() >= ELEMENTS * 4 {
            let scratch = lease.empty(DType::F32, &[ELEMENTS]).expect("there is room");
            scratch.write(&stream, &[5.0_f32; ELEMENTS]).expect("written");
            assert_same(&scratch.read::<f32>(&stream).expect("a read"), &[5.0; ELEMENTS]);
        }
    }

    fn query(&mut self) {
        let (at, stream) = self.place();
        let Place { pool, context, .. } = &self.places[at];
        let event = Event::new(context).expect("an event");
        event.record(&stream).expect("recorded");
        event.is_done().expect("a query");
        event.synchronize().expect("a wait");
        stream.synchronize().expect("a wait");
        unless_captured(stream.is_idle());
        unless_captured(pool.capture_stream().is_idle());
        unless_captured(pool.capture_stream().synchronize());
        unless_captured(context.synchronize());
        context.memory_info().expect("figures");
        pool.usage().expect("figures");
        let _ = (context.queued_drops(), self.made.last().map(|made| made.capture.report()));
    }

    fn eager(&mut self) {
        let (at, stream) = self.place();
        let Place { pool, ops, .. } = &self.places[at];
        let x = tensor(&stream, 3.0);
        let result = eager(pool, &stream, |scope| {
            let h = ops.scale(&x, 2.0)?;
            let ops = ops.clone();
            scope.break_point("break", [&h], move |b| ops.scale(b.input(0)?, 2.0))
        });
        drop(x);
        assert_same(&result.expect("an eager run").read::<f32>(&stream).expect("a read"), &[12.0; ELEMENTS]);
    }

    /// A recording that fails, as its break does.
    fn fail(&mut self) {
        let (at, caller) = self.place();
        let Place { pool, ops, .. } = &self.places[at];
        let x = tensor(&caller, 1.0);
        let mut capture = BreakableCapture::new(pool).expect("a capture");
        let failed = capture.record(&caller, |scope| {
            let h = ops.scale(&x, 2.0)?;
            scope.break_point("fails", [&h], |_| Err::<(), _>(Error::user("it is meant to")))
        });
        let error = failed.expect_err("its break fails");
        assert!(
            error.to_string().contains("it is meant to") || unless_away(Err::<(), _>(error)).is_none(),
            "another error"
        );
        drop(x);
    }

    /// At the end no pool is away any more, and all that was made replays.
    fn check_all(&mut self) {
        for mut made in std::mem::take(&mut self.made) {
            let stream = self.stream(made.place);
            made.input.write(&stream, &[3.0_f32; ELEMENTS]).expect("written");
            let batch = Batch { factor: 2.0, operand: tensor(&stream, 1.0) };
            active_forward(&batch, || made.capture.replay(&stream).map(drop)).expect("a replay");
            let expected = made.expected(3.0, (2.0, 1.0));
            assert_same(&made.result.read::<f32>(&stream).expect("a read"), &[expected; ELEMENTS]);
        }
    }
}

fn tensor(stream: &Stream, value: f32) -> Tensor {
    Tensor::from_slice(stream, &[value; ELEMENTS], &[ELEMENTS]).expect("a tensor")
}
