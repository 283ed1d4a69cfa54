//! The replay lock: recordings and replays of one pool run one after the other, on the host and on the device (L1 to L6).

use super::waits::Waits;
use crate::driver::stream_order::StreamOrder;
use crate::driver::{Event, Stream};
use crate::error::{Misuse, Result};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// The replay lock of a pool. To take it uncontended is one atomic exchange; a thread that finds it taken sleeps.
pub(crate) struct ReplayLock {
    /// The number of the thread that has it, or 0.
    holder: AtomicU64,
    waiting: AtomicUsize,
    sleep: Mutex<()>,
    given_back: Condvar,
    /// The order of the holders on the device. Touched by the holder only.
    order: UnsafeCell<StreamOrder>,
    /// Replays so far, and what else has overwritten their results.
    replays: AtomicU64,
}

// SAFETY: `order` is only touched by the thread that holds the lock; taking it and giving it back synchronise.
unsafe impl Sync for ReplayLock {}

/// Held while a recording or a replay runs.
pub(crate) struct ReplayGuard<'a> {
    lock: &'a ReplayLock,
    /// The lock belongs to the thread.
    _thread: std::marker::PhantomData<*const ()>,
}

impl ReplayLock {
    /// Not held. The event is for the order on the device; nobody else records it.
    pub(crate) fn new(event: Event) -> ReplayLock {
        ReplayLock {
            holder: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            given_back: Condvar::new(),
            order: UnsafeCell::new(StreamOrder::new(event)),
            replays: AtomicU64::new(0),
        }
    }

    /// Takes the lock; waits while another thread has it.
    ///
    /// # Errors
    /// [`Misuse::PoolBusy`] when this thread has it already, and [`Misuse::PoolsInterlocked`] when whoever has it waits for one that this thread has:
    /// waiting would be for ever.
    #[inline]
    pub(crate) fn lock(&self) -> Result<ReplayGuard<'_>> {
        let me = thread_number();
        if let Err(holder) = self.try_take(me) {
            if holder == me {
                return Err(Misuse::PoolBusy.into());
            }
            self.wait(me)?;
        }
        Ok(ReplayGuard { lock: self, _thread: std::marker::PhantomData })
    }

    #[inline]
    fn try_take(&self, me: u64) -> Result<u64, u64> {
        self.holder.compare_exchange(0, me, Ordering::SeqCst, Ordering::SeqCst)
    }

    #[cold]
    fn wait(&self, me: u64) -> Result<()> {
        let _waits = Waits::begin(me, &self.holder)?;
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        // The number of waiting threads is up before the look at the holder, and the holder gives back before it looks at that number: one of
        // the two sees the other.
        while self.try_take(me).is_err() {
            sleep = self.given_back.wait(sleep).unwrap_or_else(PoisonError::into_inner);
        }
        drop(sleep);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }

    /// Counts a replay, and gives its number.
    #[inline]
    pub(super) fn next_replay(&self) -> u64 {
        self.replays.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The number of the latest replay.
    pub(super) fn latest_replay(&self) -> u64 {
        self.replays.load(Ordering::Relaxed)
    }

    /// The stream of the last replay or recording, when nobody can take the lock any more.
    pub(super) fn take_last_stream(&mut self) -> Option<Stream> {
        self.order.get_mut().take_last()
    }
}

impl ReplayGuard<'_> {
    /// Makes later work on the stream wait for the pool's last replay or recording, and notes the stream as the last. On the same stream as
    /// before it costs nothing: the stream itself keeps the order.
    #[inline]
    pub(crate) fn order(&mut self, stream: &Stream) -> Result<()> {
        // SAFETY: this thread has the lock, and nothing comes back here while this is borrowed.
        let before = unsafe { &mut *self.lock.order.get() }.follow(stream)?;
        // Only now, as the drop of a stream may run a caller's hook.
        drop(before);
        Ok(())
    }

    /// The stream of the last replay or recording.
    pub(super) fn last_stream(&self) -> Option<&Stream> {
        // SAFETY: this thread has the lock, and it is not changed while the guard is borrowed.
        unsafe { &*self.lock.order.get() }.last()
    }
}

impl Drop for ReplayGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lock.holder.store(0, Ordering::SeqCst);
        if self.lock.waiting.load(Ordering::SeqCst) > 0 {
            drop(self.lock.sleep.lock().unwrap_or_else(PoisonError::into_inner));
            self.lock.given_back.notify_all();
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
