//! Single cases, each of one rule.

use super::{Arena, Block, Blocks, ONE, StreamKey, TWO};
use crate::memory::allocator::{
    AddSlabError, BlockOptions, BlockState, Growth, InvalidOptions, RemoveSlabError, StaleBlock, TooLarge,
};

const MIB: usize = 1 << 20;

fn arena() -> Arena {
    Arena::new(Blocks::new(), 0)
}

fn arena_with(change: impl FnOnce(&mut BlockOptions)) -> Arena {
    let mut options = BlockOptions::default();
    change(&mut options);
    Arena::new(Blocks::with_options(options).expect("the options make sense"), 0)
}

#[test]
fn the_smallest_block_that_fits_is_taken() {
    let mut arena = arena();
    let sizes = [4096, 512, 2048, 512, 8192, 512, 2048, 512];
    let blocks: Vec<Block> = sizes.iter().map(|&bytes| arena.take(ONE, bytes)).collect();
    for at in [6, 0, 2, 4] {
        arena.blocks.release(blocks[at].id).expect("it is live");
    }
    assert_eq!(arena.take(ONE, 1600).address, blocks[2].address, "of two of one size the lower");
    assert_eq!(arena.take(ONE, 4096).address, blocks[0].address);
    assert_eq!(arena.take(ONE, 4097).address, blocks[4].address);
}

#[test]
fn streams_never_share_free_blocks() {
    let mut arena = arena();
    let block = arena.take(ONE, 4096);
    arena.blocks.release(block.id).expect("it is live");
    assert_eq!(arena.blocks.allocate(TWO, 16), None);
    assert_eq!(arena.blocks.growth_for(TWO, 16), Ok(Growth::Needed(2 * MIB)));
    let other = arena.take(TWO, 16);
    assert_ne!(other.address, block.address);
    arena.blocks.release(other.id).expect("it is live");
    assert_eq!(arena.take(ONE, 4096).address, block.address);
    assert_eq!(arena.blocks.stream_usage(TWO).reserved, 2 * MIB);
    assert_eq!(arena.blocks.stream_usage(StreamKey(3)).reserved, 0);
}

#[test]
fn blocks_never_reach_over_two_slabs_that_touch() {
    let mut arena = arena();
    let first = arena.add_slab(ONE, 2 * MIB);
    let second = arena.add_slab(ONE, 2 * MIB);
    assert_eq!(arena.blocks.allocate(ONE, 2 * MIB + 1), None);
    assert_eq!(arena.blocks.stats().free_blocks, 2);
    assert_eq!(arena.blocks.free_slabs(ONE).collect::<Vec<_>>(), [first, second]);
    assert_eq!(arena.blocks.free_slabs(TWO).count(), 0);
}

#[test]
fn three_temporaries_in_turn_take_the_bytes_of_one() {
    let mut arena = arena();
    for _ in 0..3 {
        let temporary = arena.take_or_grow(ONE, 1 << 30);
        arena.blocks.release(temporary.id).expect("it is live");
    }
    assert_eq!(arena.blocks.usage().reserved, 1 << 30);
}

#[test]
fn a_request_of_no_bytes_gets_a_block_of_its_own() {
    let mut arena = arena();
    let (a, b) = (arena.take(ONE, 0), arena.take(ONE, 0));
    assert_eq!((a.bytes, a.requested), (512, 0));
    assert_eq!(b.address, a.address + 512);
}

#[test]
fn a_request_larger_than_memory_is_a_typed_error() {
    let mut arena = arena();
    arena.take(ONE, 1);
    for requested in [usize::MAX, usize::MAX - 511, isize::MAX as usize + 1, isize::MAX as usize] {
        assert_eq!(arena.blocks.allocate(ONE, requested), None);
        assert_eq!(arena.blocks.slab_bytes_for(requested), Err(TooLarge { requested }));
        assert_eq!(arena.blocks.growth_for(ONE, requested), Err(TooLarge { requested }));
    }
}

#[test]
fn slabs_are_multiples_of_the_granularity() {
    let blocks = Blocks::new();
    for (requested, bytes) in [(0, 2), (1, 2), (2 * MIB, 2), (2 * MIB + 1, 4), (5 * MIB, 6), (6 * MIB, 6)] {
        assert_eq!(blocks.slab_bytes_for(requested), Ok(bytes * MIB), "{requested}");
    }
}

