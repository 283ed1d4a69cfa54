//! The planned part of a pool: one range whose blocks lie where a plan puts them. Knows no driver.
//!
//! A recording that has a plan walks through it request by request. A request that is the planned one gets its planned place, if nothing that still
//! lives is in the way; the first that is not ends the walk, and the rest of the recording is served elsewhere. So a plan that doesn't hold costs
//! memory and never correctness.
//!
//! Invariants:
//! 1. Blocks that live at once don't overlap: a place is given only when it is free, whatever the plan says.
//! 2. A recording's requests are served from the range up to the first that differs, and none after it.

use super::pool_plan::TracePlan;
use std::collections::BTreeMap;
use std::fmt;

/// How a recording differed from its plan. It was captured all the same, with more memory.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Divergence {
    /// The request that differed, counted from 0.
    pub request: usize,
    /// Its name in the plan, if it has one.
    pub name: Option<String>,
    /// What differed.
    pub kind: DivergenceKind,
}

/// What differed between a plan and a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DivergenceKind {
    /// Another size was asked for.
    Size {
        /// In the plan, in bytes.
        planned: usize,
        /// In the recording, in bytes.
        asked: usize,
    },
    /// The plan has no such request.
    More {
        /// What was asked for, in bytes.
        asked: usize,
    },
    /// The recording ended before it.
    Fewer {
        /// Requests in the plan.
        planned: usize,
    },
    /// A block that the plan has released by then was still in use where this one was to be.
    Occupied {
        /// What was asked for, in bytes.
        asked: usize,
    },
    /// The pool's planned range is smaller than the plan.
    Range {
        /// What the plan takes, in bytes.
        planned: usize,
        /// What there is, in bytes.
        range: usize,
    },
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Divergence { request, name, kind } = self;
        write!(f, "request {request}")?;
        if let Some(name) = name {
            write!(f, " ({name:?})")?;
        }
        match kind {
            DivergenceKind::Size { planned, asked } => write!(f, " is of {asked} bytes and was planned with {planned}"),
            DivergenceKind::More { asked } => write!(f, ", of {asked} bytes, is not in the plan"),
            DivergenceKind::Fewer { planned } => write!(f, " of {planned} was not made"),
            DivergenceKind::Occupied { asked } => {
                write!(f, ", of {asked} bytes, was to lie where a block is still in use")
            }
            DivergenceKind::Range { planned, range } => {
                write!(f, " and all others: the plan takes {planned} bytes and the pool's planned range has {range}")
            }
        }
    }
}

/// The range, the blocks in it, and the recording's place in its plan.
#[derive(Debug, Default)]
pub(crate) struct Planned {
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

impl Planned {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes and number of blocks in use.
    pub(crate) fn in_use(&self) -> (usize, usize) {
        (self.in_use, self.live.len())
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
        let kind = match walk.plan.get(request) {
            _ if walk.plan.bytes() > self.bytes => {
                DivergenceKind::Range { planned: walk.plan.bytes(), range: self.bytes }
            }
            None => DivergenceKind::More { asked: requested },
            Some(place) if place.requested != requested => {
                DivergenceKind::Size { planned: place.requested, asked: requested }
            }
            Some(place) => {
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
    pub(crate) fn give_back(&mut self, offset: usize) -> bool {
        let found = self.live.remove(&offset);
        if let Some(end) = found {
            self.in_use -= end - offset;
        }
        found.is_some()
    }

    /// The gaps between blocks, from `offset` to before `end`.
    pub(crate) fn free(&self) -> Vec<(usize, usize)> {
        let mut gaps = Vec::new();
        let mut at = 0;
        for (&offset, &end) in self.live.iter().chain([(&self.bytes, &self.bytes)]) {
            if offset > at {
                gaps.push((at, offset));
            }
            at = end;
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::{DivergenceKind, Planned, Served};
    use crate::memory::planner::PlanOptions;
    use crate::memory::pool_plan::PoolPlan;
    use crate::memory::trace::Trace;

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

    fn begin(planned: &mut Planned) {
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
        let mut planned = Planned::default();
        begin(&mut planned);
        let a = at(planned.take(1000));
        let b = at(planned.take(1000));
        assert!(a != b && planned.in_use() == (2048, 2));
        assert!(planned.give_back(a) && !planned.give_back(a));
        assert_eq!(at(planned.take(500)), a, "the place that became free");
        assert_eq!(planned.end(true), None);
        assert_eq!(planned.free(), if a == 0 { vec![(512, 1024)] } else { vec![(a + 512, a + 1024)] });
    }

    #[test]
    fn each_difference_is_said_once_and_what_follows_is_served_elsewhere() {
        let mut planned = Planned::default();
        begin(&mut planned);
        at(planned.take(1000));
        assert_eq!(differs(planned.take(1001)), DivergenceKind::Size { planned: 1000, asked: 1001 });
        assert!(matches!(planned.take(1000), Served::Elsewhere));
        assert_eq!(planned.end(true), None, "said already");

        let mut planned = Planned::default();
        begin(&mut planned);
        at(planned.take(1000));
        at(planned.take(1000));
        assert_eq!(differs(planned.take(500)), DivergenceKind::Occupied { asked: 500 }, "a was not released");

        let mut planned = Planned::default();
        begin(&mut planned);
        let a = at(planned.take(1000));
        at(planned.take(1000));
        planned.give_back(a);
        at(planned.take(500));
        assert_eq!(differs(planned.take(1)), DivergenceKind::More { asked: 1 });

        let mut planned = Planned::default();
        begin(&mut planned);
        at(planned.take(1000));
        assert_eq!(planned.end(true).expect("a difference").kind, DivergenceKind::Fewer { planned: 3 });

        let mut planned = Planned::default();
        begin(&mut planned);
        at(planned.take(1000));
        assert_eq!(planned.end(false), None, "a recording that failed says nothing");

        let mut planned = Planned::default();
        planned.set_range(1024);
        planned.begin(Some(&plan().traces()[0]));
        assert_eq!(differs(planned.take(1000)), DivergenceKind::Range { planned: 2048, range: 1024 });

        let mut planned = Planned::default();
        planned.set_range(1024);
        planned.begin(None);
        assert!(matches!(planned.take(1000), Served::Elsewhere));
        assert_eq!(planned.end(true), None);
    }
}
