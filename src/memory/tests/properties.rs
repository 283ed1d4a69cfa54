//! Whatever is done, in whatever order: the allocator against the model.

use super::model::{Model, ModelBlock, ModelSlab};
use super::{Block, Source, StreamKey};
use crate::memory::allocator::{AddSlabError, RemoveSlabError};
use crate::memory::ids::StaleBlock;
use crate::memory::sizes::{ALIGNMENT, round_up};
use proptest::prelude::*;

/// Slabs are small here, so that they are full and free often.
const SLAB: usize = 8192;

#[derive(Clone, Debug)]
enum Action {
    /// A request, for which a slab is added where no free block holds it.
    Allocate {
        stream: u64,
        bytes: usize,
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
        2 => 1..(SLAB * 2),
        1 => (1..8_usize).prop_map(|n| n * SLAB),
    ]
}

fn actions(streams: u64, longest: usize) -> impl Strategy<Value = Vec<Action>> {
    let stream = || 1..=streams;
    let action = prop_oneof![
        12 => (stream(), sizes()).prop_map(|(stream, bytes)| Action::Allocate { stream, bytes }),
        10 => (0..24_usize).prop_map(Action::Release),
        1 => (0..64_usize).prop_map(Action::ReleaseAgain),
        1 => (stream(), 1..40_usize).prop_map(|(stream, units)| Action::AddSlab { stream, units }),
        1 => (0..4_usize, 0..40_usize).prop_map(|(slab, units)| Action::AddOverlap { slab, units }),
        2 => (0..6_usize).prop_map(Action::RemoveSlab),
    ];
    prop::collection::vec(action, 1..longest)
}

/// An allocator and its model, to which the same is done.
struct Both {
    source: Source,
    model: Model,
    released: Vec<Block>,
}

impl Both {
    fn new(gap: u64) -> Both {
        Both { source: Source::new(gap), model: Model::default(), released: Vec::new() }
    }

    fn add_slab(&mut self, stream: StreamKey, bytes: usize) {
        let address = self.source.next;
        let id = self.source.add_slab(stream, bytes);
        self.model.slabs.push(ModelSlab { id, stream, address, bytes });
    }

    fn allocate(&mut self, stream: StreamKey, requested: usize) -> Block {
        let bytes = round_up(requested, ALIGNMENT).expect("not larger than memory");
        if self.model.best_fit(stream, bytes).is_none() {
            assert_eq!(self.source.allocator.allocate(stream, requested), None, "no free block holds it");
            self.add_slab(stream, round_up(requested, SLAB).expect("not larger than memory"));
        }
        let fit = self.model.best_fit(stream, bytes).expect("there is room now");
        let block = self.source.allocator.allocate(stream, requested).expect("there is room now");
        assert_eq!((block.address, self.source.allocator.bytes_of(block)), (fit.address, bytes), "best fit");
        self.model.live.push(ModelBlock { block, bytes, stream });
        block
    }

    fn release(&mut self, nth: usize) {
        if nth < self.model.live.len() {
            let ModelBlock { block, .. } = self.model.live.remove(nth);
            assert_eq!(self.source.allocator.release(block.id), Ok(()));
            self.released.push(block);
        }
    }

    fn remove_slab(&mut self, nth: usize) {
        let Some(slab) = self.model.slabs.get(nth).copied() else { return };
        let result = self.source.allocator.remove_slab(slab.id);
        if self.model.is_free(&slab) {
            assert_eq!(result, Ok(()));
            self.model.slabs.remove(nth);
            assert_eq!(self.source.allocator.remove_slab(slab.id), Err(RemoveSlabError::Unknown));
        } else {
            assert_eq!(result, Err(RemoveSlabError::InUse));
        }
    }

