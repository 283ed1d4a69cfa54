//! The crate's error.

use crate::driver::InstantiateError;
use crate::sys::{Call, CallError, LoadError};
use crate::tensor::{DType, Layout};
use std::fmt;

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong. Each message says what, why and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A driver call failed, or the driver lacks it.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A graph could not be instantiated.
    #[error("{0}")]
    Instantiate(InstantiateError),
    /// The capture pool's limit or the device's memory is reached.
    #[error(transparent)]
    OutOfMemory(Box<OutOfMemory>),
    /// A recording failed: where, and why.
    #[error(transparent)]
    Capture(Box<CaptureError>),
    /// A break failed during a replay. Later steps did not run; the capture can be replayed again.
    #[error("break {index} ({name:?}) failed: {source}")]
    Break {
        /// Its name.
        name: String,
        /// Its place among the capture's breaks.
        index: usize,
        /// Why.
        source: Box<Error>,
    },
    /// A patched break did what only a live one may do. It was not launched, nor was anything after it; the capture can be replayed again.
    #[error(
        "break {index} ({name:?}) can't be recorded: {source}; a patched break only enqueues work on its stream: take out what allocates, synchronises or queries, or make the break live"
    )]
    NotPatchable {
        /// Its name.
        name: String,
        /// Its place among the capture's breaks.
        index: usize,
        /// What it did.
        source: Box<Error>,
    },
    /// A patched break asked for more temporaries than it did when it was captured. Where that happens in a replay, its stretch is launched piece by piece.
    #[error(
        "a patched break asked for {requested} bytes of scratch where {left} are left: what it took at capture is all there is"
    )]
    ScratchExceeded {
        /// What was asked for, in bytes.
        requested: usize,
        /// What was left, in bytes.
        left: usize,
    },
    /// A segment could not be launched in a replay. Later steps did not run; the capture can be replayed again.
    #[error("segment {index} could not be launched: {source}")]
    Segment {
        /// Its place among the capture's segments.
        index: usize,
        /// Why.
        source: Box<Error>,
    },
    /// The prefill runner's own.
    #[error(transparent)]
    Prefill(#[from] crate::prefill::PrefillError),
    /// The forward's or a break's own error.
    #[error("{0}")]
    User(#[source] Box<dyn std::error::Error + Send + Sync>),

    /// There is no device with this number.
    #[error("there is no device {ordinal}: the driver sees {count}")]
    NoSuchDevice {
        /// The number asked for.
        ordinal: usize,
        /// How many devices there are.
        count: usize,
    },
    /// The process is a fork of the one that loaded the driver, whose state does not survive a fork.
    #[error("the driver was loaded before this process was forked: load it after the fork, or start the process anew")]
    ForkedAfterInit,
    /// The device has no stream-ordered memory pools (as some virtual and old GPUs).
    #[error("{device} has no stream-ordered memory pools (driver {driver})")]
    PoolsUnsupported {
        /// The device's name.
        device: String,
        /// The driver's CUDA version.
        driver: i32,
    },
    /// Two things that must belong to one context do not.
    #[error("the {what} belongs to another context: expected that of device {expected}, got device {got}")]
    ContextMismatch {
        /// What was given.
        what: &'static str,
        /// The device of the context that was expected.
        expected: usize,
        /// The device of the context that was given.
        got: usize,
    },
    /// A name that the driver can't be given, as it holds a NUL.
    #[error("{name:?} holds a NUL character")]
    BadName {
        /// The name.
        name: String,
    },

    /// A recording was begun on a thread that has one open. The open one goes on.
    #[error("a capture is being recorded on this thread already: finish it first (the open one goes on)")]
    NestedCapture,
    /// A finished capture was to be recorded again.
    #[error("this capture has been recorded already: make a new one")]
    AlreadyRecorded,
    /// A capture whose recording failed was to be replayed or recorded.
    #[error("this capture's recording failed, so it can't be used: make a new one")]
    Poisoned,
    /// A capture was to be replayed that has not been recorded.
    #[error("this capture has not been recorded yet")]
    NotRecorded,
    /// The legacy default stream can't be captured.
    #[error("the legacy default stream can't be captured or replayed on: use a non-blocking stream")]
    LegacyStream,
    /// A blocking stream can't be captured: any call on the legacy stream would break the capture (906).
    #[error(
        "a stream made without CU_STREAM_NON_BLOCKING can't be captured: a call of any library on the legacy stream would break the capture"
    )]
    BlockingStream,
    /// A segment was ended while another stream had unjoined work in it.
    #[error(
        "a stream that was drawn into the segment after its operation {forked_at} was not joined: record an event on it and make the capture stream wait for that, before the break or the end"
    )]
    UnjoinedWork {
        /// How many operations the segment had when the stream was drawn in.
        forked_at: usize,
    },
    /// A segment's graph holds nodes that allocate or free memory: its second launch would fail.
    #[error(
        "the segment's graph holds {count} memory nodes (from stream-ordered allocations on the capture stream): allocate from the capture pool instead"
    )]
    MemoryNodes {
        /// How many.
        count: usize,
    },
    /// A stream-ordered allocation on a stream that is being captured.
    #[error(
        "{call} on a stream that is being captured would make the memory the graph's own: allocate from the capture pool instead"
    )]
    StreamIsCapturing {
        /// The call that was not made.
        call: Call,
    },
    /// A question that the driver answers by invalidating the capture.
    #[error("{call} on a stream that is being captured would invalidate the capture (900): ask before the recording")]
    WouldInvalidate {
        /// The call that was not made.
        call: Call,
    },
    /// A wait on the host while this thread has a segment open.
    #[error("waiting for a {what} while a segment is open would invalidate the capture: do it in a break, or before")]
    SynchronizeWhileCapturing {
        /// What was to be waited for.
        what: &'static str,
    },
    /// Pageable host memory in a segment: the graph would keep its address.
    #[error(
        "a copy from or to pageable host memory can't be recorded, as the graph would keep its address: use a pinned buffer, or a static input that is filled before each replay"
    )]
    HostMemoryInSegment,
    /// An event that was last recorded in a segment was used outside it.
    #[error(
        "the event was last recorded inside a segment, where it is an edge of that graph: record it anew outside before using it here"
    )]
    EventFromSegment,
    /// In a segment, a wait for an event that was recorded before it.
    #[error(
        "the event was recorded before this segment, so the segment can't wait for it (905): make the caller's stream wait for it before the recording, or record it in the segment"
    )]
    EventFromOutside,
    /// A replay on a thread that has a segment open.
    #[error(
        "a replay can't run while a segment is open on this thread: it would be recorded or invalidate the capture"
    )]
    ReplayWhileRecording,
    /// A replay of a pool from inside a break of a replay or recording of the same pool.
    #[error("a replay can't run inside a break of a replay or recording that uses the same pool: its memory is in use")]
    PoolBusy,
    /// A pool's memory was to be given back while something refers to it.
    #[error("{users} captures, or views of what they write, refer to the pool's memory: drop them first")]
    PoolInUse {
        /// How many.
        users: usize,
    },
    /// A pool's memory is given back: see [`CapturePool::release`](crate::CapturePool::release).
    #[error("the pool's memory is released: call `CapturePool::restore` first")]
    PoolReleased,
    /// A pool's memory is lent: see [`CapturePool::lend`](crate::CapturePool::lend).
    #[error("the pool's memory is lent: drop the loan and all its tensors first")]
    PoolLent,
    /// A pool's memory was to be released that does not lie under reserved addresses.
    #[error(
        "this pool can't give its memory back and keep its addresses: make it with `PoolOptions::backing(Backing::ReservedAddresses)`"
    )]
    ReleaseUnsupported,
    /// Memory could not be planned.
    #[error(transparent)]
    Plan(#[from] crate::memory::planner::PlanError),
    /// An operation that only makes sense inside a recording, an eager forward or a replay.
    #[error("no forward is running on this thread: call this inside `BreakableCapture::record`, `eager` or a break")]
    NoForward,
    /// A break asked for a forward context and none of that type is published.
    #[error(
        "no forward context of type {type_name} is published{}: wrap the call in `active_forward`",
        InBreak(break_name)
    )]
    NoForwardContext {
        /// The type asked for.
        type_name: &'static str,
        /// The break that asked, if one did.
        break_name: Option<String>,
    },

    /// A shape that does not fit.
    #[error("{what}: expected {expected}, got {got}")]
    Shape {
        /// What was checked.
        what: &'static str,
        /// What would have fit.
        expected: String,
        /// What was given.
        got: Box<Layout>,
    },
    /// Another element type than expected.
    #[error("{what}: expected {expected}, got {got}")]
    DType {
        /// What was checked.
        what: &'static str,
        /// What would have fit.
        expected: DType,
        /// What was given.
        got: DType,
    },
    /// More dimensions than [`Layout`] holds, or a size that overflows.
    #[error("{reason}")]
    Layout {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Result and handoff overlap without being the same place.
    #[error(
        "the result overlaps the handoff without being the same place: write the handoff itself (`output`), or another tensor"
    )]
    Overlap,
    /// A range that ends past what it is taken from.
    #[error("the range ends at {end}, past the {what}'s length of {length}")]
    OutOfRange {
        /// What it is a range of.
        what: &'static str,
        /// Its end.
        end: usize,
        /// The length.
        length: usize,
    },
    /// More rows than there is room for. Nothing was copied.
    #[error(
        "static input {input}: {rows} rows, where there is room for {most}: run this batch eagerly, or capture a larger bucket"
    )]
    TooManyRows {
        /// The input's name.
        input: &'static str,
        /// Rows given.
        rows: usize,
        /// Rows there is room for.
        most: usize,
    },
    /// An operation that must run live was called while a segment is open.
    #[error("{operation} must not be captured: make it a break")]
    MustBeBreak {
        /// The operation.
        operation: &'static str,
    },
    /// A tensor in host memory where one on the device is needed, or the other way round.
    #[error("{what} must be in {expected} memory")]
    Location {
        /// What was given.
        what: &'static str,
        /// `device` or `host`.
        expected: &'static str,
    },
    /// More arguments than a launch takes.
    #[error("{given} kernel arguments, at most {limit} are supported")]
    TooManyArguments {
        /// How many were given.
        given: usize,
        /// How many are supported.
        limit: usize,
    },
    /// A weak reference whose block has been given back and maybe lent again.
    #[error("the weak reference is stale: its block was given back")]
    StaleReference,
    /// A break returned another number of results than it did when it was recorded.
    #[error("the break returned {got} results, when it was recorded it returned {expected}")]
    OutputCount {
        /// When it was recorded.
        expected: usize,
        /// Now.
        got: usize,
    },
    /// A capture of another pool than the one it is to be used with.
    #[error("the capture belongs to another pool")]
    ForeignPool,
    /// A replay's results were asked for after a later replay of the same pool.
    #[error("a later replay of the same pool has overwritten these results: read them before it")]
    OutputsOverwritten,
}

