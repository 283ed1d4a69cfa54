//! The decision where a block lies: at its planned place, by online best fit, or in a slab that is to be taken first. It moves no byte, and knows no driver.

use super::allocator::{AddSlabError, Allocator, Block, RemoveSlabError};
use super::divergence::Divergence;
use super::ids::{BlockId, SlabId, StreamKey};
use super::planned_range::{PlannedRange, Served};
use super::pool_plan::TracePlan;
use super::sizes::{SLAB_BYTES, TooLarge, round_up};

/// The blocks of a pool, planned and online, and how much there may be.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    online: Allocator,
    planned: PlannedRange,
    /// Where the planned range starts.
    range_address: u64,
    /// The most bytes of memory. `None`: as many as there are.
    limit: Option<usize>,
    peak: usize,
    divergences: u64,
    last_divergence: Option<Divergence>,
}

/// Which block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockRef {
    /// One of the online allocator's.
    Online(BlockId),
    /// At this offset of the planned range.
    Planned(usize),
}

/// What is to be done about a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// Nothing: this block, at this address.
    Here(BlockRef, u64),
    /// A slab of so many bytes is to be added for the stream, and then it is to be asked again.
    Grow(usize),
}

/// Why a request can't be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// It is larger than any memory.
    TooLarge,
    /// The slab that it needs would be over the limit.
    OverLimit,
}

impl From<TooLarge> for Refused {
    fn from(_: TooLarge) -> Refused {
        Refused::TooLarge
    }
}

/// What an arena holds, in bytes and blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ArenaUsage {
    /// Bytes of slabs and of the planned range.
    pub(crate) reserved: usize,
    /// Of these, the planned range.
    pub(crate) planned: usize,
    /// Bytes of live blocks.
    pub(crate) in_use: usize,
    /// The most bytes that were in use at once, ever.
    pub(crate) peak: usize,
    /// Live blocks.
    pub(crate) blocks: usize,
    /// Recordings that differed from their plan.
    pub(crate) divergences: u64,
}

impl Arena {
    /// No memory yet, and no more than the limit ever.
    pub(crate) fn new(limit: Option<usize>) -> Arena {
        Arena { limit, ..Arena::default() }
    }

    /// A block for the next request of a recording: at its planned place, where there is a plan that still holds, or online.
    ///
    /// # Errors
    /// [`Refused`]; nothing has changed then, but that a plan may be left.
    pub(crate) fn request(&mut self, stream: StreamKey, bytes: usize) -> Result<Answer, Refused> {
        match self.planned.take(bytes) {
            Served::At(offset) => {
                self.note_peak();
                return Ok(Answer::Here(BlockRef::Planned(offset), self.range_address + offset as u64));
            }
            Served::Differs(divergence) => self.diverges(divergence),
            Served::Elsewhere => {}
        }
        self.request_online(stream, bytes)
    }

    /// A block of no plan.
    ///
    /// # Errors
    /// [`Refused`]; nothing has changed then.
    pub(crate) fn request_online(&mut self, stream: StreamKey, bytes: usize) -> Result<Answer, Refused> {
        if let Some(Block { id, address }) = self.online.allocate(stream, bytes) {
            self.note_peak();
            return Ok(Answer::Here(BlockRef::Online(id), address));
        }
        let slab_bytes = round_up(bytes, SLAB_BYTES)?;
        if self.may_grow(slab_bytes) { Ok(Answer::Grow(slab_bytes)) } else { Err(Refused::OverLimit) }
    }

    /// Gives a block back. Whether there was one.
    pub(crate) fn release(&mut self, block: BlockRef) -> bool {
        match block {
            BlockRef::Online(id) => self.online.release(id).is_ok(),
            BlockRef::Planned(offset) => self.planned.release(offset),
        }
    }

    /// Whether so many bytes more are within the limit.
    pub(crate) fn may_grow(&self, bytes: usize) -> bool {
        self.limit.is_none_or(|limit| self.reserved().saturating_add(bytes) <= limit)
    }

