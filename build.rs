//! Chooses the bindings.

#[path = "build/generate.rs"]
mod generate;

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-env-changed=BREAKABLE_CUDA_GRAPH_CUDA_INCLUDE");
    println!("cargo::rerun-if-changed=src/sys/pregenerated.rs");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("bindings.rs");
    #[cfg(feature = "reference-driver")]
    {
        println!("cargo::rerun-if-changed=csrc");
        let mut build = cc::Build::new();
        build.file("csrc/host.c").std("c11").opt_level(2).warnings(false).flag_if_supported("-ffp-contract=off");
        build.compile("breakable_cuda_graph_host");
    }
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