#[test]
fn ranges_that_are_no_slab_are_refused() {
    let mut blocks = Blocks::new();
    let misaligned = Err(AddSlabError::Misaligned { alignment: 512 });
    assert_eq!(blocks.add_slab(ONE, 256, 4096), misaligned);
    assert_eq!(blocks.add_slab(ONE, 512, 1000), misaligned);
    assert_eq!(blocks.add_slab(ONE, 512, 0), Err(AddSlabError::OutOfRange));
    assert_eq!(blocks.add_slab(ONE, u64::MAX - 511, 512), Err(AddSlabError::OutOfRange));
    assert!(blocks.add_slab(ONE, 4096, 4096).is_ok());
    assert_eq!(blocks.add_slab(TWO, 4096, 512), Err(AddSlabError::Overlap));
    assert_eq!(blocks.add_slab(TWO, 0, 4096 + 512), Err(AddSlabError::Overlap));
    assert_eq!(blocks.add_slab(TWO, 0, 1 << 20), Err(AddSlabError::Overlap));
    assert!(blocks.add_slab(TWO, 0, 4096).is_ok());
    assert!(blocks.add_slab(TWO, 8192, 512).is_ok());
    assert_eq!(blocks.usage().reserved, 4096 + 4096 + 512);
}

#[test]
fn slabs_are_removed_only_when_wholly_free() {
    let mut arena = arena();
    let slab = arena.add_slab(ONE, 2 * MIB);
    let block = arena.take(ONE, 16);
    assert_eq!(arena.blocks.remove_slab(slab), Err(RemoveSlabError::InUse));
    arena.blocks.release(block.id).expect("it is live");
    assert_eq!(arena.blocks.remove_slab(slab), Ok(()));
    assert_eq!(arena.blocks.remove_slab(slab), Err(RemoveSlabError::Unknown));
    assert_eq!(arena.blocks.allocate(ONE, 16), None);
    assert_eq!(arena.blocks.usage().reserved, 0);
    arena.next = 1 << 32;
    assert_ne!(arena.add_slab(ONE, 2 * MIB), slab, "the same place is another slab");
}

#[test]
fn an_id_is_stale_once_released_whatever_takes_its_place() {
    let mut arena = arena();
    let old = arena.take(ONE, 4096);
    arena.blocks.release(old.id).expect("it is live");
    let new = arena.take(ONE, 4096);
    assert_eq!(new.address, old.address);
    assert!(!arena.blocks.is_live(old.id));
    assert_eq!(arena.blocks.release(old.id), Err(StaleBlock));
    assert!(arena.blocks.is_live(new.id), "and the new block is untouched");
}

#[test]
fn a_rest_that_is_too_small_stays_with_its_block() {
    let mut arena = arena_with(|options| options.min_remainder = 4096);
    arena.add_slab(ONE, 16384);
    let first = arena.take(ONE, 8192);
    assert_eq!(first.bytes, 8192);
    let second = arena.take(ONE, 4097);
    assert_eq!((second.bytes, second.requested), (8192, 4097), "3584 bytes are not split off");
    assert_eq!(arena.blocks.usage().in_use, 16384);
    arena.blocks.release(second.id).expect("it is live");
    assert_eq!(arena.take(ONE, 4096).bytes, 4096, "4096 are");
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let refused = |alignment, slab_granularity| {
        Blocks::with_options(BlockOptions { alignment, slab_granularity, ..BlockOptions::default() }).err()
    };
    assert_eq!(refused(0, 4096), Some(InvalidOptions::Alignment(0)));
    assert_eq!(refused(768, 4096), Some(InvalidOptions::Alignment(768)));
    assert_eq!(refused(512, 0), Some(InvalidOptions::SlabGranularity(0)));
    assert_eq!(refused(512, 1000), Some(InvalidOptions::SlabGranularity(1000)));
    assert_eq!(refused(512, 512), None);
}

#[test]
fn a_small_request_rather_grows_the_pool_than_cuts_up_a_large_block() {
    let mut arena = arena();
    let (h, handoff) = (arena.take_or_grow(ONE, 32 * MIB), arena.take_or_grow(ONE, 32 * MIB));
    arena.blocks.release(h.id).expect("it is live");
    let preferred = Ok(Growth::Preferred(8 * MIB));
    assert_eq!(arena.blocks.growth_for(ONE, 8 * MIB), preferred);
    assert_eq!(arena.blocks.growth_for(ONE, 16 * MIB), Ok(Growth::Unneeded), "80 MiB are over 64 and a fifth");
    assert_eq!(arena.blocks.growth_for(ONE, 17 * MIB), Ok(Growth::Unneeded), "more than half of the block");
    assert_eq!(arena.blocks.growth_for(ONE, 33 * MIB), Ok(Growth::Needed(34 * MIB)));
    // Where the slab can't be had, the block is cut up.
    assert_eq!(arena.blocks.allocate(ONE, 8 * MIB).map(|block| block.address), Some(h.address));
    let _ = handoff;
}

