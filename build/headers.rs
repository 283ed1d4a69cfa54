//! Finding `cuda.h`.

use super::machine::{Machine, Target};
use std::path::PathBuf;

/// The variable that names the folder of `cuda.h` itself.
pub const INCLUDE_VARIABLE: &str = "BREAKABLE_CUDA_GRAPH_CUDA_INCLUDE";

/// Variables that name a toolkit's root, in order.
pub const TOOLKIT_VARIABLES: &[&str] = &["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CUDA_TOOLKIT_ROOT_DIR"];

/// Where the NVIDIA packages of PyPI keep headers: CUDA 13 and later, then CUDA 12.
const PYTHON_FOLDERS: &[&str] = &["nvidia/cu13/include", "nvidia/cuda_runtime/include"];

/// The folders in which `cuda.h` may be, in the order in which they are tried.
pub fn folders(machine: &Machine, target: &Target) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = machine.folder(INCLUDE_VARIABLE).into_iter().collect();
    // A toolkit can hold several targets: this one's own folder comes before `include`, which is the toolkit's host's.
    let toolkit = |folders: &mut Vec<PathBuf>, root: PathBuf| {
        for name in target.toolkit_names() {
            folders.push(root.join("targets").join(name).join("include"));
        }
        folders.push(root.join("include"));
    };
    for name in TOOLKIT_VARIABLES {
        if let Some(root) = machine.folder(name) {
            toolkit(&mut folders, root);
        }
    }
    if let Some(prefix) = machine.folder("CONDA_PREFIX") {
        if target.is_windows() {
            toolkit(&mut folders, prefix.join("Library"));
        } else {
            toolkit(&mut folders, prefix);
        }
    }
    for packages in machine.python_packages() {
        folders.extend(PYTHON_FOLDERS.iter().map(|folder| packages.join(folder)));
    }
    if target.is_windows() {
        let programs = machine.folder("ProgramFiles").unwrap_or_else(|| PathBuf::from("C:/Program Files"));
        let toolkits = programs.join("NVIDIA GPU Computing Toolkit").join("CUDA");
        for root in machine.versions(&toolkits, "v") {
            toolkit(&mut folders, root);
        }
    } else {
        for root in ["/usr/local/cuda", "/opt/cuda"] {
            toolkit(&mut folders, PathBuf::from(root));
        }
        folders.push(PathBuf::from("/usr/include"));
    }
    let mut seen = std::collections::HashSet::new();
    folders.retain(|folder| seen.insert(folder.clone()));
    folders
}

/// The first of the folders that has a `cuda.h`.
pub fn first<'a>(machine: &Machine, folders: &'a [PathBuf]) -> Option<&'a PathBuf> {
    folders.iter().find(|folder| machine.is_file(&folder.join("cuda.h")))
}
