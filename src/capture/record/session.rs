//! A recording as a whole: it begins, and ends well or is undone.

use super::recorder::Recorder;
use crate::capture::forward::frame::{self, FrameGuard};
use crate::capture::options::CaptureOptions;
use crate::capture::program::Program;
use crate::driver::stream_order::order_after;
use crate::driver::{Event, RecordingId, Stream};
use crate::error::{CaptureError, Error, Misuse, PoolBytes, Result};
use crate::pool::{PoolHandle, ReplayGuard, settle_stubbornly};
use crate::sys::{CUresult, CallError, first_failure};

/// A recording under way, which holds the pool's replay lock. It is undone when this drops before it has ended well: on errors, and when the forward
/// panics (C5 of `docs/DESIGN.md`).
pub(crate) struct Session<'p, 'env> {
    // The frame goes first: it has the recorder's address, which stays the same wherever this is moved.
    frame: Option<FrameGuard>,
    recorder: Box<Recorder<'env>>,
    pool: &'p PoolHandle,
    lock: Option<ReplayGuard<'p>>,
    /// Orders the capture stream after the caller's, and the caller's after the capture stream.
    join: Event,
    /// Its number among the pool's replays and recordings.
    number: u64,
    /// The pool's slabs at the beginning.
    slabs: usize,
    ended_well: bool,
}

/// Fails on a thread that records already.
pub(crate) fn refuse_nested() -> Result<()> {
    if frame::is_recording() || frame::is_capturing() { Err(Misuse::NestedCapture.into()) } else { Ok(()) }
}

impl<'p, 'env> Session<'p, 'env> {
    /// Begins a recording on the stream, after what is on the caller's. Nothing is captured yet.
    pub(crate) fn begin(
        pool: &'p PoolHandle,
        stream: &Stream,
        caller: &Stream,
        options: &CaptureOptions,
    ) -> Result<Session<'p, 'env>> {
        let mut lock = pool.lock()?;
        let recorder = Box::new(Recorder::new(pool, stream, options)?);
        let join = Event::new(stream.context())?;
        lock.order(stream)?;
        order_after(stream, caller, &join)?;
        // Its breaks write the pool's memory, and its segments too if they run.
        let number = pool.next_replay();
        first_failure::clear();
        pool.begin_recording(recorder.id, options.plan.as_ref());
        let slabs = pool.slab_count();
        Ok(Session { frame: None, recorder, pool, lock: Some(lock), join, number, slabs, ended_well: false })
    }

    /// Opens the first segment, and makes the recording what runs on this thread.
    pub(crate) fn open(&mut self) -> Result<()> {
        self.frame = Some(frame::enter(self.recorder.frame()));
        self.recorder.open_segment()
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn recorder(&self) -> &Recorder<'env> {
        &self.recorder
    }

    /// Ends the recording: the caller's stream comes after it. Gives its program, and its name.
    pub(crate) fn end(&mut self, caller: &Stream) -> Result<(Program<'env>, RecordingId)> {
        let program = self.recorder.finish()?;
        if program.nodes.total() == 0 && program.breaks == 0 && self.pool.recordings_blocks() > 0 {
            return Err(Misuse::NothingRecorded.into());
        }
        self.frame = None;
        order_after(caller, &self.recorder.stream, &self.join)?;
        self.ended_well = true;
        self.pool.end_recording(true);
        Ok((program, self.recorder.id))
    }

    /// Undoes the recording and says why it failed.
    pub(crate) fn fail(mut self, error: Error, options: &CaptureOptions) -> Error {
        let position = self.recorder.position();
        let first_call = first_failure::get();
        let usage = self.pool.arena_usage();
        let note = self.undo();
        // A segment that was ended before, and could not be put into its composite graph, is the one to name.
        let (mut source, position) = match error {
            Error::Segment { index, source } => (*source, self.recorder.end_of(index)),
            error => (error, position),
        };
        if let Error::OutOfMemory(error) = &mut source {
            error.bucket = options.bucket;
            error.segment = Some(position.segment);
        }
        let root = source.driver_call();
        let call = first_call.or(root);
        let out_of_memory = call.is_some_and(|call| call.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let tells_pool = out_of_memory && !matches!(source, Error::OutOfMemory(_));
        Error::Capture(Box::new(CaptureError {
            name: options.name.clone(),
            bucket: options.bucket,
            segment: position.segment,
            operation: position.operation,
            first_call,
            pool_bytes: tells_pool.then_some(PoolBytes { in_use: usage.in_use, reserved: usage.reserved }),
            notes: note.into_iter().filter(|note| Some(*note) != first_call && Some(*note) != root).collect(),
            source: Box::new(source),
            hint: call.and_then(|call| hint(call.code())),
        }))
    }

    fn undo(&mut self) -> Option<CallError> {
        self.ended_well = true;
        let note = self.recorder.end_open_segment();
        self.frame = None;
        // Segments that ran, and breaks, may still use what is about to go.
        match settle_stubbornly(&self.recorder.stream) {
            Ok(()) => self.recorder.discard(),
            Err(error) => {
                self.pool.context().report_in_drop("recording", &error);
                self.recorder.leak();
            }
        }
        self.pool.end_recording(false);
        self.pool.shrink_to(self.slabs, &self.recorder.stream);
        note
    }
}

impl Drop for Session<'_, '_> {
    fn drop(&mut self) {
        if !self.ended_well
            && let Some(note) = self.undo()
        {
            log::warn!("discarding a recording: {note}");
        }
        self.lock = None;
        // Captures of this pool may have been dropped meanwhile.
        self.pool.drain_deferred();
    }
}

fn hint(code: CUresult) -> Option<&'static str> {
    match code {
        CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => Some(
            "A call was made that an open segment forbids: run the forward once before capturing, so that what is created at first use is there, \
             and move what allocates, synchronises or queries into a break; in Global mode the call may be another thread's",
        ),
        CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED => Some(
            "An earlier call invalidated the capture, and which one is not known here: a library's of this thread, or in Global mode any thread's. \
             Run the forward once before capturing, and move what allocates, synchronises or queries into a break",
        ),
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => Some(
            "The device has too little memory left for the graphs beside the pool: lower the number of captures or the largest bucket, or leave \
             more memory free",
        ),
        _ => None,
    }
}
