//! Whether a pool's memory can be used, and who needs it where it is.

use crate::error::{Error, Misuse, Result};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// Whether a pool's memory can be used: what a recording and a replay look at first.
#[derive(Debug, Default)]
pub(super) struct Availability {
    /// A [`Closed`], or 0.
    closed: AtomicU8,
    /// Users of the memory that hold no block.
    holds: AtomicUsize,
    /// Those of them that know its physical pages.
    pins: AtomicUsize,
}

/// Why a pool's memory can't be used for now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Closed {
    Released = 1,
    Lent = 2,
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

    /// Fails where there is no memory: what holds a block of it can use that while the rest is lent.
    ///
    /// # Errors
    /// [`Misuse::PoolReleased`].
    #[inline]
    pub(super) fn expect_mapped(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) == Closed::Released as u8 {
            Err(Misuse::PoolReleased.into())
        } else {
            Ok(())
        }
    }

    /// Whoever calls this has the replay lock, or the lease; and the lock of the memory, so that no block is taken of what is lent or released.
    pub(super) fn set(&self, closed: Option<Closed>) {
        // A release then looks for calls under way, and a call looks here after it was counted: one of the two sees the other.
        self.closed.store(closed.map_or(0, |closed| closed as u8), Ordering::SeqCst);
    }

    /// There is one more user of the memory.
    pub(super) fn enter(&self) {
        self.holds.fetch_add(1, Ordering::AcqRel);
    }

    /// There is one less.
    pub(super) fn leave(&self) {
        self.holds.fetch_sub(1, Ordering::AcqRel);
    }

    /// The memory's pages are known outside. Whoever calls this has the lock of the memory.
    pub(super) fn pin(&self) {
        self.pins.fetch_add(1, Ordering::AcqRel);
    }

    /// One less knows them.
    pub(super) fn unpin(&self) {
        self.pins.fetch_sub(1, Ordering::AcqRel);
    }

    /// # Errors
    /// [`Misuse::PoolPinned`].
    pub(super) fn expect_unpinned(&self) -> Result<()> {
        match self.pins.load(Ordering::Acquire) {
            0 => Ok(()),
            pins => Err(Misuse::PoolPinned { pins }.into()),
        }
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
