//! `docs/ERRORS.md` has a row for each kind of error, with its number and its own text.

use std::collections::BTreeMap;
use std::fs::read_to_string;

/// Where the kinds are declared that a row is for. The first three have numbers in `src/error/code.rs`, the others that of what they are told as.
const SOURCES: [(&str, &str, Option<u32>); 7] = [
    ("src/error/mod.rs", "Error", None),
    ("src/error/misuse.rs", "Misuse", None),
    ("src/error/tensor_error.rs", "TensorError", None),
    ("src/sys/load_error.rs", "LoadError", Some(100)),
    ("src/memory/planner/types.rs", "PlanError", Some(201)),
    ("src/prefill/error.rs", "PrefillError", Some(400)),
    ("src/prefill/ranks.rs", "RanksError", Some(400)),
];

/// A row of the table.
struct Row {
    number: u32,
    kind: String,
    text: String,
    cells: usize,
}

fn rows(document: &str) -> Vec<Row> {
    let cells =
        |line: &str| -> Vec<String> { line.trim_matches('|').split('|').map(|cell| cell.trim().into()).collect() };
    let rows = document.lines().filter(|line| line.starts_with("| ")).map(cells);
    let numbered = rows.filter_map(|cells| Some((cells.first()?.parse().ok()?, cells)));
    let row = |(number, cells): (u32, Vec<String>)| Row {
        number,
        kind: cells.get(1).map(|kind| kind.trim_matches('`').to_owned()).unwrap_or_default(),
        text: cells.get(3).cloned().unwrap_or_default(),
        cells: cells.iter().filter(|cell| !cell.is_empty()).count(),
    };
    numbered.map(row).collect()
}

/// The numbers in `src/error/code.rs`, by the kind. A line is `Misuse::NestedCapture => 503,`, with or without fields.
fn numbers(source: &str) -> BTreeMap<String, u32> {
    let numbered = |line: &str| {
        let (kind, number) = line.trim().split_once(" => ")?;
        let end = kind.find(|c: char| !(c.is_alphanumeric() || c == ':' || c == '_')).unwrap_or(kind.len());
        Some((kind[..end].to_owned(), number.trim_end_matches(',').parse().ok()?))
    };
    source.lines().filter_map(numbered).collect()
}

/// The format strings of an enum's variants; empty where the text is another error's.
fn texts(source: &str, name: &str) -> BTreeMap<String, String> {
    let begin = source.find(&format!("pub enum {name} {{")).unwrap_or_else(|| panic!("there is no enum {name}"));
    let body = &source[begin..];
    let body = &body[..body.find("\n}").expect("its end")];
    let mut found = BTreeMap::new();
    for attribute in body.split("#[error(").skip(1) {
        let text = match attribute.trim_start().strip_prefix('"') {
            Some(text) => {
                let mut quotes = text.match_indices('"').map(|(at, _)| at);
                let end = quotes.find(|at| !text[..*at].ends_with('\\')).expect("a closing quote");
                text[..end].replace("\\\"", "\"")
            }
            None => String::new(),
        };
        let (_, variant) = attribute.split_once(")]\n").expect("the attribute's end");
        let variant = variant.trim_start();
        let end = variant.find(|c: char| !c.is_alphanumeric()).expect("more");
        found.insert(variant[..end].to_owned(), text);
    }
    found
}

/// Whether a text may be one of a format string: it has what stands between the placeholders, in order.
fn is_of(text: &str, format: &str) -> bool {
    let mut rest = text;
    format.split('{').enumerate().all(|(at, part)| {
        let literal = if at == 0 { part } else { part.split_once('}').map_or("", |(_, literal)| literal) };
        match rest.find(literal) {
            Some(place) if at > 0 || place == 0 => {
                rest = &rest[place + literal.len()..];
                true
            }
            _ => false,
        }
    })
}

/// What is wrong with a table.
fn faults(document: &str) -> Vec<String> {
    let numbers = numbers(&read_to_string("src/error/code.rs").expect("the numbers"));
    let mut kinds: BTreeMap<String, (u32, String)> = BTreeMap::new();
    for (file, name, common) in SOURCES {
        for (variant, text) in texts(&read_to_string(file).expect(file), name) {
            let kind = format!("{name}::{variant}");
            let of_its_own = ["Error::Misuse", "Error::Tensor"].contains(&kind.as_str());
            match numbers.get(&kind).copied().or(common) {
                Some(number) => drop(kinds.insert(kind, (number, text))),
                None => assert!(of_its_own, "{kind} has no number"),
            }
        }
    }
    let mut found = Vec::new();
    for kind in numbers.keys().filter(|kind| !kinds.contains_key(*kind)) {
        found.push(format!("{kind} is numbered and declared nowhere"));
    }
    for Row { number, kind, text, cells } in rows(document) {
        let Some((expected, format)) = kinds.remove(&kind) else {
            found.push(format!("{kind} is no error, or has two rows"));
            continue;
        };
        if number != expected {
            found.push(format!("{kind} has number {number}, and in the sources {expected}"));
        }
        if cells != 5 {
            found.push(format!("{kind} has {cells} cells"));
        }
        if !is_of(&text, &format) {
            found.push(format!("{kind} has the text {text:?}, and in the sources {format:?}"));
        }
    }
    found.extend(kinds.into_keys().map(|kind| format!("{kind} has no row")));
    found
}

fn document() -> String {
    read_to_string("docs/ERRORS.md").expect("the table")
}

#[test]
fn each_error_has_a_row_with_its_number_and_text() {
    let found = faults(&document());
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_number_is_of_one_error() {
    let mut kinds: BTreeMap<u32, String> = BTreeMap::new();
    for (kind, number) in numbers(&read_to_string("src/error/code.rs").expect("the numbers")) {
        let other = kinds.insert(number, kind.clone());
        assert!(other.is_none(), "{number} is of {kind} and of {other:?}");
    }
    assert!(kinds.len() > 80, "they are read: {}", kinds.len());
}

#[test]
fn what_is_wrong_with_a_table_is_found() {
    let document = document();
    let line = document.lines().find(|line| line.contains("`Misuse::NestedCapture`")).expect("a row");
    for (changed, fault) in [
        (String::new(), "Misuse::NestedCapture has no row"),
        (format!("{line}\n{line}"), "Misuse::NestedCapture is no error, or has two rows"),
        (line.replace("503", "504"), "Misuse::NestedCapture has number 504, and in the sources 503"),
        (line.replace("Nested", "Other"), "Misuse::OtherCapture is no error, or has two rows"),
        (line.replace("finish it first", "stop"), "Misuse::NestedCapture has the text"),
    ] {
        let found = faults(&document.replace(line, &changed));
        assert!(found.iter().any(|found| found.starts_with(fault)), "{changed}: {found:?}");
    }
}
