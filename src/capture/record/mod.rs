//! Recording a forward: from its segments and breaks to the program of a capture.
//!
//! - `session`: a recording as a whole, which is undone unless it ends well. `recorder`: it ends a segment, and makes steps of what came. `first_run`:
//!   the first run of a break, between two segments. `inline`: a break that becomes part of its segment.

mod first_run;
mod inline;
pub(super) mod recorder;
pub(super) mod session;
