//! Breaks: the operations that run between segments.
//!
//! - `options`: when an operation runs, and how it is recorded. `view`: what it sees. `outputs`: what it returns. `step`: a break of a recording, as a
//!   step of its replays.

pub(super) mod options;
pub(super) mod outputs;
pub(super) mod step;
pub(super) mod view;
