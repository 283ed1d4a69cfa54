//! Planning: what all captures will take, before there is one; and the plans by which they are recorded.

use super::forward::ModelForward;
use super::ladder::{Bucket, Ladder};
use super::model::PrefillModel;
use crate::capture::{EagerOptions, active_forward, trace_with};
use crate::driver::Stream;
use crate::error::{Error, Misuse, Result};
use crate::memory::planner::PlanOptions;
use crate::memory::sizes::round_up;
use crate::memory::{PoolPlan, Role, SLAB_BYTES, TracePlan};
use crate::pool::CapturePool;
use crate::tensor::Tensor;
use std::any::Any;
use std::ops::Range;
use std::panic::resume_unwind;

/// What the captures of a runner take, as plain data. All sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct MemoryPlan {
    /// Of the pool: what the largest plan takes, in whole slabs. Exact: once all buckets are captured the pool's
    /// [`reserved`](crate::pool::PoolUsage::reserved) is this.
    pub pool: usize,
    /// The most that is live at once in any bucket: no pool has less.
    pub lower_bound: usize,
    /// Of the pool: the largest bucket's outputs.
    pub outputs: usize,
    /// Static inputs, in device memory beside the pool.
    pub inputs: usize,
    /// Staging of the inputs, in pinned host memory.
    pub staging: usize,
    /// Temporaries of breaks, in stream-ordered memory beside the pool: the most that was live at once in any bucket's trace.
    pub scratch: usize,
    /// The execs of all buckets. An estimate: what the largest bucket's took, times the number of buckets that don't share it. Drivers take memory for
    /// execs in pieces of some MiB, so that it may be 0 where a piece had room left. Execs that replays of patched breaks make for other shapes or
    /// configurations than at capture come on top.
    pub execs_estimate: usize,
    /// Each bucket, ascending: under the key that takes most, where there are several.
    pub buckets: Vec<BucketPlan>,
}

/// What one bucket takes of the pool.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct BucketPlan {
    /// In rows.
    pub bucket: usize,
    /// Blocks that its forward asks for.
    pub requests: usize,
    /// The most bytes that are live at once.
    pub peak: usize,
    /// What its plan takes. The rest of the pool is unused while it runs.
    pub planned: usize,
}

impl BucketPlan {
    /// What the plan takes above the peak.
    pub fn waste(&self) -> usize {
        self.planned - self.peak
    }
}

impl MemoryPlan {
    /// Device memory of all: pool, inputs, scratch, and the estimate of execs.
    pub fn total_estimate(&self) -> usize {
        [self.pool, self.inputs, self.scratch, self.execs_estimate].into_iter().fold(0, usize::saturating_add)
    }
}

/// Why a bucket has no plan, or no capture.
pub(super) enum Failure {
    Error(Error),
    /// The capture took more memory than all may. What a batch gave that it was recorded with.
    OverBudget(Error, Option<Vec<Tensor>>),
    Panic(Box<dyn Any + Send>),
}

impl Failure {
    /// The error; or the panic, which goes on.
    pub(super) fn into_error(self) -> Error {
        match self {
            Failure::Error(error) | Failure::OverBudget(error, _) => error,
            Failure::Panic(panic) => resume_unwind(panic),
        }
    }
}

/// The plans of a runner's buckets.
#[derive(Default)]
pub(super) struct Plans {
    plans: Vec<Option<TracePlan>>,
    /// Told when the bucket's turn to be captured comes.
    failure: Option<(Bucket, Failure)>,
}

impl Plans {
    pub(super) fn new(buckets: usize) -> Plans {
        Plans { plans: vec![None; buckets], failure: None }
    }

    pub(super) fn has(&self, bucket: Bucket) -> bool {
        self.plans.get(bucket.slot).is_some_and(Option::is_some)
    }

    fn together(&self) -> PoolPlan {
        PoolPlan::of(self.plans.iter().flatten().cloned())
    }

    /// Makes room for so many places.
    pub(super) fn grow_to(&mut self, places: usize) {
        if self.plans.len() < places {
            self.plans.resize(places, None);
        }
    }

    /// Forgets those in these places.
    pub(super) fn clear_range(&mut self, places: Range<usize>) {
        self.plans[places].fill(None);
        self.failure = None;
    }

    /// Forgets all: another model is traced from now on.
    pub(super) fn clear(&mut self) {
        self.plans.fill(None);
        self.failure = None;
    }

    /// Forgets one bucket's: the pool's planned range is for the others.
    pub(super) fn forget(&mut self, bucket: Bucket) {
        if let Some(plan) = self.plans.get_mut(bucket.slot) {
            *plan = None;
        }
    }

