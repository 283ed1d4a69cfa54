//! Loading a driver, tried on libraries made for the purpose.

use crate::support::fake_driver::{BY_VERSION, EXPORTED, FakeDriver, Folder, hide};
use breakable_cuda_graph::Driver;
use breakable_cuda_graph::sys::{
    CUresult, Call, CallError, Candidate, LoadError, MINIMUM_VERSION, Origin, Outcome, Search,
};
use std::path::{Path, PathBuf};
use std::process::Command;

const CHILD: &str = "BREAKABLE_CUDA_GRAPH_TEST_CHILD";
const DRIVER: &str = "BREAKABLE_CUDA_GRAPH_DRIVER";
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// What the parent gave this process, if it is a child that [`run_child`] started.
fn child() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

/// Runs one test of this program in a process of its own, whose environment `set` makes. The environment is the process's, so a test can't
/// change it in its own.
#[track_caller]
fn run_child(test: &str, given: &Path, set: impl FnOnce(&mut Command)) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let test = format!("{}::{test}", module_path!().split_once("::").map_or("", |(_, module)| module));
    command.args([test.as_str(), "--exact", "--nocapture"]).env(CHILD, given).env_remove(DRIVER).env_remove(VISIBLE);
    set(&mut command);
    let done = command.output().expect("a child process");
    let (text, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && text.contains("1 passed"), "{text}{errors}");
}

fn search(files: &[PathBuf], folders: &[PathBuf]) -> Search {
    let mut search = Search::default();
    search.files = files.to_vec();
    search.folders = folders.to_vec();
    search
}

#[track_caller]
fn load_error(search: &Search) -> LoadError {
    Driver::load_with(search).expect_err("this library will not do")
}

#[track_caller]
fn assert_loaded(driver: &Driver, path: &Path) {
    assert_eq!(driver.origin(), &Origin::Library(path.to_path_buf()));
}

#[test]
fn a_whole_library_loads() {
    let folder = Folder::new("whole");
    let path = folder.library("libcuda.so.1", &FakeDriver { version: 12_080, ..FakeDriver::default() });
    let driver = Driver::load_from(&path).expect("a whole library");
    assert_loaded(&driver, &path);
    assert_eq!(driver.version(), 12_080);
    assert!(!driver.is_reference());
    for &call in Call::ALL {
        assert!(driver.supports(call), "{call}");
    }
}

#[test]
fn the_origin_is_the_file_and_not_the_name() {
    let folder = Folder::new("origin");
    let file = folder.library("libcuda.so.580.95.05", &FakeDriver::default());
    let link = folder.path("libcuda.so.1");
    std::os::unix::fs::symlink("libcuda.so.580.95.05", &link).expect("a link");
    assert_loaded(&Driver::load_from(&link).expect("a whole library"), &file);
}

#[test]
fn a_stub_is_named() {
    let folder = Folder::new("stub");
    let stub = folder.library("stubs/libcuda.so", &FakeDriver::stub());
    let absent = folder.path("libcuda.so.1");
    let error = load_error(&search(&[stub.clone(), absent.clone()], &[]));
    let LoadError::Stub { path, others } = &error else { panic!("{error}") };
    assert_eq!(path, &stub);
    assert_eq!(others.iter().map(|other| &other.path).collect::<Vec<_>>(), [&absent]);
    let text = error.to_string();
    assert!(text.contains(stub.to_str().expect("text")) && text.contains("stub library"), "{text}");
}

#[test]
fn a_stub_that_tells_a_version_is_a_stub_all_the_same() {
    let folder = Folder::new("versioned_stub");
    let stub = folder.library("libcuda.so", &FakeDriver::failing(34));
    assert_eq!(load_error(&Search::only(&stub)), LoadError::Stub { path: stub, others: vec![] });
}

#[test]
fn a_stub_is_passed_over_for_a_driver() {
    let folder = Folder::new("stub_then_driver");
    let stub = folder.library("stubs/libcuda.so", &FakeDriver::stub());
    let good = folder.library("driver/libcuda.so.1", &FakeDriver::default());
    let named = Driver::load_with(&search(&[stub, good.clone()], &[])).expect("the second is a driver");
    assert_loaded(&named, &good);
    let found = Driver::load_with(&search(&[], &[folder.path("stubs"), folder.path("driver")])).expect("likewise");
    assert_loaded(&found, &good);
}

