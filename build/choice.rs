//! Which bindings to use, and what to say when those that were asked for can't be had.

use super::headers::{INCLUDE_VARIABLE, TOOLKIT_VARIABLES};
use super::machine::Machine;
use std::path::PathBuf;

/// The variable by which a build asks for one kind of bindings.
pub const BINDINGS_VARIABLE: &str = "BREAKABLE_CUDA_GRAPH_BINDINGS";

/// What the build asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// Generated ones where that is possible, else the pregenerated ones, without a word.
    Any,
    /// Generated ones, or an error.
    Generate,
    /// The pregenerated ones.
    Pregenerated,
}

impl Wish {
    /// What [`BINDINGS_VARIABLE`] says. docs.rs builds from the pregenerated bindings.
    pub fn of(machine: &Machine) -> Result<Wish, String> {
        let value = machine.variable(BINDINGS_VARIABLE);
        let on_docs_rs = machine.variable("DOCS_RS").is_some();
        match value.as_ref().map(|value| value.to_str()) {
            None if on_docs_rs => Ok(Wish::Pregenerated),
            None => Ok(Wish::Any),
            Some(Some("generate")) => Ok(Wish::Generate),
            Some(Some("pregenerated")) => Ok(Wish::Pregenerated),
            Some(_) => Err(format!(
                "{BINDINGS_VARIABLE} is {:?}; it can be \"generate\", \"pregenerated\" or unset",
                value.unwrap_or_default()
            )),
        }
    }
}

/// Why bindings could not be generated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// The feature `bindgen` is off.
    FeatureOff,
    /// No folder has a `cuda.h`.
    NoHeader,
    /// What clang-sys said.
    NoLibclang(String),
    /// bindgen failed over the header in a folder, or the header lacks a name.
    Header(PathBuf, String),
}

/// Everything that stood in the way, the folders probed and the variables honoured.
pub fn explain(obstacles: &[Obstacle], probed: &[PathBuf]) -> String {
    let mut parts = vec![format!("{BINDINGS_VARIABLE}=generate, but bindings can't be generated")];
    for obstacle in obstacles {
        parts.push(match obstacle {
            Obstacle::FeatureOff => "The feature `bindgen` is off".to_string(),
            Obstacle::NoHeader => {
                let folders: Vec<String> = probed.iter().map(|folder| folder.display().to_string()).collect();
                format!(
                    "No cuda.h was found; probed {}; honoured are {INCLUDE_VARIABLE} (the folder of cuda.h), {} (a toolkit), CONDA_PREFIX and \
                     VIRTUAL_ENV; the PyPI package nvidia-cuda-runtime has the header too",
                    folders.join(", "),
                    TOOLKIT_VARIABLES.join(", ")
                )
            }
            Obstacle::NoLibclang(message) => format!(
                "No libclang was found: {}; name its folder in LIBCLANG_PATH, or install it (Debian, Ubuntu: libclang-dev; Fedora: \
                 clang-libs; PyPI: libclang, into the active virtual environment)",
                message.trim()
            ),
            Obstacle::Header(folder, message) => {
                format!("{} will not do: {}", folder.join("cuda.h").display(), message.trim())
            }
        });
    }
    parts.push("Without the variable the pregenerated bindings are used".to_string());
    parts.join(". ")
}
