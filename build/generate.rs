//! Runs bindgen over `wrapper.h`.

use std::path::Path;

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

/// The names of all driver calls in the text of `src/sys/calls.rs`.
pub fn call_names(list: &str) -> Vec<&str> {
    list.lines()
        .filter_map(|line| {
            let mut words = line.trim_start().splitn(3, ' ');
            match (words.next(), words.next(), words.next()) {
                (Some("needed" | "optional"), Some(_), Some(rest)) => rest.split('(').next(),
                _ => None,
            }
        })
        .collect()
}

/// Bindings for `cuda.h` in `include`, as text.
#[cfg(feature = "bindgen")]
pub fn generate(wrapper: &Path, include: &Path, calls: &str) -> Result<String, String> {
    let mut builder = bindgen::Builder::default()
        .header(wrapper.to_string_lossy())
        .clang_arg(format!("-I{}", include.display()))
        .rust_edition(bindgen::RustEdition::Edition2024)
        .default_enum_style(bindgen::EnumVariation::NewType { is_bitfield: false, is_global: false })
        .prepend_enum_name(false)
        .generate_comments(false)
        .layout_tests(true)
        .use_core()
        .derive_default(false)
        .derive_debug(true)
        .sort_semantically(true)
        .formatter(bindgen::Formatter::Prettyplease)
        .size_t_is_usize(true);
    let names = call_names(calls);
    for name in &names {
        builder = builder.allowlist_function(name);
    }
    for name in EXTRA_TYPES {
        builder = builder.allowlist_type(name).allowlist_type(format!("{name}_enum"));
    }
    let text = builder.generate().map_err(|error| error.to_string())?.to_string();
    // The functions are only there to hold the list's signatures to the header's: nothing links against libcuda.
    let text = text.replace("    pub fn cu", "    pub(super) fn cu");
    let missing: Vec<&str> =
        names.iter().copied().filter(|name| !text.contains(&format!("pub(super) fn {name}("))).collect();
    if missing.is_empty() { Ok(text) } else { Err(format!("the header lacks {}", missing.join(", "))) }
}
