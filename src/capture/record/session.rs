//! Recording: from the forward to the program, and back to nothing when it fails.

use crate::capture::capture::BreakableCapture;
use crate::capture::forward::frame::{self, Frame, FrameGuard, Kind, Source};
use crate::capture::record::recorder::Recorder;
use crate::capture::scope::Scope;
use crate::capture::state::State;
use crate::driver::{Event, RecordingId, Stream};
use crate::error::{CaptureError, Error, Misuse, PoolBytes, Result};
use crate::pool::PoolHandle;
use crate::sys::{CUresult, CallError, first_failure};

impl<'env> BreakableCapture<'env> {
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
    /// [`Error::Capture`] with the first cause, segment and operation when the forward, a break or a driver call fails: then the segment is
    /// ended, everything recorded is released, the pool and the thread are as before, the streams can be used, and this capture is poisoned.
    /// The same is done when the forward panics.
    pub fn record<T>(&mut self, caller: &Stream, forward: impl FnOnce(&Scope<'_, 'env>) -> Result<T>) -> Result<T> {
        if frame::is_recording() || frame::is_capturing() {
            return Err(Misuse::NestedCapture.into());
        }
        self.pool.context().expect_same(caller.context(), "caller's stream")?;
        let recording = self.state.begin()?;
        let pool = self.pool.handle().clone();
        let mut turn = pool.lock()?;
        let stream = self.stream.clone();
        let recorder = Recorder::new(
            RecordingId::next(),
            pool.clone(),
            stream.clone(),
            Source::Blocks(pool.key_of(&stream)?),
            &self.options,
        )?;
        let join = Event::new(stream.context())?;
        turn.order(&stream)?;
        wait_for(&stream, caller, &join)?;

        self.state = recording;
        // Its breaks write the pool's memory, and its segments too if they run.
        pool.next_replay();
        first_failure::clear();
        pool.begin_recording(self.options.plan.as_ref());
        let mut session =
            Session { capture: self, recorder: &recorder, frame: None, slabs: pool.slab_count(), over: false };
        let recorded = session.run(forward).and_then(|value| {
            wait_for(caller, &stream, &join)?;
            Ok(value)
        });
        let recorded = match recorded {
            Ok(value) => {
                session.over = true;
                pool.end_recording(true);
                session.capture.state = recording.end(true);
                session.capture.mapped = Some(pool.retain_mapping());
                Ok(value)
            }
            Err(error) => Err(session.fail(error)),
        };
        drop(turn);
        // Captures of this pool may have been dropped meanwhile.
        pool.drain_deferred();
        recorded
    }
}

/// Makes `later` wait for what is on `earlier`.
fn wait_for(later: &Stream, earlier: &Stream, event: &Event) -> Result<()> {
    if later == earlier {
        return Ok(());
    }
    event.record(earlier)?;
    later.wait(event)
}

/// A recording that is undone when this drops before it is over: on errors, and when the forward panics.
struct Session<'s, 'env> {
    capture: &'s mut BreakableCapture<'env>,
    recorder: &'s Recorder<'env>,
    frame: Option<FrameGuard>,
    /// The pool's slabs at the beginning.
    slabs: usize,
    over: bool,
}

impl<'env> Session<'_, 'env> {
    fn run<T>(&mut self, forward: impl FnOnce(&Scope<'_, 'env>) -> Result<T>) -> Result<T> {
        let recorder = self.recorder;
        // The frame holds the recorder's address without its lifetime; it is off the stack before the recorder is gone.
        let address: *const Recorder<'env> = recorder;
        self.frame = Some(frame::enter(Frame {
            kind: Kind::Recording {
                number: recorder.number,
                source: recorder.source.clone(),
                recorder: address.cast(),
            },
            stream: recorder.stream.clone(),
            pool: recorder.pool.clone(),
        }));
        recorder.open_segment()?;
        let value = forward(&Scope::recording(recorder))?;
        self.capture.program = recorder.finish()?;
        self.frame = None;
        Ok(value)
    }

    /// Undoes the recording and says why it failed.
    fn fail(mut self, error: Error) -> Error {
        let (segment, operation) = self.recorder.place();
        let first_call = first_failure::get();
        let (in_use, reserved) = self.recorder.pool.bytes();
        let notes = self.undo();
        let options = &self.capture.options;
        let mut source = error;
        if let Error::OutOfMemory(error) = &mut source {
            error.bucket = options.bucket;
            error.segment = Some(segment);
        }
        let root = source.driver_call();
        let out_of_memory = first_call.or(root).is_some_and(|call| call.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let pool_bytes =
            (out_of_memory && !matches!(source, Error::OutOfMemory(_))).then_some(PoolBytes { in_use, reserved });
        let hint = first_call.or(root).and_then(|call| hint(call.code()));
        Error::Capture(Box::new(CaptureError {
            name: options.name.clone(),
            bucket: options.bucket,
            segment,
            operation,
            first_call,
            pool_bytes,
            notes: notes.into_iter().filter(|note| Some(*note) != first_call && Some(*note) != root).collect(),
            source: Box::new(source),
            hint,
        }))
    }

    fn undo(&mut self) -> Vec<CallError> {
        self.over = true;
        let notes = self.recorder.discard();
        self.frame = None;
        self.capture.program = Default::default();
        self.capture.state = State::Poisoned;
        let pool: &PoolHandle = &self.recorder.pool;
        pool.end_recording(false);
        pool.shrink_to(self.slabs, &self.recorder.stream);
        notes
    }
}

impl Drop for Session<'_, '_> {
    fn drop(&mut self) {
        if !self.over {
            let notes = self.undo();
            for note in notes {
                log::warn!("discarding a recording: {note}");
            }
        }
    }
}

fn hint(code: CUresult) -> Option<&'static str> {
    match code {
        CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => Some(
            "A call was made that an open segment forbids: run the forward once before capturing, so that what is created at first use is there, \
             and move what allocates, synchronises or queries into a break; in Global mode the call may be another thread's",
        ),
        CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED => Some(
            "A call outside the crate invalidated the capture: run the forward once before capturing, and move what allocates, synchronises or \
             queries into a break; in Global mode the call may be another thread's",
        ),
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => Some(
            "The device has too little memory left for the graphs beside the pool: lower the number of captures or the largest bucket, or leave \
             more memory free",
        ),
        _ => None,
    }
}
