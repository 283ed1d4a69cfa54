//! What execs take, and what patched breaks cost and saved.

use crate::driver::GraphExec;

/// What patched breaks cost and saved, as plain data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PatchStats {
    /// Bodies that were put in the place of others.
    pub patched: u64,
    /// Those of them with a launch of another kernel or another launch configuration (grid, block, shared memory) than was there. The driver takes about
    /// 1.3 µs for such a node, and 0.2 µs for one of which only arguments differ: see
    /// [`Reconfigure`](crate::Reconfigure). Bodies that are captured by the driver are not looked into.
    pub reconfigured: u64,
    /// Bodies that were equal to what the exec had.
    pub unchanged: u64,
    /// Execs made because bodies had other nodes, or other launch configurations, than any exec there was; the first of each composite graph is not counted.
    pub rebuilt: u64,
    /// Replays of a composite graph that were launched part by part.
    pub fell_back: u64,
    /// Replays that found a shared exec with another capture's graph in it, see [`GraphOptions::share_execs`](crate::GraphOptions::share_execs).
    pub switched: u64,
    /// Execs there are. One that is shared counts for each capture that uses it.
    pub execs: usize,
}

/// Execs and the device memory that they take, as plain data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ExecMemory {
    /// Execs. One that captures share counts in the capture that it was made from.
    pub execs: usize,
    /// Device memory in bytes, as measured around the making of each. Drivers take memory for execs in pieces of some MiB, so that one exec may be told a
    /// piece that others use too.
    pub bytes: usize,
}

impl ExecMemory {
    pub(crate) fn of(exec: &GraphExec) -> ExecMemory {
        ExecMemory { execs: 1, bytes: exec.device_bytes() }
    }

    pub(crate) fn and(self, other: ExecMemory) -> ExecMemory {
        ExecMemory { execs: self.execs + other.execs, bytes: self.bytes.saturating_add(other.bytes) }
    }
}

impl std::ops::AddAssign for PatchStats {
    fn add_assign(&mut self, other: PatchStats) {
        self.patched += other.patched;
        self.reconfigured += other.reconfigured;
        self.unchanged += other.unchanged;
        self.rebuilt += other.rebuilt;
        self.fell_back += other.fell_back;
        self.switched += other.switched;
        self.execs += other.execs;
    }
}
