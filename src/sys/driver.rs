//! [`Driver`]: the table of resolved entry points, and where it came from.

#[cfg(feature = "reference-driver")]
use super::backend::Backend;
use super::bindings::CUresult;
use super::call::Call;
#[cfg(feature = "reference-driver")]
use super::intercept::Intercept;
use super::table::Table;
use core::ffi::c_char;
use std::ffi::CStr;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// A loaded driver. Cheap to clone; all clones are the same driver.
///
/// Nothing touches a driver before the first of these is made. A loaded library is never unloaded.
///
/// ```
/// use breakable_cuda_graph::Driver;
///
/// let driver = Driver::load().or_else(|error| {
///     println!("on the CPU: {error}");
///     Driver::reference()
/// })?;
/// assert!(driver.version() >= 12_000);
/// # Ok::<(), breakable_cuda_graph::sys::LoadError>(())
/// ```
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
    intercept: Option<Intercept>,
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
    /// A copy of this driver whose calls are counted and can be made to fail. The copy and the original are the same driver to the device.
    #[cfg(feature = "reference-driver")]
    #[must_use]
    pub fn intercepted(&self) -> Driver {
        let Inner { table, version, origin, process, intercept: _ } = &*self.inner;
        let (table, version, origin, process) = (table.clone(), *version, origin.clone(), *process);
        let intercept = Some(Intercept::new(self.backend().cloned()));
        Driver { inner: Arc::new(Inner { table, version, origin, process, intercept }) }
    }

    /// What stands around this driver's calls: always there for the reference driver and for [`intercepted`](Driver::intercepted) copies.
    #[cfg(feature = "reference-driver")]
    #[inline]
    pub fn intercept(&self) -> Option<&Intercept> {
        self.inner.intercept.as_ref()
    }

    /// What makes the calls, where that is in this process and no library.
    #[cfg(feature = "reference-driver")]
    pub(crate) fn backend(&self) -> Option<&Arc<dyn Backend>> {
        self.intercept()?.backend()
    }

    #[cfg(feature = "reference-driver")]
    pub(super) fn of_backend(table: Table, version: i32, backend: Arc<dyn Backend>) -> Driver {
        let intercept = Some(Intercept::new(Some(backend)));
        Driver {
            inner: Arc::new(Inner {
                table,
                version,
                origin: Origin::Reference,
                process: std::process::id(),
                intercept,
            }),
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
                intercept: None,
            }),
        }
    }

    /// The CUDA version of the driver, as `1000 * major + 10 * minor`
    /// ([`cuDriverGetVersion`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VERSION.html)).
    #[doc(alias = "cuDriverGetVersion")]
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
}

/// What tells one driver from another, to the device: a driver, its intercepted copies, and whatever else was loaded from the same library are one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct DriverId(usize, u64);

impl Driver {
    /// Which driver it is.
    pub(crate) fn identity(&self) -> DriverId {
        let address = self.inner.table.cuCtxGetId.map_or(0, |call| call as usize);
        #[cfg(feature = "reference-driver")]
        let number = self.backend().map_or(0, |backend| backend.id());
        #[cfg(not(feature = "reference-driver"))]
        let number = 0;
        DriverId(address, number)
    }
}
