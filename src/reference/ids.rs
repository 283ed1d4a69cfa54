//! The numbers by which things are known.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Names a task; later ones are larger.
pub(super) type TaskId = u64;

/// A handle's value.
pub(super) type Handle = usize;

/// Names a capture.
pub(super) type CaptureId = u64;

/// A value that no other handle of the process has, and no valid pointer either.
pub(super) fn new_handle() -> Handle {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    (0xbc60_0000_0000_0000_u64 as usize) | (NEXT.fetch_add(1, Ordering::Relaxed) << 4)
}
