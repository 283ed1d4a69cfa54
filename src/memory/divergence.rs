//! How a recording differs from its plan.

use std::fmt;

/// How a recording differed from its plan. It was captured all the same, with more memory.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Divergence {
    /// The request that differed, counted from 0.
    pub request: usize,
    /// Its name in the plan, if it has one.
    pub name: Option<String>,
    /// What differed.
    pub kind: DivergenceKind,
}

/// What differed between a plan and a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DivergenceKind {
    /// Another size was asked for.
    Size {
        /// In the plan, in bytes.
        planned: usize,
        /// In the recording, in bytes.
        asked: usize,
    },
    /// The plan has no such request.
    More {
        /// What was asked for, in bytes.
        asked: usize,
    },
    /// The recording ended before it.
    Fewer {
        /// Requests in the plan.
        planned: usize,
    },
    /// A block that the plan has released by then was still in use where this one was to be.
    Occupied {
        /// What was asked for, in bytes.
        asked: usize,
    },
    /// The pool's planned range is smaller than the plan.
    Range {
        /// What the plan takes, in bytes.
        planned: usize,
        /// What there is, in bytes.
        range: usize,
    },
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Divergence { request, name, kind } = self;
        write!(f, "request {request}")?;
        if let Some(name) = name {
            write!(f, " ({name:?})")?;
        }
        match kind {
            DivergenceKind::Size { planned, asked } => write!(f, " is of {asked} bytes and was planned with {planned}"),
            DivergenceKind::More { asked } => write!(f, ", of {asked} bytes, is not in the plan"),
            DivergenceKind::Fewer { planned } => write!(f, " of {planned} was not made"),
            DivergenceKind::Occupied { asked } => {
                write!(f, ", of {asked} bytes, was to lie where a block is still in use")
            }
            DivergenceKind::Range { planned, range } => {
                write!(f, " and all others: the plan takes {planned} bytes and the pool's planned range has {range}")
            }
        }
    }
}
