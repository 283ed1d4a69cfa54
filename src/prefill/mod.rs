//! What an engine calls for its prefill batches: one [`PrefillRunner`] for each model. Every batch either replays a captured bucket or runs eagerly
//! for a reason that is counted.
//!
//! - `ladder`: the buckets, by rule, from a list, or fitted to a distribution of batch sizes by `fit`. Plain arithmetic.
//! - `model`: the seam that an engine implements, and its batches. `fn_model`: one in a function. `spec`: what a model takes and gives.
//! - `runner`: [`PrefillRunner`], the face of the parts below, each with fields of its own.
//! - `dispatch`: what a batch does, decided from what is known of it. `reason`: why it runs eagerly. `stats`: how often.
//! - `forward`: the model with its static inputs, which are in `inputs`, as `declared`. `outputs`: what a batch gave.
//! - `keys`: what captures are made under. `capturer`: how buckets are captured. `capture_set`: the captures, and which to drop. `planning`: what all captures will take, and the plans by which
//!   they are recorded.
//! - `verify`: a bucket's capture compared with the eager forward.
//! - `agreement`: whether the runner replays, and what all `ranks` do alike.
//! - `options`, `error`. `telling`: progress, and callers that panic when they are told.

mod agreement;
mod capture_set;
mod capturer;
mod declared;
mod dispatch;
mod error;
mod fit;
mod fn_model;
mod forward;
mod inputs;
mod keys;
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
mod telling;
mod verify;

pub use crate::tensor::{Scalar, TailRule};
pub use error::PrefillError;
pub use fit::{CostModel, FitOptions};
pub use fn_model::FnModel;
pub use ladder::{Ladder, LadderOptions, LadderReport, LadderUsage};
pub use model::{Batch, HostData, InputData, Mode, PrefillModel};
pub use options::{CaptureProgress, CaptureWhen, OFF_VARIABLE, OnFailure, OnReplayFailure, Planning, RunnerOptions};
pub use outputs::BatchOutputs;
pub use planning::{BucketPlan, MemoryPlan};
pub use ranks::{OneRank, Ranks, RanksError, ThreadRank};
pub use reason::{Decision, EagerReason, ReasonKind};
pub use runner::PrefillRunner;
pub use spec::{InputSpec, LeadingDim, OutputSpec, expect_inputs};
pub use stats::{BucketReplays, EagerCount, RunnerStats};
