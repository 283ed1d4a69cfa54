//! What a capture is made of.

use crate::driver::NodeCounts;

/// What a capture is made of, as plain data.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CaptureReport {
    /// Its name.
    pub name: Option<String>,
    /// Its bucket in rows.
    pub bucket: Option<usize>,
    /// Segments and breaks: `2n + 1` for n breaks.
    pub segments: usize,
    /// The breaks' names, in order.
    pub breaks: Vec<String>,
    /// Execs that a replay launches.
    pub launches: usize,
    /// The segments' nodes, as they are launched: see [`GraphOptions::memset_as_kernel`](crate::GraphOptions::memset_as_kernel).
    pub nodes: NodeCounts,
}
