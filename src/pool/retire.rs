//! Giving memory back to the device, in the order of what may still use it.

use super::inner::PoolInner;
use super::slabs::Slab;
use crate::driver::window::{self, Kept};
use crate::driver::{Event, Stream};
use crate::error::Result;
use crate::tensor::storage::Storage;

impl PoolInner {
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
        let (retired, stream) = self.state().source.retire(slabs);
        drop(retired);
        if let Some(Err(error)) = stream.map(|stream| stream.settle()) {
            self.context().report_in_drop("capture pool's memory", &error);
        }
    }

    /// Stream-ordered memory is returned in the order of its own stream: lets that come after what is on `last`.
    fn return_after_work_on(&self, last: &Stream, left_behind: &[Vec<Kept>], slabs: bool) {
        let ordered = Event::new(self.context()).and_then(|event| {
            event.record(last)?;
            if slabs {
                self.state().source.return_after(&event)?;
            }
            return_after(left_behind, &event)
        });
        let Err(error) = ordered else { return };
        self.context().report_in_drop("capture pool's memory", &error);
        // The other way to be sure of the order.
        if let Err(error) = last.settle() {
            self.context().report_in_drop("capture pool's memory", &error);
        }
    }

    /// Takes what a dropped capture's segments kept, and lets go of it after the last replay.
    pub(crate) fn let_go(&self, kept: Vec<Kept>) {
        if !kept.is_empty() {
            self.state().left_behind.push(kept);
            self.let_go_of_the_left_behind();
        }
    }

    /// Buffers among them may come from a stream-ordered pool, to which they return in the order of their own stream: that is made to come
    /// after the last replay. While a segment is open or a replay runs on this thread they are left for later.
    pub(crate) fn let_go_of_the_left_behind(&self) {
        if window::is_open() {
            return;
        }
        let Ok(turn) = self.take_turn_anyway() else { return };
        let left_behind = std::mem::take(&mut self.state().left_behind);
        if left_behind.is_empty() {
            return;
        }
        if let Some(last) = turn.last_stream() {
            self.return_after_work_on(last, &left_behind, false);
        }
    }
}

impl Drop for PoolInner {
    fn drop(&mut self) {
        if let Some(last) = self.take_last_stream() {
            let left_behind = std::mem::take(&mut self.state().left_behind);
            self.return_after_work_on(&last, &left_behind, true);
        }
    }
}

/// Lets the return of stream-ordered buffers come after the event.
fn return_after(left_behind: &[Vec<Kept>], event: &Event) -> Result<()> {
    let storages = left_behind.iter().flatten().filter_map(|kept| kept.downcast_ref::<Storage>());
    storages.into_iter().try_for_each(|storage| storage.return_after(event))
}
