//! [`Backend`]: a driver that is part of this process and no library.

use core::ffi::c_void;
use std::any::Any;

/// What makes the driver's calls inside this process. It gives its functions as a library does, by name, so that loading it and calling it is the
/// same as for libcuda.
pub(crate) trait Backend: Any + Send + Sync {
    /// The function of this exported name, with the signature that the list of calls gives, or null.
    fn export(&self, name: &str) -> *const c_void;

    /// Makes this the backend that the thread's next calls are for. The functions are shared by all backends of a kind and take no `self`.
    fn enter(&self);

    /// Its number among all backends of the process, from 1 on.
    fn id(&self) -> u64;
}
