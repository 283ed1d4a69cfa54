//! From a difference to its likely cause: the batch is run again with one thing changed at a time.

use super::Found;
use super::observation::{Comparisons, Copies, Observation, Spot, comparable, difference};
use super::runs::{Inputs, Runs, Shown};
use crate::capture::breaks::step::Ran;
use crate::capture::scope::Scope;
use crate::error::{Difference, Result, VerifyCause, VerifyError, VerifyPlace};
use crate::tensor::Tensor;

/// A place where two runs of a forward differ.
#[derive(Clone, Copy)]
struct Differing {
    spot: Spot,
    difference: Difference,
}

impl<'f, B, F> Runs<'_, '_, B, F>
where
    B: FnMut(usize, &mut dyn FnMut() -> Result<()>) -> Result<()>,
    F: FnMut(&Scope<'_, 'f>) -> Result<Vec<Tensor>>,
{
    /// Finds the cause of a difference that a comparison has found. `None`: it is within the tolerance, or in rows that are not valid. `before`: what was in
    /// the inputs before the batch was filled in for the replay.
    pub(super) fn diagnose(
        &mut self,
        batch: usize,
        found: Found,
        before: Option<&[Tensor]>,
    ) -> Result<Option<VerifyError>> {
        let spot = match found {
            Found::Updated(input) => return self.updated(batch, input).map(Some),
            Found::At(spot) => spot,
        };
        let eager = self.eager(batch, Inputs::Clean, true)?;
        let replayed = self.replay_kept(batch, Inputs::After(before))?;
        let differing = self.differing(batch, &eager, &replayed)?;
        if differing.is_empty() {
            return self.only_together(batch, spot, &eager, before);
        }
        let given: Vec<&Tensor> = eager.filled.iter().collect();
        let again = self.replay_kept(batch, Inputs::Given(&given))?;
        let still = self.differing(batch, &eager, &again)?;
        if let Some((name, row)) = self.input_left(&eager.filled, &replayed.filled)? {
            let is_gone = |one: &&Differing| still.iter().all(|still| still.spot != one.spot);
            // What padded rows make of a handoff that is not of rows is not said to matter.
            if let Some(one) = differing.iter().filter(is_gone).find(|one| is_of_rows(&eager, one.spot)) {
                let is_tail = self.options.valid_rows[batch].is_some_and(|valid| row.is_some_and(|row| row >= valid));
                let input = name;
                let cause =
                    if is_tail { VerifyCause::UnfilledTail { input } } else { VerifyCause::NotRefilled { input } };
                return self.blamed(batch, *one, (&eager, &replayed), |_| cause).map(Some);
            }
        }
        // From here on the inputs are the same in all runs.
        let Some(&first) = still.first() else { return Ok(None) };
        let eager_again = self.eager(batch, Inputs::Given(&given), true)?;
        let replayed_again = self.replay_kept(batch, Inputs::Given(&given))?;
        for (one, other) in [(&again, &replayed_again), (&eager, &eager_again)] {
            if let Some(&changed) = self.differing(batch, one, other)?.first() {
                let cause = |in_break| if in_break { VerifyCause::KeptState } else { VerifyCause::NotReproducible };
                return self.blamed(batch, changed, (one, other), cause).map(Some);
            }
        }
        let cause = match self.origin(batch, first, &eager, &again)?.spot {
            Spot::Handoff { .. } => VerifyCause::FrozenInBreak,
            spot => self.frozen(batch, spot, &eager, &again)?,
        };
        self.blamed(batch, first, (&eager, &again), |_| cause).map(Some)
    }

    /// Of a difference that replays part by part do not have, or have no more.
    fn only_together(
        &mut self,
        batch: usize,
        spot: Spot,
        eager: &Observation,
        before: Option<&[Tensor]>,
    ) -> Result<Option<VerifyError>> {
        let (pool, stream, options) = (self.pool.clone(), self.stream, self.options);
        let outputs = self.replay_together(batch, Inputs::After(before), |_| {
            let copies = Copies { pool: pool.handle(), stream, inputs: false };
            copies.of_all(options.outputs.iter().map(|output| &output.tensor))
        })?;
        let together = Observation { outputs, ..Observation::default() };
        if let Some(&first) = self.differing(batch, eager, &together)?.first() {
            return self.blamed(batch, first, (eager, &together), |_| VerifyCause::Unknown).map(Some);
        }
        if options.tolerance > 0.0 {
            return Ok(None);
        }
        let cause = match spot {
            Spot::Handoff { .. } => VerifyCause::KeptState,
            Spot::BreakInput { .. } | Spot::Output(_) => VerifyCause::NotReproducible,
        };
        Ok(Some(self.error(batch, self.place_of(spot, eager), cause)))
    }

    /// What a segment has frozen.
    fn frozen(&mut self, batch: usize, spot: Spot, eager: &Observation, replayed: &Observation) -> Result<VerifyCause> {
        if self.options.keeps_batches_apart {
            return Ok(VerifyCause::FrozenInSegment);
        }
        let other = 1 - batch;
        let others = self.filled(other)?;
        let own: Vec<&Tensor> = eager.filled.iter().collect();
        if self.is_followed_by_eager_alone((other, &own), batch, spot, (eager, replayed)) {
            return Ok(VerifyCause::FrozenContext);
        }
        for (at, input) in self.options.inputs.iter().enumerate() {
            let mut given = own.clone();
            if let Some((place, others)) = given.get_mut(at).zip(others.get(at)) {
                *place = others;
            }
            if self.is_followed_by_eager_alone((batch, &given), batch, spot, (eager, replayed)) {
                return Ok(VerifyCause::MovedInput { input: input.name.clone() });
            }
        }
        Ok(VerifyCause::FrozenInSegment)
    }

    /// Whether another context, or other inputs, change what an eager run has at a spot and leave a replay as it was. Where such a run fails, nothing is shown.
    fn is_followed_by_eager_alone(
        &mut self,
        (context, given): (usize, &[&Tensor]),
        batch: usize,
        spot: Spot,
        (eager, replayed): (&Observation, &Observation),
    ) -> bool {
        let mut changes = || -> Result<bool> {
            let eager_now = self.eager(context, Inputs::Given(given), true)?;
            let replayed_now = self.replay_kept(context, Inputs::Given(given))?;
            let valid = |batch: usize| self.options.valid_rows[batch].unwrap_or(usize::MAX);
            let rows = Some(valid(batch).min(valid(context)));
            Ok(self.differing_at(spot, rows, eager, &eager_now)?.is_some()
                && self.differing_at(spot, rows, replayed, &replayed_now)?.is_none())
        };
        changes().unwrap_or(false)
    }

    /// After which part of a replay a static input is not as it was.
    fn updated(&mut self, batch: usize, input: usize) -> Result<VerifyError> {
        let (pool, stream, options) = (self.pool.clone(), self.stream, self.options);
        let mut comparisons = Comparisons::new(pool.handle(), stream);
        let name = options.inputs.get(input).map_or_else(String::new, |input| input.name.clone());
        let (mut places, seen_in) = (Vec::new(), format!("input {name:?}"));
        self.replay_in_parts(batch, Inputs::Clean, |shown, filled| {
            let (Shown::Part(part), Some(input), Some(filled)) = (shown, options.inputs.get(input), filled.get(input))
            else {
                return Ok(());
            };
            comparisons.add(filled, &input.tensor)?;
            let seen_in = seen_in.clone();
            places.push(match part {
                Ran::Segment(segment) => VerifyPlace::Segment { segment, seen_in },
                Ran::Break(step) => {
                    VerifyPlace::Break { index: step.index, name: step.options.name.to_string(), seen_in }
                }
            });
            Ok(())
        })?;
        let found = comparisons.found()?;
        let place = found.first().and_then(|number| places.get(*number)).cloned();
        let place = place.unwrap_or(VerifyPlace::Segment { segment: self.capture.num_breaks(), seen_in });
        Ok(self.error(batch, place, VerifyCause::UpdatedInput { input: name }))
    }

    /// The error of a difference, by its origin.
    fn blamed(
        &self,
        batch: usize,
        differing: Differing,
        (one, other): (&Observation, &Observation),
        cause: impl FnOnce(bool) -> VerifyCause,
    ) -> Result<VerifyError> {
        let Differing { spot, difference } = self.origin(batch, differing, one, other)?;
        let place = self.place_of(spot, one);
        let in_break = matches!(place, VerifyPlace::Break { .. });
        Ok(VerifyError { difference: Some(difference), ..self.error(batch, place, cause(in_break)) })
    }

    /// Where a difference comes from: the break that gave the tensor, where its inputs are equal in both runs, and otherwise the segment before it.
    fn origin(&self, batch: usize, differing: Differing, one: &Observation, other: &Observation) -> Result<Differing> {
        let Spot::Handoff { at, .. } = differing.spot else { return Ok(differing) };
        for input in 0..one.breaks.get(at).map_or(0, |seen| seen.inputs.len()) {
            let spot = Spot::BreakInput { at, input };
            if let Some(difference) = self.differing_at(spot, self.options.valid_rows[batch], one, other)? {
                return Ok(Differing { spot, difference });
            }
        }
        Ok(differing)
    }

    pub(super) fn place_of(&self, spot: Spot, of: &Observation) -> VerifyPlace {
        match spot {
            Spot::Output(output) => self.place_of_output(output),
            Spot::BreakInput { at, input } => {
                let name = of.breaks.get(at).map_or("", |seen| &seen.name);
                VerifyPlace::Segment { segment: at, seen_in: format!("input {input} of break {at} ({name:?})") }
            }
            Spot::Handoff { at, result } => VerifyPlace::Break {
                index: at,
                name: of.breaks.get(at).map_or_else(String::new, |seen| seen.name.clone()),
                seen_in: format!("its result {result}"),
            },
        }
    }

    /// All spots at which two runs differ, in the program's order.
    fn differing(&self, batch: usize, one: &Observation, other: &Observation) -> Result<Vec<Differing>> {
        let mut spots = Vec::new();
        for (at, (seen, _)) in one.breaks.iter().zip(&other.breaks).enumerate() {
            spots.extend((0..seen.results.len()).map(|result| Spot::Handoff { at, result }));
        }
        spots.extend((0..one.outputs.len()).map(Spot::Output));
        let mut differing = Vec::new();
        for spot in spots {
            if let Some(difference) = self.differing_at(spot, self.options.valid_rows[batch], one, other)? {
                differing.push(Differing { spot, difference });
            }
        }
        Ok(differing)
    }

    fn differing_at(
        &self,
        spot: Spot,
        valid_rows: Option<usize>,
        one: &Observation,
        other: &Observation,
    ) -> Result<Option<Difference>> {
        let (left, right) = (tensor_at(one, spot), tensor_at(other, spot));
        let rows = match spot {
            Spot::BreakInput { .. } => left.is_some_and(|left| self.has_the_rows(left)),
            Spot::Handoff { .. } => is_of_rows(one, spot),
            Spot::Output(at) => self.options.outputs.get(at).is_some_and(|output| output.rows),
        };
        let pair = left.zip(right).and_then(|(left, right)| comparable(left, right, rows, valid_rows));
        let Some((left, right)) = pair else { return Ok(None) };
        difference(self.stream, self.handle(), (&left, &right), self.options.tolerance)
    }

    /// Whether a tensor's leading dimension is as long as that of what has rows for certain.
    fn has_the_rows(&self, tensor: &Tensor) -> bool {
        let rows = tensor.rows();
        let options = self.options;
        let named = options.inputs.iter().chain(&options.outputs).filter(|one| one.rows);
        self.capture.options().bucket == Some(rows) || named.map(|one| one.tensor.rows()).any(|of| of == rows)
    }

    /// The first static input that two runs found in another state, with the row where it has rows.
    fn input_left(&self, one: &[Tensor], other: &[Tensor]) -> Result<Option<(String, Option<usize>)>> {
        for (input, (left, right)) in self.options.inputs.iter().zip(one.iter().zip(other)) {
            if let Some(difference) = difference(self.stream, self.handle(), (left, right), 0.0)? {
                return Ok(Some((input.name.clone(), input.rows.then_some(difference.row))));
            }
        }
        Ok(None)
    }
}

fn tensor_at(of: &Observation, spot: Spot) -> Option<&Tensor> {
    match spot {
        Spot::BreakInput { at, input } => of.breaks.get(at)?.inputs.get(input)?.as_ref(),
        Spot::Handoff { at, result } => of.breaks.get(at)?.results.get(result),
        Spot::Output(at) => of.outputs.get(at),
    }
}

/// Whether what is at the spot is compared by valid rows. An output that is not, is compared whole.
fn is_of_rows(of: &Observation, spot: Spot) -> bool {
    match spot {
        Spot::Handoff { at, .. } => of.breaks.get(at).is_some_and(|seen| seen.rows),
        Spot::BreakInput { .. } | Spot::Output(_) => true,
    }
}
