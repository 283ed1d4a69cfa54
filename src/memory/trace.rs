//! A recorded order of requests and releases, without addresses: what a forward asks of its pool. For simulations, and the input of planned
//! allocation.

use super::ids::StaleBlock;
use super::sizes::round_up;
use std::sync::Arc;

/// What a forward asked of its pool, in order.
///
/// Steps are counted from 0; each request and each release is one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Trace {
    requests: Vec<TraceRequest>,
    steps: Vec<TraceStep>,
    /// Names, by request; shorter where the last have none.
    names: Vec<Option<Arc<str>>>,
}

/// What a block is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Role {
    /// An intermediate of a segment.
    #[default]
    Intermediate,
    /// Where a break's result lands.
    Handoff,
    /// What the forward returned, or what still lived when it had returned.
    Output,
    /// A temporary of a break. It comes from the stream-ordered pool beside the capture pool, and is not planned.
    Scratch,
}

/// One request, with the steps between which its block was live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TraceRequest {
    /// The bytes that were asked for.
    pub bytes: usize,
    /// The step that allocated the block.
    pub allocated: usize,
    /// The step that released it; `None` when it outlived the trace.
    pub released: Option<usize>,
    /// What it is for.
    pub role: Role,
}

/// One step. The number is the request's place among the requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceStep {
    /// A block is allocated.
    Allocate(usize),
    /// It is released.
    Release(usize),
}

impl Trace {
    /// No steps yet.
    pub fn new() -> Trace {
        Trace::default()
    }

    /// Records a request, and gives its number.
    pub fn allocate(&mut self, bytes: usize) -> usize {
        self.allocate_for(bytes, Role::default())
    }

    /// The same, for a block with a role.
    pub fn allocate_for(&mut self, bytes: usize, role: Role) -> usize {
        let request = self.requests.len();
        self.requests.push(TraceRequest { bytes, allocated: self.steps.len(), released: None, role });
        self.steps.push(TraceStep::Allocate(request));
        request
    }

    /// Records the release of a request's block.
    ///
    /// # Errors
    /// [`StaleBlock`] when there is no such request, or its block was released before.
    pub fn release(&mut self, request: usize) -> Result<(), StaleBlock> {
        let step = self.steps.len();
        let released = &mut self.requests.get_mut(request).ok_or(StaleBlock)?.released;
        if released.is_some() {
            return Err(StaleBlock);
        }
        *released = Some(step);
        self.steps.push(TraceStep::Release(request));
        Ok(())
    }

    /// Gives a request a name, for pictures and reports. There may be no such request.
    pub fn set_name(&mut self, request: usize, name: impl Into<Arc<str>>) {
        if request < self.requests.len() {
            if self.names.len() <= request {
                self.names.resize(request + 1, None);
            }
            self.names[request] = Some(name.into());
        }
    }

    /// Gives a request another role. There may be no such request.
    pub fn set_role(&mut self, request: usize, role: Role) {
        if let Some(request) = self.requests.get_mut(request) {
            request.role = role;
        }
    }

    /// A request's name.
    pub fn name(&self, request: usize) -> Option<&str> {
        self.names.get(request)?.as_deref()
    }

    /// Makes outputs of the blocks that are live now: the forward has returned.
    pub(crate) fn finish(&mut self) {
        for request in self.requests.iter_mut().filter(|request| request.released.is_none()) {
            if request.role != Role::Scratch {
                request.role = Role::Output;
            }
        }
    }

    /// The same steps with every request `by` times as large, as the trace of a forward with so many times the rows where all tensors grow with
    /// them. A size that would overflow is the largest number.
    #[must_use]
    pub fn scaled(&self, by: usize) -> Trace {
        let mut scaled = self.clone();
        for request in &mut scaled.requests {
            request.bytes = request.bytes.saturating_mul(by);
        }
        scaled
    }

    /// The requests, in order.
    pub fn requests(&self) -> &[TraceRequest] {
        &self.requests
    }

    /// The steps, in order.
    pub fn steps(&self) -> &[TraceStep] {
        &self.steps
    }

    /// The most bytes that were live at once, with each request rounded up to a multiple of `alignment`, and at least one such unit. No placement
    /// needs less. Scratch of breaks is not counted.
    pub fn peak(&self, alignment: usize) -> usize {
        self.peak_of(alignment, |role| role != Role::Scratch)
    }

    /// The same, of the scratch of breaks alone.
    pub fn scratch_peak(&self, alignment: usize) -> usize {
        self.peak_of(alignment, |role| role == Role::Scratch)
    }

    fn peak_of(&self, alignment: usize, counts: impl Fn(Role) -> bool) -> usize {
        let unit = alignment.max(1);
        let size = |request: usize| {
            let TraceRequest { bytes, role, .. } = self.requests[request];
            if counts(role) { round_up(bytes, unit).unwrap_or(usize::MAX) } else { 0 }
        };
        let (mut live, mut peak) = (0_u128, 0);
        for step in &self.steps {
            match *step {
                TraceStep::Allocate(request) => live += size(request) as u128,
                TraceStep::Release(request) => live -= size(request) as u128,
            }
            peak = peak.max(live);
        }
        usize::try_from(peak).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::{StaleBlock, Trace, TraceStep};

    #[test]
    fn intervals_and_peak_follow_the_steps() {
        let mut trace = Trace::new();
        let a = trace.allocate(1000);
        let b = trace.allocate(1);
        assert_eq!(trace.release(a), Ok(()));
        let c = trace.allocate(0);
        assert_eq!(trace.release(b), Ok(()));
        let intervals: Vec<_> = trace.requests().iter().map(|request| (request.allocated, request.released)).collect();
        assert_eq!(intervals, [(0, Some(2)), (1, Some(4)), (3, None)]);
        assert_eq!(trace.steps()[2..4], [TraceStep::Release(a), TraceStep::Allocate(c)]);
        assert_eq!((trace.peak(512), trace.peak(1)), (1536, 1001));
    }

    #[test]
    fn a_release_without_a_live_block_is_refused_and_not_recorded() {
        let mut trace = Trace::new();
        let a = trace.allocate(16);
        assert_eq!(trace.release(a + 1), Err(StaleBlock));
        assert_eq!(trace.release(a), Ok(()));
        assert_eq!(trace.release(a), Err(StaleBlock));
        assert_eq!(trace.steps().len(), 2);
    }

    #[test]
    fn a_peak_beyond_all_memory_is_the_largest_number() {
        let mut trace = Trace::new();
        trace.allocate(usize::MAX);
        trace.allocate(usize::MAX);
        assert_eq!(trace.peak(512), usize::MAX);
    }
}