    /// Adds a slab for a stream, wholly free.
    ///
    /// # Errors
    /// [`AddSlabError`]; nothing has changed then.
    pub(crate) fn add_slab(&mut self, stream: StreamKey, address: u64, bytes: usize) -> Result<SlabId, AddSlabError> {
        self.online.add_slab(stream, address, bytes)
    }

    /// Takes away a slab of which no block is live.
    ///
    /// # Errors
    /// [`RemoveSlabError`]; nothing has changed then.
    pub(crate) fn remove_slab(&mut self, slab: SlabId) -> Result<(), RemoveSlabError> {
        self.online.remove_slab(slab)
    }

    /// Another planned range, of no block that is in use.
    pub(crate) fn set_range(&mut self, address: u64, bytes: usize) {
        self.range_address = address;
        self.planned.set_range(bytes);
    }

    /// Bytes of the planned range, and its blocks that are in use.
    pub(crate) fn range(&self) -> (usize, usize) {
        (self.planned.bytes(), self.planned.blocks())
    }

    /// Begins a recording, which walks through the plan if it has one.
    pub(crate) fn begin(&mut self, plan: Option<&TracePlan>) {
        self.planned.begin(plan);
    }

    /// Ends it. `whole`: it was not broken off.
    pub(crate) fn end(&mut self, whole: bool) {
        if let Some(divergence) = self.planned.end(whole) {
            self.diverges(divergence);
        }
    }

    pub(crate) fn usage(&self) -> ArenaUsage {
        ArenaUsage {
            reserved: self.reserved(),
            planned: self.planned.bytes(),
            in_use: self.in_use(),
            peak: self.peak,
            blocks: self.online.usage().blocks + self.planned.blocks(),
            divergences: self.divergences,
        }
    }

    /// How the last recording that differed from its plan did.
    pub(crate) fn last_divergence(&self) -> Option<&Divergence> {
        self.last_divergence.as_ref()
    }

    /// What no block holds, as address and bytes, ascending.
    pub(crate) fn free_ranges(&self) -> Vec<(u64, usize)> {
        let planned = self.planned.free_ranges().into_iter();
        let planned = planned.map(|(offset, bytes)| (self.range_address + offset as u64, bytes));
        let mut ranges: Vec<_> = planned.chain(self.online.free_ranges()).collect();
        ranges.sort_unstable();
        ranges
    }

    fn reserved(&self) -> usize {
        self.online.usage().reserved + self.planned.bytes()
    }

    fn in_use(&self) -> usize {
        self.online.usage().in_use + self.planned.in_use()
    }

    fn note_peak(&mut self) {
        self.peak = self.peak.max(self.in_use());
    }

