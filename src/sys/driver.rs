//! [`Driver`]: the table of resolved entry points, and where it came from.

use super::bindings::CUresult;
use super::load;
use super::load_error::LoadError;
use super::search::Search;
use super::table::{Call, CallError, Table};
use core::ffi::c_char;
use std::ffi::CStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A loaded driver. Cheap to clone; all clones are the same driver.
///
/// Nothing touches a driver before the first of these is made. A loaded library is never unloaded.
#[derive(Clone)]
pub struct Driver {
    inner: Arc<Inner>,
}

struct Inner {
    table: Table,
    version: i32,
    origin: Origin,
    /// The process that loaded it: after a fork the child can't use it.
    process: u32,
    #[cfg(feature = "reference-driver")]
    watch: Option<super::intercept::Intercept>,
}

/// Where a driver's entry points come from.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Origin {
    /// A library, by the path or name under which it was found.
    Library(PathBuf),
    /// The crate's own implementation on the CPU.
    Reference,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Library(path) => write!(f, "{}", path.display()),
            Origin::Reference => f.write_str("reference driver (CPU)"),
        }
    }
}

/// Whether two values are the same loaded driver.
impl PartialEq for Driver {
    fn eq(&self, other: &Driver) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Driver {}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("origin", &self.inner.origin)
            .field("version", &self.inner.version)
            .finish_non_exhaustive()
    }
}

impl Driver {
    /// Loads libcuda and initialises it ([`cuInit`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__INITIALIZE.html)).
    ///
    /// Tried in this order: the file named by `BREAKABLE_CUDA_GRAPH_DRIVER` (then nothing else); `libcuda.so.1` and `libcuda.so`, by the
    /// system's loader; WSL's folder and others where drivers are installed. On Windows: `nvcuda.dll`.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load() -> Result<Driver, LoadError> {
        load::load(&Search::of_environment())
    }

    /// Loads the driver from this file, and from no other.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load_from(path: impl AsRef<Path>) -> Result<Driver, LoadError> {
        load::load(&Search::only(path.as_ref()))
    }

    /// Loads the driver from where `search` says. No environment variable changes that.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load_with(search: &Search) -> Result<Driver, LoadError> {
        load::load(search)
    }

    /// The reference driver: one device, default options. See [`reference`](crate::reference).
    ///
    /// # Errors
    /// None with the default options; the type is that of [`load`](Driver::load).
    #[cfg(feature = "reference-driver")]
    pub fn reference() -> Result<Driver, LoadError> {
        Driver::reference_with(crate::reference::Options::default())
    }

    /// A reference driver of its own with these options: it shares nothing with any other.
    ///
    /// # Errors
    /// As a library would: [`LoadError`] where the options ask for an old version, a missing call or no device.
    #[cfg(feature = "reference-driver")]
    pub fn reference_with(options: crate::reference::Options) -> Result<Driver, LoadError> {
        load::reference(options)
    }

    /// A copy of this driver whose calls are counted and can be made to fail. The copy and the original are the same driver to the device.
    #[cfg(feature = "reference-driver")]
    #[must_use]
    pub fn intercepted(&self) -> Driver {
        let watch = match self.intercept().and_then(super::intercept::Intercept::ref_driver) {
            Some(ref_driver) => super::intercept::Intercept::of_machine(ref_driver.clone()),
            None => super::intercept::Intercept::default(),
        };
        Driver {
            inner: Arc::new(Inner {
                table: self.inner.table.clone(),
                version: self.inner.version,
                origin: self.inner.origin.clone(),
                process: self.inner.process,
                watch: Some(watch),
            }),
        }
    }

    /// The watch over this driver's calls: always there for the reference driver and for [`watched`](Driver::watched) copies.
    #[cfg(feature = "reference-driver")]
    #[inline]
    pub fn intercept(&self) -> Option<&super::intercept::Intercept> {
        self.inner.watch.as_ref()
    }

    /// The ref_driver behind the reference driver, for its counters and options; `None` for libcuda.
    #[cfg(feature = "reference-driver")]
    pub fn ref_driver(&self) -> Option<&crate::reference::RefDriver> {
        self.intercept()?.ref_driver().map(Arc::as_ref)
    }

    #[cfg(feature = "reference-driver")]
    pub(super) fn of_machine(table: Table, version: i32, ref_driver: Arc<crate::reference::RefDriver>) -> Driver {
        let watch = Some(super::intercept::Intercept::of_machine(ref_driver));
        Driver {
            inner: Arc::new(Inner { table, version, origin: Origin::Reference, process: std::process::id(), watch }),
        }
    }

    pub(super) fn of_library(table: Table, version: i32, path: PathBuf) -> Driver {
        Driver {
            inner: Arc::new(Inner {
                table,
                version,
                origin: Origin::Library(path),
                process: std::process::id(),
                #[cfg(feature = "reference-driver")]
                watch: None,
            }),
        }
    }

    /// The CUDA version of the driver, as `1000 * major + 10 * minor`
    /// ([`cuDriverGetVersion`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VERSION.html)).
    pub fn version(&self) -> i32 {
        self.inner.version
    }

    /// Where the entry points come from.
    pub fn origin(&self) -> &Origin {
        &self.inner.origin
    }

    /// Whether this is the reference driver.
    pub fn is_reference(&self) -> bool {
        self.inner.origin == Origin::Reference
    }

    /// Whether the driver has the call. Always true for those that [`Call::is_needed`].
    pub fn supports(&self, call: Call) -> bool {
        self.inner.table.has(call)
    }

    /// The entry points themselves, for calls without the check of the code.
    #[inline]
    pub fn table(&self) -> &Table {
        &self.inner.table
    }

    /// Whether this process is the one that loaded the driver; a fork's child is not, and the driver's state does not survive the fork.
    pub fn is_of_this_process(&self) -> bool {
        self.inner.process == std::process::id()
    }

    /// The driver's own text for a code, such as `operation not permitted when stream is capturing`.
    pub fn describe(&self, code: CUresult) -> Option<String> {
        let mut text: *const c_char = core::ptr::null();
        // SAFETY: `text` is a valid place for the pointer.
        unsafe { self.cuGetErrorString(code, &mut text) }.ok()?;
        if text.is_null() {
            return None;
        }
        // SAFETY: on success the driver gives a NUL-terminated string that lives as long as the library.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    #[cold]
    pub(super) fn unsupported(&self, call: Call) -> CallError {
        CallError::Unsupported { call, needs: call.since(), have: self.inner.version }
    }
}

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
        write!(f, "{} ({})", super::codes::name(self.0).unwrap_or("an unknown code"), self.0.0)
    }
}

/// What tells one driver from another, to the device: a driver and its intercepted copies are the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct DriverId(usize, u64);

impl Driver {
    /// Which driver it is.
    pub(crate) fn identity(&self) -> DriverId {
        let address = self.inner.table.cuCtxGetId.map_or(0, |call| call as usize);
        #[cfg(feature = "reference-driver")]
        let number = self.ref_driver().map_or(0, crate::reference::RefDriver::id);
        #[cfg(not(feature = "reference-driver"))]
        let number = 0;
        DriverId(address, number)
    }
}
