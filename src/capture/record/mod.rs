//! Recording a forward.

pub(crate) mod recorder;
pub(crate) mod session;
