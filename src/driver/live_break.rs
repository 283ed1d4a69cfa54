//! The side streams of the live break that runs on the calling thread: who draws a stream in has to join it, or the next segment runs ahead of it.

use super::event_mark::EventMark;
use super::forks::Forks;
use crate::error::{Misuse, Result};
use crate::sys::CUstream;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

struct LiveBreak {
    stream: CUstream,
    /// The address of its context's entry.
    context: usize,
    /// Another one for each break in which an event is recorded; 0 before.
    serial: u64,
    forks: Forks,
    /// The host has waited for all that is on the stream: work on other streams comes after it whatever they wait for.
    is_settled: bool,
}

thread_local! {
    static BREAK: RefCell<Option<LiveBreak>> = const { RefCell::new(None) };
    /// The stream of the break that runs, null where none does: what launches look at. [`EVERY`] where they are all to be looked at closely.
    static STREAM: Cell<CUstream> = const { Cell::new(core::ptr::null_mut()) };
    /// Whether it has drawn a stream in.
    static HAS_FORKS: Cell<bool> = const { Cell::new(false) };
}

/// No stream's handle.
const EVERY: CUstream = core::ptr::without_provenance_mut(usize::MAX);

/// The break runs until this drops; then the one around it goes on.
pub(crate) struct LiveBreakGuard {
    around: Option<LiveBreak>,
    _thread: PhantomData<*const ()>,
}

/// A live break begins on the stream, of the context whose entry has this address. It costs no allocation.
#[inline]
pub(super) fn enter(context: usize, stream: CUstream) -> LiveBreakGuard {
    replace(Some(LiveBreak { stream, context, serial: 0, forks: Forks::default(), is_settled: false }))
}

/// A forward or a replay begins that has a stream of its own: what it does there is no work of the break that it runs in. `None`: there is no such break.
#[inline]
pub(crate) fn suspend() -> Option<LiveBreakGuard> {
    if STREAM.get().is_null() { None } else { Some(replace(None)) }
}

fn replace(this: Option<LiveBreak>) -> LiveBreakGuard {
    set_cells(this.as_ref());
    let around = BREAK.try_with(|current| std::mem::replace(&mut *current.borrow_mut(), this)).ok().flatten();
    LiveBreakGuard { around, _thread: PhantomData }
}

/// Sets what launches look at.
fn set_cells(this: Option<&LiveBreak>) {
    STREAM.set(this.map_or(core::ptr::null_mut(), |this| if this.is_settled { EVERY } else { this.stream }));
    HAS_FORKS.set(this.is_some_and(|this| !this.forks.is_empty()));
}

impl LiveBreakGuard {
    /// The stream that was drawn in and not joined, if there is one.
    #[inline]
    pub(crate) fn unjoined(&self) -> Option<CUstream> {
        if HAS_FORKS.get() { with(|this| this.forks.unjoined()).flatten() } else { None }
    }
}

impl Drop for LiveBreakGuard {
    #[inline]
    fn drop(&mut self) {
        let around = self.around.take();
        set_cells(around.as_ref());
        let _ = BREAK.try_with(|current| *current.borrow_mut() = around);
    }
}

/// Looks at the break that runs, and sets anew what launches look at.
fn with<R>(look: impl FnOnce(&mut LiveBreak) -> R) -> Option<R> {
    let looked = BREAK.try_with(|current| {
        let mut current = current.borrow_mut();
        let this = current.as_mut()?;
        let result = look(this);
        set_cells(Some(this));
        Some(result)
    });
    looked.ok().flatten()
}

/// Whether an operation on this stream is to be told of: it may be beside the break that runs.
#[inline]
pub(super) fn is_beside(stream: CUstream) -> bool {
    let own = STREAM.get();
    !own.is_null() && own != stream
}

/// An operation is about to be enqueued on a stream. `is_work`: it is no event's record and no wait. `is_meant`: it is said to be beside the break.
///
/// # Errors
/// [`Misuse::OutsideTheBreak`] for work on a stream of the break's context that nothing has ordered with the break's own.
#[cold]
pub(super) fn operation_on(context: usize, stream: CUstream, what: &str, is_work: bool, is_meant: bool) -> Result<()> {
    let admitted = with(|this| {
        if stream == this.stream {
            this.is_settled &= !is_work;
        } else if is_meant || this.context != context {
        } else if this.forks.has(stream) {
            this.forks.operation_on(stream);
        } else if is_work && this.is_settled {
            this.forks.draw_in(stream);
        } else if is_work {
            return Err(Misuse::OutsideTheBreak { operation: what.to_owned(), stream: stream as usize }.into());
        }
        Ok(())
    });
    admitted.unwrap_or(Ok(()))
}

/// What an event that is recorded on a stream now stands for.
pub(super) fn mark(stream: CUstream) -> EventMark {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    with(|this| {
        if stream != this.stream && !this.forks.has(stream) {
            return EventMark::default();
        }
        if this.serial == 0 {
            this.serial = NEXT.fetch_add(1, Ordering::Relaxed);
        }
        EventMark {
            live_break: this.serial,
            stream: stream as usize,
            position: this.forks.position(stream),
            ..EventMark::default()
        }
    })
    .unwrap_or_default()
}

/// A stream waits for an event.
pub(super) fn waited(waiter: CUstream, mark: &EventMark) {
    if mark.live_break == 0 {
        return;
    }
    with(|this| {
        if this.serial == mark.live_break {
            this.forks.waited(waiter, this.stream, (mark.stream as CUstream, mark.position));
        }
    });
}

/// The host has waited for all that is on a stream.
#[inline]
pub(super) fn settled(stream: CUstream) {
    if !STREAM.get().is_null() {
        with(|this| if stream == this.stream { this.is_settled = true } else { this.forks.settled(stream, u64::MAX) });
    }
}

/// The host has waited for all that is on the context whose entry has this address.
pub(super) fn settled_all(context: usize) {
    if !STREAM.get().is_null() {
        with(|this| {
            if this.context == context {
                this.is_settled = true;
                this.forks.settled_all();
            }
        });
    }
}

/// The host has waited for an event.
pub(super) fn settled_event(mark: &EventMark) {
    if mark.live_break == 0 {
        return;
    }
    with(|this| {
        if this.serial != mark.live_break {
        } else if mark.stream == this.stream as usize {
            this.is_settled = true;
        } else {
            this.forks.settled(mark.stream as CUstream, mark.position);
        }
    });
}