    fn act(&mut self, action: &Action) {
        match *action {
            Action::Allocate { stream, bytes } => {
                self.allocate(StreamKey(stream), bytes);
            }
            Action::Release(nth) => self.release(nth),
            Action::ReleaseAgain(nth) => {
                if let Some(block) = self.released.get(nth) {
                    assert!(self.source.allocator.live(block.id).is_none(), "another block in its place is not it");
                    assert_eq!(self.source.allocator.release(block.id), Err(StaleBlock));
                }
            }
            Action::AddSlab { stream, units } => self.add_slab(StreamKey(stream), units * ALIGNMENT),
            Action::AddOverlap { slab, units } => {
                if let Some(slab) = self.model.slabs.get(slab) {
                    let inside = (units * ALIGNMENT).min(slab.bytes - ALIGNMENT);
                    let within = slab.address + inside as u64;
                    let result = self.source.allocator.add_slab(slab.stream, within, ALIGNMENT);
                    assert_eq!(result, Err(AddSlabError::Overlap));
                    let below = slab.address - ALIGNMENT as u64;
                    let result = self.source.allocator.add_slab(slab.stream, below, 2 * ALIGNMENT + inside);
                    assert_eq!(result, Err(AddSlabError::Overlap));
                }
            }
            Action::RemoveSlab(nth) => self.remove_slab(nth),
        }
    }

    /// What the blocks look like, without ids.
    fn picture(&self) -> Vec<(u64, usize, bool, StreamKey)> {
        let told = self.source.allocator.snapshot().into_iter();
        told.map(|told| (told.address, told.bytes, told.live.is_none(), told.stream)).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn the_allocator_is_the_model(touching in any::<bool>(), actions in actions(3, 100)) {
        let mut both = Both::new(if touching { 0 } else { 4096 });
        for action in &actions {
            both.act(action);
            both.model.compare(&both.source.allocator);
        }
        // And all of it comes back, in an order of its own.
        while !both.model.live.is_empty() {
            both.release(both.model.live.len() / 2);
        }
        both.model.compare(&both.source.allocator);
        let slabs: Vec<_> = both.model.slabs.drain(..).collect();
        for slab in slabs {
            prop_assert_eq!(both.source.allocator.remove_slab(slab.id), Ok(()));
        }
        both.model.compare(&both.source.allocator);
    }

    #[test]
    fn the_same_calls_give_the_same_addresses(actions in actions(2, 80)) {
        let run = || {
            let mut both = Both::new(0);
            actions.iter().map(|action| { both.act(action); both.picture() }).collect::<Vec<_>>()
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn no_two_blocks_have_the_same_id(sizes in prop::collection::vec(sizes(), 1..60)) {
        let mut both = Both::new(0);
        let mut generations = Vec::new();
        for (at, &bytes) in sizes.iter().enumerate() {
            generations.push(both.allocate(StreamKey(1), bytes).id.generation);
            if at % 2 == 1 {
                both.release(0);
            }
        }
        prop_assert!(generations.is_sorted_by(|a, b| a < b));
    }

    /// A recording that fails leaves the pool as before, once its blocks are released and its slabs removed: the same blocks, the same figures, and the
    /// same answers to what comes next.
    #[test]
    fn a_failed_recording_leaves_nothing_behind(
        before in actions(2, 60),
        failing in prop::collection::vec((1..4_u64, sizes(), 0..8_usize), 1..60),
        after in actions(3, 40),
    ) {
        let run = |fails: bool| {
            let mut both = Both::new(0);
            before.iter().for_each(|action| both.act(action));
            let (next, usage, slabs) = (both.source.next, both.source.allocator.usage(), both.model.slabs.len());
            let before = both.picture();
            if fails {
                let mut mine = Vec::new();
                for &(stream, bytes, release) in &failing {
                    mine.push(both.allocate(StreamKey(stream), bytes).id);
                    if release < mine.len() {
                        let id = mine.swap_remove(release);
                        both.source.allocator.release(id).expect("it is live");
                        both.model.live.retain(|live| live.block.id != id);
                    }
                }
                for id in mine {
                    both.source.allocator.release(id).expect("it is live");
                    both.model.live.retain(|live| live.block.id != id);
                }
                while both.model.slabs.len() > slabs {
                    both.remove_slab(both.model.slabs.len() - 1);
                }
                both.model.compare(&both.source.allocator);
                assert_eq!(both.picture(), before);
                assert_eq!(both.source.allocator.usage(), usage);
                both.source.next = next;
            }
            // Releases again are of blocks that one of the two runs has not had.
            let rest = after.iter().filter(|action| !matches!(action, Action::ReleaseAgain(_)));
            rest.map(|action| { both.act(action); both.picture() }).collect::<Vec<_>>()
        };
        prop_assert_eq!(run(true), run(false));
    }
}
