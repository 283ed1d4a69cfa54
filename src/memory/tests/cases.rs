//! Single cases, each of one rule.

use super::{Block, ONE, Source, TWO};
use crate::memory::allocator::{AddSlabError, Allocator, RemoveSlabError};
use crate::memory::ids::StaleBlock;

const MIB: usize = 1 << 20;

fn source() -> Source {
    Source::new(0)
}

#[test]
fn the_smallest_block_that_fits_is_taken() {
    let mut source = source();
    let sizes = [4096, 512, 2048, 512, 8192, 512, 2048, 512];
    let blocks: Vec<Block> = sizes.iter().map(|&bytes| source.take(ONE, bytes)).collect();
    for at in [6, 0, 2, 4] {
        source.allocator.release(blocks[at].id).expect("it is live");
    }
    assert_eq!(source.take(ONE, 1600).address, blocks[2].address, "of two of one size the lower");
    assert_eq!(source.take(ONE, 4096).address, blocks[0].address);
    assert_eq!(source.take(ONE, 4097).address, blocks[4].address);
}

#[test]
fn streams_never_share_free_blocks() {
    let mut source = source();
    let block = source.take(ONE, 4096);
    source.allocator.release(block.id).expect("it is live");
    assert_eq!(source.allocator.allocate(TWO, 16), None);
    let other = source.take(TWO, 16);
    assert_ne!(other.address, block.address);
    source.allocator.release(other.id).expect("it is live");
    assert_eq!(source.take(ONE, 4096).address, block.address);
    assert_eq!(source.allocator.usage().reserved, 4 * MIB);
}

#[test]
fn blocks_never_reach_over_two_slabs_that_touch() {
    let mut source = source();
    let first = source.add_slab(ONE, 2 * MIB);
    let second = source.add_slab(ONE, 2 * MIB);
    assert_eq!(source.allocator.allocate(ONE, 2 * MIB + 1), None);
    assert_eq!(source.allocator.free_ranges().count(), 2);
    for slab in [first, second] {
        assert_eq!(source.allocator.remove_slab(slab), Ok(()), "each can go alone");
    }
}

#[test]
fn three_temporaries_in_turn_take_the_bytes_of_one() {
    let mut source = source();
    for _ in 0..3 {
        let temporary = source.take(ONE, 1 << 30);
        source.allocator.release(temporary.id).expect("it is live");
    }
    assert_eq!(source.allocator.usage().reserved, 1 << 30);
}

#[test]
fn a_request_of_no_bytes_gets_a_block_of_its_own() {
    let mut source = source();
    let (a, b) = (source.take(ONE, 0), source.take(ONE, 0));
    assert_eq!(source.allocator.bytes_of(a), 512);
    assert_eq!(b.address, a.address + 512);
}

#[test]
fn a_request_larger_than_memory_is_refused() {
    let mut source = source();
    source.take(ONE, 1);
    for requested in [usize::MAX, usize::MAX - 511, isize::MAX as usize + 1, isize::MAX as usize] {
        assert_eq!(source.allocator.allocate(ONE, requested), None);
    }
}

#[test]
fn ranges_that_are_no_slab_are_refused() {
    let mut allocator = Allocator::default();
    assert_eq!(allocator.add_slab(ONE, 256, 4096), Err(AddSlabError::Misaligned));
    assert_eq!(allocator.add_slab(ONE, 512, 1000), Err(AddSlabError::Misaligned));
    assert_eq!(allocator.add_slab(ONE, 512, 0), Err(AddSlabError::OutOfRange));
    assert_eq!(allocator.add_slab(ONE, u64::MAX - 511, 512), Err(AddSlabError::OutOfRange));
    assert!(allocator.add_slab(ONE, 4096, 4096).is_ok());
    assert_eq!(allocator.add_slab(TWO, 4096, 512), Err(AddSlabError::Overlap));
    assert_eq!(allocator.add_slab(TWO, 0, 4096 + 512), Err(AddSlabError::Overlap));
    assert_eq!(allocator.add_slab(TWO, 0, 1 << 20), Err(AddSlabError::Overlap));
    assert!(allocator.add_slab(TWO, 0, 4096).is_ok());
    assert!(allocator.add_slab(TWO, 8192, 512).is_ok());
    assert_eq!(allocator.usage().reserved, 4096 + 4096 + 512);
}

#[test]
fn slabs_are_removed_only_when_wholly_free() {
    let mut source = source();
    let slab = source.add_slab(ONE, 2 * MIB);
    let block = source.take(ONE, 16);
    assert_eq!(source.allocator.remove_slab(slab), Err(RemoveSlabError::InUse));
    source.allocator.release(block.id).expect("it is live");
    assert_eq!(source.allocator.remove_slab(slab), Ok(()));
    assert_eq!(source.allocator.remove_slab(slab), Err(RemoveSlabError::Unknown));
    assert_eq!(source.allocator.allocate(ONE, 16), None);
    assert_eq!(source.allocator.usage().reserved, 0);
    source.next = 1 << 32;
    assert_ne!(source.add_slab(ONE, 2 * MIB), slab, "the same place is another slab");
}

#[test]
fn an_id_is_stale_once_released_whatever_takes_its_place() {
    let mut source = source();
    let old = source.take(ONE, 4096);
    source.allocator.release(old.id).expect("it is live");
    let new = source.take(ONE, 4096);
    assert_eq!(new.address, old.address);
    assert!(source.allocator.live(old.id).is_none());
    assert_eq!(source.allocator.release(old.id), Err(StaleBlock));
    assert!(source.allocator.live(new.id).is_some(), "and the new block is untouched");
}

#[test]
fn free_blocks_are_told_with_their_places() {
    let mut source = source();
    let (a, b) = (source.take(ONE, 1000), source.take(ONE, 1000));
    source.allocator.release(a.id).expect("it is live");
    assert_eq!(source.take(ONE, 10).address, a.address);
    let mut free: Vec<_> = source.allocator.free_ranges().collect();
    free.sort_unstable();
    assert_eq!(free, [(a.address + 512, 512), (b.address + 1024, 2 * MIB - 2048)]);
}
