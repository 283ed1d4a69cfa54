//! The units of memory, and rounding up to them.

/// What the address and size of every block are a multiple of: as of the driver's own allocations.
pub const ALIGNMENT: usize = 512;

/// What the size of a slab is a multiple of: the driver's own granularity.
pub const SLAB_BYTES: usize = 2 << 20;

/// A request that is larger than any memory: rounding it up overflows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a request of {requested} bytes is larger than any memory")]
pub struct TooLarge {
    /// The bytes that were asked for.
    pub requested: usize,
}

/// The bytes up to a multiple of the unit, and at least one unit.
pub(crate) fn round_up(bytes: usize, unit: usize) -> Result<usize, TooLarge> {
    // No object is larger than `isize::MAX`, and sums of two sizes can't overflow below it.
    let rounded = bytes.max(1).checked_next_multiple_of(unit);
    rounded.filter(|&rounded| isize::try_from(rounded).is_ok()).ok_or(TooLarge { requested: bytes })
}

#[cfg(test)]
mod tests {
    use super::{ALIGNMENT, SLAB_BYTES, TooLarge, round_up};

    #[test]
    fn sizes_are_multiples_of_the_unit_and_at_least_one() {
        let sizes = [(0, 1), (1, 1), (512, 1), (513, 2), (SLAB_BYTES, SLAB_BYTES / ALIGNMENT)];
        for (bytes, units) in sizes {
            assert_eq!(round_up(bytes, ALIGNMENT), Ok(units * ALIGNMENT), "{bytes}");
        }
    }

    #[test]
    fn what_is_larger_than_memory_is_refused() {
        for requested in [usize::MAX, usize::MAX - 511, isize::MAX as usize + 1, isize::MAX as usize] {
            for unit in [ALIGNMENT, SLAB_BYTES] {
                assert_eq!(round_up(requested, unit), Err(TooLarge { requested }));
            }
        }
    }
}
