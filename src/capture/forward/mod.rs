//! What model code runs in: the calling thread's frames and published contexts.

pub(crate) mod frame;
