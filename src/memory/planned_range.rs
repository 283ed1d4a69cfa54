//! The planned part of a pool: one range whose blocks lie where a plan puts them.
//!
//! A recording that has a plan walks through it request by request. A request that is the planned one gets its planned place, if nothing that still
//! lives is in the way; the first that is not ends the walk, and the rest of the recording is served elsewhere. So a plan that doesn't hold costs
//! memory and never correctness.
//!
//! Invariants:
//! 1. Blocks that live at once don't overlap: a place is given only when it is free, whatever the plan says.
//! 2. A recording's requests are served from the range up to the first that differs, and none after it.

use super::divergence::{Divergence, DivergenceKind};
use super::pool_plan::TracePlan;
use std::collections::BTreeMap;

/// The range, the blocks in it, and the recording's place in its plan.
#[derive(Debug, Default)]
pub(crate) struct PlannedRange {
    /// In bytes, from offset 0.
    bytes: usize,
    /// Blocks in use: end by offset.
    live: BTreeMap<usize, usize>,
    in_use: usize,
    walk: Option<Walk>,
}

#[derive(Debug)]
struct Walk {
    plan: TracePlan,
    next: usize,
    /// Nothing more is served.
    diverged: bool,
}

/// What became of a request.
pub(crate) enum Served {
    /// It lies at this offset.
    At(usize),
    /// It differs: said once a recording.
    Differs(Divergence),
    /// There is no plan, or it was left.
    Elsewhere,
}

