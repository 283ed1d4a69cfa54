//! Recording a forward pass as segments and breaks, and replaying it.
//!
//! From the bottom up:
//! - `forward`: what a forward runs in: the thread's frames, where memory comes from, the forward contexts that are published.
//! - `breaks`: the operations that run between segments, what they see and return.
//! - `composite`: segments and patched breaks as one exec. `program`: the list of steps that a replay runs.
//! - `record`: from a forward to its program. `scope`: what model code records through, explicitly or by free functions. `trace`: what a forward asks of
//!   the pool, without recording it.
//! - `verify`: replays compared with the eager forward.
//! - `capture`: [`BreakableCapture`]. `replay`: its loop. `options`, `report` and `state`: how it is made, what it is made of, where it is in its life.
//!
//! Invariants C1 to C6 of `docs/DESIGN.md`, and:
//! 1. A segment is open only while the recording's frame, or that of an inline break, is the thread's innermost: not in other breaks.
//! 2. A step of the program refers only to memory that the program keeps: the pool, what its segments keep, what its breaks hold.

mod breaks;
#[allow(clippy::module_inception)]
mod capture;
pub(crate) mod composite;
mod forward;
mod options;
mod program;
mod record;
mod replay;
mod report;
mod scope;
mod state;
mod trace;
mod verify;

pub use breaks::options::{BreakKind, BreakOptions};
pub use breaks::outputs::Outputs;
pub use breaks::view::Break;
pub use capture::{BreakableCapture, ReplayOptions, Replayed};
pub use composite::{ExecMemory, PatchStats};
pub use forward::context::{active_forward, current_forward_ctx};
pub use forward::frame::{current_stream, empty, forbid_in_segment, is_capturing, is_recording, is_warming_up};
pub use options::{CaptureExecution, CaptureOptions, EagerOptions, GraphOptions, Reconfigure};
pub use report::CaptureReport;
pub use scope::{Scope, break_here, break_point, eager, eager_with};
pub use trace::{trace, trace_with};
pub use verify::{Verified, VerifyOptions};
