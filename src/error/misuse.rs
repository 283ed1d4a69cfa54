//! Calls that are refused, and work that can't be captured.

use crate::sys::Call;
use std::fmt;

/// A call that was refused before it had an effect, or work of a forward that can't be captured. Each message says what, why and what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// The process is a fork of the one that loaded the driver, whose state does not survive a fork.
    #[error("the driver was loaded before this process was forked: load it after the fork, or start the process anew")]
    ForkedAfterInit,
    /// A name that the driver can't be given, as it holds a NUL.
    #[error("{name:?} holds a NUL character, which no name for the driver can: leave it out")]
    BadName {
        /// The name.
        name: String,
    },
    /// The closure that gives the batches to `verify` has not run what it is handed, or more than once.
    #[error(
        "the batches of `verify` ran what they are handed {runs} times: fill the inputs, publish the forward context, and run it once"
    )]
    VerifyRuns {
        /// How often it ran.
        runs: usize,
    },
    /// `verify` has other outputs of the recording than the forward returns.
    #[error(
        "`verify` was given {recorded} outputs, and the forward returned {eager}: give all tensors that the recording returned, in the order in which the forward returns them"
    )]
    VerifyOutputs {
        /// How many it was given.
        recorded: usize,
        /// How many the eager forward returned.
        eager: usize,
    },
    /// Two things that must belong to one context do not.
    #[error(
        "the {what} belongs to another context: expected that of device {expected}, got device {got}. Make all that works together on one context"
    )]
    ContextMismatch {
        /// What was given.
        what: &'static str,
        /// The device of the context that was expected.
        expected: usize,
        /// The device of the context that was given.
        got: usize,
    },
    /// A recording was begun on a thread that has one open. The open one goes on.
    #[error("a capture is being recorded on this thread already: finish it first (the open one goes on)")]
    NestedCapture,
    /// A finished capture was to be recorded again.
    #[error("this capture has been recorded already: make a new one")]
    AlreadyRecorded,
    /// A capture was to be replayed that has not been recorded.
    #[error("this capture has not been recorded yet: call `record` before the replay")]
    NotRecorded,
    /// A capture whose recording failed was to be replayed or recorded.
    #[error("this capture's recording failed, so it can't be used: make a new one")]
    Poisoned,
    /// A replay on a thread that has a segment open.
    #[error(
        "a replay can't run while a segment is open on this thread: it would be recorded or invalidate the capture. Replay before the recording or after it, or in a break a capture of another pool"
    )]
    ReplayWhileRecording,
    /// The legacy default stream can't be captured.
    #[error("the legacy default stream can't be captured or replayed on: use a non-blocking stream")]
    LegacyStream,
    /// A blocking stream can't be captured: any call on the legacy stream would break the capture (906).
    #[error(
        "a stream made without CU_STREAM_NON_BLOCKING can't be captured: a call of any library on the legacy stream would break the capture. Give a non-blocking one, or none: then it is the pool's"
    )]
    BlockingStream,
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
    /// Memory of its own for a tensor while a segment is open: the recording would neither own it nor reuse it.
    #[error(
        "a tensor can't take memory of its own while a segment is open: `empty` gives one of the capture pool, or allocate before the recording"
    )]
    AllocateInSegment,
    /// An operation that must run live was called while a segment is open.
    #[error("{operation} must not be captured, as it reads values of one batch on the host: call it in a break")]
    MustBeBreak {
        /// The operation.
        operation: &'static str,
    },
    /// A segment was ended while another stream had unjoined work in it.
    #[error(
        "{} was drawn into the segment after its operation {forked_at} and was not joined: record an event on it and make the capture stream wait for that, before the break or the end",
        Unjoined(*stream)
    )]
    UnjoinedWork {
        /// The stream's handle, where the crate has seen that it was drawn in.
        stream: Option<usize>,
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
    /// An event that keeps a time was recorded in a segment, where a record is an edge of the graph and takes none.
    #[error(
        "an event that keeps a time was recorded in a segment, where it would be an edge of the graph and have no time: use `Event::record_external`, which takes one on every replay, or an event without timing"
    )]
    TimingInSegment,
    /// Work on a stream beside the capture that this thread has open: it would run now, once, and a replay would leave it out.
    #[error(
        "{operation} on stream {stream:#x}, which takes no part in segment {segment} that this thread records: a replay would leave it out. Use the stream that the scope gives (`Scope::stream`, `current_stream`), draw this one in by an event, or say that it is meant with `outside_capture`"
    )]
    OutsideTheCapture {
        /// What was to be enqueued.
        operation: String,
        /// The stream's handle.
        stream: usize,
        /// The segment that is open.
        segment: usize,
    },
    /// A segment's graph has fewer nodes than operations of the crate went into it.
    #[error(
        "operation {operation} of segment {segment} (counted from 0) made no node of its graph, so that a replay would leave it out: the stream's capture was ended or replaced by other code. Let nobody else begin or end captures on the stream that is recorded on"
    )]
    OperationNotRecorded {
        /// The first that is missing.
        operation: usize,
        /// The segment.
        segment: usize,
    },
    /// A recording has neither a node nor a break, and returns memory of the pool that nothing would ever write.
    #[error(
        "nothing was recorded, and what the forward returns lies in the capture pool, where no replay would write it: launch on the stream that the scope gives (`Scope::stream`, `current_stream`), a library's work too"
    )]
    NothingRecorded,
    /// A call that would end a capture which is open elsewhere.
    #[error(
        "stream {stream:#x} is being captured, and this call would end that capture: make it when the recording is done, or wait for an event of your own stream"
    )]
    CaptureInProgress {
        /// The stream that is being captured.
        stream: usize,
    },
    /// A replay on a stream that is being captured by code outside the crate.
    #[error(
        "stream {stream:#x} is being captured by other code, and a replay can't become part of a graph: replay on another stream, or after that capture has ended (it goes on untouched)"
    )]
    ReplayInOthersCapture {
        /// The stream.
        stream: usize,
    },
    /// A live break drew another stream in and did not join it.
    #[error(
        "the break drew stream {stream:#x} in by an event and did not join it, so that what comes next would run ahead of its work: record an event on it after that work, and make the break's stream wait for that"
    )]
    UnjoinedInBreak {
        /// The stream that was drawn in.
        stream: usize,
    },
    /// Work of a live break on a stream that nothing orders with the break's own: it may run before the segment that the break comes after, or after the next.
    #[error(
        "{operation} on stream {stream:#x}, which nothing orders with this break's own: it may run ahead of the segments before, or after those that come next. Use the stream that the break gives (`Break::stream`, `current_stream`), draw this one in by an event of that and join it, or say that it is meant with `outside_capture`"
    )]
    OutsideTheBreak {
        /// What was to be enqueued.
        operation: String,
        /// The stream's handle.
        stream: usize,
    },
    /// A replay or recording that would wait for a pool whose holder waits for a pool that this thread holds.
    #[error(
        "this thread holds the pool that another one waits for, from a break that holds the pool wanted here: neither would ever go on. Replay captures of other pools in one order of pools, or outside breaks"
    )]
    PoolsInterlocked,
    /// Results of a capture whose latest replay failed.
    #[error(
        "the latest replay of this tensor's capture failed, so that it holds an earlier one's result or part of one: replay again"
    )]
    ReplayFailed,
    /// A tensor of a patched break's scratch, used elsewhere.
    #[error(
        "the tensor lies in the scratch of a patched break, which is memory of the pool for the time of that break alone: allocate what is kept from one replay to the next before the recording"
    )]
    ScratchOutsideItsBreak,
    /// A break asked for an input that it was not given: `None` stands in its place.
    #[error(
        "input {index} of break {break_name:?} is absent: give a tensor in its place, or ask with `optional_input`"
    )]
    AbsentInput {
        /// The break's name.
        break_name: String,
        /// Which input, from 0 on.
        index: usize,
    },
    /// An operation that only makes sense inside a recording, an eager forward or a replay.
    #[error(
        "no forward is running on this thread: call this inside `BreakableCapture::record`, `eager` or a break, on the thread that runs it"
    )]
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
    /// A forward context was asked for where its value would become part of a graph: every replay would have the recording's.
    #[error(
        "the forward context of type {type_name} was asked for in {place}, which is recorded once, so that every replay would have this batch's: read it in a live or patched break, or say `frozen_ctx` if it is the same for all batches"
    )]
    FrozenContext {
        /// The type asked for.
        type_name: &'static str,
        /// Where.
        place: FrozenPlace,
    },
    /// The valid rows were asked for where their number would become part of a graph: every replay would have the recording's.
    #[error(
        "the valid rows were asked for in {place}, which is recorded once, so that every replay would have this batch's: ask in a live or patched break, or say `frozen_rows` if the recording's are meant"
    )]
    FrozenRows {
        /// Where.
        place: FrozenPlace,
    },
    /// A break's handoff, where a bucket is set, whose leading dimension is not the bucket's rows: padded rows of it would be sought where there are none.
    #[error(
        "result {result} of break {break_name:?} has shape {shape:?}, whose leading dimension is not the {bucket} rows of the bucket, so that padded rows could not be made zero: return all rows of the bucket with the rows first, or say `BreakOptions::not_rows` if its leading dimension is not rows"
    )]
    NotTheBucketsRows {
        /// The break's name.
        break_name: String,
        /// Which of the break's results, from 0 on.
        result: usize,
        /// The handoff's shape.
        shape: Vec<usize>,
        /// The bucket, in rows.
        bucket: usize,
    },
    /// A break's results are of a type whose [`Outputs`](crate::Outputs) counts badly.
    #[error(
        "the `Outputs` of the break's results counts badly: after {visited} results it {}: `visit` must hand out 0, 1, 2 and so on, and return how many there were; `gather` must take as many",
        index.map_or("said that there were more or fewer, or took more or fewer".to_owned(), |index| format!("handed out number {index}"))
    )]
    OutputsMiscounted {
        /// Results that were handed out in order.
        visited: usize,
        /// The number of the next that was handed out, if that is what was wrong.
        index: Option<usize>,
    },
    /// A break returned another number of results than it did when it was recorded.
    #[error(
        "the break returned {got} results, when it was recorded it returned {expected}: return as many on every run"
    )]
    OutputCount {
        /// When it was recorded.
        expected: usize,
        /// Now.
        got: usize,
    },
    /// A kernel that the reference driver can't run: its module is PTX, and nobody gave the function that does the same on the host.
    #[error(
        "kernel `{kernel}` has no host function on the reference driver: give one with `reference::Options::kernel(\"{kernel}\", ..)`"
    )]
    NoHostKernel {
        /// The kernel's name in its module.
        kernel: String,
    },
    /// Another number of arguments than the kernel has parameters.
    #[error(
        "kernel `{kernel}` has {expected} parameters, and was launched with {given} arguments: give one for each, in their order"
    )]
    ArgumentCount {
        /// The kernel's name in its module.
        kernel: String,
        /// How many parameters it has.
        expected: usize,
        /// How many arguments there were.
        given: usize,
    },
    /// An argument of another size than its parameter.
    #[error(
        "argument {position} of kernel `{kernel}` has {given} bytes, and its parameter {expected}: give a value of the parameter's own type"
    )]
    ArgumentSize {
        /// The kernel's name in its module.
        kernel: String,
        /// Which argument, from 0 on.
        position: usize,
        /// The parameter's size in bytes.
        expected: usize,
        /// The argument's size in bytes.
        given: usize,
    },
    /// More arguments than a launch takes.
    #[error(
        "kernel `{kernel}` was launched with {given} arguments, at most {limit} are supported: pass a structure by value (`Arg::Bytes`)"
    )]
    TooManyArguments {
        /// The kernel's name in its module.
        kernel: String,
        /// How many were given.
        given: usize,
        /// How many are supported.
        limit: usize,
    },
    /// A weak reference whose block has been given back and maybe lent again.
    #[error(
        "the weak reference is stale: its block was given back to the pool, and may be another tensor's by now. Hold the tensor for as long as it is read"
    )]
    StaleReference,
    /// A replay's results were asked for after a later replay of the same pool.
    #[error("a later replay of the same pool has overwritten these results: read or copy them before it")]
    OutputsOverwritten,
    /// A capture of another pool than the one it is to be used with.
    #[error(
        "the capture belongs to another pool than this one: record it on this pool, or use it with its own (`BreakableCapture::pool`)"
    )]
    ForeignPool,
    /// A replay of a pool from inside a break of a replay or recording of the same pool.
    #[error(
        "a replay can't run inside a break of a replay or recording that uses the same pool: its memory is in use. Record what is replayed in a break on a pool of its own"
    )]
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
    /// A pool's memory was to be released while it is pinned: see [`CapturePool::pin`](crate::CapturePool::pin).
    #[error(
        "the pool's memory is pinned {pins} times, as something outside has registered its pages: deregister it and drop each `PoolPin` first"
    )]
    PoolPinned {
        /// Pins.
        pins: usize,
    },
    /// A pool's memory was to be released that does not lie under reserved addresses.
    #[error(
        "this pool can't give its memory back and keep its addresses: make it with `PoolOptions::backing(Backing::ReservedAddresses)`"
    )]
    ReleaseUnsupported,
}

/// A part of a recording that is recorded once, and replayed as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FrozenPlace {
    /// A segment, by its place among the recording's segments, where it is known.
    Segment(Option<usize>),
    /// A break that runs in a segment, by its name.
    InlineBreak(String),
}

impl fmt::Display for FrozenPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrozenPlace::Segment(Some(index)) => write!(f, "segment {index}"),
            FrozenPlace::Segment(None) => f.write_str("an open segment"),
            FrozenPlace::InlineBreak(name) => write!(f, "inline break {name:?}"),
        }
    }
}

struct Unjoined(Option<usize>);

impl fmt::Display for Unjoined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(stream) => write!(f, "stream {stream:#x}"),
            None => f.write_str("a stream, of which the crate was not told,"),
        }
    }
}

struct InBreak<'a>(&'a Option<String>);

impl fmt::Display for InBreak<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |name| write!(f, " for break {name:?}"))
    }
}