/// A driver must not be refused for lack of what nobody asks it for.
#[test]
fn every_needed_call_is_made_by_the_crate() {
    let mut sources = String::new();
    let mut folders = vec![PathBuf::from("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name");
            if path.is_dir() && name != "reference" {
                folders.push(path);
            } else if path.is_file() && name != "calls.rs" && name != "pregenerated.rs" {
                sources += &std::fs::read_to_string(&path).expect("a source");
            }
        }
    }
    // The two that are made before there is a table, through the exports.
    let started = [Call::cuInit, Call::cuDriverGetVersion];
    let is_made = |call: &Call| started.contains(call) || sources.contains(&format!(".{}(", call.name()));
    let never: Vec<_> = Call::ALL.iter().filter(|call| call.is_needed() && !is_made(call)).collect();
    assert_eq!(never, Vec::<&Call>::new());
}

#[test]
fn every_needed_call_is_missed_by_name() {
    let folder = Folder::new("missing");
    let whole = std::fs::read(folder.library("whole", &FakeDriver::default())).expect("the library");
    let needed: Vec<Call> = Call::ALL.iter().copied().filter(|call| call.is_needed()).collect();
    assert!(needed.len() > 70, "{}", needed.len());
    for call in needed {
        let path = folder.path(call.name());
        std::fs::write(&path, hide(&whole, call.name())).expect("a library");
        let error = load_error(&Search::only(&path));
        // Where the file is asked for its version, it can't be told without that call; and without `cuInit` its path is not known.
        let have = if call == Call::cuDriverGetVersion { 0 } else { 13_000 };
        assert_eq!(error, LoadError::MissingCall { path: path.clone(), call, have });
        let text = error.to_string();
        assert!(text.contains(&format!(" lacks {call},")) && text.contains(path.to_str().expect("text")), "{text}");
    }
}

#[test]
fn optional_calls_are_missed_when_they_are_used() {
    let folder = Folder::new("optional");
    let missing = vec![Call::cuFuncGetName, Call::cuFuncGetParamInfo];
    let path = folder
        .library("libcuda.so.1", &FakeDriver { version: 12_020, missing: missing.clone(), ..FakeDriver::default() });
    let driver = Driver::load_from(&path).expect("no needed call is missing");
    for &call in Call::ALL {
        assert_eq!(driver.supports(call), !missing.contains(&call), "{call}");
    }
    use core::ptr::null_mut;
    // SAFETY: the call is not there, so nothing is done with the pointers.
    let error = unsafe { driver.cuFuncGetName(null_mut(), null_mut()) }.expect_err("the call is not there");
    assert_eq!(error, CallError::Unsupported { call: Call::cuFuncGetName, needs: 12_030, have: 12_020 });
    assert_eq!(error.to_string(), "cuFuncGetName needs a driver of CUDA 12.3, this one is CUDA 12.2");
    // SAFETY: the made library's function takes nothing and does nothing.
    let error = unsafe { driver.cuFuncLoad(null_mut()) }.expect_err("it returns a code");
    assert_eq!(error, CallError::Failed { call: Call::cuFuncLoad, code: CUresult(EXPORTED) });
}

#[test]
fn calls_are_found_by_name_and_version_and_else_by_export() {
    let folder = Folder::new("by_version");
    let odd = [Call::cuCtxSynchronize, Call::cuMemFree_v2];
    let by_version = Call::ALL.iter().copied().filter(|call| !odd.contains(call)).collect();
    // An export that only cuGetProcAddress_v2 finds is one that dlsym would not.
    let fake = FakeDriver { by_version: Some(by_version), missing: vec![Call::cuFuncLoad], ..FakeDriver::default() };
    let driver =
        Driver::load_from(folder.library("libcuda.so.1", &fake)).expect("every call is found one way or the other");
    // SAFETY: the made library's functions take nothing and do nothing.
    let answers = unsafe {
        [
            driver.cuCtxSynchronize(),
            driver.cuMemFree_v2(0),
            driver.cuMemRelease(0),
            driver.cuStreamDestroy_v2(core::ptr::null_mut()),
            driver.cuFuncLoad(core::ptr::null_mut()),
        ]
    };
    let codes = answers.map(|answer| answer.expect_err("it returns a code").code().0);
    assert_eq!(codes, [EXPORTED, EXPORTED, BY_VERSION, BY_VERSION, BY_VERSION]);
}

