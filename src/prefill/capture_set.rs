//! The captures of a ladder, and which of them to drop for the sake of the bounds.

use super::dispatch::CaptureState;
use crate::capture::BreakableCapture;
use crate::tensor::Tensor;

/// A bucket's capture.
pub(super) struct Captured<'m> {
    pub(super) capture: BreakableCapture<'m>,
    /// Views of where its replays leave the outputs. The blocks are not held: they are whole until the next replay or recording of the pool, and other
    /// buckets' captures use the same bytes.
    pub(super) outputs: Vec<Tensor>,
    /// Device memory of its execs.
    pub(super) exec_bytes: usize,
    last_used: u64,
}

impl<'m> Captured<'m> {
    pub(super) fn new(capture: BreakableCapture<'m>, outputs: Vec<Tensor>, exec_bytes: usize) -> Captured<'m> {
        Captured { capture, outputs, exec_bytes, last_used: 0 }
    }
}

/// One place for each bucket of the ladder.
pub(super) struct CaptureSet<'m> {
    captured: Vec<Option<Captured<'m>>>,
    failed: Vec<bool>,
    clock: u64,
}

impl<'m> CaptureSet<'m> {
    pub(super) fn new(buckets: usize) -> CaptureSet<'m> {
        CaptureSet { captured: (0..buckets).map(|_| None).collect(), failed: vec![false; buckets], clock: 0 }
    }

    pub(super) fn has(&self, index: usize) -> bool {
        self.captured.get(index).is_some_and(Option::is_some)
    }

    pub(super) fn state(&self, index: usize) -> CaptureState {
        match (self.has(index), self.failed.get(index)) {
            (true, _) => CaptureState::Captured,
            (false, Some(true)) => CaptureState::Failed,
            _ => CaptureState::Missing,
        }
    }

    pub(super) fn set_failed(&mut self, index: usize) {
        if let Some(failed) = self.failed.get_mut(index) {
            *failed = true;
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

    pub(super) fn put(&mut self, index: usize, mut captured: Captured<'m>) {
        self.clock += 1;
        captured.last_used = self.clock;
        self.captured[index] = Some(captured);
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

    /// Device memory of all execs.
    pub(super) fn exec_bytes(&self) -> usize {
        self.captured.iter().flatten().map(|captured| captured.exec_bytes).sum()
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
        self.failed.fill(false);
    }
}
