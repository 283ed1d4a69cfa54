//! The driver's calls on the CPU, with the driver's rules and not only its results.

use core::ffi::c_void;
use std::sync::Arc;

/// How a reference driver is to behave.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The CUDA version that it claims, as `1000 * major + 10 * minor`.
    pub version: i32,
}

impl Default for Options {
    fn default() -> Options {
        Options { version: 13_000 }
    }
}

/// One reference driver: its devices and all that was made on them.
pub struct Machine {}

impl Machine {
    pub(crate) fn new(_options: Options) -> Arc<Machine> {
        Arc::new(Machine {})
    }

    /// The address of an entry point by its exported name, or null.
    pub(crate) fn export(&self, _name: &str) -> *const c_void {
        core::ptr::null()
    }
}

/// Runs one driver call of this machine: the entry points find the machine through the calling thread.
pub(crate) fn enter<T>(_machine: &Arc<Machine>, run: impl FnOnce() -> T) -> T {
    run()
}
