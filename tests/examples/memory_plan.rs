//! The example `memory_plan`: its line, its table, its picture, and what it says of files that make no sense.

#[path = "../../examples/memory_plan/main.rs"]
#[allow(dead_code)]
mod program;

use clap::Parser;
use program::instance::InstanceError;
use program::{args, instance, run};
use std::path::PathBuf;

/// A file of its own for each test.
fn file(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("memory_plan-{}-{name}", std::process::id()));
    std::fs::write(&path, text).expect("a file");
    path
}

fn output(arguments: &[&str]) -> String {
    let arguments = args::Arguments::try_parse_from([&["memory_plan"], arguments].concat()).expect("arguments");
    let mut out = Vec::new();
    run::run(&arguments, &mut out).expect("a plan");
    String::from_utf8(out).expect("text")
}

#[test]
fn an_instance_gives_one_line() {
    let path = file("three.csv", "id,lower,upper,size\na,0,2,100\nb,1,3,50\nc,2,4,100\n");
    let line = output(&["--csv", &path.display().to_string(), "--seconds", "0.01"]);
    assert!(line.starts_with("planned 150, lower bound 150, overhead 0.00%, ") && line.ends_with(" s\n"), "{line:?}");
    assert_eq!(line.lines().count(), 1);
    // Columns in another order, and more of them.
    let path = file("order.csv", "size, kind, upper, id, lower\n100, x, 2, a, 0\n");
    let picture = file("instance.svg", "");
    let line =
        output(&["--csv", &path.display().to_string(), "--out", &picture.display().to_string(), "--seconds", "0"]);
    assert!(line.starts_with("planned 100, lower bound 100, "), "{line:?}");
    assert!(std::fs::read_to_string(picture).expect("a picture").contains("<svg"));
    let path = file("none.csv", "id,lower,upper,size\n");
    assert!(output(&["--csv", &path.display().to_string()]).starts_with("planned 0, lower bound 0, overhead 0.00%"));
}

#[test]
fn a_program_gives_a_table_and_a_picture() {
    let picture = file("plan.svg", "");
    let text = output(&["--rows", "256,1024", "--out", &picture.display().to_string(), "--program", "stack"]);
    assert!(text.contains("| 1024 | 18.00 MiB | 18.00 MiB | 0.00% |"), "{text}");
    assert!(text.contains("one range for all: 18.00 MiB; each its own: 22.50 MiB"), "{text}");
    let picture = std::fs::read_to_string(picture).expect("a picture");
    for part in ["<svg", "live bytes", "lower bound", "handoff", "0.wide"] {
        assert!(picture.contains(part), "{part}");
    }
    for program in ["decoder-8b", "decoder-70b-eighth"] {
        let text = output(&["--program", program]);
        assert!(text.contains("| 8192 |") && text.contains("| 256 |"), "{text}");
    }
}

#[test]
fn files_that_make_no_sense_are_typed_errors() {
    let read = |name: &str, text: &str| instance::read(&file(name, text)).expect_err("an error");
    assert!(matches!(instance::read(&PathBuf::from("/nonexistent")), Err(InstanceError::Unreadable { .. })));
    assert!(matches!(read("column", "id,lower,size\n"), InstanceError::NoColumn { column: "upper", .. }));
    let head = "id,lower,upper,size\n";
    let with = |name: &str, row: &str| read(name, &format!("{head}{row}\n"));
    assert!(matches!(with("short", "a,1"), InstanceError::Unreadable { .. }));
    assert!(matches!(with("word", "a,x,2,3"), InstanceError::NotANumber { line: 2, column: "lower", .. }));
    assert!(matches!(with("negative", "a,-1,2,3"), InstanceError::NotANumber { column: "lower", .. }));
    assert!(matches!(with("size", "a,1,2,-3"), InstanceError::NotANumber { column: "size", .. }));
    assert!(matches!(with("zero", "a,1,2,0"), InstanceError::NoBytes { line: 2, .. }));
    assert!(matches!(with("reversed", "a,2,1,3"), InstanceError::Lifetime { lower: 2, upper: 1, .. }));
    assert!(matches!(with("never", "a,2,2,3"), InstanceError::Lifetime { .. }));
    assert!(matches!(with("twice", "a,1,2,3\na,4,5,6"), InstanceError::Twice { line: 3, first: 2, .. }));
    let path = file("huge.csv", &format!("{head}a,0,1,18446744073709551615\n"));
    let arguments = args::Arguments::parse_from(["memory_plan", "--csv", &path.display().to_string()]);
    let error = run::run(&arguments, &mut Vec::new()).expect_err("larger than memory").to_string();
    assert!(!error.is_empty());
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    for arguments in [
        &["--rows", "0"][..],
        &["--rows", ""],
        &["--seconds", "-1"],
        &["--seconds", "nan"],
        &["--csv", "a", "--rows", "1"],
    ] {
        let given = [&["memory_plan"], arguments].concat();
        assert!(args::Arguments::try_parse_from(given).is_err(), "{arguments:?}");
    }
    let arguments = args::Arguments::parse_from(["memory_plan", "--rows", "1", "--out", "/nonexistent/a.svg"]);
    let error = run::run(&arguments, &mut Vec::new()).expect_err("no such folder").to_string();
    assert!(error.contains("/nonexistent/a.svg"), "{error}");
}