#[test]
fn an_old_driver_is_too_old_and_not_incomplete() {
    let folder = Folder::new("old");
    // It lacks what came later, and is not even started.
    let missing = Call::ALL.iter().copied().filter(|call| call.since() > 11_080).collect();
    let path =
        folder.library("libcuda.so.1", &FakeDriver { init: 999, version: 11_080, missing, ..FakeDriver::default() });
    let error = load_error(&Search::only(&path));
    assert_eq!(error, LoadError::TooOld { path, have: 11_080 });
    assert!(error.to_string().contains("CUDA 11.8, at least 12.0"), "{error}");
    let path = folder.library("just", &FakeDriver { version: MINIMUM_VERSION, ..FakeDriver::default() });
    assert_eq!(Driver::load_from(path).expect("just new enough").version(), MINIMUM_VERSION);
}

#[test]
fn no_device_tells_which_are_visible() {
    if let Some(path) = child() {
        let visible = std::env::var(VISIBLE).ok();
        let error = load_error(&Search::only(&path));
        assert_eq!(error, LoadError::NoDevice { path, visible_devices: visible.clone() });
        let shown = visible.map_or("not set".to_string(), |value| format!("{value:?}"));
        assert!(error.to_string().contains(&format!("CUDA_VISIBLE_DEVICES is {shown})")), "{error}");
        return;
    }
    let folder = Folder::new("no_device");
    let path = folder.library("libcuda.so.1", &FakeDriver::failing(100));
    let test = "no_device_tells_which_are_visible";
    run_child(test, &path, |_| {});
    for value in ["", "-1", "3"] {
        run_child(test, &path, |command| {
            command.env(VISIBLE, value);
        });
    }
}

#[test]
fn an_absent_library_is_told_with_every_name_that_was_tried() {
    let folder = Folder::new("absent");
    let files = [PathBuf::from("libcuda-that-nobody-has.so.1"), folder.path("libcuda.so")];
    let error = load_error(&search(&files, &[folder.path("wsl")]));
    let LoadError::NoLibrary { tried } = &error else { panic!("{error}") };
    let paths: Vec<&PathBuf> = tried.iter().map(|candidate| &candidate.path).collect();
    assert_eq!(paths, [&files[0], &files[1], &folder.path("wsl/libcuda.so.1")]);
    for candidate in tried {
        let Outcome::NotFound(message) = &candidate.outcome else { panic!("{candidate}") };
        assert!(message.contains("No such file"), "the system's own words: {message}");
        assert!(error.to_string().contains(&candidate.to_string()), "{error}");
    }
    assert!(error.to_string().contains(DRIVER), "{error}");
}

#[test]
fn a_file_that_is_no_library_is_told_from_an_absent_one() {
    let folder = Folder::new("no_library");
    let text = folder.path("libcuda.so.1");
    std::fs::write(&text, "not a library").expect("a file");
    let foreign = folder.path("libcuda.so");
    let mut bytes = std::fs::read(folder.library("whole", &FakeDriver::default())).expect("the library");
    // The machine in the ELF header: of a kind that runs nowhere.
    bytes[18..20].copy_from_slice(&[0xee, 0xee]);
    std::fs::write(&foreign, bytes).expect("a file");
    let error = load_error(&search(&[text.clone(), foreign.clone()], &[]));
    let LoadError::NoLibrary { tried } = &error else { panic!("{error}") };
    assert_eq!(tried.iter().map(|candidate| &candidate.path).collect::<Vec<_>>(), [&text, &foreign]);
    for candidate in tried {
        assert!(matches!(&candidate.outcome, Outcome::FailedToLoad(message) if !message.is_empty()), "{candidate}");
        assert!(candidate.to_string().contains("found, but failed to load"), "{candidate}");
    }
    // A driver after them is taken.
    let good = folder.library("good/libcuda.so.1", &FakeDriver::default());
    assert_loaded(&Driver::load_with(&search(&[text, foreign, good.clone()], &[])).expect("a driver"), &good);
}

