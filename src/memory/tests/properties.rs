//! Whatever is done, in whatever order: the pool against the model.

use super::model::{Model, ModelSlab};
use super::{Arena, Block, Blocks, StreamKey};
use crate::memory::allocator::{
    AddSlabError, BlockOptions, BlockReport, BlockState, Growth, RemoveSlabError, StaleBlock,
};
use proptest::prelude::*;

const GRANULARITY: usize = 8192;

#[derive(Clone, Debug)]
enum Action {
    /// A request. Whether it takes the pool's advice to grow.
    Allocate {
        stream: u64,
        bytes: usize,
        grow: bool,
    },
    /// A release of the n-th live block, if there are so many.
    Release(usize),
    /// A second release of the n-th block that was released.
    ReleaseAgain(usize),
    /// A slab, though none is needed.
    AddSlab {
        stream: u64,
        units: usize,
    },
    /// A slab that begins at a multiple of the alignment into another.
    AddOverlap {
        slab: usize,
        units: usize,
    },
    RemoveSlab(usize),
}

fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![
        1 => Just(0_usize),
        4 => 1..2048_usize,
        2 => 1..(GRANULARITY * 2),
        1 => (1..8_usize).prop_map(|n| n * GRANULARITY),
    ]
}

fn actions(streams: u64, longest: usize) -> impl Strategy<Value = Vec<Action>> {
    let stream = || 1..=streams;
    let action = prop_oneof![
        12 => (stream(), sizes(), any::<bool>()).prop_map(|(stream, bytes, grow)| Action::Allocate { stream, bytes, grow }),
        10 => (0..24_usize).prop_map(Action::Release),
        1 => (0..64_usize).prop_map(Action::ReleaseAgain),
        1 => (stream(), 1..40_usize).prop_map(|(stream, units)| Action::AddSlab { stream, units }),
        1 => (0..4_usize, 0..40_usize).prop_map(|(slab, units)| Action::AddOverlap { slab, units }),
        2 => (0..6_usize).prop_map(Action::RemoveSlab),
    ];
    prop::collection::vec(action, 1..longest)
}

fn options() -> impl Strategy<Value = BlockOptions> {
    let remainder = prop_oneof![Just(0_usize), Just(512), 1..4096_usize];
    (4..=10_u32, remainder, 0..10_usize).prop_map(|(log, min_remainder, slack_divisor)| BlockOptions {
        alignment: 1 << log,
        slab_granularity: GRANULARITY,
        min_remainder,
        slack_divisor,
    })
}

/// A pool and its model, to which the same is done.
struct Both {
    arena: Arena,
    model: Model,
    released: Vec<Block>,
}

impl Both {
    fn new(options: BlockOptions, gap: u64) -> Both {
        let blocks = Blocks::with_options(options).expect("the options make sense");
        Both { arena: Arena::new(blocks, gap), model: Model::default(), released: Vec::new() }
    }

    fn add_slab(&mut self, stream: StreamKey, bytes: usize) {
        let address = self.arena.next;
        let id = self.arena.add_slab(stream, bytes);
        self.model.slabs.push(ModelSlab { id, stream, address, bytes });
    }

    fn allocate(&mut self, stream: StreamKey, requested: usize, grow: bool) -> Block {
        let options = *self.arena.blocks.options();
        let bytes = requested.max(1).next_multiple_of(options.alignment);
        let slab_bytes = self.arena.blocks.slab_bytes_for(requested).expect("not larger than memory");
        let fit = self.model.best_fit(stream, bytes);
        let growth = self.arena.blocks.growth_for(stream, requested).expect("not larger than memory");
        match growth {
            Growth::Needed(size) => assert_eq!((size, fit), (slab_bytes, None)),
            Growth::Unneeded => assert!(fit.is_some()),
            Growth::Preferred(size) => {
                assert_eq!(size, slab_bytes);
                assert!(fit.is_some_and(|fit| fit.bytes >= 2 * bytes && fit.bytes > GRANULARITY));
                let usage = self.arena.blocks.stream_usage(stream);
                assert!(usage.reserved + size <= usage.peak + usage.peak / options.slack_divisor);
            }
        }
        match growth {
            Growth::Needed(size) => {
                assert_eq!(self.arena.blocks.allocate(stream, requested), None, "no free block holds it");
                self.add_slab(stream, size);
            }
            Growth::Preferred(size) if grow => self.add_slab(stream, size),
            _ => {}
        }
        let fit = self.model.best_fit(stream, bytes).expect("there is room now");
        let rest = fit.bytes - bytes;
        let taken = if rest >= options.min_remainder { bytes } else { fit.bytes };
        let block = self.arena.blocks.allocate(stream, requested).expect("there is room now");
        assert_eq!((block.address, block.bytes, block.requested), (fit.address, taken, requested), "best fit");
        self.model.live.push((block, stream));
        self.model.peak = self.model.peak.max(self.model.in_use());
        block
    }

    fn release(&mut self, nth: usize) {
        if nth < self.model.live.len() {
            let (block, _) = self.model.live.remove(nth);
            assert_eq!(self.arena.blocks.release(block.id), Ok(()));
            self.released.push(block);
        }
    }