impl Error {
    /// Wraps the forward's or a break's own error.
    pub fn user(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::User(error.into())
    }

    /// The driver call at the root of this error, if it was one.
    pub fn driver_call(&self) -> Option<CallError> {
        match self {
            Error::Call(error) => Some(*error),
            Error::Instantiate(error) => Some(error.error),
            Error::Break { source, .. } | Error::NotPatchable { source, .. } | Error::Segment { source, .. } => {
                source.driver_call()
            }
            Error::OutOfMemory(error) => error.call,
            Error::Capture(error) => error.first_call.or_else(|| error.source.driver_call()),
            _ => None,
        }
    }
}

/// The capture pool could not serve a request. Nothing was freed, trimmed or waited for, and the pool can be used on.
#[derive(Debug, thiserror::Error)]
#[error(
    "out of memory: {requested} bytes requested, the capture pool has {in_use} of {reserved} bytes in use{}{}{}: lower the largest bucket or the number of captures, raise the pool's limit, or leave more device memory free",
    Limit(limit),
    At(bucket, segment),
    By(call)
)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// Bytes requested.
    pub requested: usize,
    /// Bytes of the pool that are in use.
    pub in_use: usize,
    /// Bytes of the pool in all.
    pub reserved: usize,
    /// The pool's limit, if it has one.
    pub limit: Option<usize>,
    /// The bucket being recorded, if it was named.
    pub bucket: Option<usize>,
    /// The segment being recorded.
    pub segment: Option<usize>,
    /// The driver call that failed; `None` where the pool's own limit was reached first.
    pub call: Option<CallError>,
}

