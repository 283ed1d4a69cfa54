//! Giving memory back to the device, in the order of what may still use it (D2, D3).

use super::replay_lock::ReplayGuard;
use super::shared::PoolShared;
use super::slabs::Slab;
use crate::driver::{Event, KeepAlive, Stream};
use crate::error::{Error, Misuse, Result, TensorError};
use crate::memory::PoolPlan;
use crate::memory::sizes::{SLAB_BYTES, round_up};
use crate::sys::{CUresult, CallError};
use crate::tensor::storage::Storage;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is let go of once the work that uses it has run.
#[derive(Default)]
pub(super) struct Reclaimer {
    parked: Mutex<Vec<Parked>>,
}

struct Parked {
    /// After the work. `None`: there was no way to record one, and nothing is known of when that has run.
    after: Option<Event>,
    _kept: Vec<KeepAlive>,
}

impl Reclaimer {
    fn parked(&self) -> MutexGuard<'_, Vec<Parked>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets go of what has been used.
    fn drain(&self) {
        let done: Vec<Parked> = {
            let mut parked = self.parked();
            let has_run =
                |parked: &mut Parked| parked.after.as_ref().is_some_and(|event| event.has_run().unwrap_or(false));
            parked.extract_if(.., has_run).collect()
        };
        // What is kept may be anything, with a drop of its own.
        drop(done);
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
        let too_large = |_| TensorError::Layout { reason: "the plan is larger than memory: plan smaller buckets" };
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
        let ordered = self.return_slabs_after(last);
        let (reclaimed, stream) = self.memory().reclaim(slabs);
        if !ordered {
            // Nobody knows whether a replay still uses them.
            std::mem::forget(reclaimed);
            return;
        }
        drop(reclaimed);
        if let Some(Err(error)) = stream.map(|stream| stream.settle_work()) {
            self.context().report_in_drop("capture pool's memory", &error);
        }
    }

    /// Slabs return in the order of their own stream: lets that come after what is on `last`. `false`: that failed, and so did waiting.
    fn return_slabs_after(&self, last: &Stream) -> bool {
        let ordered = Event::new(self.context()).and_then(|event| {
            last.expect_not_captured()?;
            event.record(last)?;
            self.memory().return_after(&event)
        });
        let Err(error) = ordered else { return true };
        self.context().report_in_drop("capture pool's memory", &error);
        // The other way to be sure of the order.
        settle_stubbornly(last)
            .inspect_err(|error| self.context().report_in_drop("capture pool's memory", error))
            .is_ok()
    }

    /// Takes what patched bodies referred to, and lets go of it after what is on the replay's stream.
    #[cold]
    pub(crate) fn free_after_replay(&self, mut kept: Vec<KeepAlive>, stream: &Stream) {
        let recorded = Event::new(self.context()).and_then(|event| event.record(stream).map(|()| event));
        let after = match recorded {
            Ok(event) => {
                // Stream-ordered memory is given back now, in that order.
                kept.retain(|kept| !returns_after(kept, &event));
                Some(event)
            }
            Err(error) => {
                self.context().report_in_drop("what a replay used", &error);
                if settle_stubbornly(stream).is_ok() {
                    return;
                }
                None
            }
        };
        if !kept.is_empty() {
            self.reclaimer.parked().push(Parked { after, _kept: kept });
        }
        self.reclaimer.drain();
    }

    /// Lets go of what was left because work was under way that is done now.
    pub(crate) fn drain_deferred(&self) {
        self.reclaimer.drain();
    }
}

impl Drop for PoolShared {
    fn drop(&mut self) {
        if let Some(last) = self.replay_lock.take_last_stream()
            && !self.return_slabs_after(&last)
        {
            self.memory().leak();
        }
        for parked in std::mem::take(&mut *self.reclaimer.parked()) {
            let wait = || parked.after.as_ref().map(Event::settle);
            let waited = match wait() {
                Some(Err(_)) => wait(),
                other => other,
            };
            match waited {
                Some(waited) if waited.as_ref().map_or_else(is_of_a_dead_context, |()| true) => {}
                // Nobody knows whether it is still used.
                _ => std::mem::forget(parked),
            }
        }
    }
}

/// Waits for what is on a stream, and tries twice: what this guards must not go before. After an error that stays with the context nothing runs any
/// more, and there is nothing to wait for.
pub(crate) fn settle_stubbornly(stream: &Stream) -> Result<()> {
    let again = |error| {
        stream.context().report_in_drop("what is waited for", &error);
        stream.settle_work()
    };
    match stream.settle_work().or_else(again) {
        Err(error) if is_of_a_dead_context(&error) => Ok(()),
        waited => waited,
    }
}

/// Whether an error stays with the context, on which nothing runs from then on.
fn is_of_a_dead_context(error: &Error) -> bool {
    let dead = |call: CallError| {
        matches!(
            call.code(),
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
                | CUresult::CUDA_ERROR_LAUNCH_FAILED
                | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
                | CUresult::CUDA_ERROR_ASSERT
                | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
                | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
                | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
                | CUresult::CUDA_ERROR_INVALID_PC
                | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
                | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
                | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
                | CUresult::CUDA_ERROR_DEINITIALIZED
        )
    };
    error.driver_call().is_some_and(dead)
}

/// Whether it is stream-ordered memory of the crate's, whose return now comes after the event.
fn returns_after(kept: &KeepAlive, event: &Event) -> bool {
    kept.downcast_ref::<Storage>().is_some_and(|storage| storage.returns_after(event).unwrap_or(false))
}
