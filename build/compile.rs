//! Compiles the C sources that the enabled features need, with the target's C compiler. C++ is not needed.

use std::path::Path;

/// Compiles `sources`, names in `csrc`, into one static library. `version` is the crate's.
pub fn compile(root: &Path, sources: &[&str], version: &str) -> Result<(), String> {
    println!("cargo::rerun-if-changed=csrc");
    // The version is in the symbols, so that two versions of the crate can be in one program.
    let version: String = version.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let prefix = format!("bcg_{version}_");
    println!("cargo::rustc-env=BREAKABLE_CUDA_GRAPH_HOST_SYMBOLS={prefix}");
    let mut build = cc::Build::new();
    // Kernels are optimised in debug builds too: tests run whole models with them. No multiplication is contracted with an addition, as on
    // the device. Warnings are for CFLAGS to turn on: a user's compiler is not this crate's.
    build.std("c11").opt_level(3).warnings(false).define("BCG_PREFIX", prefix.as_str());
    build.flag_if_supported("-ffp-contract=off").flag_if_supported("-fno-strict-aliasing");
    build.include(root.join(super::KERNEL_INCLUDE));
    for source in sources {
        build.file(root.join("csrc").join(source));
    }
    build.try_compile("breakable_cuda_graph_c").map_err(|error| {
        format!("the C sources of the crate could not be compiled (only the features `reference-driver` and `dlpack` need a C compiler): {error}")
    })
}
