//! What the build script finds where, on made trees.
#![allow(dead_code)]

#[path = "../../build/choice.rs"]
mod choice;
#[path = "../../build/headers.rs"]
mod headers;
#[path = "../../build/machine.rs"]
mod machine;
#[path = "../../build/names.rs"]
mod names;

use choice::{Obstacle, Wish, explain};
use machine::{Machine, Target};
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

const LINUX: [(&str, &str); 2] = [("CARGO_CFG_TARGET_OS", "linux"), ("CARGO_CFG_TARGET_ARCH", "x86_64")];
const ARM: [(&str, &str); 2] = [("CARGO_CFG_TARGET_OS", "linux"), ("CARGO_CFG_TARGET_ARCH", "aarch64")];
const WINDOWS: [(&str, &str); 2] = [("CARGO_CFG_TARGET_OS", "windows"), ("CARGO_CFG_TARGET_ARCH", "x86_64")];

/// A machine made of files in a folder.
struct Tree(PathBuf);

impl Tree {
    fn new(test: &str) -> Tree {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tree-{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder");
        Tree(path)
    }

    /// Adds a `cuda.h` in a folder.
    fn header(&self, folder: &str) -> &Tree {
        let folder = self.0.join(folder.trim_start_matches('/'));
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("cuda.h"), "").expect("a file");
        self
    }

    /// Adds a folder with nothing in it.
    fn folder(&self, folder: &str) -> &Tree {
        std::fs::create_dir_all(self.0.join(folder.trim_start_matches('/'))).expect("a folder");
        self
    }

    fn machine(&self, target: &[(&str, &str)], variables: &[(&str, &str)]) -> Machine {
        machine_with(Some(self.0.clone()), target, variables)
    }

