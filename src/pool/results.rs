//! Whose latest replay failed: its outputs hold an earlier one's results, or part of one.

use crate::driver::RecordingId;
use crate::error::{Misuse, Result};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The recordings of a pool whose latest replay failed.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// How many there are: what replays look at.
    count: AtomicUsize,
    failed: Mutex<Vec<RecordingId>>,
}

impl Results {
    fn failed(&self) -> MutexGuard<'_, Vec<RecordingId>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A replay begins: what it writes is whole, unless it fails.
    #[inline]
    pub(crate) fn replay_begins(&self, recording: RecordingId) {
        if self.count.load(Ordering::Relaxed) > 0 {
            self.forget(recording);
        }
    }

    #[cold]
    fn forget(&self, recording: RecordingId) {
        let mut failed = self.failed();
        failed.retain(|other| *other != recording);
        self.count.store(failed.len(), Ordering::Release);
    }

    /// A replay has failed.
    #[cold]
    pub(crate) fn replay_failed(&self, recording: RecordingId) {
        let mut failed = self.failed();
        if !failed.contains(&recording) {
            failed.push(recording);
        }
        self.count.store(failed.len(), Ordering::Release);
    }

    /// # Errors
    /// [`Misuse::ReplayFailed`].
    pub(super) fn expect_whole(&self, recording: RecordingId) -> Result<()> {
        let failed = self.count.load(Ordering::Acquire) > 0 && self.failed().contains(&recording);
        if failed { Err(Misuse::ReplayFailed.into()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_lasts_until_the_next_replay_of_the_same_recording() {
        let (results, one, other) = (Results::default(), RecordingId::next(), RecordingId::next());
        results.replay_failed(one);
        results.replay_failed(one);
        assert!(results.expect_whole(one).is_err() && results.expect_whole(other).is_ok());
        results.replay_begins(other);
        assert!(results.expect_whole(one).is_err());
        results.replay_begins(one);
        assert!(results.expect_whole(one).is_ok());
    }
}
