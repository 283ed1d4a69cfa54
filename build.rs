//! Chooses the bindings.

#[path = "build/generate.rs"]
mod generate;

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-env-changed=BREAKABLE_CUDA_GRAPH_CUDA_INCLUDE");
    println!("cargo::rerun-if-changed=src/sys/pregenerated.rs");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("bindings.rs");
    #[cfg(any(feature = "reference-driver", feature = "dlpack"))]
    compile_c();
    match std::env::var_os("BREAKABLE_CUDA_GRAPH_CUDA_INCLUDE") {
        #[cfg(feature = "bindgen")]
        Some(include) => {
            let calls = std::fs::read_to_string("src/sys/calls.rs").expect("the list of calls");
            let text = generate::generate("wrapper.h".as_ref(), include.as_ref(), &calls).expect("bindings");
            std::fs::write(out, text).expect("OUT_DIR is writable");
        }
        _ => {
            std::fs::copy("src/sys/pregenerated.rs", out).expect("OUT_DIR is writable");
        }
    }
}

/// Compiles what the enabled features need of `csrc` with the host's C compiler.
#[cfg(any(feature = "reference-driver", feature = "dlpack"))]
fn compile_c() {
    // The version is in the symbols, so that two versions of the crate can be in one program.
    let version: String =
        env!("CARGO_PKG_VERSION").chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect();
    let prefix = format!("bcg_{version}_");
    println!("cargo::rerun-if-changed=csrc");
    println!("cargo::rustc-env=BREAKABLE_CUDA_GRAPH_HOST_SYMBOLS={prefix}");
    let mut build = cc::Build::new();
    // Kernels are optimised in debug builds too: tests run whole models with them. No multiplication is contracted with an addition, as on the
    // device.
    build.std("c11").opt_level(3).warnings(false).define("BCG_PREFIX", prefix.as_str());
    build.flag_if_supported("-ffp-contract=off").flag_if_supported("-fno-strict-aliasing");
    if cfg!(feature = "reference-driver") {
        build.file("csrc/host.c");
    }
    if cfg!(feature = "dlpack") {
        build.file("csrc/weak_ref.c");
    }
    build.compile("breakable_cuda_graph_c");
}
