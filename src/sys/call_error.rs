//! [`CallError`]: a driver call that failed, and how versions and codes are written in errors.

use super::bindings::CUresult;
use super::call::Call;
use super::codes;
use std::fmt;

/// A driver call that failed, or that this driver does not have. Small and `Copy`: it is made on every failing path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CallError {
    /// The driver returned something else than `CUDA_SUCCESS`.
    Failed {
        /// The call.
        call: Call,
        /// What it returned.
        code: CUresult,
    },
    /// An optional call that this driver does not have.
    Unsupported {
        /// The call.
        call: Call,
        /// The CUDA version that introduced it, as `1000 * major + 10 * minor`.
        needs: i32,
        /// The CUDA version of the loaded driver.
        have: i32,
    },
}

impl CallError {
    /// The call that failed.
    pub fn call(&self) -> Call {
        match *self {
            CallError::Failed { call, .. } | CallError::Unsupported { call, .. } => call,
        }
    }

    /// The driver's code; `CUDA_ERROR_NOT_SUPPORTED` for a call that the driver does not have.
    pub fn code(&self) -> CUresult {
        match *self {
            CallError::Failed { code, .. } => code,
            CallError::Unsupported { .. } => CUresult::CUDA_ERROR_NOT_SUPPORTED,
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            CallError::Failed { call, code } => write!(f, "{call} returned {}", CodeName(code)),
            CallError::Unsupported { call, needs, have } => write!(
                f,
                "{call} needs a driver of CUDA {}, this one is CUDA {}",
                VersionName(needs),
                VersionName(have)
            ),
        }
    }
}

impl std::error::Error for CallError {}

/// `13.0` for 13000.
pub(crate) struct VersionName(pub i32);

impl fmt::Display for VersionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// `CUDA_ERROR_OUT_OF_MEMORY (2)`.
pub(crate) struct CodeName(pub CUresult);

impl fmt::Display for CodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The derived form of a newtype is `CUresult_enum(2)`; names come from the bindings' constants.
        write!(f, "{} ({})", codes::name(self.0).unwrap_or("an unknown code"), self.0.0)
    }
}