    fn diverges(&mut self, divergence: Divergence) {
        log::warn!("a recording differs from its plan, and takes more memory than planned: {divergence}");
        self.divergences += 1;
        self.last_divergence = Some(divergence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Trace;
    use crate::memory::divergence::DivergenceKind;
    use crate::memory::planner::PlanOptions;
    use crate::memory::pool_plan::PoolPlan;

    const ONE: StreamKey = StreamKey(1);
    const RANGE: u64 = 1 << 30;

    fn here(answer: Result<Answer, Refused>) -> (BlockRef, u64) {
        match answer {
            Ok(Answer::Here(block, address)) => (block, address),
            other => panic!("{other:?}"),
        }
    }

    /// Two blocks of 1024 at once.
    fn plan() -> PoolPlan {
        let mut trace = Trace::new();
        trace.allocate(1024);
        trace.allocate(1000);
        PoolPlan::new([trace], &PlanOptions::default()).expect("a plan")
    }

    fn planned() -> Arena {
        let (mut arena, plan) = (Arena::new(None), plan());
        arena.set_range(RANGE, plan.bytes());
        arena.begin(Some(&plan.traces()[0]));
        arena
    }

    #[test]
    fn a_request_is_served_where_there_is_room_and_asks_for_a_slab_elsewhere() {
        let mut arena = Arena::new(None);
        assert_eq!(arena.request(ONE, 5 << 20), Ok(Answer::Grow(6 << 20)));
        arena.add_slab(ONE, 1 << 20, 6 << 20).expect("a slab");
        let (block, address) = here(arena.request(ONE, 5 << 20));
        assert_eq!(address, 1 << 20);
        assert_eq!(arena.request(ONE, 2 << 20), Ok(Answer::Grow(2 << 20)));
        assert_eq!(here(arena.request(ONE, 1 << 20)).1, 6 << 20);
        assert!(arena.release(block) && !arena.release(block));
        assert_eq!(arena.free_ranges(), [(1 << 20, 5 << 20)]);
        let usage = arena.usage();
        assert_eq!((usage.reserved, usage.in_use, usage.peak, usage.blocks), (6 << 20, 1 << 20, 6 << 20, 1));
    }

    #[test]
    fn nothing_is_asked_for_beyond_the_limit() {
        let mut arena = Arena::new(Some(4 << 20));
        arena.set_range(RANGE, 2 << 20);
        assert_eq!(arena.request(ONE, 1), Ok(Answer::Grow(2 << 20)));
        assert_eq!(arena.request(ONE, (2 << 20) + 1), Err(Refused::OverLimit));
        assert_eq!(arena.request(ONE, usize::MAX), Err(Refused::TooLarge));
        arena.add_slab(ONE, 1 << 20, 2 << 20).expect("a slab");
        assert!(!arena.may_grow(1) && arena.may_grow(0));
        here(arena.request(ONE, 2 << 20));
        assert_eq!(arena.request(ONE, 1), Err(Refused::OverLimit));
    }

    #[test]
    fn a_recording_walks_through_its_plan() {
        let mut arena = planned();
        let (a, b) = (here(arena.request(ONE, 1024)), here(arena.request(ONE, 1000)));
        assert!(matches!((a.0, b.0), (BlockRef::Planned(_), BlockRef::Planned(_))));
        assert_eq!(a.1.abs_diff(b.1), 1024);
        arena.end(true);
        let usage = arena.usage();
        assert_eq!((usage.reserved, usage.planned, usage.in_use, usage.peak), (2048, 2048, 2048, 2048));
        assert_eq!((usage.blocks, usage.divergences, arena.range()), (2, 0, (2048, 2)));
        assert!(arena.release(a.0) && arena.release(b.0));
        assert_eq!(arena.free_ranges(), [(RANGE, 2048)]);
    }

    /// A planned place is given only when it is free, whatever the plan says.
    #[test]
    fn a_request_whose_place_is_occupied_is_served_elsewhere_and_counted_once() {
        let mut arena = planned();
        let kept = here(arena.request(ONE, 1024));
        arena.end(false);
        assert_eq!(arena.usage().divergences, 0, "it was broken off");
        arena.begin(Some(&plan().traces()[0]));
        assert_eq!(arena.request(ONE, 1024), Ok(Answer::Grow(2 << 20)), "the place is still in use");
        arena.add_slab(ONE, 1 << 20, 2 << 20).expect("a slab");
        let other = here(arena.request(ONE, 1024));
        assert!(matches!(other.0, BlockRef::Online(_)) && other.1 != kept.1);
        here(arena.request(ONE, 1000));
        arena.end(true);
        assert_eq!(arena.usage().divergences, 1);
        let kind = arena.last_divergence().expect("one").kind;
        assert_eq!(kind, DivergenceKind::Occupied { asked: 1024 });
        assert_eq!(arena.usage().peak, 3072);
    }

    #[test]
    fn a_recording_that_ends_early_differs() {
        let mut arena = planned();
        here(arena.request(ONE, 1024));
        arena.end(true);
        assert_eq!(arena.last_divergence().expect("one").kind, DivergenceKind::Fewer { planned: 2 });
    }

    #[test]
    fn a_slab_goes_when_it_is_free() {
        let mut arena = Arena::new(None);
        let slab = arena.add_slab(ONE, 1 << 20, 2 << 20).expect("a slab");
        let (block, _) = here(arena.request_online(ONE, 1));
        assert_eq!(arena.remove_slab(slab), Err(RemoveSlabError::InUse));
        assert!(arena.release(block));
        assert_eq!((arena.remove_slab(slab), arena.usage().reserved), (Ok(()), 0));
    }
}
