//! Whose turn it is: recordings and replays of one pool run one after the other, on the host and on the device.

use crate::driver::{Event, Stream};
use crate::error::{Misuse, Result};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// The turn of a pool. Taking it uncontended is one atomic exchange; a thread that finds it taken sleeps.
pub(crate) struct ReplayLock {
    /// The number of the thread that has it, or 0.
    holder: AtomicU64,
    waiting: AtomicUsize,
    sleep: Mutex<()>,
    given_back: Condvar,
    /// Touched by the holder only.
    order: UnsafeCell<Order>,
}

struct Order {
    /// The stream of the last replay or recording.
    last: Option<Stream>,
    event: Event,
}

// SAFETY: `order` is only touched by the thread that holds the turn; taking it and giving it back synchronise.
unsafe impl Sync for ReplayLock {}

/// Held while a recording or a replay runs.
pub(crate) struct ReplayGuard<'a> {
    turn: &'a ReplayLock,
    /// The turn belongs to the thread.
    _thread: std::marker::PhantomData<*const ()>,
}

impl ReplayLock {
    pub(crate) fn new(event: Event) -> ReplayLock {
        ReplayLock {
            holder: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            given_back: Condvar::new(),
            order: UnsafeCell::new(Order { last: None, event }),
        }
    }

    /// Takes the turn; waits while another thread has it.
    ///
    /// Fails with [`Misuse::PoolBusy`] when this thread has it already: waiting would be for ever.
    #[inline]
    pub(crate) fn take(&self) -> Result<ReplayGuard<'_>> {
        let me = thread_number();
        if let Err(holder) = self.try_take(me) {
            if holder == me {
                return Err(Misuse::PoolBusy.into());
            }
            self.wait(me);
        }
        Ok(ReplayGuard { turn: self, _thread: std::marker::PhantomData })
    }

    #[inline]
    fn try_take(&self, me: u64) -> Result<u64, u64> {
        self.holder.compare_exchange(0, me, Ordering::SeqCst, Ordering::SeqCst)
    }

    #[cold]
    fn wait(&self, me: u64) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        // The number of waiting threads is up before the look at the holder, and the holder gives back before it looks at that number: one of
        // the two sees the other.
        while self.try_take(me).is_err() {
            sleep = self.given_back.wait(sleep).unwrap_or_else(PoisonError::into_inner);
        }
        drop(sleep);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// The stream of the last replay or recording, when nobody can take a turn any more.
    pub(super) fn take_last_stream(&mut self) -> Option<Stream> {
        self.order.get_mut().last.take()
    }
}

impl ReplayGuard<'_> {
    /// Makes later work on the stream wait for the pool's last replay or recording, and notes the stream as the last. On the same stream as
    /// before it costs nothing: the stream itself keeps the order.
    #[inline]
    pub(crate) fn order(&mut self, stream: &Stream) -> Result<()> {
        // SAFETY: this thread has the turn, and nothing below comes back here.
        let order = unsafe { &mut *self.turn.order.get() };
        if order.last.as_ref() == Some(stream) {
            return Ok(());
        }
        if let Some(last) = &order.last {
            order.event.record(last)?;
            stream.wait(&order.event)?;
        }
        let before = order.last.replace(stream.clone());
        // Only now, as the drop of a stream may run a caller's hook.
        drop(before);
        Ok(())
    }

    /// The stream of the last replay or recording.
    pub(super) fn last_stream(&self) -> Option<&Stream> {
        // SAFETY: this thread has the turn, and it is not changed while the guard is borrowed.
        unsafe { &*self.turn.order.get() }.last.as_ref()
    }
}

impl Drop for ReplayGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.turn.holder.store(0, Ordering::SeqCst);
        if self.turn.waiting.load(Ordering::SeqCst) > 0 {
            drop(self.turn.sleep.lock().unwrap_or_else(PoisonError::into_inner));
            self.turn.given_back.notify_all();
        }
    }
}

/// A number for the calling thread that no other thread has had.
#[inline]
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}
