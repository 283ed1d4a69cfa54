//! Which thread waits for which replay lock, so that none begins to wait in a circle (L7).

use crate::error::{Misuse, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A thread that waits, and the word in which the number of the lock's holder is.
struct Wait {
    thread: u64,
    holder: *const AtomicU64,
}

// SAFETY: the word is read as long as the entry is in the list, and the entry is there as long as the lock is borrowed by who waits for it.
unsafe impl Send for Wait {}

static WAITS: Mutex<Vec<Wait>> = Mutex::new(Vec::new());

/// A thread waits for a lock until this drops.
pub(super) struct Waits<'a> {
    thread: u64,
    _holder: &'a AtomicU64,
}

fn waits() -> MutexGuard<'static, Vec<Wait>> {
    WAITS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Waits<'a> {
    /// A thread is about to wait for the lock with this word.
    ///
    /// # Errors
    /// [`Misuse::PoolsInterlocked`] where its holder waits, itself or through others, for a lock that the thread has.
    pub(super) fn begin(thread: u64, holder: &'a AtomicU64) -> Result<Waits<'a>> {
        let mut waits = waits();
        let mut next = holder.load(Ordering::SeqCst);
        // Each step goes to another thread that waits: a circle without this one can't be, as its last would have been refused.
        for _ in 0..=waits.len() {
            if next == thread {
                return Err(Misuse::PoolsInterlocked.into());
            }
            let Some(wait) = waits.iter().find(|wait| wait.thread == next) else { break };
            // SAFETY: the entry is in the list, so the lock is borrowed.
            next = unsafe { &*wait.holder }.load(Ordering::SeqCst);
        }
        waits.push(Wait { thread, holder });
        Ok(Waits { thread, _holder: holder })
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        waits().retain(|wait| wait.thread != self.thread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_refused_whoever_closes_it() {
        let (of_one, of_two, of_three) =
            (AtomicU64::new(1_000_001), AtomicU64::new(1_000_002), AtomicU64::new(1_000_003));
        let one = Waits::begin(1_000_001, &of_two).expect("two goes on");
        let two = Waits::begin(1_000_002, &of_three).expect("three goes on");
        assert!(Waits::begin(1_000_003, &of_one).is_err(), "one waits for two, and two for three");
        drop(two);
        let three = Waits::begin(1_000_003, &of_one).expect("two goes on");
        drop((one, three));
    }
}
