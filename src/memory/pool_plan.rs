//! Where the blocks of recorded traces go: one range for all of them.

use super::planned_range::{Divergence, DivergenceKind};
use super::planner::{BufferSpec, Method, PlanError, PlanOptions, plan};
use super::trace::{Role, Trace};
use std::sync::Arc;

/// BlockTable for the blocks of several traces, one for each capture, in one range: captures of one pool run one after the other, so it is as large as
/// the largest takes and not their sum.
#[derive(Clone, Debug, Default)]
pub struct PoolPlan {
    traces: Vec<TracePlan>,
}

/// BlockTable for the blocks of one trace. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TracePlan {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    trace: Trace,
    /// By request of the pool: scratch of breaks is not among them.
    places: Vec<Placement>,
    /// The request of the trace that a place is for.
    requests: Vec<usize>,
    bytes: usize,
    lower_bound: usize,
    method: Method,
}

/// Where a request's block lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Placement {
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
    pub(crate) requested: usize,
}

impl PoolPlan {
    /// Plans each trace.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn new(traces: impl IntoIterator<Item = Trace>, options: &PlanOptions) -> Result<PoolPlan, PlanError> {
        let traces = traces.into_iter().map(|trace| TracePlan::new(trace, options)).collect::<Result<_, _>>()?;
        Ok(PoolPlan { traces })
    }

    /// Of plans that were made already.
    pub fn of(traces: impl IntoIterator<Item = TracePlan>) -> PoolPlan {
        PoolPlan { traces: traces.into_iter().collect() }
    }

    /// The plans, in the order of the traces.
    pub fn traces(&self) -> &[TracePlan] {
        &self.traces
    }

    /// What the range must have, in bytes: the most that a trace takes.
    pub fn bytes(&self) -> usize {
        self.traces.iter().map(TracePlan::bytes).max().unwrap_or(0)
    }

    /// The most bytes that are live at once in any trace: no plan takes less.
    pub fn lower_bound(&self) -> usize {
        self.traces.iter().map(TracePlan::lower_bound).max().unwrap_or(0)
    }
}

impl TracePlan {
    /// Plans a trace. Blocks that outlive it are live to its end; what comes after is another recording.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn new(trace: Trace, options: &PlanOptions) -> Result<TracePlan, PlanError> {
        let end = trace.steps().len();
        let of_the_pool = trace.requests().iter().enumerate().filter(|(_, request)| request.role != Role::Scratch);
        let (requests, demands): (Vec<usize>, Vec<BufferSpec>) = of_the_pool
            .map(|(index, request)| {
                let last = request.released.unwrap_or(end).max(request.allocated + 1);
                (index, BufferSpec::new(request.bytes, request.allocated as u64, last as u64))
            })
            .unzip();
        let placement = plan(&demands, options)?;
        let unit = options.alignment;
        let places = requests.iter().zip(placement.offsets()).map(|(&request, &offset)| {
            let requested = trace.requests()[request].bytes;
            // The planner has rounded it up before.
            Placement { offset, bytes: requested.max(1).next_multiple_of(unit), requested }
        });
        let inner = Inner {
            places: places.collect(),
            bytes: placement.bytes(),
            lower_bound: placement.lower_bound(),
            method: placement.method(),
            requests,
            trace,
        };
        Ok(TracePlan { inner: Arc::new(inner) })
    }

    /// The trace.
    pub fn trace(&self) -> &Trace {
        &self.inner.trace
    }

    /// Where the blocks lie: the trace's request, the offset and the bytes of each, in the order of the requests.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = (usize, usize, usize)> + '_ {
        let places = self.inner.requests.iter().zip(&self.inner.places);
        places.map(|(&request, place)| (request, place.offset, place.bytes))
    }

    /// Requests that are planned.
    pub fn len(&self) -> usize {
        self.inner.places.len()
    }

    /// Whether nothing is planned.
    pub fn is_empty(&self) -> bool {
        self.inner.places.is_empty()
    }

    /// What it takes, in bytes.
    pub fn bytes(&self) -> usize {
        self.inner.bytes
    }

    /// The most bytes that are live at once: no plan takes less.
    pub fn lower_bound(&self) -> usize {
        self.inner.lower_bound
    }

    /// How the places were found.
    pub fn method(&self) -> Method {
        self.inner.method
    }

    pub(crate) fn get(&self, request: usize) -> Option<Placement> {
        self.inner.places.get(request).copied()
    }

    pub(crate) fn divergence(&self, request: usize, kind: DivergenceKind) -> Divergence {
        let traced = self.inner.requests.get(request);
        let name = traced.and_then(|&traced| self.inner.trace.name(traced)).map(str::to_owned);
        Divergence { request, name, kind }
    }
}
