//! Where the driver's library is looked for, and which file came of it.

use std::collections::HashSet;
use std::ffi::c_void;
use std::fmt;
use std::path::{Path, PathBuf};

/// The environment variable that names the driver's file.
pub(super) const PATH_VARIABLE: &str = "BREAKABLE_CUDA_GRAPH_DRIVER";

/// The library's names, the one that every installation has first: the plain one is a development link that containers lack.
const NAMES: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };

/// Where distributions, container runtimes and WSL put the driver, also where the system's loader does not look.
const FOLDERS: &[&str] = &[
    "/usr/lib/wsl/lib",
    #[cfg(target_arch = "x86_64")]
    "/usr/lib/x86_64-linux-gnu",
    #[cfg(target_arch = "x86_64")]
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    #[cfg(target_arch = "aarch64")]
    "/usr/lib/aarch64-linux-gnu",
    #[cfg(target_arch = "aarch64")]
    "/usr/lib/aarch64-linux-gnu/nvidia",
    #[cfg(target_arch = "aarch64")]
    "/usr/lib/aarch64-linux-gnu/tegra",
    "/usr/lib64",
    "/usr/lib64/nvidia",
    "/usr/lib",
    "/usr/lib/nvidia",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/run/opengl-driver/lib",
];

/// Where [`Driver::load_with`](super::Driver::load_with) looks for the driver's library. The default is where [`Driver::load`] looks.
///
/// [`Driver::load`]: super::Driver::load
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Search {
    /// Tried first, in order. A name without a folder is looked up by the system's loader.
    pub files: Vec<PathBuf>,
    /// Looked through next, in order, for `libcuda.so.1`, `libcuda.so` and then `libcuda.so.<version>`, the newest first (on Windows:
    /// `nvcuda.dll`).
    pub folders: Vec<PathBuf>,
}

impl Default for Search {
    fn default() -> Search {
        let folders = if cfg!(unix) { FOLDERS } else { &[] };
        Search {
            files: NAMES.iter().map(PathBuf::from).collect(),
            folders: folders.iter().map(PathBuf::from).collect(),
        }
    }
}

impl Search {
    /// This file and no other.
    pub fn only(file: impl Into<PathBuf>) -> Search {
        Search { files: vec![file.into()], folders: Vec::new() }
    }

    /// The default, or the file that `BREAKABLE_CUDA_GRAPH_DRIVER` names and no other.
    pub(super) fn of_environment() -> Search {
        match std::env::var_os(PATH_VARIABLE).filter(|path| !path.is_empty()) {
            Some(path) => Search::only(path),
            None => Search::default(),
        }
    }

    /// What to try, in order. A folder without the library is there with the name that it should have.
    pub(super) fn candidates(&self) -> Vec<PathBuf> {
        let mut candidates = self.files.clone();
        for folder in &self.folders {
            let found = libraries(folder);
            if found.is_empty() {
                candidates.push(folder.join(NAMES[0]));
            }
            candidates.extend(found);
        }
        candidates
    }

    /// The library's files that exist, in the search's own places and on `LD_LIBRARY_PATH`, other than `loaded`.
    pub(super) fn beside(&self, loaded: &Path) -> Vec<PathBuf> {
        let mut seen: HashSet<PathBuf> = loaded.canonicalize().into_iter().collect();
        let on_path = std::env::var_os("LD_LIBRARY_PATH").filter(|_| cfg!(unix)).unwrap_or_default();
        let folders = std::env::split_paths(&on_path).chain(self.folders.iter().cloned());
        let files = self.files.iter().filter(|file| has_folder(file)).cloned();
        let all = files.chain(folders.flat_map(|folder| libraries(&folder)));
        all.filter(|file| file.canonicalize().is_ok_and(|real| seen.insert(real))).collect()
    }
}

/// Whether a path is more than a name for the system's loader to look up.
fn has_folder(path: &Path) -> bool {
    path.components().count() > 1
}

/// The library's files in a folder, in the order in which they are tried. Several names of one file count once.
fn libraries(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = NAMES.iter().map(|name| folder.join(name)).filter(|path| path.exists()).collect();
    let mut versioned: Vec<(Vec<u32>, PathBuf)> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            let version = name.strip_prefix("libcuda.so.")?;
            let version = version.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<u32>>>()?;
            // A single number is the name that programs link to, not a version.
            (version.len() > 1).then(|| (version, folder.join(name)))
        })
        .collect();
    versioned.sort_by(|a, b| b.cmp(a));
    found.extend(versioned.into_iter().map(|(_, path)| path));
    let mut seen = HashSet::new();
    found.retain(|path| path.canonicalize().map_or(true, |real| seen.insert(real)));
    found
}

