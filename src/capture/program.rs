//! The recorded list of steps.

use super::breaks::{Break, BreakOptions};
use crate::capture::composite::{Composite, Part};
use crate::driver::open_capture::KeepAlive;
use crate::driver::{GraphExec, NodeCounts, Stream};
use crate::error::{Error, Misuse, Result};
use crate::tensor::Tensor;
use crate::tensor::padding::land;
use std::marker::PhantomData;

/// A break's operation, with its results handed out one by one so that running it allocates nothing.
pub(crate) type Operation<'env> =
    Box<dyn FnMut(&Break<'_>, &mut dyn FnMut(usize, Tensor) -> Result<()>) -> Result<usize> + Send + 'env>;

/// Something that a replay does.
pub(crate) enum Step<'env> {
    /// Launches a segment that has nodes.
    Segment { exec: GraphExec, index: usize, nodes: usize },
    /// Runs a break.
    Break(BreakStep<'env>),
    /// Launches segments and patched breaks together.
    Composite(Composite<'env>),
}

/// A patched break.
pub(crate) struct BreakStep<'env> {
    pub(crate) options: BreakOptions,
    pub(crate) index: usize,
    pub(crate) operation: Operation<'env>,
    /// Held weakly where this recording's own segments write them anew, and strongly otherwise.
    pub(crate) inputs: Box<[Option<Tensor>]>,
    pub(crate) handoffs: Box<[Tensor]>,
}

/// What a recording has made.
#[derive(Default)]
pub(crate) struct Program<'env> {
    pub(crate) steps: Vec<Step<'env>>,
    /// What the segments' graphs refer to.
    pub(crate) kept: Vec<KeepAlive>,
    /// Segments, those without nodes counted in.
    pub(crate) segments: usize,
    pub(crate) breaks: usize,
    pub(crate) nodes: NodeCounts,
}

impl Program<'_> {
    /// Execs that a replay launches.
    pub(crate) fn launches(&self) -> usize {
        self.steps.iter().filter(|step| !matches!(step, Step::Break(_))).count()
    }

    /// Breaks that run on every replay, in order.
    pub(crate) fn breaks(&self) -> impl Iterator<Item = &BreakStep<'_>> {
        self.steps.iter().flat_map(|step| match step {
            Step::Segment { .. } => Vec::new(),
            Step::Break(step) => vec![step],
            Step::Composite(composite) => composite.breaks().collect(),
        })
    }

    /// Takes all that launches refer to.
    pub(crate) fn take_kept(&mut self) -> Vec<KeepAlive> {
        let mut kept = std::mem::take(&mut self.kept);
        for step in &mut self.steps {
            if let Step::Composite(composite) = step {
                composite.take_kept(&mut kept);
            }
        }
        kept
    }
}

impl Program<'_> {
    /// A hash of what a replay does, without addresses: the same for the same forward on another device or rank.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hash = Fnv::default();
        hash.number(self.segments);
        for step in &self.steps {
            match step {
                Step::Segment { index, nodes, .. } => hash.segment(*index, *nodes),
                Step::Break(step) => hash.a_break(2, step),
                Step::Composite(composite) => composite.parts().iter().for_each(|part| match part {
                    Part::Segment(segment) => hash.segment(segment.index, segment.nodes),
                    Part::Patched(part) => hash.a_break(3, &part.step),
                }),
            }
        }
        hash.0
    }
}

/// FNV-1a, which is the same everywhere.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn segment(&mut self, index: usize, nodes: usize) {
        [1, index, nodes].into_iter().for_each(|number| self.number(number));
    }

    fn a_break(&mut self, kind: usize, step: &BreakStep<'_>) {
        self.bytes(step.options.name.as_bytes());
        for handoff in &step.handoffs {
            self.bytes(handoff.dtype().name().as_bytes());
            handoff.shape().iter().for_each(|length| self.number(*length));
        }
        [kind, step.inputs.len(), step.handoffs.len()].into_iter().for_each(|number| self.number(number));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    }

    fn number(&mut self, number: usize) {
        self.bytes(&(number as u64).to_le_bytes());
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
        let BreakStep { options, operation, inputs, handoffs, .. } = self;
        let valid_in_handoff = valid_rows.filter(|_| options.leading_dimension_is_rows);
        let this = Break {
            name: &options.name,
            stream,
            inputs,
            handoffs,
            valid_rows,
            depth: crate::capture::forward::frame::depth(),
            _thread: PhantomData,
        };
        let expected = handoffs.len();
        let got = operation(&this, &mut |index, result| match handoffs.get(index) {
            Some(handoff) => land(stream, &result, handoff, valid_in_handoff),
            None => Err(Misuse::OutputCount { expected, got: index + 1 }.into()),
        })?;
        if got == expected { Ok(()) } else { Err(Misuse::OutputCount { expected, got }.into()) }
    }
}
