//! Where the blocks of recorded traces go: one range for all of them.

use super::divergence::{Divergence, DivergenceKind};
use super::planner::{BufferSpec, Method, PlanError, PlanOptions, plan};
use super::sizes::{ALIGNMENT, round_up};
use super::trace::{Role, Trace};
use std::sync::Arc;

/// Places for the blocks of several traces, one for each capture, in one range: captures of one pool run one after the other, so it is as large as
/// the largest takes and not their sum.
#[derive(Clone, Debug, Default)]
pub struct PoolPlan {
    traces: Vec<TracePlan>,
}

/// Places for the blocks of one trace. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TracePlan {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    trace: Trace,
    /// By request of the pool: scratch of breaks is not among them.
    blocks: Vec<PlannedBlock>,
    bytes: usize,
    lower_bound: usize,
    method: Method,
}

/// Where the block of a trace's request lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PlannedBlock {
    /// The request of the trace.
    pub request: usize,
    /// From the start of the range, in bytes.
    pub offset: usize,
    /// The size of the block: the request's bytes, rounded up to the alignment.
    pub bytes: usize,
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
        if options.alignment.is_power_of_two() && options.alignment < ALIGNMENT {
            return Err(PlanError::PoolAlignment(options.alignment));
        }
        let end = trace.steps().len();
        let of_the_pool = trace.requests().iter().enumerate().filter(|(_, request)| request.role != Role::Scratch);
        let (requests, buffers): (Vec<usize>, Vec<BufferSpec>) = of_the_pool
            .map(|(index, request)| {
                let last = request.released.unwrap_or(end).max(request.allocated + 1);
                (index, BufferSpec::new(request.bytes, request.allocated as u64, last as u64))
            })
            .unzip();
        let placement = plan(&buffers, options)?;
        let placed = requests.into_iter().zip(placement.offsets()).map(|(request, &offset)| {
            let requested = trace.requests()[request].bytes;
            // The planner has rounded it up before.
            PlannedBlock { request, offset, bytes: round_up(requested, options.alignment).unwrap_or(requested) }
        });
        let inner = Inner {
            blocks: placed.collect(),
            bytes: placement.bytes(),
            lower_bound: placement.lower_bound(),
            method: placement.method(),
            trace,
        };
        Ok(TracePlan { inner: Arc::new(inner) })
    }

    /// The trace.
    pub fn trace(&self) -> &Trace {
        &self.inner.trace
    }

    /// Where the blocks lie, in the order of the requests.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = PlannedBlock> + '_ {
        self.inner.blocks.iter().copied()
    }

    /// Requests that are planned.
    pub fn len(&self) -> usize {
        self.inner.blocks.len()
    }

    /// Whether nothing is planned.
    pub fn is_empty(&self) -> bool {
        self.inner.blocks.is_empty()
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

    /// The planned block of the pool's request of this number, and the bytes that the trace asked for.
    pub(crate) fn request(&self, number: usize) -> Option<(PlannedBlock, usize)> {
        let block = *self.inner.blocks.get(number)?;
        Some((block, self.inner.trace.requests()[block.request].bytes))
    }

    pub(crate) fn divergence(&self, number: usize, kind: DivergenceKind) -> Divergence {
        let traced = self.inner.blocks.get(number).map(|block| block.request);
        let name = traced.and_then(|traced| self.inner.trace.name(traced)).map(str::to_owned);
        Divergence { request: number, name, kind }
    }
}
