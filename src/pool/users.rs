//! The streams on which a pool's tensors are used beside its replays: a release waits for them.

use crate::driver::Stream;
use crate::error::Result;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Streams with work that uses a pool's memory.
#[derive(Default)]
pub(super) struct Users {
    /// Whether anybody will wait for them: only of a pool whose memory can be released.
    counts: bool,
    /// Calls that have found the memory there, and may not have enqueued yet what uses it.
    calls: AtomicUsize,
    /// The handle of the one that was noted last: what launches look at.
    latest: AtomicUsize,
    streams: Mutex<Vec<Stream>>,
}

/// How many there may be before those that are idle are forgotten.
const MANY: usize = 16;

/// About how long a call takes.
const CALL: Duration = Duration::from_micros(20);

impl Users {
    pub(super) fn new(counts: bool) -> Users {
        Users { counts, ..Users::default() }
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Stream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call is about to look whether the memory is there.
    #[inline]
    pub(super) fn enter(&self) {
        if self.counts {
            self.calls.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// It has enqueued what it does.
    #[inline]
    pub(super) fn leave(&self) {
        if self.counts {
            self.calls.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Waits for the calls that have found the memory there. The pool is closed: a call that comes now finds it gone, as it counts before it looks.
    pub(super) fn wait_for_calls(&self) {
        while self.calls.load(Ordering::SeqCst) > 0 {
            std::thread::sleep(CALL);
        }
    }

    /// Work on this stream uses the memory.
    #[inline]
    pub(super) fn note(&self, stream: &Stream) {
        if self.counts && self.latest.load(Ordering::Acquire) != stream.as_raw() as usize {
            self.add(stream);
        }
    }

    #[cold]
    fn add(&self, stream: &Stream) {
        let forgotten = {
            let mut streams = self.streams();
            let mut forgotten = Vec::new();
            if !streams.contains(stream) {
                if streams.len() >= MANY {
                    forgotten.extend(streams.extract_if(.., |known| known.has_run().unwrap_or(false)));
                }
                streams.push(stream.clone());
            }
            self.latest.store(stream.as_raw() as usize, Ordering::Release);
            forgotten
        };
        // The drop of a stream may run a caller's hook.
        drop(forgotten);
    }

    /// Waits for what is on them, and forgets them.
    ///
    /// # Errors
    /// What the driver returns; then they are as before.
    pub(super) fn settle(&self) -> Result<()> {
        let streams = self.streams().clone();
        streams.iter().try_for_each(Stream::settle_work)?;
        let mut known = self.streams();
        self.latest.store(0, Ordering::Release);
        let done: Vec<Stream> = known.extract_if(.., |known| streams.contains(known)).collect();
        drop(known);
        drop(done);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn calls_are_waited_for_where_they_count() {
        let users = Users::new(true);
        users.enter();
        users.enter();
        let left = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                users.leave();
                std::thread::sleep(50 * CALL);
                left.store(true, Ordering::SeqCst);
                users.leave();
            });
            users.wait_for_calls();
            assert!(left.load(Ordering::SeqCst), "the last call");
        });
        let none = Users::new(false);
        none.enter();
        none.wait_for_calls();
    }
}
