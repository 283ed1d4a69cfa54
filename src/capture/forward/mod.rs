//! What a forward runs in: the calling thread's frames, which say where its work goes and where its memory comes from, and the contexts that are
//! published around it.
//!
//! - `frame`: the stack of frames, and the free functions that look at the innermost. `allocator`: where its tensors come from. `scratch`: where those
//!   of a patched break's body do.
//! - `context`: forward contexts.

pub(super) mod allocator;
pub(super) mod context;
pub(super) mod frame;
pub(super) mod scratch;
