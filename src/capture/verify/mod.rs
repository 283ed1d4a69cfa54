//! Verifying a capture: its replays with two different batches against the eager forward, handoff by handoff and output by output.
//!
//! - `options`: what is compared. `runs`: a batch run eagerly, and as replays whose parts are shown. `observation`: copies of what runs make, and comparisons on
//!   the device. `diagnosis`: what a difference comes from, once there is one.

mod diagnosis;
mod observation;
mod options;
mod runs;

pub use options::{Verified, VerifyOptions};

use super::breaks::step::{BreakStep, Ran};
use super::capture::BreakableCapture;
use super::scope::Scope;
use crate::driver::Stream;
use crate::error::{Error, Result, VerifyCause, VerifyError, VerifyPlace};
use crate::tensor::Tensor;
use observation::{BreakSeen, Comparisons, Observation, Spot, comparable};
use runs::{Inputs, Runs, Shown};

impl BreakableCapture<'_> {
    /// Replays the capture with two different batches and compares what it makes with the eager forward, on the device: each break's handoffs, and the outputs.
    /// For the start of an engine, and for tests: what a segment has frozen is found before a request gets it.
    ///
    /// `batch` is called with 0 or 1 and what it is to run: it fills the static inputs as the engine does, publishes the batch's forward context
    /// ([`active_forward`](crate::active_forward)), and runs that once. The two batches differ in whatever may differ in real ones: all inputs, the context,
    /// valid rows. `forward` is what was recorded. Patched breaks are compared in replays part by part, and outputs also in a replay as usual.
    ///
    /// Each batch runs eagerly once and is replayed once, or twice where breaks are patched; before the eager runs the padded tails of the inputs are made zero,
    /// and replays find another batch's values there. Where a difference is found, more runs tell its cause: also with one batch's context and the other's inputs,
    /// unless [`keep_batches_apart`](VerifyOptions::keep_batches_apart) is said. The inputs are left as the last run had them. Whatever a break stores, as in a
    /// cache, is stored several times.
    ///
    /// ```
    /// # use breakable_cuda_graph::driver::{Device, Stream};
    /// # use breakable_cuda_graph::{BreakableCapture, CapturePool, DType, Driver, Error, Result, Scope, Tensor, active_forward};
    /// use breakable_cuda_graph::{VerifyCause, VerifyOptions};
    ///
    /// # let context = Device::get(&Driver::reference()?, 0)?.primary_context()?;
    /// # let stream = Stream::new(&context)?;
    /// # let pool = CapturePool::new(&context)?;
    /// let (input, table) = (Tensor::zeros(&stream, DType::F32, &[2])?, Tensor::from_slice(&stream, &[1.0_f32, 2.0, 3.0, 4.0], &[2, 2])?);
    /// // What the forward gives depends on the context, which its segment freezes.
    /// let forward = |scope: &Scope<'_, '_>| -> Result<Vec<Tensor>> {
    ///     let out = scope.empty(DType::F32, &[2])?;
    ///     out.copy_from(&scope.stream()?, &table.narrow(0, *scope.frozen_ctx::<usize>()?, 1)?.reshape(&[2])?)?;
    ///     Ok(vec![out])
    /// };
    /// let mut capture = BreakableCapture::new(&pool)?;
    /// let outputs = active_forward(&0_usize, || capture.record(&stream, forward))?;
    ///
    /// let options = VerifyOptions::new().input("x", &input).output("out", &outputs[0]);
    /// let verified = capture.verify(&stream, &options, |batch, run| active_forward(&batch, run), forward);
    /// let Err(Error::Verify(found)) = verified else { panic!("the context is frozen") };
    /// assert_eq!((found.batch, found.cause), (1, VerifyCause::FrozenContext));
    /// # Ok::<(), breakable_cuda_graph::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Verify`](crate::Error::Verify) with the first difference, where it is seen and its likely cause; [`Misuse::VerifyRuns`](crate::Misuse::VerifyRuns) and
    /// [`Misuse::VerifyOutputs`](crate::Misuse::VerifyOutputs); what the forward, the batches and [`replay_with`](BreakableCapture::replay_with) return.
    pub fn verify<'f>(
        &mut self,
        stream: &Stream,
        options: &VerifyOptions,
        batch: impl FnMut(usize, &mut dyn FnMut() -> Result<()>) -> Result<()>,
        forward: impl FnMut(&Scope<'_, 'f>) -> Result<Vec<Tensor>>,
    ) -> Result<Verified> {
        let pool = self.pool().clone();
        pool.context().expect_same(stream.context(), "stream")?;
        let mut runs = Runs { capture: self, pool, stream, options, batch, forward };
        let verified = runs.verify();
        let settled = stream.settle();
        if settled.is_ok() {
            runs.capture.drop_execs_alone();
        }
        let verified = verified?;
        settled?;
        Ok(verified)
    }
}