#[test]
fn a_smaller_capture_does_not_grow_by_choice() {
    let mut arena = arena();
    let blocks = [arena.take_or_grow(ONE, 32 * MIB), arena.take_or_grow(ONE, 32 * MIB)];
    blocks.iter().for_each(|block| arena.blocks.release(block.id).expect("it is live"));
    arena.blocks.start_window();
    assert_eq!(arena.blocks.growth_for(ONE, 8 * MIB), Ok(Growth::Unneeded));
    let blocks = [arena.take_or_grow(ONE, 32 * MIB), arena.take_or_grow(ONE, 32 * MIB)];
    arena.blocks.release(blocks[0].id).expect("it is live");
    assert_eq!(
        arena.blocks.growth_for(ONE, 8 * MIB),
        Ok(Growth::Preferred(8 * MIB)),
        "it is as large as the largest now"
    );
}

#[test]
fn growth_by_choice_can_be_turned_off() {
    let mut arena = arena_with(|options| options.slack_divisor = 0);
    let block = arena.take_or_grow(ONE, 64 * MIB);
    arena.blocks.release(block.id).expect("it is live");
    assert_eq!(arena.blocks.growth_for(ONE, MIB), Ok(Growth::Unneeded));
}

#[test]
fn a_window_tells_what_one_recording_took() {
    let mut arena = arena();
    let kept = arena.take(ONE, 1024);
    let gone = arena.take(ONE, 4096);
    arena.blocks.release(gone.id).expect("it is live");
    arena.blocks.start_window();
    let other = arena.take(TWO, 512);
    let third = arena.take(ONE, 512);
    for id in [other.id, kept.id, third.id] {
        arena.blocks.release(id).expect("it is live");
    }
    let window = arena.blocks.window();
    assert_eq!((window.in_use_before, window.peak, window.allocations), (1024, 2048, 2));
    assert_eq!(arena.blocks.usage().reserved - window.reserved_before, 2 * MIB, "the other stream's slab");
    assert_eq!(arena.blocks.usage().peak, 5120);
    arena.blocks.start_window();
    assert_eq!((arena.blocks.window().peak, arena.blocks.window().allocations), (0, 0));
}

#[test]
fn rolling_back_leaves_a_slab_that_is_in_use() {
    let mut arena = arena();
    let before = arena.take(ONE, 16);
    let mark = arena.blocks.mark();
    let (held, freed) = (arena.take(ONE, 4 * MIB), arena.take(ONE, 6 * MIB));
    arena.blocks.release(freed.id).expect("it is live");
    let added: Vec<_> = arena.blocks.slabs_since(&mark).collect();
    assert_eq!(arena.blocks.roll_back(&mark), added[1..]);
    assert_eq!(arena.blocks.slabs_since(&mark).collect::<Vec<_>>(), added[..1]);
    assert!(arena.blocks.is_live(held.id) && arena.blocks.is_live(before.id));
    let usage = arena.blocks.usage();
    assert_eq!((usage.in_use, usage.peak), (512 + 4 * MIB, 512 + 4 * MIB), "not below what is live");
}

#[test]
fn a_report_names_the_live_blocks() {
    let mut arena = arena();
    let (q, k) = (arena.take(ONE, 1000), arena.take(ONE, 1000));
    arena.blocks.set_name(q.id, "layer 0: q").expect("it is live");
    arena.blocks.set_name(k.id, "layer 0: k").expect("it is live");
    arena.blocks.release(q.id).expect("it is live");
    assert_eq!(arena.blocks.names.len(), 1, "a name goes with its block");
    assert_eq!(arena.take(ONE, 10).address, q.address);
    let told: Vec<_> = arena
        .blocks
        .snapshot()
        .into_iter()
        .map(|report| {
            let requested = match report.state {
                BlockState::Live { requested, .. } => Some(requested),
                BlockState::Free => None,
            };
            (report.bytes, requested, report.name)
        })
        .collect();
    let rest = 2 * MIB - 2048;
    let k_name = Some("layer 0: k".into());
    assert_eq!(told, [(512, Some(10), None), (512, None, None), (1024, Some(1000), k_name), (rest, None, None)]);
}
