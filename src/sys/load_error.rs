//! [`LoadError`]: what is wrong with a library that will not do.

use super::bindings::CUresult;
use super::call::Call;
use super::call_error::{CodeName, VersionName};
use super::search::{Candidate, PATH_VARIABLE};
use std::fmt;
use std::path::PathBuf;

/// The oldest driver that the crate works with: CUDA 12.0.
pub const MINIMUM_VERSION: i32 = 12_000;

/// Why a driver could not be loaded.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No driver library was found, or none that the system would load.
    #[error(
        "no CUDA driver library: tried {}. Install the NVIDIA driver (in a container: give it the GPU), or name the file in {PATH_VARIABLE}",
        List(tried)
    )]
    NoLibrary {
        /// What was tried, in order.
        tried: Vec<Candidate>,
    },
    /// A toolkit's stub library, made for linking, was found and no driver (`CUDA_ERROR_STUB_LIBRARY`, 34). A stub is passed over where
    /// another candidate is a driver.
    #[error(
        "{} is a stub library for linking and not the driver: take its folder off the library path. Other candidates: {}",
        path.display(), List(others)
    )]
    Stub {
        /// The stub.
        path: PathBuf,
        /// The other candidates and what came of them.
        others: Vec<Candidate>,
    },
    /// The driver is older than [`MINIMUM_VERSION`].
    #[error(
        "{} is a driver of CUDA {}, at least {} is needed: update the NVIDIA driver",
        path.display(), VersionName(*have), VersionName(MINIMUM_VERSION)
    )]
    TooOld {
        /// The library.
        path: PathBuf,
        /// Its CUDA version, as `1000 * major + 10 * minor`.
        have: i32,
    },
    /// The library lacks a call that the crate can't do without.
    #[error(
        "{} ({}) lacks {call}, which drivers have from CUDA {} on: the file is not a whole driver library",
        path.display(), OfVersion(*have), VersionName(call.since())
    )]
    MissingCall {
        /// The library.
        path: PathBuf,
        /// The call.
        call: Call,
        /// The CUDA version of the library, as `1000 * major + 10 * minor`; 0 where it did not tell.
        have: i32,
    },
    /// The driver works and sees no device (`CUDA_ERROR_NO_DEVICE`, 100).
    #[error(
        "{} sees no CUDA device (CUDA_VISIBLE_DEVICES is {}): check that variable, and that the device is given to this process",
        path.display(), Visible(visible_devices.as_deref())
    )]
    NoDevice {
        /// The library.
        path: PathBuf,
        /// What `CUDA_VISIBLE_DEVICES` holds, if it is set.
        visible_devices: Option<String>,
    },
    /// The driver did not start, for another reason.
    #[error(
        "{call} of {} ({}) returned {}{}. Other candidates: {}",
        path.display(), OfVersion(*have), CodeName(*code), Hint(*code), List(others)
    )]
    Init {
        /// The library.
        path: PathBuf,
        /// The call that failed: `cuInit`, or `cuDriverGetVersion` after it.
        call: Call,
        /// What it returned.
        code: CUresult,
        /// The CUDA version of the library, as `1000 * major + 10 * minor`; 0 where it did not tell.
        have: i32,
        /// The other candidates: what came of those before it, and those that were found and not tried.
        others: Vec<Candidate>,
    },
}

struct List<'a>(&'a [Candidate]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (at, candidate) in self.0.iter().enumerate() {
            write!(f, "{}{candidate}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

struct OfVersion(i32);

impl fmt::Display for OfVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("of an unknown CUDA version"),
            version => write!(f, "a driver of CUDA {}", VersionName(version)),
        }
    }
}

struct Visible<'a>(Option<&'a str>);

impl fmt::Display for Visible<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(value) => write!(f, "{value:?}"),
            None => f.write_str("not set"),
        }
    }
}

struct Hint(CUresult);

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
                ": the library and the kernel's driver are of different versions; a forward-compatibility library may come first on the path"
            }
            CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
                ": a forward-compatibility library was loaded on a device that does not allow it; take its folder (often named compat) off the path"
            }
            _ => "",
        })
    }
}
