//! What an engine calls for its prefill batches. So far the ladder of buckets; it is plain arithmetic and knows no driver.
//!
//! - `ladder`: the buckets, by rule, from a list, or fitted to a distribution of batch sizes.
//! - `fit`: the fitting.
#![deny(unsafe_code)]

mod fit;
mod ladder;

pub use fit::Costs;
pub use ladder::{Ladder, LadderOptions, LadderReport};
