//! The side streams of the live break that runs on the calling thread: who draws a stream in has to join it, or the next segment runs ahead of it.

use super::event_mark::EventMark;
use super::forks::Forks;
use crate::sys::CUstream;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

struct LiveBreak {
    stream: CUstream,
    /// Another one for each break in which an event is recorded; 0 before.
    serial: u64,
    forks: Forks,
}

thread_local! {
    static BREAK: RefCell<Option<LiveBreak>> = const { RefCell::new(None) };
    /// Whether it has drawn a stream in: what launches look at.
    static HAS_FORKS: Cell<bool> = const { Cell::new(false) };
}

/// The break runs until this drops; then the one around it goes on.
pub(crate) struct LiveBreakGuard {
    around: Option<LiveBreak>,
    _thread: PhantomData<*const ()>,
}

/// A live break begins on the stream. It costs no allocation.
#[inline]
pub(crate) fn enter(stream: CUstream) -> LiveBreakGuard {
    let this = LiveBreak { stream, serial: 0, forks: Forks::default() };
    let around = BREAK.try_with(|current| current.borrow_mut().replace(this)).ok().flatten();
    HAS_FORKS.set(false);
    LiveBreakGuard { around, _thread: PhantomData }
}

impl LiveBreakGuard {
    /// The stream that was drawn in and not joined, if there is one.
    #[inline]
    pub(crate) fn unjoined(&self) -> Option<CUstream> {
        if has_forks() { with(|this| this.forks.unjoined()).flatten() } else { None }
    }
}

impl Drop for LiveBreakGuard {
    #[inline]
    fn drop(&mut self) {
        let around = self.around.take();
        HAS_FORKS.set(around.as_ref().is_some_and(|around| !around.forks.is_empty()));
        let _ = BREAK.try_with(|current| *current.borrow_mut() = around);
    }
}

fn with<R>(look: impl FnOnce(&mut LiveBreak) -> R) -> Option<R> {
    BREAK.try_with(|current| current.borrow_mut().as_mut().map(look)).ok().flatten()
}

/// Whether the break has drawn a stream in.
#[inline]
pub(super) fn has_forks() -> bool {
    HAS_FORKS.get()
}

/// Work was enqueued on a stream.
#[cold]
pub(super) fn operation_on(stream: CUstream) {
    with(|this| this.forks.operation_on(stream));
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
            HAS_FORKS.set(!this.forks.is_empty());
        }
    });
}
