//! What comments and documents cite is in the repository: rules by their number, documents by their path.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

#[test]
fn rules_that_are_cited_are_in_the_document() {
    let rules = numbered_rules(&std::fs::read_to_string("docs/RULES.md").expect("the rules"));
    assert!(rules.len() > 40, "{}", rules.len());
    let mut wrong = Vec::new();
    for path in texts() {
        let text = std::fs::read_to_string(&path).expect("a text");
        for number in cited_rules(&text).into_iter().filter(|number| !rules.contains(number)) {
            wrong.push(format!("{}: rule {number}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn documents_that_are_named_are_there() {
    let mut wrong = Vec::new();
    for path in texts() {
        let text = std::fs::read_to_string(&path).expect("a text");
        for name in named_files(&text).into_iter().filter(|name| !Path::new(name).exists()) {
            wrong.push(format!("{}: {name}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn citations_are_found() {
    let text = "/// Rule 8, and rules 17 to 19; by rule 27.\n//! (rules 40 to 43)\nrule of thumb; by_rule(3)";
    assert_eq!(cited_rules(text), [8, 17, 18, 19, 27, 40, 41, 42, 43]);
    assert_eq!(numbered_rules("1. one\n2. **two**\ntext 3. no\n10. ten").into_iter().collect::<Vec<_>>(), [1, 2, 10]);
    assert_eq!(named_files("see `docs/DESIGN.md`, docs/RULES.md."), ["docs/DESIGN.md", "docs/RULES.md"]);
}

/// Everything that people read: sources, tests, documents.
fn texts() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for place in ["src", "tests", "examples", "benches", "csrc", "docs", "build", "scripts"] {
        if Path::new(place).exists() {
            collect(Path::new(place), &mut found);
        }
    }
    let roots = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "BENCHMARKS.md", "build.rs"];
    found.extend(roots.map(PathBuf::from).into_iter().filter(|path| path.exists()));
    // This file speaks of rules that there are not.
    found.retain(|path| !path.ends_with("layers/citations.rs"));
    found
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let is_text =
            || path.extension().is_some_and(|end| ["rs", "md", "c", "h", "cu", "py"].iter().any(|known| end == *known));
        if path.is_dir() {
            collect(&path, found);
        } else if is_text() {
            found.push(path);
        }
    }
}

/// The numbers of a document's list of rules.
fn numbered_rules(text: &str) -> BTreeSet<u32> {
    text.lines().filter_map(|line| line.split_once(". ")?.0.parse().ok()).collect()
}

/// The numbers after `rule` or `rules`, ranges spelled out.
fn cited_rules(text: &str) -> Vec<u32> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let number =
        |at: usize| -> Option<u32> { words.get(at)?.trim_matches(|sign: char| !sign.is_ascii_digit()).parse().ok() };
    let plain = |word: &str| word.trim_matches(|sign: char| !sign.is_alphabetic()).to_lowercase();
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate() {
        if !["rule", "rules"].contains(&plain(word).as_str()) || word.contains('_') {
            continue;
        }
        let Some(first) = number(at + 1) else { continue };
        let joins = words.get(at + 2).map(|word| plain(word));
        match (joins.as_deref(), number(at + 3)) {
            (Some("to"), Some(last)) => found.extend(first..=last),
            (Some("and"), Some(second)) => found.extend([first, second]),
            _ => found.push(first),
        }
    }
    found
}

/// Paths of documents in this repository that a text names.
fn named_files(text: &str) -> Vec<String> {
    let words = text.split(|sign: char| sign.is_whitespace() || "`()[],<>\"".contains(sign));
    let names = words.map(|word| word.trim_end_matches(['.', ':', ';']));
    names.filter(|name| name.starts_with("docs/") && name.ends_with(".md")).map(str::to_owned).collect()
}
