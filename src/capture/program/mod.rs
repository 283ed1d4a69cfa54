//! The program: what a recording has made, as the list of steps that a replay runs.
//!
//! - `fingerprint`: a hash of it, without addresses.

mod fingerprint;

use super::breaks::step::BreakStep;
use super::composite::Composite;
use crate::driver::{GraphExec, KeepAlive, NodeCounts};

/// Something that a replay does.
pub(crate) enum Step<'env> {
    /// Launches a segment that has nodes.
    Segment { exec: GraphExec, index: usize, nodes: usize },
    /// Runs a break.
    Break(BreakStep<'env>),
    /// Launches segments and patched breaks together.
    Composite(Composite<'env>),
}

/// What a recording has made.
#[derive(Default)]
pub(crate) struct Program<'env> {
    pub(crate) steps: Vec<Step<'env>>,
    /// What the segments' graphs refer to.
    pub(crate) kept: Vec<KeepAlive>,
    /// Segments, those without nodes counted in.
    pub(crate) segments: usize,
    pub(crate) breaks: usize,
    pub(crate) nodes: NodeCounts,
}

impl Program<'_> {
    /// Execs that a replay launches.
    pub(crate) fn launches(&self) -> usize {
        self.steps.iter().filter(|step| !matches!(step, Step::Break(_))).count()
    }

    /// Breaks that run on every replay, in order.
    pub(crate) fn breaks(&self) -> impl Iterator<Item = &BreakStep<'_>> {
        self.steps.iter().flat_map(|step| match step {
            Step::Segment { .. } => Vec::new(),
            Step::Break(step) => vec![step],
            Step::Composite(composite) => composite.breaks().collect(),
        })
    }

    /// Takes all that launches refer to.
    pub(crate) fn take_kept(&mut self) -> Vec<KeepAlive> {
        let mut kept = std::mem::take(&mut self.kept);
        for step in &mut self.steps {
            if let Step::Composite(composite) = step {
                composite.take_kept(&mut kept);
            }
        }
        kept
    }
}
