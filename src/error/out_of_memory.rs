//! Memory that was not there.

use crate::sys::CallError;
use std::fmt;

/// The capture pool could not serve a request. Nothing was freed, trimmed or waited for, and the pool can be used on.
#[derive(Debug, Default, thiserror::Error)]
#[error(
    "out of memory: {requested} bytes requested, the capture pool has {in_use} of {reserved} bytes in use{}{}{}: lower the largest bucket or the number of captures, raise the pool's limit, or leave more device memory free",
    Limit(limit),
    At(bucket, segment),
    By(call)
)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// Bytes requested.
    pub requested: usize,
    /// Bytes of the pool that are in use.
    pub in_use: usize,
    /// Bytes of the pool in all.
    pub reserved: usize,
    /// The pool's limit, if it has one.
    pub limit: Option<usize>,
    /// The bucket being recorded, if it was named.
    pub bucket: Option<usize>,
    /// The segment being recorded.
    pub segment: Option<usize>,
    /// The driver call that failed; `None` where the pool's own limit was reached first.
    pub call: Option<CallError>,
}

struct Limit<'a>(&'a Option<usize>);

impl fmt::Display for Limit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |limit| write!(f, " (limit {limit})"))
    }
}

struct By<'a>(&'a Option<CallError>);

impl fmt::Display for By<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |call| write!(f, " ({call})"))
    }
}

struct At<'a>(&'a Option<usize>, &'a Option<usize>);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(bucket) = self.0 {
            write!(f, ", bucket {bucket}")?;
        }
        self.1.map_or(Ok(()), |segment| write!(f, ", segment {segment}"))
    }
}
