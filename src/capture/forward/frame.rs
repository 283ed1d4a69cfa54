//! The calling thread's ambient state: which forward runs on it, and which forward contexts are published. Each thread has its own, so each
//! GPU or rank of a process can have its own launch thread.

use crate::capture::composite::scratch::Scratch;
use crate::capture::record::recorder::Recorder;
use crate::capture::scope::Scope;
use crate::driver::{RecordingId, Stream, open_capture};
use crate::error::{Error, Misuse, Result};
use crate::memory::allocator::StreamKey;
use crate::memory::trace::Role;
use crate::pool::tracer::Tracer;
use crate::pool::{CapturePool, PoolHandle};
use crate::tensor::{DType, Tensor};
use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

/// A forward that runs on this thread.
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    /// Where its work goes.
    pub(crate) stream: Stream,
    pub(crate) pool: PoolHandle,
}

/// What runs.
#[derive(Clone)]
pub(crate) enum Kind {
    /// A forward without capture, or the breaks of a recording or a replay. In a trace, with what writes it.
    Eager(Option<Arc<Tracer>>),
    /// A recording, or a trace of one.
    Recording {
        /// Its number.
        number: RecordingId,
        /// Where its tensors come from.
        source: Source,
        /// What records. Valid as long as the frame is on the stack.
        recorder: *const Recorder<'static>,
    },
    /// The operation of an inline break: part of its recording's segment, and breaks of its own run straight through.
    Inline {
        /// The recording's number.
        number: RecordingId,
        /// Where its tensors come from.
        source: Source,
    },
    /// The operation of a patched break, while it is recorded: its tensors come from the break's scratch.
    Body(Arc<Scratch>),
}

/// Where a recording's tensors come from.
#[derive(Clone)]
pub(crate) enum Source {
    /// The pool's blocks of this key.
    Blocks(StreamKey),
    /// Ordinary memory, and a trace is written.
    Traced(Arc<Tracer>),
}

impl Source {
    /// A tensor for the recording of this number.
    pub(crate) fn tensor(
        &self,
        pool: &PoolHandle,
        stream: &Stream,
        number: RecordingId,
        role: Role,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Tensor> {
        match self {
            Source::Blocks(key) => pool.tensor(*key, number, dtype, shape),
            Source::Traced(tracer) => pool.traced(tracer, role, Some(number), stream, dtype, shape),
        }
    }
}

/// A published forward context.
struct Published {
    type_id: TypeId,
    /// Valid as long as the entry is on the stack.
    context: *const (),
}

thread_local! {
    static FRAMES: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
    static CONTEXTS: RefCell<Vec<Published>> = const { RefCell::new(Vec::new()) };
}

/// Takes the frame off again when dropped.
pub(crate) struct FrameGuard {
    _thread: PhantomData<*const ()>,
}

/// Makes a frame the innermost.
pub(crate) fn enter(frame: Frame) -> FrameGuard {
    FRAMES.with_borrow_mut(|frames| frames.push(frame));
    FrameGuard { _thread: PhantomData }
}

impl Drop for FrameGuard {
    fn drop(&mut self) {
        // The frame's handles drop after the borrow has ended: their drops may look at frames.
        let frame = FRAMES.with_borrow_mut(Vec::pop);
        drop(frame);
    }
}

/// Looks at the innermost frame.
pub(crate) fn innermost<R>(look: impl FnOnce(&Frame) -> R) -> Result<R> {
    FRAMES.with_borrow(|frames| frames.last().map(look)).ok_or(Error::Misuse(Misuse::NoForward))
}

/// What records on this thread now: none in breaks.
pub(crate) fn recorder() -> Option<*const Recorder<'static>> {
    innermost(|frame| match frame.kind {
        Kind::Recording { recorder, .. } => Some(recorder),
        Kind::Eager(_) | Kind::Inline { .. } | Kind::Body(_) => None,
    })
    .ok()
    .flatten()
}

/// Whether a recording is under way on this thread, breaks of it counted in.
pub(crate) fn is_recording() -> bool {
    FRAMES.with_borrow(|frames| frames.iter().any(|frame| matches!(frame.kind, Kind::Recording { .. })))
}

