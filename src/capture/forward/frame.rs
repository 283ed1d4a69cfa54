//! The stack of frames: what runs on the calling thread. Each thread has its own, so each GPU or rank of a process can have its own launch thread.

use super::allocator::Allocator;
use crate::capture::breaks::options::BreakOptions;
use crate::capture::options::EagerOptions;
use crate::driver::{Stream, capture_state};
use crate::error::{Misuse, Result};
use crate::memory::Role;
use crate::pool::PoolHandle;
use crate::tensor::{DType, Tensor};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::rc::Rc;

/// A forward, or a break of one, that runs on this thread.
pub(crate) struct Frame {
    /// Where its tensors come from.
    pub(crate) allocator: Allocator,
    /// Where its work goes.
    pub(crate) stream: Stream,
    pub(crate) pool: PoolHandle,
    /// What records it, or traces it as a recording would: none in breaks, and none in an eager forward.
    pub(crate) recorder: Option<RecorderAddress>,
    /// What an eager forward was told of padding, and whether it is a warm-up.
    pub(crate) padding: EagerOptions,
    /// What sees an eager forward's breaks, those inside breaks left out.
    pub(crate) observer: Option<Rc<dyn BreakObserver>>,
}

/// Sees what an eager forward's breaks were given and gave.
pub(crate) trait BreakObserver {
    /// A break has run; what it gave is as its handoffs would be in a replay.
    fn break_ran(
        &self,
        options: &BreakOptions,
        stream: &Stream,
        inputs: &[Option<Tensor>],
        results: &[Tensor],
    ) -> Result<()>;
}

/// The address of the recorder of a recording's frame. It is valid as long as the frame is on the stack; what it is the address of is for the layer
/// above to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecorderAddress(pub(crate) *const ());

thread_local! {
    static FRAMES: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
}

/// Takes the frame off again when dropped.
pub(crate) struct FrameGuard {
    _thread: PhantomData<*const ()>,
}

/// Makes a frame the innermost.
pub(crate) fn enter(frame: Frame) -> FrameGuard {
    // Where the thread is ending and has taken its frames down, what runs finds none.
    let _ = FRAMES.try_with(|frames| frames.borrow_mut().push(frame));
    FrameGuard { _thread: PhantomData }
}

impl Drop for FrameGuard {
    fn drop(&mut self) {
        // The frame's handles drop after the borrow has ended: their drops may look at frames.
        let frame = FRAMES.try_with(|frames| frames.borrow_mut().pop());
        drop(frame);
    }
}

/// Looks at the innermost frame.
fn innermost<R>(look: impl FnOnce(&Frame) -> R) -> Result<R> {
    let found = FRAMES.try_with(|frames| frames.borrow().last().map(look));
    found.ok().flatten().ok_or_else(|| Misuse::NoForward.into())
}

/// What records on this thread now: nothing in breaks.
pub(crate) fn recorder() -> Option<RecorderAddress> {
    FRAMES.try_with(|frames| frames.borrow().last()?.recorder).ok().flatten()
}

/// Makes a frame for a break of an eager forward the innermost: what breaks inside it return is neither scrubbed nor refused, as in a replay.
pub(crate) fn enter_eager_break() -> Result<FrameGuard> {
    let inside = innermost(|frame| Frame {
        allocator: frame.allocator.clone(),
        stream: frame.stream.clone(),
        pool: frame.pool.clone(),
        recorder: None,
        padding: EagerOptions { bucket: None, ..frame.padding },
        observer: None,
    })?;
    Ok(enter(inside))
}

/// What the eager forward that runs on this thread was told of padding.
pub(crate) fn padding() -> EagerOptions {
    let found = FRAMES.try_with(|frames| frames.borrow().last().map(|frame| frame.padding));
    found.ok().flatten().unwrap_or_default()
}

/// What sees the breaks of the eager forward that runs on this thread.
pub(crate) fn observer() -> Option<Rc<dyn BreakObserver>> {
    FRAMES.try_with(|frames| frames.borrow().last()?.observer.clone()).ok().flatten()
}

/// Whether a recording is under way on this thread, or a trace of one: true from its beginning to its end, in breaks too, where no segment is open and
/// [`is_capturing`] is false. False in replays.
pub fn is_recording() -> bool {
    FRAMES.try_with(|frames| frames.borrow().iter().any(|frame| frame.recorder.is_some())).unwrap_or(false)
}

/// Whether a segment is open on this thread: true in a recording's forward; false in its breaks, in a replay and elsewhere.
pub fn is_capturing() -> bool {
    capture_state::is_open()
}

/// Whether the forward that runs on this thread is a warm-up ([`EagerOptions::warm_up`](crate::EagerOptions::warm_up)): it is run so that what a library makes at
/// its first use is there before a recording, and nobody uses what it gives. The runner's warm-ups are. True in its breaks too; false in recordings and replays.
///
/// ```
/// # use breakable_cuda_graph::driver::{Device, Stream};
/// # use breakable_cuda_graph::{CapturePool, Driver};
/// # let context = Device::get(&Driver::reference()?, 0)?.primary_context()?;
/// # let (stream, pool) = (Stream::new(&context)?, CapturePool::new(&context)?);
/// use breakable_cuda_graph::{EagerOptions, eager_with, is_capturing, is_recording, is_warming_up};
///
/// eager_with(&pool, &stream, EagerOptions::default().warm_up(), |_| {
///     assert_eq!((is_warming_up(), is_recording(), is_capturing()), (true, false, false));
///     Ok(())
/// })?;
/// # Ok::<(), breakable_cuda_graph::Error>(())
/// ```
pub fn is_warming_up() -> bool {
    FRAMES.try_with(|frames| frames.borrow().last().is_some_and(|frame| frame.padding.warm_up)).unwrap_or(false)
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
/// [`Misuse::NoForward`] where none runs, [`Error::OutOfMemory`](crate::Error::OutOfMemory), and what the driver returns.
pub fn empty(dtype: DType, shape: &[usize]) -> Result<Tensor> {
    // Nothing is allocated under the borrow: the pool's errors and drops may look at frames.
    let (allocator, stream, pool) =
        innermost(|frame| (frame.allocator.clone(), frame.stream.clone(), frame.pool.clone()))?;
    allocator.empty(&pool, &stream, Role::Intermediate, dtype, shape)
}
