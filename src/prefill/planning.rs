//! Planning: what all captures will take, before there is one; and the plans by which they are recorded.

use super::error::PrefillError;
use super::inputs::Inputs;
use super::model::PrefillModel;
use super::runner::PrefillRunner;
use super::spec::check_outputs;
use crate::capture::{active_forward, trace};
use crate::driver::Stream;
use crate::error::{Error, Misuse, Result};
use crate::memory::Role;
use crate::memory::SLAB_BYTES;
use crate::memory::planner::PlanOptions;
use crate::memory::{PoolPlan, TracePlan};
use crate::tensor::Tensor;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Whether captures are planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Planning {
    /// The first warm-up of each bucket that is captured at start-up or on call is traced, and its blocks lie where a plan puts them: the pool takes what
    /// the largest bucket needs at its peak. Buckets that are captured at first use are planned when [`PrefillRunner::plan`] was called before.
    #[default]
    Traced,
    /// Blocks are placed as they are asked for.
    Online,
}

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
    /// Each bucket, ascending.
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

/// Why a bucket has no plan though it should have one: told when its turn to be captured comes.
pub(super) enum PlanFailure {
    Error(Error),
    Panic(Box<dyn Any + Send>),
}

/// The plans of a runner's buckets.
#[derive(Default)]
pub(super) struct Plans {
    plans: Vec<Option<TracePlan>>,
    failure: Option<(usize, PlanFailure)>,
}

impl Plans {
    pub(super) fn new(buckets: usize) -> Plans {
        Plans { plans: vec![None; buckets], failure: None }
    }

    fn has(&self, index: usize) -> bool {
        self.plans.get(index).is_some_and(Option::is_some)
    }

    fn together(&self) -> PoolPlan {
        PoolPlan::of(self.plans.iter().flatten().cloned())
    }

    /// Forgets all: another model is traced from now on.
    pub(super) fn clear(&mut self) {
        self.plans.fill(None);
        self.failure = None;
    }

    /// What went wrong with this bucket, told once.
    pub(super) fn fail(&mut self, index: usize) -> Result<()> {
        match self.failure.take_if(|(failed, _)| *failed == index) {
            None => Ok(()),
            Some((_, PlanFailure::Error(error))) => Err(error),
            Some((_, PlanFailure::Panic(panic))) => resume_unwind(panic),
        }
    }
}

impl<'m, M: PrefillModel> PrefillRunner<'m, M> {
    /// What the captures of all buckets will take, before there is one: traces a warm-up of each bucket that has not been traced, plans their blocks,
    /// and captures the largest bucket once to estimate the execs. The pool's memory is given back afterwards. Captures made from now on,
    /// also at first use, follow the plan.
    ///
    /// Sizes of what the captures take in the pool are exact, unless the model asks for other memory when it is captured: see
    /// [`CapturePool::last_divergence`](crate::CapturePool::last_divergence). Not collective: with several ranks each has its own plan.
    ///
    /// # Errors
    /// [`PrefillError::TurnedOff`], what the model, the planner and the driver return.
    pub fn plan(&mut self, stream: &Stream) -> Result<MemoryPlan> {
        if !self.is_on() {
            return Err(PrefillError::TurnedOff.into());
        }
        let all: Vec<usize> = (0..self.buckets().len()).rev().collect();
        for &index in &all {
            if !self.plans.has(index) {
                self.trace_bucket(stream, index)?;
            }
        }
        let together = self.plans.together();
        let largest = all.first().copied().unwrap_or(0);
        let exec_bytes = match self.store.get(largest) {
            Some(captured) => captured.exec_bytes,
            None => {
                let bucket = self.buckets()[largest];
                let bytes = self.make(stream, largest, bucket, None)?.captured.exec_bytes;
                if self.owns_pool && self.store.live() == 0 {
                    self.pool.trim()?;
                }
                bytes
            }
        };
        let of_trace = |plan: &TracePlan| {
            let outputs = plan.trace().requests().iter().filter(|request| request.role == Role::Output);
            outputs.map(|request| request.bytes).sum::<usize>()
        };
        let buckets = self.buckets().iter().zip(&self.plans.plans).filter_map(|(&bucket, plan)| {
            let plan = plan.as_ref()?;
            let (requests, peak, planned) = (plan.len(), plan.lower_bound(), plan.bytes());
            Some(BucketPlan { bucket, requests, peak, planned })
        });
        let execs = if self.options.capture.graph.share_execs { 1 } else { self.buckets().len() };
        let alignment = PlanOptions::default().alignment;
        let scratch = self.plans.plans.iter().flatten().map(|plan| plan.trace().scratch_peak(alignment)).max();
        Ok(MemoryPlan {
            pool: together.bytes().next_multiple_of(SLAB_BYTES),
            lower_bound: together.lower_bound(),
            outputs: self.plans.plans.last().and_then(Option::as_ref).map_or(0, of_trace),
            inputs: self.inputs().iter().map(Tensor::extent_bytes).sum(),
            staging: self.inputs.as_ref().map_or(0, Inputs::staging_bytes),
            scratch: scratch.unwrap_or(0),
            execs_estimate: exec_bytes.saturating_mul(execs),
            buckets: buckets.collect(),
        })
    }

    /// Traces these buckets, up to the first that fails, which will be told in its turn.
    pub(super) fn trace_all(&mut self, stream: &Stream, indices: &[usize]) {
        if self.options.planning == Planning::Online || self.options.warm_ups == 0 {
            return;
        }
        for &index in indices {
            if self.plans.has(index) {
                continue;
            }
            let failure = match catch_unwind(AssertUnwindSafe(|| self.trace_bucket(stream, index))) {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => PlanFailure::Error(error),
                Err(panic) => PlanFailure::Panic(panic),
            };
            self.plans.failure = Some((index, failure));
            return;
        }
    }

    fn trace_bucket(&mut self, stream: &Stream, index: usize) -> Result<()> {
        let bucket = self.buckets()[index];
        self.context.expect_same(stream.context(), "stream")?;
        self.make_inputs(stream, bucket)?;
        let dummy = self.model.dummy(stream, bucket)?;
        let inputs = self.fill_inputs(stream, None, 0, bucket)?;
        let model = self.model;
        let traced = active_forward(&dummy, || {
            trace(&self.pool, stream, |scope| {
                let outputs = model.forward(scope, &inputs)?;
                check_outputs(&self.outputs, &outputs, bucket)?;
                Ok(outputs)
            })
        });
        // The dummy's memory goes now; the run may still read it.
        let settled = stream.settle();
        let (trace, outputs) = traced?;
        drop(outputs);
        settled?;
        self.plans.plans[index] = Some(TracePlan::new(trace, &PlanOptions::default())?);
        Ok(())
    }

    /// The plan that this bucket is recorded by, with the pool's memory for it. `None`: blocks are placed as they are asked for.
    pub(super) fn plan_for(&self, index: usize) -> Result<Option<TracePlan>> {
        let Some(plan) = self.plans.plans.get(index).and_then(Option::as_ref) else { return Ok(None) };
        match self.pool.take_plan(&self.plans.together()) {
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
}
