//! Giving memory back to the device, in the order of what may still use it (D2, D3).

use super::replay_lock::ReplayGuard;
use super::shared::PoolShared;
use super::slabs::Slab;
use crate::driver::{Event, KeepAlive, Stream, capture_state};
use crate::error::{Misuse, Result, TensorError};
use crate::memory::PoolPlan;
use crate::memory::sizes::{SLAB_BYTES, round_up};
use crate::tensor::storage::Storage;
use std::sync::{Mutex, PoisonError};

/// What dropped captures kept and could not let go of at once.
#[derive(Default)]
pub(super) struct Reclaimer {
    deferred: Mutex<Vec<Vec<KeepAlive>>>,
}

impl Reclaimer {
    fn add(&self, kept: Vec<KeepAlive>) {
        self.deferred.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
    }

    fn take(&self) -> Vec<Vec<KeepAlive>> {
        std::mem::take(&mut self.deferred.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl PoolShared {
    /// Gives back the slabs that were added since the pool had this number of them, as far as no block of them is out. For a recording on
    /// `stream` that failed. Not while a segment is open.
    pub(crate) fn shrink_to(&self, slabs: usize, stream: &Stream) {
        let free = self.memory().take_out_free(slabs);
        self.give_back_slabs(free, stream);
    }

    /// Takes a range for planned blocks that is large enough for the plan.
    pub(super) fn take_range(&self, plan: &PoolPlan, guard: &ReplayGuard<'_>) -> Result<()> {
        let too_large = |_| TensorError::Layout { reason: "the plan is larger than memory" };
        let bytes = if plan.bytes() == 0 { 0 } else { round_up(plan.bytes(), SLAB_BYTES).map_err(too_large)? };
        let (now, blocks) = self.memory().arena.range();
        if bytes <= now {
            return Ok(());
        }
        let users = self.availability.users() + blocks;
        if now > 0 && users > 0 {
            return Err(Misuse::PoolInUse { users }.into());
        }
        self.drop_range(guard.last_stream().unwrap_or(self.capture_stream()));
        self.memory().take_range(bytes)
    }

    /// Gives the planned range back, after what is on `last`, if no block of it is in use. Nothing else may refer to it.
    pub(super) fn drop_range(&self, last: &Stream) {
        let slab = self.memory().take_out_range();
        self.give_back_slabs(slab.into_iter().collect(), last);
    }

    /// Gives slabs back after what is on `last`.
    fn give_back_slabs(&self, slabs: Vec<Slab>, last: &Stream) {
        if slabs.is_empty() {
            return;
        }
        self.return_after_work_on(last, &[], true);
        let (reclaimed, stream) = self.memory().reclaim(slabs);
        drop(reclaimed);
        if let Some(Err(error)) = stream.map(|stream| stream.settle()) {
            self.context().report_in_drop("capture pool's memory", &error);
        }
    }

    /// Stream-ordered memory is returned in the order of its own stream: lets that come after what is on `last`.
    fn return_after_work_on(&self, last: &Stream, deferred: &[Vec<KeepAlive>], slabs: bool) {
        let ordered = Event::new(self.context()).and_then(|event| {
            event.record(last)?;
            if slabs {
                self.memory().return_after(&event)?;
            }
            return_after(deferred, &event)
        });
        let Err(error) = ordered else { return };
        self.context().report_in_drop("capture pool's memory", &error);
        // The other way to be sure of the order.
        if let Err(error) = last.settle() {
            self.context().report_in_drop("capture pool's memory", &error);
        }
    }

    /// Takes what a dropped capture's segments kept, and lets go of it after the last replay.
    pub(crate) fn free_after_replay(&self, kept: Vec<KeepAlive>) {
        if !kept.is_empty() {
            self.reclaimer.add(kept);
            self.drain_deferred();
        }
    }

    /// Buffers among them may come from a stream-ordered pool, to which they return in the order of their own stream: that is made to come
    /// after the last replay. While a segment is open or a replay runs on this thread they are left for later.
    pub(crate) fn drain_deferred(&self) {
        if capture_state::is_open() {
            return;
        }
        let Ok(guard) = self.lock_anyway() else { return };
        let deferred = self.reclaimer.take();
        if deferred.is_empty() {
            return;
        }
        if let Some(last) = guard.last_stream() {
            self.return_after_work_on(last, &deferred, false);
        }
    }
}

impl Drop for PoolShared {
    fn drop(&mut self) {
        if let Some(last) = self.replay_lock.take_last_stream() {
            let deferred = self.reclaimer.take();
            self.return_after_work_on(&last, &deferred, true);
        }
    }
}

/// Lets the return of stream-ordered buffers come after the event.
fn return_after(deferred: &[Vec<KeepAlive>], event: &Event) -> Result<()> {
    let storages = deferred.iter().flatten().filter_map(|kept| kept.downcast_ref::<Storage>());
    storages.into_iter().try_for_each(|storage| storage.return_after(event))
}