impl<'env, 'f, B, F> Runs<'_, 'env, B, F>
where
    B: FnMut(usize, &mut dyn FnMut() -> Result<()>) -> Result<()>,
    F: FnMut(&Scope<'_, 'f>) -> Result<Vec<Tensor>>,
{
    fn verify(&mut self) -> Result<Verified> {
        let mut verified = Verified { bit_equal: true, ..Verified::default() };
        // The batch with more rows comes first: the other one then finds its rows in the padded tail.
        let fewer_first = self.options.valid_rows[0] < self.options.valid_rows[1];
        let order = if fewer_first { [1, 0] } else { [0, 1] };
        let mut before: Option<Vec<Tensor>> = None;
        let mut first_error = None;
        for batch in order {
            let eager = self.eager(batch, Inputs::Clean, false)?;
            let found = self.first_found(batch, &eager, before.as_deref())?;
            verified.handoffs += eager.breaks.iter().map(|seen| seen.results.len()).sum::<usize>();
            verified.outputs += eager.outputs.len();
            if let Some(found) = found.filter(|_| self.options.only_compares) {
                first_error = first_error.or_else(|| Some(self.undiagnosed(batch, found, &eager)));
            } else if let Some(found) = found {
                drop(eager.breaks);
                if let Some(error) = self.diagnose(batch, found, before.as_deref())? {
                    return Err(error.into());
                }
                verified.bit_equal = false;
            }
            before = Some(eager.filled);
        }
        first_error.map_or(Ok(verified), |error| Err(error.into()))
    }

    fn undiagnosed(&self, batch: usize, found: Found, eager: &Observation) -> VerifyError {
        match found {
            Found::At(spot) => self.error(batch, self.place_of(spot, eager), VerifyCause::Unknown),
            Found::Updated(input) => {
                let input = self.options.inputs.get(input).map_or_else(String::new, |input| input.name.clone());
                let (segment, seen_in) = (self.capture.num_breaks(), format!("input {input:?}"));
                self.error(batch, VerifyPlace::Segment { segment, seen_in }, VerifyCause::UpdatedInput { input })
            }
        }
    }

    /// Replays a batch, compares as it goes, and says where a difference was found first.
    fn first_found(&mut self, batch: usize, eager: &Observation, before: Option<&[Tensor]>) -> Result<Option<Found>> {
        let (stream, options, pool) = (self.stream, self.options, self.pool.clone());
        let valid_rows = options.valid_rows[batch];
        let mut compared = Compared { comparisons: Comparisons::new(pool.handle(), stream), about: Vec::new() };
        let (mut breaks, mut other_break, mut other_output) = (0, None, None);
        self.replay_in_parts(batch, Inputs::After(before), |shown, filled| {
            match shown {
                Shown::Part(Ran::Segment(_)) => {}
                Shown::Part(Ran::Break(step)) => {
                    match alike(eager.breaks.get(breaks), step, valid_rows) {
                        Some(pairs) => compared.add_break(breaks, &pairs)?,
                        None => other_break = other_break.or(Some(breaks)),
                    }
                    breaks += 1;
                }
                Shown::End => {
                    other_output = compared.add_outputs(options, eager, valid_rows)?;
                    if !options.may_update_inputs {
                        compared.add_inputs(options, filled)?;
                    }
                }
            }
            Ok(())
        })?;
        if let Some(at) = other_break.or((breaks < eager.breaks.len()).then_some(breaks)) {
            return Err(self.other_forward(batch, at, eager));
        }
        if let Some(at) = other_output {
            return Err(self.other_output(batch, at, eager));
        }
        if self.has_patched() {
            self.replay_together(batch, Inputs::After(before), |_| {
                compared.add_outputs(options, eager, valid_rows).map(drop)
            })?;
        }
        compared.first_found()
    }

    fn error(&self, batch: usize, place: VerifyPlace, cause: VerifyCause) -> VerifyError {
        let options = self.capture.options();
        VerifyError { name: options.name.clone(), bucket: options.bucket, batch, place, cause, difference: None }
    }

    fn other_forward(&self, batch: usize, at: usize, eager: &Observation) -> Error {
        let recorded = self.capture.break_at(at).map(|step| (step.options.name.to_string(), &step.handoffs[..]));
        let seen = eager.breaks.get(at).map(|seen| (seen.name.clone(), &seen.results[..]));
        let name = recorded.as_ref().or(seen.as_ref()).map_or_else(String::new, |(name, _)| name.clone());
        let cause = VerifyCause::OtherForward { recorded: described(recorded), eager: described(seen) };
        self.error(batch, VerifyPlace::Break { index: at, name, seen_in: "its results".to_owned() }, cause).into()
    }

    fn other_output(&self, batch: usize, at: usize, eager: &Observation) -> Error {
        let of = |tensor: Option<&Tensor>| {
            tensor.map_or_else(|| "no output".to_owned(), |tensor| format!("{} {}", tensor.dtype(), tensor.layout()))
        };
        let recorded = of(self.options.outputs.get(at).map(|output| &output.tensor));
        let eager = of(eager.outputs.get(at));
        self.error(batch, self.place_of_output(at), VerifyCause::OtherForward { recorded, eager }).into()
    }

    /// After the last segment.
    fn place_of_output(&self, output: usize) -> VerifyPlace {
        let name = self.options.outputs.get(output).map_or("", |output| &output.name);
        VerifyPlace::Segment { segment: self.capture.num_breaks(), seen_in: format!("output {output} ({name:?})") }
    }
}

