//! Finding libcuda, resolving its calls, and saying what is wrong with a library that will not do.

use super::bindings::*;
use super::driver::{CodeName, Driver, VersionName};
use super::table::{Call, Table};
use core::ffi::{c_char, c_int, c_uint, c_void};
use std::ffi::CString;
use std::fmt;
use std::path::{Path, PathBuf};

/// The oldest driver that the crate works with: CUDA 12.0.
pub const MINIMUM_VERSION: i32 = 12_000;

/// The environment variable that names the driver's file.
pub(crate) const PATH_VARIABLE: &str = "BREAKABLE_CUDA_GRAPH_DRIVER";

/// A file or name that was tried, and what came of it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Candidate {
    /// The path or name given to the system's loader.
    pub path: PathBuf,
    /// Whether a file is there (for a bare name: whether the loader found one), so that a file which fails to load can be told from none.
    pub exists: bool,
    /// What the system's loader said; empty where it loaded.
    pub message: String,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        match (self.exists, self.message.as_str()) {
            (_, "") => Ok(()),
            (true, message) => write!(f, " (found, but failed to load: {message})"),
            (false, message) => write!(f, " (not found: {message})"),
        }
    }
}

/// Why a driver could not be loaded.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No driver library under any of the names.
    #[error(
        "no CUDA driver library: tried {}. Install the NVIDIA driver (in a container: give it the GPU), or name the file in {PATH_VARIABLE}",
        List(tried)
    )]
    NoLibrary {
        /// What was tried, in order.
        tried: Vec<Candidate>,
    },
    /// A toolkit's stub library, made for linking, was found instead of the driver (`CUDA_ERROR_STUB_LIBRARY`, 34).
    #[error("{} is a stub library for linking and not the driver; take its folder off the library path. Also tried: {}", path.display(), List(others))]
    Stub {
        /// The stub.
        path: PathBuf,
        /// The other candidates and what came of them.
        others: Vec<Candidate>,
    },
    /// The driver is older than [`MINIMUM_VERSION`].
    #[error("{} is a driver of CUDA {}, at least {} is needed: update the NVIDIA driver", path.display(), VersionName(*have), VersionName(MINIMUM_VERSION))]
    TooOld {
        /// The library.
        path: PathBuf,
        /// Its CUDA version.
        have: i32,
    },
    /// The library lacks a call that the crate can't do without.
    #[error(
        "{} (a driver of CUDA {}) lacks {call}, which drivers have from CUDA {} on: the file is not a whole driver library",
        path.display(), VersionName(*have), VersionName(call.since())
    )]
    MissingCall {
        /// The library.
        path: PathBuf,
        /// The call.
        call: Call,
        /// The CUDA version that the library gives, 0 where it lacks the call that tells.
        have: i32,
    },
    /// The driver works and sees no device (`CUDA_ERROR_NO_DEVICE`, 100).
    #[error(
        "{} sees no CUDA device (CUDA_VISIBLE_DEVICES is {}): check that variable, and that the device is given to this process",
        path.display(), Visible(visible_devices)
    )]
    NoDevice {
        /// The library.
        path: PathBuf,
        /// What `CUDA_VISIBLE_DEVICES` holds, if it is set.
        visible_devices: Option<String>,
    },
    /// `cuInit` failed for another reason.
    #[error("cuInit of {} returned {}{}. Other candidates: {}", path.display(), CodeName(*code), Hint(*code), List(others))]
    Init {
        /// The library.
        path: PathBuf,
        /// What it returned.
        code: CUresult,
        /// The other candidates and what came of them.
        others: Vec<Candidate>,
    },
}