    fn act(&mut self, action: &Action) {
        match *action {
            Action::Allocate { stream, bytes, grow } => {
                self.allocate(StreamKey(stream), bytes, grow);
            }
            Action::Release(nth) => self.release(nth),
            Action::ReleaseAgain(nth) => {
                if let Some(block) = self.released.get(nth) {
                    assert!(!self.arena.blocks.is_live(block.id), "another block in its place is not it");
                    assert_eq!(self.arena.blocks.release(block.id), Err(StaleBlock));
                    assert_eq!(self.arena.blocks.set_name(block.id, "x"), Err(StaleBlock));
                }
            }
            Action::AddSlab { stream, units } => {
                let bytes = units * self.arena.blocks.options().alignment;
                self.add_slab(StreamKey(stream), bytes);
            }
            Action::AddOverlap { slab, units } => {
                let alignment = self.arena.blocks.options().alignment;
                if let Some(slab) = self.model.slabs.get(slab) {
                    let inside = (units * alignment).min(slab.bytes - alignment);
                    let result = self.arena.blocks.add_slab(slab.stream, slab.address + inside as u64, alignment);
                    assert_eq!(result, Err(AddSlabError::Overlap));
                    let below = slab.address - alignment as u64;
                    let result = self.arena.blocks.add_slab(slab.stream, below, 2 * alignment + inside);
                    assert_eq!(result, Err(AddSlabError::Overlap));
                }
            }
            Action::RemoveSlab(nth) => {
                if let Some(slab) = self.model.slabs.get(nth).copied() {
                    let result = self.arena.blocks.remove_slab(slab.id);
                    if self.model.is_free(&slab) {
                        assert_eq!(result, Ok(()));
                        self.model.slabs.remove(nth);
                        assert_eq!(self.arena.blocks.remove_slab(slab.id), Err(RemoveSlabError::Unknown));
                    } else {
                        assert_eq!(result, Err(RemoveSlabError::InUse));
                    }
                }
            }
        }
    }

    /// What the pool looks like, without ids.
    fn picture(&self) -> Vec<(u64, usize, bool, StreamKey)> {
        let told =
            |report: BlockReport| (report.address, report.bytes, report.state == BlockState::Free, report.stream);
        self.arena.blocks.snapshot().into_iter().map(told).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn the_pool_is_the_model(options in options(), touching in any::<bool>(), actions in actions(3, 100)) {
        let mut both = Both::new(options, if touching { 0 } else { 4096 });
        for action in &actions {
            both.act(action);
            both.model.compare(&both.arena.blocks);
        }
        // And all of it comes back, in an order of its own.
        while !both.model.live.is_empty() {
            both.release(both.model.live.len() / 2);
        }
        both.model.compare(&both.arena.blocks);
        let slabs: Vec<_> = both.model.slabs.drain(..).collect();
        for slab in slabs {
            prop_assert_eq!(both.arena.blocks.remove_slab(slab.id), Ok(()));
        }
        both.model.compare(&both.arena.blocks);
    }

    #[test]
    fn the_same_calls_give_the_same_addresses(options in options(), actions in actions(2, 80)) {
        let run = || {
            let mut both = Both::new(options, 0);
            actions.iter().map(|action| { both.act(action); both.picture() }).collect::<Vec<_>>()
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn no_two_blocks_have_the_same_id(sizes in prop::collection::vec(sizes(), 1..60)) {
        let mut both = Both::new(BlockOptions { slab_granularity: GRANULARITY, ..BlockOptions::default() }, 0);
        let mut generations = Vec::new();
        for (at, &bytes) in sizes.iter().enumerate() {
            let block = both.allocate(StreamKey(1), bytes, false);
            generations.push(block.id.generation());
            if at % 2 == 1 {
                both.release(0);
            }
        }
        prop_assert!(generations.is_sorted_by(|a, b| a < b));
    }

    /// A recording that fails leaves the pool as before: the same blocks, the same figures, and the same answers to what comes next.
    #[test]
    fn a_failed_recording_leaves_nothing_behind(
        options in options(),
        before in actions(2, 60),
        failing in prop::collection::vec((1..4_u64, sizes(), any::<bool>(), 0..8_usize), 1..60),
        after in actions(3, 40),
    ) {
        let run = |fails: bool| {
            let mut both = Both::new(options, 0);
            before.iter().for_each(|action| both.act(action));
            both.arena.blocks.start_window();
            let (next, stats) = (both.arena.next, both.arena.blocks.stats());
            let (before, peak) = (both.picture(), both.model.peak);
            if fails {
                let mark = both.arena.blocks.mark();
                let mut mine = Vec::new();
                for &(stream, bytes, grow, release) in &failing {
                    mine.push(both.allocate(StreamKey(stream), bytes, grow).id);
                    if release < mine.len() {
                        let id = mine.swap_remove(release);
                        both.arena.blocks.release(id).expect("it is live");
                        both.model.live.retain(|(block, _)| block.id != id);
                    }
                }
                for id in mine {
                    both.arena.blocks.release(id).expect("it is live");
                    both.model.live.retain(|(block, _)| block.id != id);
                }
                let added: Vec<_> = both.arena.blocks.slabs_since(&mark).collect();
                assert_eq!(both.arena.blocks.roll_back(&mark), added);
                assert_eq!(both.arena.blocks.slabs_since(&mark).count(), 0);
                both.model.slabs.retain(|slab| !added.contains(&slab.id));
                both.model.peak = peak;
                both.model.compare(&both.arena.blocks);
                assert_eq!(both.picture(), before);
                let mut now = both.arena.blocks.stats();
                now.streams.retain(|key, _| stats.streams.contains_key(key));
                assert_eq!(now, stats);
                both.arena.next = next;
                both.arena.blocks.start_window();
            }
            // Releases again are of blocks that one of the two runs has not had.
            let rest = after.iter().filter(|action| !matches!(action, Action::ReleaseAgain(_)));
            rest.map(|action| { both.act(action); both.picture() }).collect::<Vec<_>>()
        };
        prop_assert_eq!(run(true), run(false));
    }
}
