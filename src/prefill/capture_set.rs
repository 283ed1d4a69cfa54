//! The captures of a ladder, and which of them to drop for the sake of the bounds.

use super::dispatch::CaptureState;
use crate::capture::{BreakableCapture, ExecMemory, PatchStats};
use crate::tensor::Tensor;
use std::ops::Range;

/// A bucket's capture.
pub(super) struct Captured<'m> {
    pub(super) capture: BreakableCapture<'m>,
    /// Views of where its replays leave the outputs. The blocks are not held: they are whole until the next replay or recording of the pool, and other
    /// buckets' captures use the same bytes.
    pub(super) outputs: Vec<Tensor>,
    last_used: u64,
}

impl<'m> Captured<'m> {
    pub(super) fn new(capture: BreakableCapture<'m>, outputs: Vec<Tensor>) -> Captured<'m> {
        Captured { capture, outputs, last_used: 0 }
    }

    /// Device memory of its execs.
    pub(super) fn exec_bytes(&self) -> usize {
        self.capture.exec_memory().bytes
    }
}

/// Why a bucket has no capture, where there was an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Attempt {
    #[default]
    None,
    Failed,
    /// It took more than there may be. It is tried again when it has been wanted `wait` times more.
    OverBudget {
        wait: u32,
        wanted: u32,
    },
}

/// How often a bucket that was over budget is wanted before it is tried again: at first, and at most. Each attempt that fails doubles it.
const FIRST_WAIT: u32 = 16;
const LONGEST_WAIT: u32 = 4096;

/// One place for each bucket of the ladder under each key.
pub(super) struct CaptureSet<'m> {
    captured: Vec<Option<Captured<'m>>>,
    attempts: Vec<Attempt>,
    clock: u64,
}

impl<'m> CaptureSet<'m> {
    pub(super) fn new(buckets: usize) -> CaptureSet<'m> {
        CaptureSet { captured: (0..buckets).map(|_| None).collect(), attempts: vec![Attempt::None; buckets], clock: 0 }
    }

    pub(super) fn has(&self, index: usize) -> bool {
        self.captured.get(index).is_some_and(Option::is_some)
    }

    pub(super) fn state(&self, index: usize) -> CaptureState {
        if self.has(index) {
            return CaptureState::Captured;
        }
        match self.attempts.get(index) {
            Some(Attempt::Failed) => CaptureState::Failed,
            Some(Attempt::OverBudget { wait, wanted }) => CaptureState::OverBudget { again: wanted >= wait },
            _ => CaptureState::Missing,
        }
    }

    pub(super) fn set_failed(&mut self, index: usize) {
        if let Some(attempt) = self.attempts.get_mut(index) {
            *attempt = Attempt::Failed;
        }
    }

    /// It was over budget, once more.
    pub(super) fn set_over_budget(&mut self, index: usize) {
        if let Some(attempt) = self.attempts.get_mut(index) {
            let wait = match *attempt {
                Attempt::OverBudget { wait, .. } => wait.saturating_mul(2).min(LONGEST_WAIT),
                _ => FIRST_WAIT,
            };
            *attempt = Attempt::OverBudget { wait, wanted: 0 };
        }
    }

    /// There is another budget: what was over it is tried anew.
    pub(super) fn forget_budget(&mut self) {
        self.attempts
            .iter_mut()
            .filter(|attempt| **attempt != Attempt::Failed)
            .for_each(|attempt| *attempt = Attempt::None);
    }

    /// A bucket was wanted that has no capture.
    pub(super) fn wanted(&mut self, index: usize) {
        if let Some(Attempt::OverBudget { wanted, .. }) = self.attempts.get_mut(index) {
            *wanted = wanted.saturating_add(1);
        }
    }

    pub(super) fn get(&self, index: usize) -> Option<&Captured<'m>> {
        self.captured.get(index)?.as_ref()
    }

    /// The capture, as the one used last.
    pub(super) fn use_now(&mut self, index: usize) -> Option<&mut Captured<'m>> {
        self.clock += 1;
        let captured = self.captured.get_mut(index)?.as_mut()?;
        captured.last_used = self.clock;
        Some(captured)
    }

    /// Puts a capture in its place, and gives the one that was there.
    pub(super) fn put(&mut self, index: usize, mut captured: Captured<'m>) -> Option<Captured<'m>> {
        self.clock += 1;
        captured.last_used = self.clock;
        self.attempts[index] = Attempt::None;
        self.captured[index].replace(captured)
    }

    /// Makes room for so many places.
    pub(super) fn grow_to(&mut self, places: usize) {
        if self.captured.len() < places {
            self.captured.resize_with(places, || None);
            self.attempts.resize(places, Attempt::None);
        }
    }

    /// Drops what there is in these places, and forgets what failed there.
    pub(super) fn clear_range(&mut self, places: Range<usize>) {
        self.captured[places.clone()].fill_with(|| None);
        self.attempts[places].fill(Attempt::None);
    }

    pub(super) fn remove(&mut self, index: usize) {
        if let Some(captured) = self.captured.get_mut(index) {
            *captured = None;
        }
    }

    /// How many there are.
    pub(super) fn live(&self) -> usize {
        self.captured.iter().flatten().count()
    }

    /// What patched breaks cost and saved.
    pub(super) fn patch_stats(&self) -> PatchStats {
        let mut stats = PatchStats::default();
        self.captured.iter().flatten().for_each(|captured| stats += captured.capture.patch_stats());
        stats
    }

    /// All execs.
    pub(super) fn execs(&self) -> ExecMemory {
        let each = self.captured.iter().flatten().map(|captured| captured.capture.exec_memory());
        each.fold(ExecMemory::default(), ExecMemory::and)
    }

    /// Drops the capture that was used least recently, other than `spare`. Whether there was one.
    pub(super) fn evict(&mut self, spare: Option<usize>) -> bool {
        let used = |(index, captured): (usize, &Option<Captured<'m>>)| Some((captured.as_ref()?.last_used, index));
        let others = self.captured.iter().enumerate().filter(|(index, _)| Some(*index) != spare);
        let Some((_, index)) = others.filter_map(used).min() else { return false };
        self.captured[index] = None;
        true
    }

    /// Drops all, and forgets what failed.
    pub(super) fn clear(&mut self) {
        self.captured.fill_with(|| None);
        self.attempts.fill(Attempt::None);
    }
}