    /// Where the header is found.
    fn found(&self, target: &[(&str, &str)], variables: &[(&str, &str)]) -> Option<PathBuf> {
        let machine = self.machine(target, variables);
        let folders = headers::folders(&machine, &Target::of(&machine));
        headers::first(&machine, &folders).cloned()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn machine_with(root: Option<PathBuf>, target: &[(&str, &str)], variables: &[(&str, &str)]) -> Machine {
    let all: HashMap<String, OsString> =
        target.iter().chain(variables).map(|(name, value)| ((*name).to_string(), OsString::from(value))).collect();
    Machine::with(move |name| all.get(name).cloned(), root)
}

#[track_caller]
fn assert_found(found: Option<PathBuf>, expected: &str) {
    assert_eq!(found, Some(PathBuf::from(expected)));
}

#[test]
fn each_place_is_tried_after_those_before_it() {
    let tree = Tree::new("order");
    let variables = [
        ("BREAKABLE_CUDA_GRAPH_CUDA_INCLUDE", "/given"),
        ("CUDA_HOME", "/home"),
        ("CUDA_PATH", "/path"),
        ("CUDA_ROOT", "/toolkit"),
        ("CUDA_TOOLKIT_ROOT_DIR", "/cmake"),
        ("CONDA_PREFIX", "/conda"),
        ("VIRTUAL_ENV", "/venv"),
    ];
    tree.folder("/venv/lib/python3.9/site-packages").folder("/venv/lib/python3.11/site-packages");
    tree.folder("/conda/lib/python3.12/site-packages");
    // From the last to the first: each new one is found before all that are there already.
    for place in [
        "/usr/include",
        "/opt/cuda/include",
        "/opt/cuda/targets/x86_64-linux/include",
        "/usr/local/cuda/include",
        "/usr/local/cuda/targets/x86_64-linux/include",
        "/conda/lib/python3.12/site-packages/nvidia/cuda_runtime/include",
        "/conda/lib/python3.12/site-packages/nvidia/cu13/include",
        "/venv/lib/python3.9/site-packages/nvidia/cuda_runtime/include",
        "/venv/lib/python3.9/site-packages/nvidia/cu13/include",
        "/venv/lib/python3.11/site-packages/nvidia/cuda_runtime/include",
        "/venv/lib/python3.11/site-packages/nvidia/cu13/include",
        "/conda/include",
        "/conda/targets/x86_64-linux/include",
        "/cmake/include",
        "/cmake/targets/x86_64-linux/include",
        "/toolkit/include",
        "/toolkit/targets/x86_64-linux/include",
        "/path/include",
        "/path/targets/x86_64-linux/include",
        "/home/include",
        "/home/targets/x86_64-linux/include",
        "/given",
    ] {
        tree.header(place);
        assert_found(tree.found(&LINUX, &variables), place);
    }
    // Without the variables, what they name is not looked at.
    assert_found(tree.found(&LINUX, &[]), "/usr/local/cuda/targets/x86_64-linux/include");
}

#[test]
fn the_target_and_not_the_first_folder_decides() {
    let tree = Tree::new("targets");
    let toolkit = [("CUDA_HOME", "/cuda")];
    for name in ["aarch64-linux", "ppc64le-linux", "sbsa-linux", "x86_64-linux"] {
        tree.header(&format!("/cuda/targets/{name}/include"));
    }
    assert_found(tree.found(&LINUX, &toolkit), "/cuda/targets/x86_64-linux/include");
    assert_found(tree.found(&ARM, &toolkit), "/cuda/targets/sbsa-linux/include");
    let jetson = Tree::new("jetson");
    jetson.header("/cuda/targets/aarch64-linux/include").header("/cuda/targets/x86_64-linux/include");
    assert_found(jetson.found(&ARM, &toolkit), "/cuda/targets/aarch64-linux/include");
    // A target that no toolkit has takes no other target's folder.
    let riscv = [("CARGO_CFG_TARGET_OS", "linux"), ("CARGO_CFG_TARGET_ARCH", "riscv64")];
    assert_eq!(jetson.found(&riscv, &toolkit), None);
}

#[test]
fn windows_takes_the_newest_versioned_folder() {
    let tree = Tree::new("windows");
    let toolkits = "C:/Program Files/NVIDIA GPU Computing Toolkit/CUDA";
    for version in ["v9.2", "v12.9", "v13.0", "v12.10"] {
        tree.header(&format!("{toolkits}/{version}/include"));
    }
    tree.folder(&format!("{toolkits}/v14.0")).header(&format!("{toolkits}/vNext/include"));
    assert_found(tree.found(&WINDOWS, &[]), &format!("{toolkits}/v13.0/include"));
    let machine = tree.machine(&WINDOWS, &[]);
    let folders = headers::folders(&machine, &Target::of(&machine));
    let versions = ["v14.0", "v13.0", "v12.10", "v12.9", "v9.2"];
    assert_eq!(folders, versions.map(|version| PathBuf::from(format!("{toolkits}/{version}/include"))));
    // The installer's variable comes first, and the folder of programs may be elsewhere.
    let older = format!("{toolkits}/v12.9");
    assert_found(tree.found(&WINDOWS, &[("CUDA_PATH", &older)]), &format!("{older}/include"));
    tree.header("D:/Programs/NVIDIA GPU Computing Toolkit/CUDA/v12.4/include");
    let elsewhere = tree.found(&WINDOWS, &[("ProgramFiles", "D:/Programs")]);
    assert_found(elsewhere, "D:/Programs/NVIDIA GPU Computing Toolkit/CUDA/v12.4/include");
}

#[test]
fn windows_environments_have_their_own_layout() {
    let tree = Tree::new("windows_python");
    tree.header("/conda/include").header("/venv/lib/python3.12/nothing");
    tree.header("/venv/Lib/site-packages/nvidia/cuda_runtime/include");
    let variables = [("CONDA_PREFIX", "/conda"), ("VIRTUAL_ENV", "/venv")];
    assert_found(tree.found(&WINDOWS, &variables), "/venv/Lib/site-packages/nvidia/cuda_runtime/include");
    tree.header("/venv/Lib/site-packages/nvidia/cu13/include");
    assert_found(tree.found(&WINDOWS, &variables), "/venv/Lib/site-packages/nvidia/cu13/include");
    tree.header("/conda/Library/include");
    assert_found(tree.found(&WINDOWS, &variables), "/conda/Library/include");
}

#[test]
fn places_of_another_system_are_not_looked_at() {
    let tree = Tree::new("other_system");
    tree.header("/usr/include").header("/usr/local/cuda/include");
    assert_eq!(tree.found(&WINDOWS, &[]), None);
    let tree = Tree::new("other_system_too");
    tree.header("C:/Program Files/NVIDIA GPU Computing Toolkit/CUDA/v13.0/include");
    assert_eq!(tree.found(&LINUX, &[]), None);
}

#[test]
fn spaces_pass_through_and_empty_variables_are_unset() {
    let tree = Tree::new("with spaces");
    tree.header("/my tools/cuda 13/include").header("/usr/include");
    assert_found(tree.found(&LINUX, &[("CUDA_HOME", "/my tools/cuda 13")]), "/my tools/cuda 13/include");
    assert_found(tree.found(&LINUX, &[("CUDA_HOME", "")]), "/usr/include");
    // A folder that is called as the header is no header.
    tree.folder("/odd/include/cuda.h");
    assert_found(tree.found(&LINUX, &[("CUDA_HOME", "/odd")]), "/usr/include");
    // On a real machine the path is the one that is given.
    let here = machine_with(None, &LINUX, &[("CUDA_HOME", "/my tools")]);
    assert_eq!(here.real(Path::new("/my tools/x")), Path::new("/my tools/x"));
}

#[test]
fn a_folder_is_probed_once() {
    let machine = machine_with(None, &LINUX, &[("CUDA_HOME", "/usr/local/cuda"), ("CUDA_PATH", "/usr/local/cuda")]);
    let folders = headers::folders(&machine, &Target::of(&machine));
    assert_eq!(folders.iter().filter(|folder| folder.ends_with("cuda/include")).count(), 2, "{folders:?}");
    assert_eq!(folders[1], Path::new("/usr/local/cuda/include"));
}

#[test]
fn every_variable_that_is_read_is_known_to_cargo() {
    let machine = machine_with(None, &WINDOWS, &[]);
    headers::folders(&machine, &Target::of(&machine));
    Wish::of(&machine).expect("nothing is asked for");
    let asked = machine.asked();
    for name in headers::TOOLKIT_VARIABLES.iter().copied().chain([
        headers::INCLUDE_VARIABLE,
        choice::BINDINGS_VARIABLE,
        "CONDA_PREFIX",
        "VIRTUAL_ENV",
        "ProgramFiles",
        "DOCS_RS",
    ]) {
        assert!(asked.iter().any(|other| other == name), "{name}: {asked:?}");
    }
}

#[test]
fn the_wish_is_one_of_three() {
    let wish = |variables: &[(&str, &str)]| Wish::of(&machine_with(None, &LINUX, variables));
    let bindings = choice::BINDINGS_VARIABLE;
    assert_eq!(wish(&[]), Ok(Wish::Any));
    assert_eq!(wish(&[(bindings, "")]), Ok(Wish::Any));
    assert_eq!(wish(&[(bindings, "generate")]), Ok(Wish::Generate));
    assert_eq!(wish(&[(bindings, "pregenerated")]), Ok(Wish::Pregenerated));
    assert_eq!(wish(&[("DOCS_RS", "1")]), Ok(Wish::Pregenerated));
    assert_eq!(wish(&[("DOCS_RS", "1"), (bindings, "generate")]), Ok(Wish::Generate));
    let error = wish(&[(bindings, "Generate")]).expect_err("no such kind");
    for part in [bindings, "\"Generate\"", "\"generate\"", "\"pregenerated\""] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn the_error_says_everything() {
    let probed = [PathBuf::from("/usr/local/cuda/include"), PathBuf::from("/my tools/include")];
    let missing = Obstacle::NoLibclang("couldn't find any of ['libclang.so']".into());
    let text = explain(&[Obstacle::NoHeader, missing.clone()], &probed);
    for part in [
        "/usr/local/cuda/include, /my tools/include",
        "BREAKABLE_CUDA_GRAPH_CUDA_INCLUDE",
        "CUDA_HOME, CUDA_PATH, CUDA_ROOT, CUDA_TOOLKIT_ROOT_DIR",
        "CONDA_PREFIX",
        "VIRTUAL_ENV",
        "couldn't find any of ['libclang.so']",
        "LIBCLANG_PATH",
        "libclang-dev",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // What is not in the way is not told.
    let text = explain(&[missing], &probed);
    assert!(!text.contains("cuda.h") && !text.contains("CUDA_HOME"), "{text}");
    assert!(explain(&[Obstacle::FeatureOff], &probed).contains("feature `bindgen` is off"));
    let text = explain(&[Obstacle::Header("/old".into(), "it lacks cuGraphLaunch".into())], &probed);
    assert!(text.contains("cuda.h will not do: it lacks cuGraphLaunch"), "{text}");
}

const LIST: &str = include_str!("../../src/sys/calls.rs");
const PREGENERATED: &str = include_str!("../../src/sys/pregenerated.rs");

#[test]
fn the_list_is_read_as_the_crate_reads_it() {
    use breakable_cuda_graph::sys::Call;
    let listed = names::listed(LIST);
    let expected: Vec<names::Listed> =
        Call::ALL.iter().map(|call| names::Listed { name: call.name(), needed: call.is_needed() }).collect();
    assert_eq!(listed, expected);
}

#[test]
fn names_that_a_header_lacks_are_found() {
    let listed = names::listed(LIST);
    assert_eq!(names::undeclared(&listed, PREGENERATED), []);
    // A longer name does not stand in for a shorter one.
    let older =
        PREGENERATED.replace(" fn cuGraphLaunch(", " fn cuGraphLaunchLater(").replace(" fn cuFuncLoad(", " fn x(");
    let lacking: Vec<(&str, bool)> =
        names::undeclared(&listed, &older).iter().map(|call| (call.name, call.needed)).collect();
    assert_eq!(lacking, [("cuFuncLoad", false), ("cuGraphLaunch", true)]);
    let types = ["CUmemPool_attribute", "CUmemoryPool", "CUmem"];
    assert_eq!(names::missing_types(&types, PREGENERATED), ["CUmem"]);
}

#[test]
fn the_version_of_the_header_is_in_the_bindings() {
    assert_eq!(names::cuda_version(PREGENERATED), Some(13_000));
    assert_eq!(names::cuda_version("pub const CUDA_VERSION: u32 = 12040;"), Some(12_040));
    assert_eq!(names::cuda_version("pub const CUDA_VERSIONS: u32 = 1;"), None);
    // Of whatever header this build used.
    const { assert!(breakable_cuda_graph::sys::CUDA_VERSION >= 12_000) };
}
