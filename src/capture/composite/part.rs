//! The parts of a composite graph.

use super::patched_part::PatchedPart;
use crate::driver::{Graph, GraphExec, InstantiateFlags, Stream};
use crate::error::Result;

/// A part of a composite graph.
pub(crate) enum Part<'env> {
    /// A segment that has nodes.
    Segment(SegmentPart),
    /// A patched break.
    Patched(Box<PatchedPart<'env>>),
}

/// A segment that has nodes.
pub(crate) struct SegmentPart {
    pub(crate) graph: Graph,
    /// Its place among the recording's segments.
    pub(crate) index: usize,
    pub(crate) nodes: usize,
    /// Made when it is launched alone.
    pub(crate) exec: Option<GraphExec>,
}

impl SegmentPart {
    /// An exec of the segment alone.
    pub(crate) fn exec_alone(&mut self, flags: InstantiateFlags, stream: &Stream) -> Result<&GraphExec> {
        Ok(match &mut self.exec {
            Some(exec) => exec,
            none => none.insert(GraphExec::measured(&self.graph, self.nodes, flags, stream)?),
        })
    }
}

/// The patched breaks among parts, in order.
pub(super) fn patched<'p, 'env>(parts: &'p mut [Part<'env>]) -> impl Iterator<Item = &'p mut PatchedPart<'env>> {
    parts.iter_mut().filter_map(|part| match part {
        Part::Patched(patched) => Some(&mut **patched),
        Part::Segment(_) => None,
    })
}

/// The first segment's place among the recording's segments.
pub(super) fn first_segment(parts: &[Part<'_>]) -> usize {
    let mut segments = parts.iter().filter_map(|part| match part {
        Part::Segment(segment) => Some(segment.index),
        Part::Patched(_) => None,
    });
    segments.next().unwrap_or(0)
}
