//! What an engine calls for its prefill batches: one [`PrefillRunner`] for each model. Every batch either replays a captured bucket or runs eagerly
//! for a reason that is counted.
//!
//! - `ladder`: the buckets, by rule, from a list, or fitted to a distribution of batch sizes by `fit`. Plain arithmetic.
//! - `model`: the seam that an engine implements, and its batches. `spec`: what a model takes and gives.
//! - `inputs`: the static inputs, and how a batch gets into them.
//! - `runner`: [`PrefillRunner`], and its dispatch. `capturing`: how it captures. `store`: the captures, and which to drop. `results`: a batch's
//!   outputs.
//! - `planning`: what all captures will take, and the plans by which they are recorded.
//! - `reason`: why a batch runs eagerly. `stats`: how often.
//! - `ranks`: agreement between several runners.
//! - `options`, `error`.

mod capture_set;
mod capturer;
mod error;
mod fit;
mod inputs;
mod ladder;
mod model;
mod options;
mod outputs;
mod planning;
mod ranks;
mod reason;
mod runner;
mod spec;
mod stats;

pub use error::PrefillError;
pub use fit::CostModel;
pub use ladder::{Ladder, LadderOptions, LadderReport};
pub use model::{Batch, HostData, InputData, Mode, PrefillModel};
pub use options::{CaptureProgress, CaptureWhen, OFF_VARIABLE, OnFailure, RunnerOptions};
pub use outputs::BatchOutputs;
pub use planning::{BucketPlan, MemoryPlan, Planning};
pub use ranks::{OneRank, Ranks, RanksError, ThreadRank};
pub use reason::{Decision, EagerReason, ReasonKind};
pub use runner::PrefillRunner;
pub use spec::{InputSpec, LeadingDim, OutputSpec, Scalar, TailRule};
pub use stats::RunnerStats;
