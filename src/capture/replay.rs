//! Replay: the hot path. It allocates nothing, takes no lock, looks nothing up and waits for nothing.

use super::capture::BreakableCapture;
use super::program::Step;
use crate::capture::forward::frame::{self, Frame, Kind};
use crate::driver::open_capture::KeepAlive;
use crate::driver::{Stream, StreamKind};
use crate::error::{Error, Misuse, Result};
use crate::pool::{CapturePool, PoolHandle};

/// How a replay runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ReplayOptions {
    /// The valid rows of the batch. The rows after them are the padded tail: after each landing the handoff's tail is zero. `None`: all rows are
    /// real. Zero: all are padding.
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
        if self.pool.handle().latest_replay() == self.number { Ok(()) } else { Err(Misuse::OutputsOverwritten.into()) }
    }
}

impl BreakableCapture<'_> {
    /// Replays the capture on the stream, with all rows real.
    ///
    /// # Errors
    /// As for [`replay_with`](BreakableCapture::replay_with).
    pub fn replay(&mut self, stream: &Stream) -> Result<Replayed<'_>> {
        self.replay_with(stream, ReplayOptions::default())
    }

    /// Replays the capture on the stream: each segment is launched and each break run, in order. Returns when all is enqueued.
    ///
    /// Fill the static inputs before, in the same stream's order. A replay of any other capture of the pool comes after this one on the device,
    /// on whatever stream; a replay by another thread waits until this one is enqueued.
    ///
    /// # Errors
    /// Before anything runs: [`Misuse::NotRecorded`], [`Misuse::Poisoned`], [`Misuse::ReplayWhileRecording`], [`Misuse::PoolBusy`] from inside a
    /// break that uses the pool, [`Misuse::PoolReleased`], [`Misuse::PoolLent`], [`Misuse::LegacyStream`], [`Misuse::ContextMismatch`]. [`Error::Break`] when a break fails and
    /// [`Error::Segment`] when a launch does: later steps do not run, the thread's state is restored, and the capture can be replayed again.
    pub fn replay_with(&mut self, stream: &Stream, options: ReplayOptions) -> Result<Replayed<'_>> {
        self.state.replayable()?;
        if frame::is_capturing() {
            return Err(Misuse::ReplayWhileRecording.into());
        }
        if stream.kind() == StreamKind::Legacy {
            return Err(Misuse::LegacyStream.into());
        }
        let pool = self.pool.handle();
        pool.context().expect_same(stream.context(), "replay's stream")?;
        let mut turn = pool.lock()?;
        turn.order(stream)?;
        let number = pool.next_replay();
        let frame = Frame { kind: Kind::Eager(None), stream: stream.clone(), pool: pool.clone() };
        let _frame = frame::enter(frame);
        // Empty without patched breaks, and then it is no allocation.
        let mut replaced = Vec::new();
        let ran = run(&mut self.program.steps, stream, options.valid_rows, pool, &mut replaced);
        if !replaced.is_empty() {
            drop(turn);
            pool.free_after_replay(replaced);
        }
        ran?;
        Ok(Replayed { pool: &self.pool, number })
    }
}

/// Runs the steps in order. `replaced`: what patched breaks referred to before.
#[inline]
fn run(
    steps: &mut [Step<'_>],
    stream: &Stream,
    valid_rows: Option<usize>,
    pool: &PoolHandle,
    replaced: &mut Vec<KeepAlive>,
) -> Result<()> {
    for step in steps {
        match step {
            Step::Segment { exec, index, .. } => {
                // SAFETY: the program keeps whatever the graph refers to, and its pool; their return waits for what is running.
                if let Err(error) = unsafe { exec.launch(stream) } {
                    return Err(segment_failed(*index, error));
                }
            }
            Step::Break(step) => {
                if let Err(error) = step.run(stream, valid_rows) {
                    return Err(step.failed(error));
                }
            }
            Step::Composite(composite) => {
                let ran = composite.run(stream, valid_rows, pool);
                composite.take_retired(replaced);
                ran?;
            }
        }
    }
    Ok(())
}

#[cold]
fn segment_failed(index: usize, error: Error) -> Error {
    Error::Segment { index, source: Box::new(error) }
}

impl Drop for BreakableCapture<'_> {
    /// The execs go before what they refer to, and that after the last replay.
    fn drop(&mut self) {
        let kept = self.program.take_kept();
        self.program.steps.clear();
        self.pool.handle().free_after_replay(kept);
    }
}
