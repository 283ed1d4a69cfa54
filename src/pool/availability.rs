//! Whether a pool's memory can be used, and who needs it where it is.

use crate::driver::KeepAlive;
use crate::error::{Error, Misuse, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// Whether a pool's memory can be used: what a recording and a replay look at first.
#[derive(Debug, Default)]
pub(super) struct Availability {
    /// A [`Closed`], or 0.
    closed: AtomicU8,
    /// [`MappingHold`]s there are.
    holds: Arc<AtomicUsize>,
}

/// Why a pool's memory can't be used for now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Closed {
    Released = 1,
    Lent = 2,
}

/// Counts as a user of the memory: held by whatever refers to it without holding a block, as captures do, and views of what they write.
struct MappingHold {
    holds: Arc<AtomicUsize>,
    /// The pool itself.
    _pool: KeepAlive,
}

impl Drop for MappingHold {
    fn drop(&mut self) {
        self.holds.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Availability {
    /// # Errors
    /// [`Misuse::PoolReleased`] and [`Misuse::PoolLent`].
    #[inline]
    pub(super) fn expect_open(&self) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            0 => Ok(()),
            closed => Err(why_closed(closed)),
        }
    }

    pub(super) fn closed(&self) -> Option<Closed> {
        match self.closed.load(Ordering::Acquire) {
            0 => None,
            closed if closed == Closed::Released as u8 => Some(Closed::Released),
            _ => Some(Closed::Lent),
        }
    }

    /// Whoever calls this has the replay lock, or the lease.
    pub(super) fn set(&self, closed: Option<Closed>) {
        self.closed.store(closed.map_or(0, |closed| closed as u8), Ordering::Release);
    }

    /// Adds a user of the memory, which keeps the pool.
    pub(super) fn hold(&self, pool: KeepAlive) -> KeepAlive {
        self.holds.fetch_add(1, Ordering::AcqRel);
        Arc::new(MappingHold { holds: self.holds.clone(), _pool: pool })
    }

    /// Users of the memory that hold no block.
    pub(super) fn users(&self) -> usize {
        self.holds.load(Ordering::Acquire)
    }
}

#[cold]
fn why_closed(closed: u8) -> Error {
    if closed == Closed::Released as u8 { Misuse::PoolReleased.into() } else { Misuse::PoolLent.into() }
}