/// A file or name that was tried or found, and what came of it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Candidate {
    /// The path, or the name given to the system's loader.
    pub path: PathBuf,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a [`Candidate`] that is not the driver.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// There is no such file; the system's loader says so in its own words.
    NotFound(String),
    /// The file is there and the system's loader would not load it, for example because it is of another architecture or no library.
    FailedToLoad(String),
    /// It is a stub library, for linking.
    Stub,
    /// It is there and was not tried, because the search had ended.
    NotTried,
}

impl Outcome {
    /// What the system's loader's message says of a path.
    pub(super) fn of_message(path: &Path, message: String) -> Outcome {
        let exists = if has_folder(path) {
            path.exists()
        } else {
            // The library may be there and one that it needs may not: then the message names the other.
            let names_it = message.contains(path.to_string_lossy().as_ref()) && !message.contains("needed by");
            cfg!(unix) && !(message.contains("No such file") && names_it)
        };
        if exists { Outcome::FailedToLoad(message) } else { Outcome::NotFound(message) }
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        match &self.outcome {
            Outcome::NotFound(message) => write!(f, " (not found: {message})"),
            Outcome::FailedToLoad(message) => write!(f, " (found, but failed to load: {message})"),
            Outcome::Stub => f.write_str(" (a stub library)"),
            Outcome::NotTried => f.write_str(" (not tried)"),
        }
    }
}

/// The file that an address of this process comes from. A name says little: the system's loader decides which file it is.
pub(super) fn file_of(address: *const c_void) -> Option<PathBuf> {
    // Elsewhere the file is not there.
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    mapped_file(&maps, address.addr())
}

/// The file that is mapped at an address, by the text of `/proc/self/maps`.
fn mapped_file(maps: &str, address: usize) -> Option<PathBuf> {
    let line = maps.lines().find(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        range.is_some_and(|(start, end)| {
            let bound = |text| usize::from_str_radix(text, 16).ok();
            bound(start).is_some_and(|start| start <= address) && bound(end).is_some_and(|end| address < end)
        })
    })?;
    Some(PathBuf::from(&line[line.find('/')?..]))
}

#[cfg(test)]
mod tests {
    use super::{Outcome, Search, mapped_file};
    use std::path::{Path, PathBuf};

    #[test]
    #[cfg(unix)]
    fn the_versioned_name_comes_first_and_then_the_folder_of_wsl() {
        let candidates = Search::default().candidates();
        assert_eq!(candidates[..2], [PathBuf::from("libcuda.so.1"), PathBuf::from("libcuda.so")]);
        assert_eq!(candidates[2].parent(), Some(Path::new("/usr/lib/wsl/lib")));
    }

    #[test]
    #[cfg(unix)]
    fn a_library_that_needs_a_missing_one_is_told_from_a_missing_library() {
        let name = Path::new("libcuda.so.1");
        for (message, missing) in [
            ("libcuda.so.1: cannot open shared object file: No such file or directory", true),
            ("libnvrm.so.2: cannot open shared object file: No such file or directory", false),
            ("libcuda.so.1: wrong ELF class: ELFCLASS32", false),
            ("Error loading shared library libcuda.so.1: No such file or directory", true),
            ("Error loading shared library libz.so: No such file or directory (needed by /lib/libcuda.so.1)", false),
        ] {
            let outcome = Outcome::of_message(name, message.into());
            assert_eq!(matches!(outcome, Outcome::NotFound(_)), missing, "{message}");
        }
    }

    #[test]
    fn an_address_leads_to_its_file() {
        let maps = "1000-2000 r-xp 00000000 08:01 12                         /lib/a b.so.1\n\
                    2000-3000 rw-p 00000000 00:00 0 \n\
                    3000-4000 r-xp 00000000 08:01 13                         /lib/libcuda.so.580.1\n";
        assert_eq!(mapped_file(maps, 0x1fff), Some("/lib/a b.so.1".into()));
        assert_eq!(mapped_file(maps, 0x2000), None);
        assert_eq!(mapped_file(maps, 0x3000), Some("/lib/libcuda.so.580.1".into()));
        assert_eq!(mapped_file(maps, 0x4000), None);
    }
}