impl PlannedRange {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the blocks in use.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use
    }

    /// Blocks in use.
    pub(crate) fn blocks(&self) -> usize {
        self.live.len()
    }

    /// Another range, of which no block is in use.
    pub(crate) fn set_range(&mut self, bytes: usize) {
        debug_assert!(self.live.is_empty());
        self.bytes = bytes;
    }

    /// Begins a recording.
    pub(crate) fn begin(&mut self, plan: Option<&TracePlan>) {
        self.walk = plan.map(|plan| Walk { plan: plan.clone(), next: 0, diverged: false });
    }

    /// Ends it. `whole`: it was not broken off.
    pub(crate) fn end(&mut self, whole: bool) -> Option<Divergence> {
        let walk = self.walk.take()?;
        let planned = walk.plan.len();
        let fewer = whole && !walk.diverged && walk.next < planned;
        fewer.then(|| walk.plan.divergence(walk.next, DivergenceKind::Fewer { planned }))
    }

    /// A block for the next request.
    pub(crate) fn take(&mut self, requested: usize) -> Served {
        let Some(walk) = self.walk.as_mut().filter(|walk| !walk.diverged) else { return Served::Elsewhere };
        let request = walk.next;
        let kind = match walk.plan.request(request) {
            _ if walk.plan.bytes() > self.bytes => {
                DivergenceKind::Range { planned: walk.plan.bytes(), range: self.bytes }
            }
            None => DivergenceKind::More { asked: requested },
            Some((_, planned)) if planned != requested => DivergenceKind::Size { planned, asked: requested },
            Some((place, _)) => {
                let end = place.offset + place.bytes;
                // Blocks don't overlap, so the last that begins before the end is the one that reaches furthest.
                let below = self.live.range(..end).next_back();
                if below.is_none_or(|(_, below)| *below <= place.offset) {
                    walk.next += 1;
                    self.live.insert(place.offset, end);
                    self.in_use += place.bytes;
                    return Served::At(place.offset);
                }
                DivergenceKind::Occupied { asked: requested }
            }
        };
        walk.diverged = true;
        Served::Differs(walk.plan.divergence(request, kind))
    }

    /// Gives a block back. Whether there was one.
    pub(crate) fn release(&mut self, offset: usize) -> bool {
        let found = self.live.remove(&offset);
        if let Some(end) = found {
            self.in_use -= end - offset;
        }
        found.is_some()
    }

    /// The gaps between blocks, as offset and bytes, ascending.
    pub(crate) fn free_ranges(&self) -> Vec<(usize, usize)> {
        let mut gaps = Vec::new();
        let mut at = 0;
        for (&offset, &end) in self.live.iter().chain([(&self.bytes, &self.bytes)]) {
            if offset > at {
                gaps.push((at, offset - at));
            }
            at = end;
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::{DivergenceKind, PlannedRange, Served};
    use crate::memory::Trace;
    use crate::memory::planner::PlanOptions;
    use crate::memory::pool_plan::PoolPlan;

    /// Two blocks of 1000 and one of 500 after the first is gone.
    fn plan() -> PoolPlan {
        let mut trace = Trace::new();
        let a = trace.allocate(1000);
        let b = trace.allocate(1000);
        trace.release(a).expect("a live block");
        trace.allocate(500);
        trace.release(b).expect("a live block");
        PoolPlan::new([trace], &PlanOptions::default()).expect("a plan")
    }

    fn begin(planned: &mut PlannedRange) {
        let plan = plan();
        planned.set_range(plan.bytes());
        planned.begin(Some(&plan.traces()[0]));
    }

    fn at(served: Served) -> usize {
        match served {
            Served::At(offset) => offset,
            Served::Differs(divergence) => panic!("{divergence}"),
            Served::Elsewhere => panic!("not planned"),
        }
    }

    fn differs(served: Served) -> DivergenceKind {
        match served {
            Served::Differs(divergence) => divergence.kind,
            _ => panic!("no divergence"),
        }
    }

    #[test]
    fn the_planned_order_gets_the_planned_places() {
        let mut planned = PlannedRange::default();
        begin(&mut planned);
        let a = at(planned.take(1000));
        let b = at(planned.take(1000));
        assert!(a != b && (planned.in_use(), planned.blocks()) == (2048, 2));
        assert!(planned.release(a) && !planned.release(a));
        assert_eq!(at(planned.take(500)), a, "the place that became free");
        assert_eq!(planned.end(true), None);
        assert_eq!(planned.free_ranges(), [(a + 512, 512)]);
    }

    #[test]
    fn each_difference_is_said_once_and_what_follows_is_served_elsewhere() {
        let mut planned = PlannedRange::default();
        begin(&mut planned);
        at(planned.take(1000));
        assert_eq!(differs(planned.take(1001)), DivergenceKind::Size { planned: 1000, asked: 1001 });
        assert!(matches!(planned.take(1000), Served::Elsewhere));
        assert_eq!(planned.end(true), None, "said already");

        let mut planned = PlannedRange::default();
        begin(&mut planned);
        at(planned.take(1000));
        at(planned.take(1000));
        assert_eq!(differs(planned.take(500)), DivergenceKind::Occupied { asked: 500 }, "a was not released");

        let mut planned = PlannedRange::default();
        begin(&mut planned);
        let a = at(planned.take(1000));
        at(planned.take(1000));
        planned.release(a);
        at(planned.take(500));
        assert_eq!(differs(planned.take(1)), DivergenceKind::More { asked: 1 });

        let mut planned = PlannedRange::default();
        begin(&mut planned);
        at(planned.take(1000));
        assert_eq!(planned.end(true).expect("a difference").kind, DivergenceKind::Fewer { planned: 3 });

        let mut planned = PlannedRange::default();
        begin(&mut planned);
        at(planned.take(1000));
        assert_eq!(planned.end(false), None, "a recording that failed says nothing");

        let mut planned = PlannedRange::default();
        planned.set_range(1024);
        planned.begin(Some(&plan().traces()[0]));
        assert_eq!(differs(planned.take(1000)), DivergenceKind::Range { planned: 2048, range: 1024 });

        let mut planned = PlannedRange::default();
        planned.set_range(1024);
        planned.begin(None);
        assert!(matches!(planned.take(1000), Served::Elsewhere));
        assert_eq!(planned.end(true), None);
    }
}
