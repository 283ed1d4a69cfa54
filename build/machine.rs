//! What the build script asks of the machine it runs on: environment variables and files.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Looks an environment variable up.
type Variables = Box<dyn Fn(&str) -> Option<OsString>>;

/// The machine, or a folder that stands for one in a test.
pub struct Machine {
    variables: Variables,
    root: Option<PathBuf>,
    asked: RefCell<BTreeSet<String>>,
}

impl Machine {
    /// This machine.
    pub fn here() -> Machine {
        Machine::with(|name| std::env::var_os(name), None)
    }

    /// A machine with these variables, whose files are all below `root` if one is given.
    pub fn with(variables: impl Fn(&str) -> Option<OsString> + 'static, root: Option<PathBuf>) -> Machine {
        Machine { variables: Box::new(variables), root, asked: RefCell::default() }
    }

    /// A variable that is set and not empty.
    pub fn variable(&self, name: &str) -> Option<OsString> {
        self.asked.borrow_mut().insert(name.to_string());
        (self.variables)(name).filter(|value| !value.is_empty())
    }

    /// A variable that holds a path.
    pub fn folder(&self, name: &str) -> Option<PathBuf> {
        self.variable(name).map(PathBuf::from)
    }

    /// The variables asked for so far: cargo has to run the script again when one of them changes.
    pub fn asked(&self) -> Vec<String> {
        self.asked.borrow().iter().cloned().collect()
    }

    /// Where a path of the machine really lies.
    pub fn real(&self, path: &Path) -> PathBuf {
        match &self.root {
            Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_path_buf(),
        }
    }

    pub fn is_file(&self, path: &Path) -> bool {
        self.real(path).is_file()
    }

    /// The folders in a folder whose name starts with `prefix` and goes on with a version, newest version first.
    pub fn versions(&self, folder: &Path, prefix: &str) -> Vec<PathBuf> {
        let mut found: Vec<(Vec<u32>, PathBuf)> = std::fs::read_dir(self.real(folder))
            .into_iter()
            .flatten()
            .filter_map(|entry| {
                let name = entry.ok()?.file_name().into_string().ok()?;
                let version =
                    name.strip_prefix(prefix)?.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
                Some((version, folder.join(name)))
            })
            .collect();
        found.sort_by(|a, b| b.cmp(a));
        found.into_iter().map(|(_, path)| path).collect()
    }

    /// Where the active Python environments keep packages: `VIRTUAL_ENV`, then `CONDA_PREFIX`.
    pub fn python_packages(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
            if let Some(environment) = self.folder(name) {
                let versions = self.versions(&environment.join("lib"), "python");
                found.extend(versions.into_iter().map(|version| version.join("site-packages")));
                // Windows has one Python an environment.
                found.push(environment.join("Lib").join("site-packages"));
            }
        }
        found
    }
}

/// What is built for. Never what the build script itself runs on: that is the host.
pub struct Target {
    os: String,
    arch: String,
}

impl Target {
    /// From cargo's `CARGO_CFG_TARGET_OS` and `CARGO_CFG_TARGET_ARCH`.
    pub fn of(machine: &Machine) -> Target {
        let text = |name| machine.variable(name).map(|value| value.to_string_lossy().into_owned()).unwrap_or_default();
        Target { os: text("CARGO_CFG_TARGET_OS"), arch: text("CARGO_CFG_TARGET_ARCH") }
    }

    pub fn is_windows(&self) -> bool {
        self.os == "windows"
    }

    /// The names of this target's folder in a toolkit's `targets`. Arm has one for servers and one for Jetson.
    pub fn toolkit_names(&self) -> &'static [&'static str] {
        match (self.os.as_str(), self.arch.as_str()) {
            ("linux", "x86_64") => &["x86_64-linux"],
            ("linux", "aarch64") => &["sbsa-linux", "aarch64-linux"],
            ("linux", "powerpc64") => &["ppc64le-linux"],
            _ => &[],
        }
    }
}
