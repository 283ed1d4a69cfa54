//! How large a decoder is.

use breakable_cuda_graph::{Error, Result};

/// The sizes of a decoder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecoderSizes {
    /// Layers.
    pub layers: usize,
    /// Of the hidden state.
    pub width: usize,
    /// Of the feed-forward.
    pub inner: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Devices that share the heads and the feed-forward.
    pub shards: usize,
}

/// Sizes of which no layers can be made. It is within [`Error::User`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "no decoder has {0:?}: heads are a divisor of the width and leave each an even one, key heads are a divisor of heads, shards one of key heads and \
     of the inner width, and none is 0"
)]
pub struct DecoderSizesError(pub DecoderSizes);

impl DecoderSizes {
    /// Of a decoder of half a billion parameters: 24 layers, 896 wide.
    pub fn of_half_b() -> DecoderSizes {
        DecoderSizes { layers: 24, width: 896, inner: 4864, heads: 14, kv_heads: 2, shards: 1 }
    }

    /// Of a decoder of 8 billion parameters: 32 layers, 4096 wide.
    pub fn of_8b() -> DecoderSizes {
        DecoderSizes { layers: 32, width: 4096, inner: 14336, heads: 32, kv_heads: 8, shards: 1 }
    }

    /// Of the same, as one of eight devices has it.
    pub fn of_8b_eighth() -> DecoderSizes {
        DecoderSizes { shards: 8, ..DecoderSizes::of_8b() }
    }

    /// Of one of 70 billion parameters, as one of eight devices has it: 80 layers, 8192 wide.
    pub fn of_70b_eighth() -> DecoderSizes {
        DecoderSizes { layers: 80, width: 8192, inner: 28672, heads: 64, kv_heads: 8, shards: 8 }
    }

    /// Columns of this device's query heads together.
    pub(super) fn attention(&self) -> usize {
        self.width / self.shards
    }

    /// Columns of this device's key heads together, and of its value heads.
    pub(super) fn keys(&self) -> usize {
        self.width / self.heads * self.kv_heads / self.shards
    }

    /// Whether layers can be made of them.
    pub(super) fn check(&self) -> Result<()> {
        let DecoderSizes { width, inner, heads, kv_heads, shards, .. } = *self;
        let divides = |divisor: usize, of: usize| divisor > 0 && of > 0 && of.is_multiple_of(divisor);
        let fits = divides(heads, width)
            && (width / heads).is_multiple_of(2)
            && divides(kv_heads, heads)
            && divides(shards, kv_heads)
            && divides(shards, inner);
        if fits { Ok(()) } else { Err(Error::user(DecoderSizesError(*self))) }
    }
}
