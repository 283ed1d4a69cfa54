//! Recordings that failed.

use super::Error;
use crate::sys::CallError;
use std::fmt;

/// Why a recording failed: the first cause, the place, and what followed from it.
#[derive(Debug)]
#[non_exhaustive]
pub struct CaptureError {
    /// The capture's name, if it was given one.
    pub name: Option<String>,
    /// The bucket, if it was named.
    pub bucket: Option<usize>,
    /// The segment that was open or had just ended, counted from 0.
    pub segment: usize,
    /// How many operations of the crate went into that segment before.
    pub operation: usize,
    /// The first driver call that failed since that segment began, as far as it was made through the crate.
    pub first_call: Option<CallError>,
    /// The error that ended the recording.
    pub source: Box<Error>,
    /// What failed afterwards, in order: never the cause.
    pub notes: Vec<CallError>,
    /// What the capture pool held, where the device had too little memory for something else than the pool.
    pub pool_bytes: Option<PoolBytes>,
    /// A hint, where one applies.
    pub hint: Option<&'static str>,
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("capture")?;
        if let Some(name) = &self.name {
            write!(f, " {name:?}")?;
        }
        if let Some(bucket) = self.bucket {
            write!(f, " of bucket {bucket}")?;
        }
        write!(f, " failed in segment {} after operation {}: ", self.segment, self.operation)?;
        match self.first_call.filter(|first| self.source.driver_call() != Some(*first)) {
            Some(first) => write!(f, "{first}; then {}", self.source)?,
            None => write!(f, "{}", self.source)?,
        }
        for note in &self.notes {
            write!(f, "; then {note}")?;
        }
        if let Some(PoolBytes { in_use, reserved }) = self.pool_bytes {
            write!(f, "; the capture pool had {in_use} of {reserved} bytes in use")?;
        }
        match self.hint {
            Some(hint) => write!(f, ". {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for CaptureError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}

/// What a capture pool held when a recording failed, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolBytes {
    /// In blocks that tensors held.
    pub in_use: usize,
    /// In all.
    pub reserved: usize,
}
