//! The names of streams, slabs and blocks.

/// Names a stream: free blocks of one stream never serve another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct StreamKey(pub(crate) u64);

/// Names a block from its allocation to its release. A later block in the same place has another id, so an id that is kept too long is found
/// out and never taken for that of another block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct BlockId {
    pub(super) index: usize,
    /// Grows with every allocation; no two blocks have the same.
    pub(super) generation: u64,
}

/// Names a slab. Ids grow in the order in which slabs are added, and none is used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct SlabId(pub(super) u64);

/// The block was released already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the block was released already")]
pub struct StaleBlock;