/// Whether a segment is open on this thread: true in a recording's forward; false in its breaks, in a replay and elsewhere.
pub fn is_capturing() -> bool {
    open_capture::is_open()
}

/// Refuses to be captured: for the head of an operation that reads per-batch values on the host and so must run in a break.
///
/// # Errors
/// [`Misuse::MustBeBreak`] while a segment is open.
pub fn forbid_in_segment(operation: &'static str) -> Result<()> {
    if is_capturing() { Err(Misuse::MustBeBreak { operation }.into()) } else { Ok(()) }
}

/// The stream of the forward or break that runs on this thread: the capture stream in a recording.
///
/// # Errors
/// [`Misuse::NoForward`] where none runs.
pub fn current_stream() -> Result<Stream> {
    innermost(|frame| frame.stream.clone())
}

/// A row-major tensor of undefined content for the forward or break that runs on this thread, `shape` in elements. In a recording it comes
/// from the capture pool and keeps its address on every replay; in a break and in an eager forward it is stream-ordered memory.
///
/// # Errors
/// [`Misuse::NoForward`] where none runs, [`Error::OutOfMemory`], and what the driver returns.
pub fn empty(dtype: DType, shape: &[usize]) -> Result<Tensor> {
    // Nothing is allocated under the borrow: the pool's errors and drops may look at frames.
    let (kind, stream, pool) = innermost(|frame| (frame.kind.clone(), frame.stream.clone(), frame.pool.clone()))?;
    match kind {
        Kind::Eager(None) => pool.temporary(&stream, dtype, shape),
        Kind::Eager(Some(tracer)) => pool.traced(&tracer, Role::Scratch, None, &stream, dtype, shape),
        Kind::Body(scratch) => scratch.tensor(dtype, shape),
        Kind::Recording { number, source, .. } | Kind::Inline { number, source } => {
            source.tensor(&pool, &stream, number, Role::Intermediate, dtype, shape)
        }
    }
}

/// Runs a forward without capture: breaks run straight through, tensors are stream-ordered memory from the pool's side. The same model code
/// then also records and replays.
///
/// # Errors
/// What the forward returns; [`Misuse::ContextMismatch`] when stream and pool belong to different contexts.
pub fn eager<'env, T>(
    pool: &CapturePool,
    stream: &Stream,
    forward: impl FnOnce(&Scope<'_, 'env>) -> Result<T>,
) -> Result<T> {
    pool.context().expect_same(stream.context(), "stream")?;
    let frame = Frame { kind: Kind::Eager(None), stream: stream.clone(), pool: pool.handle().clone() };
    let _frame = enter(frame);
    forward(&Scope::eager())
}

/// Publishes a forward context for the time of a call: breaks that run in it read it live, with [`Break::forward_ctx`](super::Break::forward_ctx)
/// or [`current_forward_ctx`]. Calls nest; the innermost of a type is the one that is found. The previous state is restored on every way out.
pub fn active_forward<T: Any, R>(context: &T, call: impl FnOnce() -> R) -> R {
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            CONTEXTS.with_borrow_mut(|contexts| contexts.truncate(self.0));
        }
    }
    let published = Published { type_id: TypeId::of::<T>(), context: (&raw const *context).cast() };
    let _restore = CONTEXTS.with_borrow_mut(|contexts| {
        contexts.push(published);
        Restore(contexts.len() - 1)
    });
    call()
}

/// Hands the innermost published forward context of this type to `look`, or `None` where there is none.
pub fn current_forward_ctx<T: Any, R>(look: impl FnOnce(Option<&T>) -> R) -> R {
    let found = find::<T>(usize::MAX);
    // SAFETY: the entry was made from a `&T` that is borrowed until the entry is off the stack, and `look` returns before that.
    look(found.map(|context| unsafe { &*context }))
}

/// How many contexts are published: those outlive whatever begins now.
pub(crate) fn depth() -> usize {
    CONTEXTS.with_borrow(Vec::len)
}

/// The innermost published context of the type among the first `depth`.
pub(crate) fn find<T: Any>(depth: usize) -> Option<*const T> {
    CONTEXTS.with_borrow(|contexts| {
        let contexts = &contexts[..depth.min(contexts.len())];
        contexts.iter().rev().find(|entry| entry.type_id == TypeId::of::<T>()).map(|entry| entry.context.cast())
    })
}
