//! Numbers for threads, which can be asked for at any time of a thread's life, its end counted in: neither needs to be taken down.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// A thread, by a number that no other has had.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct ThreadNumber(u64);

impl ThreadNumber {
    /// The calling thread's.
    pub(super) fn current() -> ThreadNumber {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        thread_local! {
            static NUMBER: Cell<u64> = const { Cell::new(0) };
        }
        if NUMBER.get() == 0 {
            NUMBER.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        ThreadNumber(NUMBER.get())
    }
}
