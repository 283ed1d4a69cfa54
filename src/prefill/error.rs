//! What can go wrong in the runner beside what the layers below it report.

use super::ranks::RanksError;

/// What can go wrong in the runner beside what the layers below it report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrefillError {
    /// An input with rows was declared without saying what its padded tail holds.
    #[error(
        "input {input} has no tail rule: say what its padded rows hold (zero, a value, a dummy slot, or left alone)"
    )]
    NoTailRule {
        /// The input.
        input: &'static str,
    },
    /// Rows at a dimension that there is none of.
    #[error(
        "{tensor}: rows at dimension {axis} of a shape that has {rank} others: give a dimension up to {rank}, and only where it has rows"
    )]
    Axis {
        /// The input or output.
        tensor: &'static str,
        /// The dimension.
        axis: usize,
        /// How many dimensions there are beside the rows.
        rank: usize,
    },
    /// An output without rows has no padded ones to scrub, and the valid rows are no output.
    #[error(
        "output {output} has no rows: only an output with rows can be scrubbed, and the number of valid rows is an input"
    )]
    NoRows {
        /// The output.
        output: &'static str,
    },
    /// A batch gives another number of inputs than the model declares. Nothing was copied.
    #[error(
        "the batch gives {got} inputs, the model declares {expected}: give one for each, in their order. Nothing was copied"
    )]
    InputCount {
        /// What the model declares.
        expected: usize,
        /// What the batch gives.
        got: usize,
    },
    /// A forward takes another number of inputs than it was given, which are those that its model declares.
    #[error("the forward takes {expected} inputs and was given {got}: declare as many, in the same order")]
    ForwardInputs {
        /// What it takes.
        expected: usize,
        /// What it was given.
        got: usize,
    },
    /// An input is not what the model declares for a batch of these rows. Nothing was copied.
    #[error("input {input}: a batch of {rows} rows takes {expected}, got {got}: give that. Nothing was copied")]
    Input {
        /// The input.
        input: &'static str,
        /// The batch's rows.
        rows: usize,
        /// What would have fit.
        expected: String,
        /// What was given.
        got: String,
    },
    /// The forward returned another number of outputs than the model declares.
    #[error("the forward returned {got} outputs, the model declares {expected}: return one for each, in their order")]
    OutputCount {
        /// What the model declares.
        expected: usize,
        /// What it returned.
        got: usize,
    },
    /// The forward returned something else than the model declares.
    #[error(
        "output {output}: the model declares {expected}, the forward returned {got}: return what is declared, or declare that"
    )]
    Output {
        /// The output.
        output: &'static str,
        /// What was declared.
        expected: String,
        /// What was returned.
        got: String,
    },
    /// A bucket that can't be replayed was to be.
    #[error("bucket {bucket} has no capture: let the runner decide, or capture it first")]
    NotCaptured {
        /// The bucket.
        bucket: usize,
    },
    /// A batch does not fit the bucket that it was to be replayed in.
    #[error("{rows} rows don't fit bucket {bucket}: take the bucket that `decide` names, or run the batch eagerly")]
    Bucket {
        /// The batch's rows.
        rows: usize,
        /// The bucket.
        bucket: usize,
    },
    /// The runner is turned off.
    #[error("the runner is turned off: turn it on (`turn_on`) before capturing")]
    TurnedOff,
    /// Another rank could not capture the bucket, so this one does not keep its capture either.
    #[error("another rank could not capture bucket {bucket}, so no rank has it: that rank's error says why")]
    OtherRankFailed {
        /// The bucket.
        bucket: usize,
    },
    /// The ranks have recorded different lists of segments and breaks.
    #[error(
        "the ranks recorded different segments and breaks for bucket {bucket}: the forward must do the same on every rank"
    )]
    RecordingsDiffer {
        /// The bucket.
        bucket: usize,
    },
    /// One capture alone takes more memory than all may.
    #[error(
        "the capture of bucket {bucket} and the pool take {bytes} bytes, more than the {limit} that all captures may take: raise max_bytes, or lower the largest bucket"
    )]
    OverBudget {
        /// The bucket.
        bucket: usize,
        /// Bytes of the pool and the capture's execs.
        bytes: usize,
        /// The bound.
        limit: usize,
    },
    /// The model's dummy for a key is not of that key: its capture would serve batches of another.
    #[error(
        "the model's dummy for bucket {bucket} is not eligible under the key {key}: implement dummy_for, so that the context that it returns is of that key"
    )]
    DummyKey {
        /// The bucket.
        bucket: usize,
        /// The key.
        key: String,
    },
    /// The ranks' runners were made with different ladders or options.
    #[error("the ranks' runners differ: make them with the same ladder and options on every rank")]
    RunnersDiffer,
    /// The exchange between ranks failed.
    #[error(transparent)]
    Ranks(#[from] RanksError),
}

impl From<RanksError> for crate::Error {
    fn from(error: RanksError) -> crate::Error {
        PrefillError::Ranks(error).into()
    }
}
