//! Recording a forward pass as segments and breaks, and replaying it.
//!
//! - `ambient` is the calling thread's state: the forward that runs on it, and the forward contexts that are published.
//! - `scope` is what model code records through, explicitly ([`Scope`]) or by free functions.
//! - `breaks` is what a break sees and returns.
//! - `program` is the recorded list of steps.
//! - `recorder` builds it: it ends a segment, runs and records the break, opens the next segment.
//! - `composite` is segments and patched breaks as one exec.
//! - `state` is the capture's life as a state machine.
//! - `tracing` runs a forward and writes down what a recording would ask of the pool.
//! - `capture` is [`BreakableCapture`]; `record` and `replay` are its two halves.
//!
//! Invariants:
//! 1. A segment is open only while the recording's frame is the thread's innermost: not in breaks.
//! 2. Whatever way a recording ends, its segment is ended, its frame is gone, and the pool has its blocks back.
//! 3. A step of the program refers only to memory that the program keeps: the pool, what its segments keep, what its breaks hold.

mod breaks;
#[allow(clippy::module_inception)]
mod capture;
pub(crate) mod composite;
mod forward;
mod program;
mod record;
mod replay;
mod scope;
mod state;
mod trace;

pub use breaks::{Break, BreakKind, BreakOptions, Outputs};
pub use capture::{BreakableCapture, CaptureExecution, CaptureOptions, CaptureReport};
pub use composite::PatchStats;
pub use forward::frame::{
    active_forward, current_forward_ctx, current_stream, eager, empty, forbid_in_segment, is_capturing,
};
pub use replay::{ReplayOptions, Replayed};
pub use scope::{Scope, break_here, break_point};
pub use trace::trace;
