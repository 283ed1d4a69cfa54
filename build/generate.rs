//! Runs bindgen over `wrapper.h`. Nothing here panics, whatever libclang or the header is like: every failure is a text.

use super::names::{self, Listed};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Enums that no signature in the list mentions by type, because the driver takes them as plain integers, and types behind `void *`.
const EXTRA_TYPES: &[&str] = &[
    "CUctx_flags",
    "CUstream_flags",
    "CUevent_flags",
    "CUevent_record_flags",
    "CUevent_wait_flags",
    "CUgraphInstantiate_flags",
    "CUgraphDebugDot_flags",
    "CUdriverProcAddress_flags",
    "CUdriverProcAddressQueryResult",
    "CUmemPool_attribute",
    "CUmemorytype",
    "CUmemAttach_flags",
];

/// Loads libclang: where clang-sys finds one, else from the PyPI package `libclang` in one of `python_packages`.
///
/// # Safety
/// No other thread may read the environment meanwhile: `LIBCLANG_PATH` is the only way to name a folder to clang-sys.
pub unsafe fn load_libclang(python_packages: &[PathBuf]) -> Result<(), String> {
    let load = || quietly(clang_sys::load).and_then(|loaded| loaded);
    let first = match load() {
        Ok(()) => return Ok(()),
        Err(message) => message,
    };
    let folders = python_packages.iter().map(|packages| packages.join("clang").join("native"));
    if std::env::var_os("LIBCLANG_PATH").is_none() {
        for folder in folders.clone().filter(|folder| folder.is_dir()) {
            // SAFETY: the caller vouches for it.
            unsafe { std::env::set_var("LIBCLANG_PATH", &folder) };
            if load().is_ok() {
                return Ok(());
            }
            // SAFETY: likewise.
            unsafe { std::env::remove_var("LIBCLANG_PATH") };
        }
    }
    let folders: Vec<String> = folders.map(|folder| folder.display().to_string()).collect();
    let also = if folders.is_empty() { String::new() } else { format!("; also looked in {}", folders.join(", ")) };
    Err(format!("{first}{also}"))
}

/// Bindings for the `cuda.h` in `include`, as text. `root` is the crate's folder.
pub fn generate(root: &Path, include: &Path, calls: &[Listed]) -> Result<String, String> {
    let target = bindgen::RustTarget::stable(88, 0).map_err(|error| error.to_string())?;
    let mut builder = bindgen::Builder::default()
        .header(root.join("wrapper.h").to_string_lossy())
        .clang_arg(format!("-I{}", root.join("build").join("include").display()))
        .clang_arg(format!("-I{}", include.display()))
        // Fixed, so that the text is the same whatever compiler is installed.
        .rust_target(target)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .formatter(bindgen::Formatter::Prettyplease)
        .disable_header_comment()
        .default_enum_style(bindgen::EnumVariation::NewType { is_bitfield: false, is_global: false })
        .prepend_enum_name(false)
        .generate_comments(false)
        .layout_tests(true)
        .use_core()
        .derive_default(false)
        .derive_debug(true)
        .sort_semantically(true)
        .size_t_is_usize(true)
        .allowlist_var("CUDA_VERSION")
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()));
    for call in calls {
        builder = builder.allowlist_function(call.name);
    }
    for name in EXTRA_TYPES {
        builder = builder.allowlist_type(name).allowlist_type(format!("{name}_enum"));
    }
    let text = quietly(|| builder.generate())?.map_err(|error| error.to_string().trim().to_string())?.to_string();
    // The functions are only there to hold the list's signatures to the header's: nothing links against libcuda.
    let text = unsigned(&text.replace("    pub fn cu", "    pub(super) fn cu"));
    let calls = names::undeclared(calls, &text).into_iter().filter(|call| call.needed).map(|call| call.name);
    let missing: Vec<&str> = calls.chain(names::missing_types(EXTRA_TYPES, &text)).collect();
    if missing.is_empty() { Ok(text) } else { Err(format!("it lacks {}", missing.join(", "))) }
}

/// C's enums without negative members are unsigned everywhere but on MSVC. The crate has them unsigned there too: same size, same values.
fn unsigned(text: &str) -> String {
    if text.contains("(-") {
        text.to_string()
    } else {
        text.replace("(pub ::core::ffi::c_int);", "(pub ::core::ffi::c_uint);")
    }
}

/// Runs code that may panic, and makes the panic an error without its noise.
fn quietly<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = catch_unwind(AssertUnwindSafe(run));
    std::panic::set_hook(hook);
    result.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        format!("bindgen broke off: {}", text.unwrap_or("it did not say why"))
    })
}