#[test]
fn a_driver_of_another_version_than_the_kernels_names_the_other_candidates() {
    let folder = Folder::new("mismatch");
    let text = folder.path("first/libcuda.so.1");
    std::fs::create_dir_all(folder.path("first")).expect("a folder");
    std::fs::write(&text, "not a library").expect("a file");
    let loaded = folder.library("compat/libcuda.so.1", &FakeDriver { version: 12_090, ..FakeDriver::failing(803) });
    let other = folder.library("system/libcuda.so.580.1", &FakeDriver::default());
    let folders = ["first", "nowhere", "compat", "system"].map(|name| folder.path(name));
    let error = load_error(&search(&[], &folders));
    let LoadError::Init { path, call, code, have, others } = &error else { panic!("{error}") };
    assert_eq!(
        (path, *call, *code, *have),
        (&loaded, Call::cuInit, CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 12_090)
    );
    // On a machine with a driver that one is named too.
    let own: Vec<&Candidate> = others.iter().filter(|candidate| candidate.path.starts_with(folder.path("."))).collect();
    let [
        Candidate { path: first, outcome: Outcome::FailedToLoad(_), .. },
        Candidate { path: second, outcome: Outcome::NotTried, .. },
    ] = &own[..]
    else {
        panic!("{others:?}")
    };
    assert_eq!((first, second), (&text, &other));
    let text = error.to_string();
    for part in [loaded.to_str(), other.to_str(), Some("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)"), Some("CUDA 12.9")] {
        assert!(text.contains(part.expect("text")), "{text}");
    }
}

#[test]
fn a_compatibility_library_is_named_with_those_on_the_library_path() {
    let test = "a_compatibility_library_is_named_with_those_on_the_library_path";
    if let Some(compat) = child() {
        let error = load_error(&Search::only(&compat));
        let LoadError::Init { path, code, others, .. } = &error else { panic!("{error}") };
        assert_eq!((path, *code), (&compat, CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE));
        let system = compat.parent().and_then(Path::parent).expect("two folders up").join("system/libcuda.so.1");
        assert_eq!(
            others.iter().map(|other| (&other.path, &other.outcome)).collect::<Vec<_>>(),
            [(&system, &Outcome::NotTried)]
        );
        assert!(error.to_string().contains("take its folder (often named compat) off the path"), "{error}");
        return;
    }
    let folder = Folder::new("compat");
    let compat = folder.library("compat/libcuda.so.1", &FakeDriver::failing(804));
    folder.library("system/libcuda.so.1", &FakeDriver::default());
    let folders = std::env::join_paths(["compat", "system"].map(|name| folder.path(name))).expect("no colon in a name");
    run_child(test, &compat, |command| {
        command.env(LIBRARY_PATH, folders);
    });
}

#[test]
fn a_driver_that_does_not_tell_its_version_is_no_driver() {
    let folder = Folder::new("no_version");
    let path = folder.library("libcuda.so.1", &FakeDriver { version_code: 3, ..FakeDriver::default() });
    let error = load_error(&Search::only(&path));
    let LoadError::Init { call, code, have, .. } = &error else { panic!("{error}") };
    assert_eq!((*call, *code, *have), (Call::cuDriverGetVersion, CUresult::CUDA_ERROR_NOT_INITIALIZED, 0));
    assert!(error.to_string().contains("of an unknown CUDA version"), "{error}");
}

#[test]
fn a_versioned_file_alone_is_enough_and_the_newest_is_taken() {
    let folder = Folder::new("versioned");
    for version in ["99.2.1", "535.183.01"] {
        folder.library(&format!("libcuda.so.{version}"), &FakeDriver { version: 12_020, ..FakeDriver::default() });
    }
    let newest = folder.library("libcuda.so.580.95.05", &FakeDriver::default());
    std::fs::write(folder.path("libcuda.so.backup"), "").expect("a file");
    assert_loaded(&Driver::load_with(&search(&[], &[folder.path("")])).expect("a driver"), &newest);
    // The name that every installation has comes before any version.
    let usual = folder.library("libcuda.so.1", &FakeDriver::default());
    assert_loaded(&Driver::load_with(&search(&[], &[folder.path("")])).expect("a driver"), &usual);
}

#[test]
fn a_folder_off_the_system_path_is_searched_after_the_names() {
    let folder = Folder::new("wsl");
    let wsl = folder.library("usr/lib/wsl/lib/libcuda.so.1", &FakeDriver::default());
    let names = [PathBuf::from("libcuda-that-nobody-has.so.1")];
    let driver = Driver::load_with(&search(&names, &[folder.path("usr/lib/wsl/lib")])).expect("a driver");
    assert_loaded(&driver, &wsl);
}

#[test]
fn the_system_path_is_asked_for_the_versioned_name() {
    let test = "the_system_path_is_asked_for_the_versioned_name";
    if let Some(path) = child() {
        assert_loaded(&Driver::load().expect("a driver"), &path);
        return;
    }
    let folder = Folder::new("soname");
    let path = folder.library("libcuda.so.1", &FakeDriver::default());
    run_child(test, &path, |command| {
        command.env(LIBRARY_PATH, folder.path(""));
    });
}

