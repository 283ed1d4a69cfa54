//! The name of a recording.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names a recording, so that memory taken in one can be told from that of another: no two recordings of a process have the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RecordingId(NonZeroU64);

impl RecordingId {
    /// One that no other recording has.
    pub(crate) fn next() -> RecordingId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // It would take centuries to come round to zero.
        RecordingId(NonZeroU64::new(NEXT.fetch_add(1, Ordering::Relaxed)).unwrap_or(NonZeroU64::MIN))
    }
}