/// Why a recording failed: the first cause, the place, and what followed from it.
#[derive(Debug)]
#[non_exhaustive]
pub struct CaptureError {
    /// The capture's name, if it was given one.
    pub name: Option<String>,
    /// The bucket, if it was named.
    pub bucket: Option<usize>,
    /// The segment that was open or had just ended, counted from 0.
    pub segment: usize,
    /// How many operations of the crate went into that segment before.
    pub operation: usize,
    /// The first driver call that failed since that segment began, as far as it was made through the crate.
    pub first_call: Option<CallError>,
    /// The error that ended the recording.
    pub source: Box<Error>,
    /// What failed afterwards, in order: never the cause.
    pub notes: Vec<CallError>,
    /// The capture pool's bytes in use and in all, where the device had too little memory for something else than the pool.
    pub pool_bytes: Option<(usize, usize)>,
    /// A hint, where one applies.
    pub hint: Option<&'static str>,
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("capture")?;
        if let Some(name) = &self.name {
            write!(f, " {name:?}")?;
        }
        if let Some(bucket) = self.bucket {
            write!(f, " of bucket {bucket}")?;
        }
        write!(f, " failed in segment {} after operation {}: ", self.segment, self.operation)?;
        match self.first_call.filter(|first| self.source.driver_call() != Some(*first)) {
            Some(first) => write!(f, "{first}; then {}", self.source)?,
            None => write!(f, "{}", self.source)?,
        }
        for note in &self.notes {
            write!(f, "; then {note}")?;
        }
        if let Some((in_use, reserved)) = self.pool_bytes {
            write!(f, "; the capture pool had {in_use} of {reserved} bytes in use")?;
        }
        match self.hint {
            Some(hint) => write!(f, ". {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for CaptureError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}

struct Limit<'a>(&'a Option<usize>);

impl fmt::Display for Limit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |limit| write!(f, " (limit {limit})"))
    }
}

struct By<'a>(&'a Option<CallError>);

impl fmt::Display for By<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |call| write!(f, " ({call})"))
    }
}

struct At<'a>(&'a Option<usize>, &'a Option<usize>);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(bucket) = self.0 {
            write!(f, ", bucket {bucket}")?;
        }
        self.1.map_or(Ok(()), |segment| write!(f, ", segment {segment}"))
    }
}

struct InBreak<'a>(&'a Option<String>);

impl fmt::Display for InBreak<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |name| write!(f, " for break {name:?}"))
    }
}