#[test]
fn the_variable_names_the_only_file() {
    let test = "the_variable_names_the_only_file";
    if let Some(path) = child() {
        match Driver::load() {
            Ok(driver) => assert_loaded(&driver, &path),
            Err(LoadError::NoLibrary { tried }) => {
                assert!(!path.exists());
                assert_eq!(tried.iter().map(|candidate| &candidate.path).collect::<Vec<_>>(), [&path]);
            }
            Err(error) => panic!("{error}"),
        }
        return;
    }
    let folder = Folder::new("variable");
    folder.library("path/libcuda.so.1", &FakeDriver::stub());
    let named = folder.library("named/driver", &FakeDriver::default());
    for file in [named, folder.path("named/nothing")] {
        run_child(test, &file, |command| {
            command.env(DRIVER, &file).env(LIBRARY_PATH, folder.path("path"));
        });
    }
}

/// The files of this process's memory whose names are those of a driver.
fn mapped_drivers() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has it");
    maps.lines().filter(|line| line.contains("libcuda")).map(str::to_string).collect()
}

#[test]
fn nothing_is_opened_before_the_first_load() {
    let test = "nothing_is_opened_before_the_first_load";
    if let Some(path) = child() {
        let _ = (Search::default(), breakable_cuda_graph::PoolOptions::default(), Call::ALL.len());
        #[cfg(feature = "reference-driver")]
        {
            let driver = Driver::reference().expect("the reference driver");
            let device = breakable_cuda_graph::driver::Device::get(&driver, 0).expect("a device");
            device.primary_context().expect("a context");
        }
        assert_eq!(mapped_drivers(), Vec::<String>::new());
        // The same look does see one that is loaded.
        let _driver = Driver::load_from(&path).expect("a driver");
        assert!(!mapped_drivers().is_empty());
        return;
    }
    let folder = Folder::new("before");
    // Were anything to load a driver, it would find this one.
    let path = folder.library("libcuda.so.1", &FakeDriver::default());
    run_child(test, &path, |command| {
        command.env(LIBRARY_PATH, folder.path(""));
    });
}

#[cfg(feature = "reference-driver")]
#[test]
fn the_reference_driver_fails_to_load_as_a_library_does() {
    use breakable_cuda_graph::reference::Options;
    let path = PathBuf::from("reference driver");
    let fails = |options| Driver::reference_with(options).expect_err("this driver will not do");
    assert_eq!(fails(Options::default().version(11_080)), LoadError::TooOld { path: path.clone(), have: 11_080 });
    let missing = Options::default().missing(Call::cuGraphLaunch);
    assert_eq!(fails(missing), LoadError::MissingCall { path: path.clone(), call: Call::cuGraphLaunch, have: 13_000 });
    let mut options = Options::default();
    options.init = CUresult::CUDA_ERROR_STUB_LIBRARY;
    assert_eq!(fails(options), LoadError::Stub { path, others: vec![] });
    let old = Driver::reference_with(Options::default().version(12_000)).expect("the oldest that will do");
    for &call in Call::ALL {
        assert_eq!(old.supports(call), call.since() <= 12_000, "{call}");
    }
}

#[cfg(feature = "driver-tests")]
mod on_a_device {
    use super::*;

    #[test]
    fn the_driver_has_what_its_version_says() {
        let driver = Driver::load().expect("the feature driver-tests needs a usable device");
        for &call in Call::ALL {
            let expected = call.is_needed() || call.since() <= driver.version();
            assert_eq!(driver.supports(call), expected, "{call} on CUDA {}", driver.version());
        }
        let Origin::Library(path) = driver.origin() else { panic!("{:?}", driver.origin()) };
        assert!(path.is_file(), "{}", path.display());
    }

    #[test]
    fn no_visible_device_is_no_device() {
        if child().is_some() {
            let error = Driver::load().expect_err("no device is visible");
            let LoadError::NoDevice { path, visible_devices } = &error else { panic!("{error}") };
            assert!(path.is_file(), "{}", path.display());
            assert_eq!(visible_devices.as_deref(), std::env::var(VISIBLE).ok().as_deref());
            return;
        }
        for value in ["", "-1"] {
            run_child("on_a_device::no_visible_device_is_no_device", Path::new(""), |command| {
                command.env(VISIBLE, value);
            });
        }
    }
}
