//! The execs of a composite graph, and which of them a replay launches.

use super::exec::{CompositeExec, ExecParams};
use super::part::Part;
use super::stats::{ExecMemory, PatchStats};
use crate::capture::options::Reconfigure;
use crate::driver::{GraphExec, Stream};
use crate::error::Result;

/// The execs of a composite graph.
pub(super) struct ExecCache {
    /// The one that was launched last comes first, then the one before.
    execs: Vec<CompositeExec>,
    /// At least 1.
    max_execs: usize,
    reconfigure: Reconfigure,
}

impl ExecCache {
    /// With a first exec.
    pub(super) fn new(first: CompositeExec, max_execs: usize, reconfigure: Reconfigure) -> ExecCache {
        ExecCache { execs: vec![first], max_execs: max_execs.max(1), reconfigure }
    }

    pub(super) fn len(&self) -> usize {
        self.execs.len()
    }

    /// What they take.
    pub(super) fn memory(&self) -> ExecMemory {
        self.execs.iter().map(CompositeExec::memory).fold(ExecMemory::default(), ExecMemory::and)
    }

    /// The one that was launched last, unless it is shared.
    pub(super) fn last(&self) -> Option<&GraphExec> {
        self.execs.first()?.exec()
    }

    /// Launches an exec that has the recorded bodies, made if need be. `false`: there is none, and there are too many already.
    pub(super) fn run(
        &mut self,
        parts: &mut [Part<'_>],
        params: ExecParams<'_>,
        stream: &Stream,
        stats: &mut PatchStats,
    ) -> Result<bool> {
        let mut alike = false;
        for index in 0..self.execs.len() {
            // Where others may be configured as the bodies are, one that isn't waits.
            let now = self.reconfigure == Reconfigure::InPlace || self.execs[index].is_configured_for(parts);
            if now && self.run_one(index, parts, params, stream, stats)? {
                return Ok(true);
            }
            alike |= !now && self.execs[index].has_room_for(parts);
        }
        let has_room = self.execs.len() < self.max_execs || (!alike && self.make_room());
        if has_room {
            let mut made = CompositeExec::new(parts, params, stream)?;
            stats.rebuilt += 1;
            // It was made with these bodies.
            let ran = made.run(parts, params, stream, &mut PatchStats::default());
            self.execs.insert(0, made);
            return ran;
        }
        if alike {
            // The one that was launched the longest ago is the likeliest not to be wanted as it is.
            for index in (0..self.execs.len()).rev() {
                if self.run_one(index, parts, params, stream, stats)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Drops the exec that was launched the longest ago among those of which another has the same nodes: bodies of new nodes get one before bodies of
    /// new configurations get a second. Whether there was one.
    fn make_room(&mut self) -> bool {
        let execs = &self.execs;
        let has_double =
            |at: &usize| (0..execs.len()).any(|other| other != *at && execs[other].has_nodes_like(&execs[*at]));
        let double = (0..execs.len()).rev().find(has_double);
        double.map(|at| self.execs.remove(at)).is_some()
    }

    fn run_one(
        &mut self,
        index: usize,
        parts: &mut [Part<'_>],
        params: ExecParams<'_>,
        stream: &Stream,
        stats: &mut PatchStats,
    ) -> Result<bool> {
        let ran = self.execs[index].run(parts, params, stream, stats)?;
        if ran {
            self.execs[..=index].rotate_right(1);
        }
        Ok(ran)
    }
}
