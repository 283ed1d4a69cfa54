//! Driver libraries made for a test, with the C compiler of the machine: they export the calls of the list and do nothing.

use breakable_cuda_graph::sys::Call;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the exported functions return, but for `cuInit` and `cuDriverGetVersion`.
pub const EXPORTED: u32 = 46;
/// What the functions return that `cuGetProcAddress_v2` gives.
pub const BY_VERSION: u32 = 47;

/// A driver library to be made.
#[derive(Clone, Debug)]
pub struct FakeDriver {
    /// What `cuInit` returns.
    pub init: u32,
    /// The CUDA version that `cuDriverGetVersion` gives.
    pub version: i32,
    /// What `cuDriverGetVersion` returns.
    pub version_code: u32,
    /// Calls that are not exported.
    pub missing: Vec<Call>,
    /// Calls that `cuGetProcAddress_v2` finds; `None`: there is no such function.
    pub by_version: Option<Vec<Call>>,
}

impl Default for FakeDriver {
    fn default() -> FakeDriver {
        FakeDriver { init: 0, version: 13_000, version_code: 0, missing: Vec::new(), by_version: None }
    }
}

impl FakeDriver {
    /// A toolkit's stub: every call returns 34.
    pub fn stub() -> FakeDriver {
        FakeDriver { init: 34, version_code: 34, ..FakeDriver::default() }
    }

    /// A driver whose `cuInit` returns this code.
    pub fn failing(init: u32) -> FakeDriver {
        FakeDriver { init, ..FakeDriver::default() }
    }

    fn source(&self) -> String {
        let mut text = String::from("#include <string.h>\n");
        let mut function = |call: Call, parameters: &str, body: &str| {
            if !self.missing.contains(&call) {
                writeln!(text, "int {}({parameters}) {{ {body} }}", call.name()).expect("a string grows");
            }
        };
        for &call in Call::ALL {
            match call {
                Call::cuInit => function(call, "unsigned flags", &format!("(void)flags; return {};", self.init)),
                Call::cuDriverGetVersion if self.version_code == 0 => {
                    function(call, "int *version", &format!("*version = {}; return 0;", self.version));
                }
                Call::cuDriverGetVersion => {
                    function(call, "int *version", &format!("(void)version; return {};", self.version_code));
                }
                _ => function(call, "void", &format!("return {EXPORTED};")),
            }
        }
        if let Some(found) = &self.by_version {
            writeln!(text, "static int by_version(void) {{ return {BY_VERSION}; }}").expect("a string grows");
            text.push_str("static const struct { const char *name; int version; } calls[] = {\n");
            for call in found {
                let base = call.name().split("_v").next().expect("a first part");
                writeln!(text, "{{\"{base}\", {}}},", call.since()).expect("a string grows");
            }
            text.push_str(
                "{0, 0}};\n\
                 int cuGetProcAddress_v2(const char *name, void **address, int version, unsigned long long flags, int *found) {\n\
                     *address = 0;\n\
                     *found = 1;\n\
                     if (flags != 1) return 1;\n\
                     for (int i = 0; calls[i].name; ++i) {\n\
                         if (strcmp(calls[i].name, name) == 0 && calls[i].version == version) {\n\
                             *found = 0;\n\
                             *address = (void *)by_version;\n\
                             return 0;\n\
                         }\n\
                     }\n\
                     return 500;\n\
                 }\n",
            );
        }
        text
    }

    /// Makes the library, and the folders above it.
    pub fn build(&self, path: &Path) {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        let source = path.with_extension("c");
        std::fs::write(&source, self.source()).expect("a source file");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_string());
        let done = Command::new(&compiler)
            .args(["-shared", "-fPIC", "-s", "-o"])
            .args([path, &source])
            .output()
            .unwrap_or_else(|error| panic!("these tests need a C compiler, and {compiler} does not run: {error}"));
        assert!(done.status.success(), "{compiler}: {}", String::from_utf8_lossy(&done.stderr));
        std::fs::remove_file(source).expect("the source was there");
    }
}

/// A copy of a library in which a function has another name, which nobody looks for. Quicker than making one for each.
pub fn hide(library: &[u8], name: &str) -> Vec<u8> {
    let entry: Vec<u8> = [&[0], name.as_bytes(), &[0]].concat();
    let places: Vec<usize> =
        library.windows(entry.len()).enumerate().filter(|(_, at)| *at == entry).map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "the library exports {name}");
    let mut copy = library.to_vec();
    for at in places {
        copy[at + 1] = b'x';
    }
    copy
}

/// A folder of a test's own, removed with everything in it at the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(test: &str) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path.canonicalize().expect("the folder was made"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes a library in the folder.
    pub fn library(&self, name: &str, driver: &FakeDriver) -> PathBuf {
        let path = self.path(name);
        driver.build(&path);
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left behind in the build's folder for temporary files harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
