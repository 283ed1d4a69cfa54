//! Kernels in CUDA C, compiled for the host while the program runs, as examples have no build script. A crate of its own compiles such files with `cc`
//! in its build script and declares the functions: see `csrc/include/breakable_cuda_graph/kernel.h`.

use breakable_cuda_graph::reference::HostKernel;
use std::collections::hash_map::DefaultHasher;
use std::error::Error;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The headers by which a kernel is written once.
const HEADERS: [(&str, &str); 3] = [
    ("kernel.h", include_str!("../../csrc/include/breakable_cuda_graph/kernel.h")),
    ("host.h", include_str!("../../csrc/include/breakable_cuda_graph/host.h")),
    ("symbol.h", include_str!("../../csrc/include/breakable_cuda_graph/symbol.h")),
];

/// The host functions of the kernels that the first of these files, by name and text, defines with `BCG_HOST`; the others are what it includes. They are
/// compiled once for each text, with the C compiler that the crate itself is built with, and are never unloaded.
pub fn compile(files: &[(&str, &str)]) -> Result<Vec<(String, HostKernel)>, Box<dyn Error>> {
    let Some(&(main, text)) = files.first() else { return Ok(Vec::new()) };
    let path = library(main, files)?;
    // SAFETY: the library was compiled from these files: it has no initialisers.
    let library = std::mem::ManuallyDrop::new(unsafe { libloading::Library::new(&path)? });
    let names = text.lines().filter_map(|line| line.strip_prefix("BCG_HOST(")?.split([',', ')']).next());
    names
        .map(|name| {
            // SAFETY: `BCG_HOST` defines a function of this type under this name.
            let function = unsafe { *library.get::<HostKernel>(format!("host_{name}").as_bytes())? };
            Ok((name.to_owned(), function))
        })
        .collect()
}

/// The compiled library: beside this program, where one of the same text was made before.
fn library(main: &str, files: &[(&str, &str)]) -> Result<PathBuf, Box<dyn Error>> {
    let compiler = compiler()?;
    let mut hash = DefaultHasher::new();
    (files, HEADERS, compiler.path(), compiler.args()).hash(&mut hash);
    let name = format!("host_kernels_{:016x}{}", hash.finish(), std::env::consts::DLL_SUFFIX);
    let beside = std::env::current_exe()?.parent().map(Path::to_path_buf).unwrap_or_default();
    let made = beside.join(&name);
    if made.exists() {
        return Ok(made);
    }
    // In a folder of this thread's own until it is whole.
    let folder = beside.join(format!("host_kernels_of_{}_{:?}", std::process::id(), std::thread::current().id()));
    let include = folder.join("breakable_cuda_graph");
    std::fs::create_dir_all(&include).map_err(|error| format!("{}: {error}", include.display()))?;
    for (name, text) in files {
        std::fs::write(folder.join(name), text)?;
    }
    for (name, text) in HEADERS {
        std::fs::write(include.join(name), text)?;
    }
    let built = folder.join(&name);
    let mut command = compiler.to_command();
    command.current_dir(&folder).arg(main).arg("-I.");
    if compiler.is_like_msvc() {
        command.arg("/LD").arg(format!("/Fe:{name}"));
    } else {
        command.arg("-shared").arg("-o").arg(&name).arg("-lm");
    }
    run(&mut command)?;
    std::fs::rename(&built, &made)?;
    std::fs::remove_dir_all(&folder)?;
    Ok(made)
}

fn run(command: &mut Command) -> Result<(), Box<dyn Error>> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {text}").into()) }
}

/// The compiler that `cc` finds for this machine, with the flags of the crate's own C sources.
fn compiler() -> Result<cc::Tool, cc::Error> {
    let system = match std::env::consts::OS {
        "linux" if cfg!(target_env = "musl") => "unknown-linux-musl",
        "linux" => "unknown-linux-gnu",
        "windows" if cfg!(target_env = "gnu") => "pc-windows-gnu",
        "windows" => "pc-windows-msvc",
        "macos" => "apple-darwin",
        other => other,
    };
    let target = format!("{}-{system}", std::env::consts::ARCH);
    cc::Build::new()
        .target(&target)
        .host(&target)
        .cargo_metadata(false)
        .out_dir(std::env::temp_dir())
        .std("c11")
        .opt_level(3)
        .pic(true)
        .warnings(false)
        .flag_if_supported("-ffp-contract=off")
        .flag_if_supported("-fno-strict-aliasing")
        .try_get_compiler()
}
