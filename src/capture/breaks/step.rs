//! A break as a step of a replay.

use super::options::BreakOptions;
use super::view::Break;
use crate::driver::Stream;
use crate::driver::live_break::LiveBreakGuard;
use crate::error::{Error, Misuse, Result};
use crate::tensor::Tensor;
use crate::tensor::padding::land;

/// A break's operation, with its results handed out one by one so that running it allocates nothing.
pub(crate) type Operation<'env> =
    Box<dyn FnMut(&Break<'_>, &mut dyn FnMut(usize, Tensor) -> Result<()>) -> Result<usize> + Send + 'env>;

/// A break of a recording: its operation, and what that is given on every run.
pub(crate) struct BreakStep<'env> {
    pub(crate) options: BreakOptions,
    pub(crate) index: usize,
    pub(crate) operation: Operation<'env>,
    /// Held weakly where this recording's own segments write them anew, and strongly otherwise.
    pub(crate) inputs: Box<[Option<Tensor>]>,
    pub(crate) handoffs: Box<[Tensor]>,
}

/// A part of a replay that has run, for what looks at each.
#[derive(Clone, Copy)]
pub(crate) enum Ran<'s, 'env> {
    /// A segment, by its place among the recording's segments.
    Segment(usize),
    /// A break, and its handoffs are there.
    Break(&'s BreakStep<'env>),
}

/// Refuses a break that has drawn a stream in and not joined it (rule 51).
#[inline]
pub(crate) fn expect_joined(sides: &LiveBreakGuard) -> Result<()> {
    match sides.unjoined() {
        None => Ok(()),
        Some(stream) => Err(Misuse::UnjoinedInBreak { stream: stream as usize }.into()),
    }
}

impl BreakStep<'_> {
    /// The error of this break.
    #[cold]
    pub(crate) fn failed(&self, source: Error) -> Error {
        Error::Break { name: self.options.name.to_string(), index: self.index, source: Box::new(source) }
    }

    /// Runs the operation on the stream and lands its results.
    pub(crate) fn run(&mut self, stream: &Stream, valid_rows: Option<usize>) -> Result<()> {
        self.run_scrubbed(stream, valid_rows, valid_rows)
    }

    /// The same, with the handoffs' padded tail beginning elsewhere than the break is told.
    pub(crate) fn run_scrubbed(
        &mut self,
        stream: &Stream,
        valid_rows: Option<usize>,
        scrub_from: Option<usize>,
    ) -> Result<()> {
        let BreakStep { options, operation, inputs, handoffs, .. } = self;
        let valid_in_handoff = scrub_from.filter(|_| options.leading_dimension_is_rows);
        let this = Break::new(&options.name, stream, inputs, handoffs, valid_rows);
        let sides = stream.enter_live_break();
        let expected = handoffs.len();
        let got = operation(&this, &mut |index, result| match handoffs.get(index) {
            Some(handoff) => land(stream, &result, handoff, valid_in_handoff),
            None => Err(Misuse::OutputCount { expected, got: index.saturating_add(1) }.into()),
        })?;
        expect_joined(&sides)?;
        if got == expected { Ok(()) } else { Err(Misuse::OutputCount { expected, got }.into()) }
    }
}
