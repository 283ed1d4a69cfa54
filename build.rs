//! Chooses the bindings, and compiles the C sources that the enabled features need. No toolkit, no network and no `nvcc` are needed.

#[path = "build/choice.rs"]
mod choice;
#[cfg(any(feature = "reference-driver", feature = "dlpack"))]
#[path = "build/compile.rs"]
mod compile;
#[cfg(feature = "bindgen")]
#[path = "build/generate.rs"]
mod generate;
#[path = "build/headers.rs"]
mod headers;
#[path = "build/machine.rs"]
mod machine;
#[cfg_attr(not(feature = "bindgen"), allow(dead_code))]
#[path = "build/names.rs"]
mod names;

use choice::{Obstacle, Wish};
use headers::INCLUDE_VARIABLE;
use machine::{Machine, Target};
use std::path::{Path, PathBuf};

const PREGENERATED: &str = "src/sys/pregenerated.rs";
/// The folder of the headers by which a kernel is written once, for users of the crate and its own C sources.
const KERNEL_INCLUDE: &str = "csrc/include";
const CALLS: &str = "src/sys/calls.rs";

/// Variables that clang-sys and bindgen read by themselves.
const VARIABLES_OF_BINDGEN: &[&str] =
    &["LIBCLANG_PATH", "LLVM_CONFIG_PATH", "CLANG_PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH"];

fn main() {
    let machine = Machine::here();
    let done = run(&machine);
    for name in machine.asked().iter().map(String::as_str).chain(VARIABLES_OF_BINDGEN.iter().copied()) {
        // What cargo itself sets for the script is not the user's to change.
        if !name.starts_with("CARGO_") && name != "OUT_DIR" {
            println!("cargo::rerun-if-env-changed={name}");
        }
    }
    if let Err(message) = done {
        // cargo fails the build for it, with this text and nothing else.
        println!("cargo::error={}", message.split_whitespace().collect::<Vec<_>>().join(" "));
    }
}

fn run(machine: &Machine) -> Result<(), String> {
    for path in ["build.rs", "build", "wrapper.h", CALLS, PREGENERATED] {
        println!("cargo::rerun-if-changed={path}");
    }
    println!("cargo::rustc-check-cfg=cfg(header_declares_optional_calls)");
    let root = machine.folder("CARGO_MANIFEST_DIR").ok_or("cargo sets CARGO_MANIFEST_DIR")?;
    let out = machine.folder("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    compile_c(&root)?;

    let list = read(&root.join(CALLS))?;
    let calls = names::listed(&list);
    let (kind, include, text) = match choose(machine, &root, &calls)? {
        Some((include, text)) => ("generated", Some(include), text),
        None => ("pregenerated", None, read(&root.join(PREGENERATED))?),
    };
    let path = out.join("bindings.rs");
    std::fs::write(&path, &text).map_err(|error| format!("{}: {error}", path.display()))?;
    if names::undeclared(&calls, &text).is_empty() {
        println!("cargo::rustc-cfg=header_declares_optional_calls");
    }
    // Crates that depend on this one find these as DEP_BREAKABLE_CUDA_GRAPH_BINDINGS and so on.
    println!("cargo::metadata=bindings={kind}");
    println!("cargo::metadata=kernel_include={}", root.join(KERNEL_INCLUDE).display());
    if let Some(version) = names::cuda_version(&text) {
        println!("cargo::metadata=cuda_version={version}");
    }
    if let Some(include) = include {
        println!("cargo::metadata=include={}", include.display());
    }
    Ok(())
}

/// The folder of the header and the generated bindings, or `None` for the pregenerated ones.
fn choose(machine: &Machine, root: &Path, calls: &[names::Listed]) -> Result<Option<(PathBuf, String)>, String> {
    let wish = Wish::of(machine)?;
    if wish == Wish::Pregenerated {
        return Ok(None);
    }
    let folders = headers::folders(machine, &Target::of(machine));
    let include = headers::first(machine, &folders);
    let mut obstacles = Vec::new();
    match (include, ready(machine, wish, include.is_some())) {
        (Some(include), Ok(())) => match generate::generate(root, include, calls) {
            Ok(text) => return Ok(Some((include.clone(), text))),
            Err(message) => obstacles.push(Obstacle::Header(include.clone(), message)),
        },
        (include, ready) => {
            obstacles.extend(include.is_none().then_some(Obstacle::NoHeader));
            obstacles.extend(ready.err());
        }
    }
    if wish == Wish::Generate {
        return Err(choice::explain(&obstacles, &folders));
    }
    // Without the wish nothing is said, but for a variable of this crate's own that points nowhere.
    if let Some(folder) = machine.folder(INCLUDE_VARIABLE)
        && !machine.is_file(&folder.join("cuda.h"))
    {
        println!("cargo::warning={INCLUDE_VARIABLE} is {}, which has no cuda.h", folder.display());
    }
    Ok(None)
}

/// Whether bindgen can be run. Where there is no header, libclang is looked for only so that an error can name everything that is missing.
fn ready(machine: &Machine, wish: Wish, has_header: bool) -> Result<(), Obstacle> {
    if !cfg!(feature = "bindgen") {
        return Err(Obstacle::FeatureOff);
    }
    if wish == Wish::Any && !has_header {
        return Ok(());
    }
    load_libclang(machine).map_err(Obstacle::NoLibclang)
}

#[cfg(feature = "bindgen")]
fn load_libclang(machine: &Machine) -> Result<(), String> {
    // SAFETY: the script has one thread.
    unsafe { generate::load_libclang(&machine.python_packages()) }
}

#[cfg(not(feature = "bindgen"))]
mod generate {
    //! Stands in for bindgen where the feature is off: `ready` has said so before.
    pub fn generate(_: &super::Path, _: &super::Path, _: &[super::names::Listed]) -> Result<String, String> {
        Err("the feature `bindgen` is off".to_string())
    }
}

#[cfg(not(feature = "bindgen"))]
fn load_libclang(_: &Machine) -> Result<(), String> {
    Err("the feature `bindgen` is off".to_string())
}

fn compile_c(root: &Path) -> Result<(), String> {
    #[cfg(any(feature = "reference-driver", feature = "dlpack"))]
    {
        let mut sources = Vec::new();
        if cfg!(feature = "reference-driver") {
            sources.push("host.c");
        }
        if cfg!(feature = "dlpack") {
            sources.push("weak_ref.c");
        }
        compile::compile(root, &sources, env!("CARGO_PKG_VERSION"))?;
    }
    #[cfg(not(any(feature = "reference-driver", feature = "dlpack")))]
    let _ = root;
    Ok(())
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}