/// What the comparisons of one replay are about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    At(Spot),
    /// A static input is not as it was before the replay.
    Updated(usize),
}

/// Comparisons, each with what it is about.
struct Compared<'a> {
    comparisons: Comparisons<'a>,
    about: Vec<Found>,
}

impl Compared<'_> {
    fn add_break(&mut self, at: usize, pairs: &[(Tensor, Tensor)]) -> Result<()> {
        for (result, (left, right)) in pairs.iter().enumerate() {
            self.add(left, right, Found::At(Spot::Handoff { at, result }))?;
        }
        Ok(())
    }

    /// Gives the first output that can't be compared.
    fn add_outputs(
        &mut self,
        options: &VerifyOptions,
        eager: &Observation,
        valid_rows: Option<usize>,
    ) -> Result<Option<usize>> {
        for (at, (output, left)) in options.outputs.iter().zip(&eager.outputs).enumerate() {
            let Some((left, right)) = comparable(left, &output.tensor, output.rows, valid_rows) else {
                return Ok(Some(at));
            };
            self.add(&left, &right, Found::At(Spot::Output(at)))?;
        }
        Ok(None)
    }

    fn add_inputs(&mut self, options: &VerifyOptions, filled: &[Tensor]) -> Result<()> {
        let mut inputs = options.inputs.iter().zip(filled).enumerate();
        inputs.try_for_each(|(at, (input, filled))| self.add(filled, &input.tensor, Found::Updated(at)))
    }

    fn add(&mut self, left: &Tensor, right: &Tensor, about: Found) -> Result<()> {
        self.comparisons.add(left, right)?;
        self.about.push(about);
        Ok(())
    }

    /// An input that is written comes first: what differs may follow from it.
    fn first_found(&self) -> Result<Option<Found>> {
        let found = self.comparisons.found()?;
        let about = || found.iter().filter_map(|number| self.about.get(*number).copied());
        let updated = about().find(|about| matches!(about, Found::Updated(_)));
        Ok(updated.or_else(|| about().next()))
    }
}

/// What is to be compared of a break's results, where the eager forward has the same break with the same results.
fn alike(seen: Option<&BreakSeen>, step: &BreakStep<'_>, valid_rows: Option<usize>) -> Option<Vec<(Tensor, Tensor)>> {
    let seen = seen.filter(|seen| seen.name == step.options.name && seen.results.len() == step.handoffs.len())?;
    let pairs = seen.results.iter().zip(&step.handoffs);
    pairs.map(|(left, right)| comparable(left, right, seen.rows, valid_rows)).collect()
}

/// A break in words.
fn described(of: Option<(String, &[Tensor])>) -> String {
    let Some((name, results)) = of else { return "no more breaks".to_owned() };
    let results: Vec<String> = results.iter().map(|one| format!("{} {}", one.dtype(), one.layout())).collect();
    format!("break {name:?} of [{}]", results.join(", "))
}
