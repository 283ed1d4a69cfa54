//! Captures whose replays are not what the eager forward gives.

use super::Error;
use std::fmt;

/// What [`BreakableCapture::verify`](crate::BreakableCapture::verify) has found: a capture whose replay gives something else than the eager forward, where
/// that is first seen, and what is the likely cause.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct VerifyError {
    /// The capture's name, if it was given one.
    pub name: Option<String>,
    /// The bucket, if it was named.
    pub bucket: Option<usize>,
    /// The batch with which it was seen: 0 or 1.
    pub batch: usize,
    /// After what it is seen first.
    pub place: VerifyPlace,
    /// The likely cause.
    pub cause: VerifyCause,
    /// The first element that differs, where values were compared.
    pub difference: Option<Difference>,
}

/// The part of a capture after which a difference is seen first. Segments and breaks are counted from 0.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum VerifyPlace {
    /// A segment.
    Segment {
        /// Its place among the segments.
        segment: usize,
        /// The tensor that has the difference: an output, an input of the break that follows, or a static input.
        seen_in: String,
    },
    /// A break.
    Break {
        /// Its place among the breaks.
        index: usize,
        /// Its name.
        name: String,
        /// The tensor that has the difference: one of its results, or a static input.
        seen_in: String,
    },
}

/// What makes a replay differ.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum VerifyCause {
    /// The segment has the recording's forward context: another one changes the eager forward's result there, and not the replay's.
    FrozenContext,
    /// The segment reads another tensor than this input: writing it changes the eager forward's result there, and not the replay's.
    MovedInput {
        /// The input's name.
        input: String,
    },
    /// The segment has some other value or address of its recording.
    FrozenInSegment,
    /// The break has some value or address of its recording: it gives the same every time, and not what the eager forward's gives.
    FrozenInBreak,
    /// Filling the input leaves rows of an earlier batch in its padded tail, and the forward's valid rows depend on them.
    UnfilledTail {
        /// The input's name.
        input: String,
    },
    /// Filling the input leaves valid rows, or a fixed input, as an earlier batch has made them.
    NotRefilled {
        /// The input's name.
        input: String,
    },
    /// The break gives something else when it runs again with the same inputs and the same context.
    KeptState,
    /// The segment gives something else when it is run again with the same inputs and the same context.
    NotReproducible,
    /// The replay writes the input.
    UpdatedInput {
        /// The input's name.
        input: String,
    },
    /// The eager forward takes other breaks, or hands over tensors of other shapes, than what was recorded.
    OtherForward {
        /// What the recording has.
        recorded: String,
        /// What the eager forward has.
        eager: String,
    },
    /// Nothing of these could be shown.
    Unknown,
}

/// Two elements that should be equal.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct Difference {
    /// The index in the leading dimension.
    pub row: usize,
    /// The place in that row, in row-major order.
    pub element: usize,
    /// What the eager forward has, as a number.
    pub eager: f64,
    /// What the replay has.
    pub replayed: f64,
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("capture")?;
        if let Some(name) = &self.name {
            write!(f, " {name:?}")?;
        }
        if let Some(bucket) = self.bucket {
            write!(f, " of bucket {bucket}")?;
        }
        write!(f, " is not what its forward is: with batch {} {}", self.batch, self.place)?;
        if let Some(Difference { row, element, eager, replayed }) = self.difference {
            write!(f, ", row {row}, element {element}, the eager forward has {eager} and the replay {replayed}")?;
        }
        write!(f, ": {}", self.cause)
    }
}

impl std::error::Error for VerifyError {}

impl From<VerifyError> for Error {
    fn from(error: VerifyError) -> Error {
        Error::Verify(Box::new(error))
    }
}

impl fmt::Display for VerifyPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VerifyPlace::Segment { segment, seen_in } => write!(f, "after segment {segment}, in {seen_in}"),
            VerifyPlace::Break { index, name, seen_in } => write!(f, "after break {index} ({name:?}), in {seen_in}"),
        }
    }
}

impl fmt::Display for VerifyCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VerifyCause::FrozenContext => f.write_str(
                "the segment has the forward context of its recording: read it in a break, or put what it needs into an input",
            ),
            VerifyCause::MovedInput { input } => write!(
                f,
                "the segment does not read input {input:?} where it is now: write each batch into the tensor that was recorded, or record again"
            ),
            VerifyCause::FrozenInSegment => f.write_str(
                "the segment has a value or an address of its recording that is neither an input nor the forward context, as of a tensor that was replaced, a random seed or a counter of the host: make it an input, or read it in a break",
            ),
            VerifyCause::FrozenInBreak => f.write_str(
                "the break has a value or an address of its recording, as what its closure took by move: read it from the forward context, or make it an input",
            ),
            VerifyCause::UnfilledTail { input } => write!(
                f,
                "the padded tail of input {input:?} has rows of an earlier batch, and valid rows depend on them: give it a tail rule (`StaticInput`, `InputSpec::tail`)"
            ),
            VerifyCause::NotRefilled { input } => {
                write!(f, "input {input:?} has values of an earlier batch: write all its valid rows for each batch")
            }
            VerifyCause::KeptState => f.write_str(
                "the break gives something else when it runs again on the same batch, so it keeps state between runs or is not deterministic: keep per-batch state in the forward context",
            ),
            VerifyCause::NotReproducible => f.write_str(
                "the segment gives something else when it runs again on the same batch: it updates a tensor in place, reads memory that nothing wrote, or its kernels are not deterministic (then allow a tolerance)",
            ),
            VerifyCause::UpdatedInput { input } => write!(
                f,
                "it writes input {input:?}, so that the next replay finds other data unless all of it is written again: write into a tensor of the forward's own, or say `may_update_inputs`"
            ),
            VerifyCause::OtherForward { recorded, eager } => write!(
                f,
                "the recording has {recorded} where the eager forward has {eager}: the forward must take the same breaks in the same shapes for every batch of a bucket, recorded or not"
            ),
            VerifyCause::Unknown => f.write_str("what makes it so could not be told"),
        }
    }
}