struct List<'a>(&'a [Candidate]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nothing");
        }
        for (at, candidate) in self.0.iter().enumerate() {
            write!(f, "{}{candidate}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

struct Visible<'a>(&'a Option<String>);

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

/// The names tried, in order.
pub(crate) fn default_names() -> Vec<PathBuf> {
    let names: &[&str] = if cfg!(windows) {
        &["nvcuda.dll"]
    } else {
        &["libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so"]
    };
    names.iter().map(PathBuf::from).collect()
}

pub(crate) fn load() -> Result<Driver, LoadError> {
    match std::env::var_os(PATH_VARIABLE) {
        Some(path) => load_from(Path::new(&path)),
        None => load_first(&default_names()),
    }
}

pub(crate) fn load_from(path: &Path) -> Result<Driver, LoadError> {
    load_first(&[path.to_path_buf()])
}

/// Loads the first of the names that is a driver; a stub is passed over as long as there is another candidate.
pub(crate) fn load_first(names: &[PathBuf]) -> Result<Driver, LoadError> {
    let mut tried = Vec::new();
    let mut stub = None;
    for name in names {
        // SAFETY: loading a driver library runs its initialisers, which is what was asked for.
        let library = match unsafe { libloading::Library::new(name) } {
            Ok(library) => library,
            Err(error) => {
                let message = describe(&error);
                let exists =
                    if name.components().count() > 1 { name.exists() } else { !message.contains("No such file") };
                tried.push(Candidate { path: name.clone(), exists, message });
                continue;
            }
        };
        // The library is never unloaded: handles and threads of the driver may outlive every value of this crate.
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        match initialise(name, library, &tried) {
            Err(LoadError::Stub { path, .. }) => {
                tried.push(Candidate { path: path.clone(), exists: true, message: "a stub library".into() });
                stub.get_or_insert(path);
            }
            done => return done,
        }
    }
    match stub {
        Some(path) => {
            tried.retain(|candidate| candidate.path != path);
            Err(LoadError::Stub { path, others: tried })
        }
        None => Err(LoadError::NoLibrary { tried }),
    }
}

fn describe(error: &libloading::Error) -> String {
    use std::error::Error;
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

fn initialise(path: &Path, library: &'static libloading::Library, tried: &[Candidate]) -> Result<Driver, LoadError> {
    let export = |name: &str| -> *const c_void {
        // SAFETY: the symbol is only looked up here; what is done with the address is argued where it is used.
        match unsafe { library.get::<*const c_void>(name.as_bytes()) } {
            Ok(symbol) => *symbol,
            Err(_) => core::ptr::null(),
        }
    };
    // SAFETY: libcuda's exports have the documented signatures; a file that exports these names with others is not a driver library.
    unsafe { resolve_and_start(path, export, tried) }
        .map(|(table, version)| Driver::of_library(table, version, path.to_path_buf()))
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

/// Takes a set of exports through the same steps for every kind of driver: version, `cuInit`, each call of the list.
///
/// # Safety
/// What `export` gives for a name must be null or a function with that call's signature.
unsafe fn resolve_and_start(
    path: &Path,
    export: impl Fn(&str) -> *const c_void,
    others: &[Candidate],
) -> Result<(Table, i32), LoadError> {
    let path = || path.to_path_buf();
    let missing = |call, have| LoadError::MissingCall { path: path(), call, have };

    let init = export("cuInit");
    // SAFETY: as the caller says; `Option` makes a null pointer `None`.
    let init = unsafe { core::mem::transmute::<*const c_void, Option<Init>>(init) }.ok_or(missing(Call::cuInit, 0))?;
    let get_version = export("cuDriverGetVersion");
    // SAFETY: likewise.
    let get_version = unsafe { core::mem::transmute::<*const c_void, Option<DriverGetVersion>>(get_version) }
        .ok_or(missing(Call::cuDriverGetVersion, 0))?;
    let get_proc = export("cuGetProcAddress_v2");
    // SAFETY: likewise.
    let get_proc = unsafe { core::mem::transmute::<*const c_void, Option<GetProcAddress>>(get_proc) };

    // SAFETY: the call takes no pointer.
    let started = unsafe { init(0) };
    let mut version = 0;
    // SAFETY: `version` is a valid place.
    let asked = unsafe { get_version(&mut version) };
    match started {
        CUresult::CUDA_SUCCESS => {}
        CUresult::CUDA_ERROR_STUB_LIBRARY => return Err(LoadError::Stub { path: path(), others: others.to_vec() }),
        CUresult::CUDA_ERROR_NO_DEVICE => {
            return Err(LoadError::NoDevice {
                path: path(),
                visible_devices: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
            });
        }
        code => return Err(LoadError::Init { path: path(), code, others: others.to_vec() }),
    }
    if asked == CUresult::CUDA_SUCCESS && version < MINIMUM_VERSION {
        return Err(LoadError::TooOld { path: path(), have: version });
    }

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

/// The reference driver goes through the same steps as a library.
#[cfg(feature = "reference-driver")]
pub(crate) fn reference(options: crate::reference::Options) -> Result<Driver, LoadError> {
    let machine = crate::reference::Machine::new(options);
    let export = |name: &str| machine.export(name);
    let (table, version) = crate::reference::enter(&machine, || {
        // SAFETY: the machine exports functions with the signatures of the list, and null for what it was asked to lack.
        unsafe { resolve_and_start(Path::new("reference driver"), export, &[]) }
    })?;
    Ok(Driver::of_machine(table, version, machine))
}