    pub(super) fn set_failure(&mut self, bucket: Bucket, failure: Failure) {
        self.failure = Some((bucket, failure));
    }

    /// What went wrong with this bucket, told once.
    ///
    /// # Errors
    /// That; a panic goes on.
    pub(super) fn take_failure(&mut self, bucket: Bucket) -> Result<()> {
        match self.failure.take_if(|(failed, _)| *failed == bucket) {
            None => Ok(()),
            Some((_, failure)) => Err(failure.into_error()),
        }
    }

    /// Traces a warm-up of the bucket under its key, and plans its blocks. `largest`: what the static inputs have room for.
    ///
    /// # Errors
    /// What the model, the planner and the driver return.
    pub(super) fn trace<M: PrefillModel>(
        &mut self,
        forward: &mut ModelForward<'_, M>,
        pool: &CapturePool,
        stream: &Stream,
        bucket: Bucket,
        key: &M::Key,
        largest: usize,
    ) -> Result<()> {
        forward.context().expect_same(stream.context(), "stream")?;
        forward.make_inputs(stream, largest)?;
        let dummy = forward.model().dummy_for(stream, bucket.rows, key)?;
        let inputs = forward.filled(stream, None, 0, bucket.rows)?;
        // A warm-up: no row is valid.
        let options = EagerOptions::default().valid_rows(0).bucket(bucket.rows).warm_up();
        let run = || trace_with(pool, stream, options, |scope| forward.run(scope, &inputs, bucket.rows));
        let traced = active_forward(&dummy, run);
        // The dummy's memory goes now; the run may still read it.
        let settled = stream.settle();
        let (trace, outputs) = traced?;
        drop(outputs);
        settled?;
        self.plans[bucket.slot] = Some(TracePlan::new(trace, &PlanOptions::default())?);
        Ok(())
    }

    /// The plan that this bucket is recorded by, with the pool's memory for it. `None`: blocks are placed as they are asked for.
    ///
    /// # Errors
    /// As for [`CapturePool::take_plan`].
    pub(super) fn take_for(&self, bucket: Bucket, pool: &CapturePool) -> Result<Option<TracePlan>> {
        let Some(plan) = self.plans.get(bucket.slot).and_then(Option::as_ref) else { return Ok(None) };
        match pool.take_plan(&self.together()) {
            Ok(()) => Ok(Some(plan.clone())),
            Err(Error::Misuse(Misuse::PoolInUse { .. })) => {
                log::info!(
                    "a bucket's plan is larger than the pool's planned range, which is in use: it is recorded without"
                );
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// What the captures take by these plans. `exec_bytes`: of all execs together.
    pub(super) fn report<M: PrefillModel>(
        &self,
        ladder: &Ladder,
        forward: &ModelForward<'_, M>,
        exec_bytes: usize,
    ) -> MemoryPlan {
        let together = self.together();
        let of_trace = |plan: &TracePlan| {
            let outputs = plan.trace().requests().iter().filter(|request| request.role == Role::Output);
            outputs.map(|request| request.bytes).sum::<usize>()
        };
        let of_bucket = |index: usize| self.plans.iter().skip(index).step_by(ladder.buckets().len().max(1)).flatten();
        let buckets = ladder.buckets().iter().enumerate().filter_map(|(index, &bucket)| {
            let plan = of_bucket(index).max_by_key(|plan| plan.bytes())?;
            let (requests, peak, planned) = (plan.len(), plan.lower_bound(), plan.bytes());
            Some(BucketPlan { bucket, requests, peak, planned })
        });
        let alignment = PlanOptions::default().alignment;
        let scratch = self.plans.iter().flatten().map(|plan| plan.trace().scratch_peak(alignment)).max();
        let pool = if together.bytes() == 0 { Ok(0) } else { round_up(together.bytes(), SLAB_BYTES) };
        MemoryPlan {
            pool: pool.unwrap_or(usize::MAX),
            lower_bound: together.lower_bound(),
            outputs: of_bucket(ladder.buckets().len().saturating_sub(1)).map(of_trace).max().unwrap_or(0),
            inputs: forward.inputs().map_or(0, |inputs| inputs.tensors().iter().map(Tensor::extent_bytes).sum()),
            staging: forward.inputs().map_or(0, |inputs| inputs.staging_bytes()),
            scratch: scratch.unwrap_or(0),
            execs_estimate: exec_bytes,
            buckets: buckets.collect(),
        }
    }
}
