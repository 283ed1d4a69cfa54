//! Giving memory back to the device, in the order of what may still use it.

use super::shared::PoolShared;
use super::slabs::Slab;
use crate::driver::{Event, Stream};
use crate::driver::{KeepAlive, capture_state};
use crate::error::Result;
use crate::tensor::storage::Storage;

impl PoolShared {
    /// Gives back the slabs that were added since the pool had this number of them, as far as no block of them is out. For a recording on
    /// `stream` that failed. Not while a segment is open.
    pub(crate) fn shrink_to(&self, slabs: usize, stream: &Stream) {
        let free: Vec<Slab> = {
            let mut state = self.state();
            let state = &mut *state;
            let added = state.slabs.split_off(slabs.min(state.slabs.len()));
            let is_free = |slab: &Slab| slab.id.is_some_and(|id| state.blocks.remove_slab(id).is_ok());
            let (free, kept): (Vec<Slab>, Vec<Slab>) = added.into_iter().partition(is_free);
            state.slabs.extend(kept);
            free
        };
        self.give_back_slabs(free, stream);
    }

    /// Gives slabs back after what is on `last`.
    pub(super) fn give_back_slabs(&self, slabs: Vec<Slab>, last: &Stream) {
        if slabs.is_empty() {
            return;
        }
        self.return_after_work_on(last, &[], true);
        let (replaced, stream) = self.state().source.reclaim(slabs);
        drop(replaced);
        if let Some(Err(error)) = stream.map(|stream| stream.settle()) {
            self.context().report_in_drop("capture pool's memory", &error);
        }
    }

    /// Stream-ordered memory is returned in the order of its own stream: lets that come after what is on `last`.
    fn return_after_work_on(&self, last: &Stream, deferred: &[Vec<KeepAlive>], slabs: bool) {
        let ordered = Event::new(self.context()).and_then(|event| {
            event.record(last)?;
            if slabs {
                self.state().source.return_after(&event)?;
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
            self.state().deferred.push(kept);
            self.drain_deferred();
        }
    }

    /// Buffers among them may come from a stream-ordered pool, to which they return in the order of their own stream: that is made to come
    /// after the last replay. While a segment is open or a replay runs on this thread they are left for later.
    pub(crate) fn drain_deferred(&self) {
        if capture_state::is_open() {
            return;
        }
        let Ok(turn) = self.lock_anyway() else { return };
        let deferred = std::mem::take(&mut self.state().deferred);
        if deferred.is_empty() {
            return;
        }
        if let Some(last) = turn.last_stream() {
            self.return_after_work_on(last, &deferred, false);
        }
    }
}

impl Drop for PoolShared {
    fn drop(&mut self) {
        if let Some(last) = self.take_last_stream() {
            let deferred = std::mem::take(&mut self.state().deferred);
            self.return_after_work_on(&last, &deferred, true);
        }
    }
}

/// Lets the return of stream-ordered buffers come after the event.
fn return_after(deferred: &[Vec<KeepAlive>], event: &Event) -> Result<()> {
    let storages = deferred.iter().flatten().filter_map(|kept| kept.downcast_ref::<Storage>());
    storages.into_iter().try_for_each(|storage| storage.return_after(event))
}
