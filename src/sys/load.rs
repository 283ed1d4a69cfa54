//! Loading a driver: opening its library, starting it and resolving its calls.

#[cfg(feature = "reference-driver")]
use super::backend::Backend;
use super::bindings::*;
use super::call::Call;
use super::driver::Driver;
use super::load_error::{LoadError, MINIMUM_VERSION};
use super::search::{Candidate, Outcome, Search, file_of};
use super::table::Table;
use core::ffi::{c_char, c_int, c_uint, c_void};
use core::mem::ManuallyDrop;
use std::ffi::CString;
use std::path::{Path, PathBuf};
#[cfg(feature = "reference-driver")]
use std::sync::Arc;

impl Driver {
    /// Loads libcuda and initialises it ([`cuInit`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__INITIALIZE.html)).
    ///
    /// Tried in this order: the file named by `BREAKABLE_CUDA_GRAPH_DRIVER` (then nothing else); `libcuda.so.1` and `libcuda.so`, by the
    /// system's loader; WSL's folder and others where drivers are installed. On Windows: `nvcuda.dll`.
    ///
    /// # Errors
    /// See [`LoadError`].
    #[doc(alias = "cuInit")]
    pub fn load() -> Result<Driver, LoadError> {
        load(&Search::of_environment())
    }

    /// Loads the driver from this file, and from no other.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load_from(path: impl AsRef<Path>) -> Result<Driver, LoadError> {
        load(&Search::only(path.as_ref()))
    }

    /// Loads the driver from where `search` says. No environment variable changes that.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load_with(search: &Search) -> Result<Driver, LoadError> {
        load(search)
    }
}

/// Loads the first candidate that is a driver. A stub is passed over; a driver that will not start ends the search.
fn load(search: &Search) -> Result<Driver, LoadError> {
    let mut tried: Vec<Candidate> = Vec::new();
    let mut stub: Option<(usize, PathBuf)> = None;
    for path in search.candidates() {
        let outcome = match open(&path) {
            Err(message) => Outcome::of_message(&path, message),
            Ok(library) => match of_library(&path, &library) {
                Err(LoadError::Stub { path, .. }) => {
                    stub.get_or_insert((tried.len(), path));
                    Outcome::Stub
                }
                Err(LoadError::Init { path, call, code, have, .. }) => {
                    let found = search.beside(&path).into_iter();
                    tried.retain(|candidate| !matches!(candidate.outcome, Outcome::NotFound(_)));
                    let untried = found.filter(|path| tried.iter().all(|candidate| candidate.path != *path));
                    let untried = untried.map(|path| Candidate { path, outcome: Outcome::NotTried });
                    let others = tried.iter().cloned().chain(untried).collect();
                    return Err(LoadError::Init { path, call, code, have, others });
                }
                done => return done,
            },
        };
        tried.push(Candidate { path, outcome });
    }
    Err(match stub {
        Some((at, path)) => {
            tried.remove(at);
            LoadError::Stub { path, others: tried }
        }
        None => LoadError::NoLibrary { tried },
    })
}

/// Opens a library for good: handles and threads of the driver may outlive every value of this crate, so it is never unloaded.
fn open(path: &Path) -> Result<ManuallyDrop<libloading::Library>, String> {
    use std::error::Error;
    // SAFETY: loading a driver's library runs its initialisers, which is what was asked for.
    unsafe { libloading::Library::new(path) }
        .map(ManuallyDrop::new)
        .map_err(|error| error.source().map_or_else(|| error.to_string(), ToString::to_string))
}

fn of_library(path: &Path, library: &libloading::Library) -> Result<Driver, LoadError> {
    let export = |name: &str| -> *const c_void {
        // SAFETY: the symbol is only looked up here; what is done with the address is argued where it is used.
        match unsafe { library.get::<*const c_void>(name.as_bytes()) } {
            Ok(symbol) => *symbol,
            Err(_) => core::ptr::null(),
        }
    };
    let path = file_of(export("cuInit")).unwrap_or_else(|| path.to_path_buf());
    // SAFETY: libcuda's exports have the documented signatures; a file that exports these names with others is not a driver library.
    let (table, version) = unsafe { start_and_resolve(&path, export) }?;
    Ok(Driver::of_library(table, version, path))
}

/// A driver inside the process goes through the same steps as a library.
#[cfg(feature = "reference-driver")]
pub(crate) fn of_backend(backend: Arc<dyn Backend>, name: &str) -> Result<Driver, LoadError> {
    backend.enter();
    // SAFETY: a backend gives functions with the signatures of the list, and null for what it lacks.
    let (table, version) = unsafe { start_and_resolve(Path::new(name), |name| backend.export(name)) }?;
    Ok(Driver::of_backend(table, version, backend))
}

