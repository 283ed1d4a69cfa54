//! A model in one function.

use super::model::{Mode, PrefillModel};
use super::spec::{InputSpec, OutputSpec};
use crate::capture::Scope;
use crate::driver::Stream;
use crate::error::Result;
use crate::tensor::Tensor;
use std::any::Any;
use std::fmt;

/// A model in one function, for tests and small programs: a state that the forward and its breaks may borrow, a context for dummy batches, and the
/// forward. Every batch may be replayed.
///
/// ```
/// use breakable_cuda_graph::driver::{Device, Stream};
/// use breakable_cuda_graph::prefill::{Batch, FnModel, InputData, InputSpec, Ladder, LadderOptions, OutputSpec, TailRule};
/// use breakable_cuda_graph::{BreakOptions, DType, Driver, PrefillRunner, RunnerOptions, Tensor};
///
/// # let context = Device::get(&Driver::reference()?, 0)?.primary_context()?;
/// # let stream = Stream::new(&context)?;
/// let pages = Tensor::from_slice(&stream, &[1.0_f32, 2.0], &[2, 1])?;
/// let model = FnModel::new(pages, 0_usize, |pages, scope, inputs| {
///     let page = scope.break_point(
///         BreakOptions::new("page").not_rows(), // Its handoff is one page, whatever the bucket.
///         [&inputs[0]],
///         |b| pages.narrow(0, *b.forward_ctx()?, 1),
///     )?;
///     Ok(vec![page])
/// });
/// let model = model.input(InputSpec::rows("x", DType::F32, &[1]).tail(TailRule::Zero)).output(OutputSpec::fixed("page", DType::F32, &[1, 1]));
/// let mut runner = PrefillRunner::new(&model, &context, RunnerOptions::new(Ladder::new(&LadderOptions::new(8))))?;
/// runner.capture_all(&stream, |_| {})?;
/// let outputs = runner.run(&stream, &Batch { rows: 1, context: &1, inputs: &[InputData::host(&[0.0_f32])] })?;
/// assert_eq!(outputs.read::<f32>(0, &stream)?, [2.0]);
/// # Ok::<(), breakable_cuda_graph::Error>(())
/// ```
pub struct FnModel<S, C, F> {
    state: S,
    dummy: C,
    forward: F,
    inputs: Vec<InputSpec>,
    outputs: Vec<OutputSpec>,
}

impl<S, C, F> FnModel<S, C, F>
where
    S: Sync,
    C: Any + Clone + Sync,
    F: for<'r, 'm> Fn(&'m S, &Scope<'r, 'm>, &[Tensor]) -> Result<Vec<Tensor>> + Sync,
{
    /// A model without inputs and outputs: add them. `dummy`: the context of warm-ups and captures.
    pub fn new(state: S, dummy: C, forward: F) -> FnModel<S, C, F> {
        FnModel { state, dummy, forward, inputs: Vec::new(), outputs: Vec::new() }
    }

    /// With one more input.
    #[must_use]
    pub fn input(mut self, spec: InputSpec) -> Self {
        self.inputs.push(spec);
        self
    }

    /// With one more output.
    #[must_use]
    pub fn output(mut self, spec: OutputSpec) -> Self {
        self.outputs.push(spec);
        self
    }

    /// Its state.
    pub fn state(&self) -> &S {
        &self.state
    }
}

impl<S: fmt::Debug, C, F> fmt::Debug for FnModel<S, C, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FnModel").field("state", &self.state).field("inputs", &self.inputs).finish_non_exhaustive()
    }
}

impl<S, C, F> PrefillModel for FnModel<S, C, F>
where
    S: Sync,
    C: Any + Clone + Sync,
    F: for<'r, 'm> Fn(&'m S, &Scope<'r, 'm>, &[Tensor]) -> Result<Vec<Tensor>> + Sync,
{
    type Context = C;
    type Key = ();

    fn inputs(&self) -> Vec<InputSpec> {
        self.inputs.clone()
    }

    fn outputs(&self) -> Vec<OutputSpec> {
        self.outputs.clone()
    }

    fn key(&self) {}

    fn dummy(&self, _: &Stream, _: usize) -> Result<C> {
        Ok(self.dummy.clone())
    }

    fn mode(&self, _: &C) -> Mode<()> {
        Mode::Eligible(())
    }

    fn forward<'m>(&'m self, scope: &Scope<'_, 'm>, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        (self.forward)(&self.state, scope, inputs)
    }
}
