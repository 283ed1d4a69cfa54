//! A hash of what a replay does.

use super::{Program, Step};
use crate::capture::breaks::step::BreakStep;
use crate::capture::composite::part::Part;

impl Program<'_> {
    /// A hash of what a replay does, without addresses: the same for the same forward on another device or rank.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hash = Fnv::default();
        hash.number(self.segments);
        for step in &self.steps {
            match step {
                Step::Segment { index, nodes, .. } => hash.segment(*index, *nodes),
                Step::Break(step) => hash.a_break(2, step),
                Step::Composite(composite) => composite.parts().iter().for_each(|part| match part {
                    Part::Segment(segment) => hash.segment(segment.index, segment.nodes),
                    Part::Patched(part) => hash.a_break(3, &part.step),
                }),
            }
        }
        hash.0
    }
}

/// FNV-1a, which is the same everywhere.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn segment(&mut self, index: usize, nodes: usize) {
        [1, index, nodes].into_iter().for_each(|number| self.number(number));
    }

    fn a_break(&mut self, kind: usize, step: &BreakStep<'_>) {
        self.bytes(step.options.name.as_bytes());
        for handoff in &step.handoffs {
            self.bytes(handoff.dtype().name().as_bytes());
            handoff.shape().iter().for_each(|length| self.number(*length));
        }
        [kind, step.inputs.len(), step.handoffs.len()].into_iter().for_each(|number| self.number(number));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    }

    fn number(&mut self, number: usize) {
        self.bytes(&(number as u64).to_le_bytes());
    }
}
