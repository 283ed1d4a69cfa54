//! Modules that can't be loaded, and kernels that are not in them.

use crate::sys::{CUresult, CallError};
use std::fmt;

/// A module that could not be loaded, with what the driver's compiler says of it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ModuleLoadError {
    /// The call and its code.
    pub error: CallError,
    /// The driver's text (`CU_JIT_ERROR_LOG_BUFFER`), which names the line of PTX. Empty where it gives none, as for images that are not compiled.
    pub log: String,
}

impl fmt::Display for ModuleLoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the module could not be loaded: {}", self.error)?;
        if !self.log.is_empty() {
            write!(f, ", the driver's compiler says: {}", self.log)?;
        }
        match self.error.code() {
            CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
                f.write_str("; the PTX is of a later version than this driver knows: compile it for an older one (`.version`), or update the driver")
            }
            CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => {
                f.write_str("; the image has no code for this device: compile for its compute capability, or give PTX for one no later than that")
            }
            CUresult::CUDA_ERROR_INVALID_IMAGE => f.write_str("; give PTX text, a cubin or a fat binary"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for ModuleLoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// A kernel that a module lacks, or whose code could not be loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct KernelError {
    /// The name that was asked for.
    pub kernel: String,
    /// The names of the module's kernels, where the driver tells (from CUDA 12.4 on).
    pub available: Option<Vec<String>>,
    /// The call and its code.
    pub error: CallError,
}

/// How many names the message lists.
const LISTED: usize = 16;

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KernelError { kernel, available, error } = self;
        if error.code() != CUresult::CUDA_ERROR_NOT_FOUND {
            return write!(f, "kernel `{kernel}` could not be loaded: {error}");
        }
        write!(f, "the module has no kernel `{kernel}` ({error})")?;
        if let Some(available) = available {
            let names: Vec<String> = available.iter().take(LISTED).map(|name| format!("`{name}`")).collect();
            match (names.is_empty(), available.len().saturating_sub(LISTED)) {
                (true, _) => f.write_str("; it has none")?,
                (false, 0) => write!(f, "; it has {}", names.join(", "))?,
                (false, more) => write!(f, "; it has {} and {more} more", names.join(", "))?,
            }
            if let Some(mangled) = available.iter().find(|name| is_mangled(name, kernel)) {
                return write!(f, ": ask for `{mangled}`, its name in C++, or declare the kernel `extern \"C\"`");
            }
        }
        f.write_str(": compilers of C++ write a kernel's name with its types unless it is declared `extern \"C\"`")
    }
}

/// Whether a name is that of a C++ function of this name.
fn is_mangled(name: &str, plain: &str) -> bool {
    name.starts_with("_Z") && !plain.is_empty() && name.contains(&format!("{}{plain}", plain.len()))
}

impl std::error::Error for KernelError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
