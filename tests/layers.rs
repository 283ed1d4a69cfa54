//! The layers of the crate, and what the documents say of it: held by reading the sources.
//!
//! - `graph`: which file uses which, from the paths in the code. `rules`: what is allowed of that.
//! - `errors`: the table of errors. `structures`: how structures of the driver are filled. `citations`: whatever a comment or a document cites is in the repository.

#[path = "layers/citations.rs"]
mod citations;
#[path = "layers/errors.rs"]
mod errors;
#[path = "layers/graph.rs"]
mod graph;
#[path = "layers/rules.rs"]
mod rules;
#[path = "layers/structures.rs"]
mod structures;

use graph::Tree;
use rules::{Violation, violations};

/// The crate's own sources.
fn sources() -> Tree {
    Tree::read(std::path::Path::new("src"))
}

/// A made tree of files.
fn tree(files: &[(&str, &str)]) -> Tree {
    Tree::of(files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())))
}

fn found(files: &[(&str, &str)]) -> Vec<Violation> {
    violations(&tree(files))
}

fn arrow(from: &str, to: &str) -> Vec<Violation> {
    vec![Violation::Arrow { from: from.into(), to: to.into() }]
}

fn circle(files: &[&str]) -> Vec<Violation> {
    vec![Violation::Circle(files.iter().map(|file| (*file).to_owned()).collect())]
}

#[test]
fn arrows_go_up_the_list_only_and_circles_are_of_two_files_of_one_folder_at_most() {
    let found = violations(&sources());
    assert!(found.is_empty(), "{}", found.iter().map(|one| format!("\n{one}")).collect::<String>());
}

/// An arrow that is added to the real tree is found, whatever form it has.
#[test]
fn an_added_arrow_is_found() {
    for (file, line) in [
        ("sys/load.rs", "use crate::driver::Context;"),
        ("sys/load.rs", "fn f() { crate::capture::eager(todo()) }"),
        ("kernels/scrub.rs", "use crate::reference::Options;"),
        ("driver/stream.rs", "use super::super::tensor::Tensor;"),
        ("memory/trace.rs", "use crate::{memory::TracePlan, CapturePool};"),
        ("tensor/weak.rs", "type T = crate::pool::CapturePool;"),
    ] {
        let mut tree = sources();
        tree.append(file, line);
        let found = violations(&tree);
        assert!(found.iter().any(|one| matches!(one, Violation::Arrow { from, .. } if from == file)), "{file}: {line}");
    }
}

#[test]
fn an_arrow_through_a_re_export_leads_to_its_file() {
    let files = [
        ("lib.rs", "pub mod driver; pub mod pool; pub use pool::CapturePool;"),
        ("pool/mod.rs", "mod capture_pool; pub use capture_pool::{CapturePool, Other as Renamed};"),
        ("pool/capture_pool.rs", "pub struct CapturePool; pub struct Other;"),
        ("driver/mod.rs", "mod stream;"),
    ];
    for line in ["use crate::CapturePool;", "use crate::pool::CapturePool;", "use crate::pool::{self, Renamed};"] {
        let all = [&files[..], &[("driver/stream.rs", line)]].concat();
        assert!(found(&all).contains(&arrow("driver/stream.rs", "pool/capture_pool.rs")[0]), "{line}");
    }
}

#[test]
fn arrows_up_the_list_errors_comments_and_tests_are_free() {
    let files = [
        ("error/mod.rs", "use crate::prefill::runner::Runner;"),
        ("sys/mod.rs", "mod load;"),
        (
            "sys/load.rs",
            "use crate::error::Error; // use crate::driver::stream::Stream;\n/// crate::driver::stream::Stream\nfn f() { \"crate::driver::stream\"; }\n#[cfg(test)]\nmod tests { use crate::driver::stream::Stream; }",
        ),
        ("driver/mod.rs", "mod stream;"),
        ("driver/stream.rs", "use crate::sys::load::Load;"),
        ("prefill/mod.rs", "mod runner;"),
        ("prefill/runner.rs", "use crate::driver::stream::Stream; use crate::error::Error;"),
    ];
    assert_eq!(found(&files), []);
}

#[test]
fn a_circle_of_three_files_is_found_and_one_of_two_is_not() {
    let two =
        [("driver/mod.rs", "mod a; mod b;"), ("driver/a.rs", "use super::b::B;"), ("driver/b.rs", "use super::a::A;")];
    assert_eq!(found(&two), []);
    let three = [
        ("driver/mod.rs", "mod a; mod b; mod c;"),
        ("driver/a.rs", "use super::b::B;"),
        ("driver/b.rs", "use super::c::C;"),
        ("driver/c.rs", "use super::a::A;"),
    ];
    assert_eq!(found(&three), circle(&["driver/a.rs", "driver/b.rs", "driver/c.rs"]));
}

#[test]
fn a_circle_across_folders_is_found_also_of_two_files() {
    let files = [
        ("capture/mod.rs", "mod one; mod two;"),
        ("capture/one/mod.rs", "mod a;"),
        ("capture/one/a.rs", "use crate::capture::two::b::B;"),
        ("capture/two/mod.rs", "mod b;"),
        ("capture/two/b.rs", "use super::super::one::a::A;"),
    ];
    assert_eq!(found(&files), circle(&["capture/one/a.rs", "capture/two/b.rs"]));
}

#[test]
fn a_file_of_no_layer_is_found() {
    assert_eq!(found(&[("misc/mod.rs", "")]), [Violation::NoLayer("misc/mod.rs".into())]);
}