type Init = unsafe extern "C" fn(c_uint) -> CUresult;
type DriverGetVersion = unsafe extern "C" fn(*mut c_int) -> CUresult;
type GetProcAddress = unsafe extern "C" fn(
    *const c_char,
    *mut *mut c_void,
    c_int,
    cuuint64_t,
    *mut CUdriverProcAddressQueryResult,
) -> CUresult;

/// Takes the exports of a driver through the steps that are the same for every kind of driver: its version, `cuInit`, each call of the list.
/// Other candidates are for the caller to name.
///
/// # Safety
/// What `export` gives for a name must be null or a function with that call's signature.
unsafe fn start_and_resolve(path: &Path, export: impl Fn(&str) -> *const c_void) -> Result<(Table, i32), LoadError> {
    let missing = |call, have| LoadError::MissingCall { path: path.to_path_buf(), call, have };
    // SAFETY: as the caller says; `Option` makes a null pointer `None`.
    let get_version =
        unsafe { core::mem::transmute::<*const c_void, Option<DriverGetVersion>>(export("cuDriverGetVersion")) };
    let get_version = get_version.ok_or(missing(Call::cuDriverGetVersion, 0))?;
    // SAFETY: likewise.
    let init = unsafe { core::mem::transmute::<*const c_void, Option<Init>>(export("cuInit")) };
    // SAFETY: likewise.
    let get_proc =
        unsafe { core::mem::transmute::<*const c_void, Option<GetProcAddress>>(export("cuGetProcAddress_v2")) };

    // Asked first: a driver tells its version before it is started, and one that is too old need not be started, nor have the calls of a newer.
    let mut version = 0;
    // SAFETY: `version` is a valid place.
    let asked = unsafe { get_version(&mut version) };
    let version = if asked == CUresult::CUDA_SUCCESS { version } else { 0 };
    if asked == CUresult::CUDA_SUCCESS && version < MINIMUM_VERSION {
        return Err(LoadError::TooOld { path: path.to_path_buf(), have: version });
    }
    let init = init.ok_or(missing(Call::cuInit, version))?;
    // SAFETY: the call takes no pointer.
    let started = unsafe { init(0) };
    let codes = [(Call::cuInit, started), (Call::cuDriverGetVersion, asked)];
    if let Some((call, code)) = codes.into_iter().find(|(_, code)| *code != CUresult::CUDA_SUCCESS) {
        let path = path.to_path_buf();
        return Err(match code {
            CUresult::CUDA_ERROR_STUB_LIBRARY => LoadError::Stub { path, others: Vec::new() },
            CUresult::CUDA_ERROR_NO_DEVICE => {
                let visible = std::env::var_os("CUDA_VISIBLE_DEVICES");
                LoadError::NoDevice { path, visible_devices: visible.map(|value| value.to_string_lossy().into_owned()) }
            }
            _ => LoadError::Init { path, call, code, have: version, others: Vec::new() },
        });
    }

    // By name and version, so that a driver of any age gives the form that the list describes; by the exported name where that fails.
    let find = |call: Call| -> *const c_void {
        let mut address: *mut c_void = core::ptr::null_mut();
        if let (Some(get_proc), Ok(name)) = (get_proc, CString::new(base_name(call.name()))) {
            let mut found = CUdriverProcAddressQueryResult(0);
            let legacy_stream = u64::from(CUdriverProcAddress_flags_enum::CU_GET_PROC_ADDRESS_LEGACY_STREAM.0);
            // SAFETY: a NUL-terminated name and two valid places.
            let code = unsafe { get_proc(name.as_ptr(), &mut address, call.since(), legacy_stream, &mut found) };
            if code != CUresult::CUDA_SUCCESS {
                address = core::ptr::null_mut();
            }
        }
        if address.is_null() { export(call.name()) } else { address }
    };
    // SAFETY: each address is that of the call's exact form, by name and version or by the exported name.
    let table = unsafe { Table::resolve(find) };
    match Call::ALL.iter().find(|call| call.is_needed() && !table.has(**call)) {
        Some(&call) => Err(missing(call, version)),
        None => Ok((table, version)),
    }
}

/// `cuMemAlloc` for `cuMemAlloc_v2`: what `cuGetProcAddress` calls it.
pub(crate) fn base_name(export: &str) -> &str {
    match export.rsplit_once("_v") {
        Some((base, digits)) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => base,
        _ => export,
    }
}

#[cfg(test)]
mod tests {
    use super::base_name;

    #[test]
    fn a_base_name_has_no_version() {
        assert_eq!(base_name("cuMemAlloc_v2"), "cuMemAlloc");
        assert_eq!(base_name("cuInit"), "cuInit");
        assert_eq!(base_name("cu_v"), "cu_v");
        assert_eq!(base_name("cu_vx"), "cu_vx");
    }
}
