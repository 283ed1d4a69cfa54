//! What is allowed of the arrows between files.

use crate::graph::Tree;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The layers: each may use those above it in this list, and itself. Those of one line are beside each other. `docs/DESIGN.md` says what each is.
const LAYERS: &[&[&str]] = &[
    &["sys"],
    &["kernels"],
    &["driver"],
    &["tensor"],
    &["memory"],
    &["pool"],
    &["capture"],
    &["prefill"],
    &["reference"],
];

/// Used by all, and uses what its variants hold.
const FREE: &str = "error";

/// The most files in a circle, which are of one folder.
const LARGEST_CIRCLE: usize = 2;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Violation {
    /// A file uses one of a layer below its own, or beside it.
    Arrow { from: String, to: String },
    /// Files that use each other, directly or not: more than two, or of several folders.
    Circle(Vec<String>),
    /// A file that is in no layer.
    NoLayer(String),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Arrow { from, to } => write!(f, "{from} uses {to}, of a layer below"),
            Violation::Circle(files) => write!(f, "these use each other: {}", files.join(", ")),
            Violation::NoLayer(file) => write!(f, "{file} is in no layer"),
        }
    }
}

fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

fn top(path: &str) -> &str {
    path.split('/').next().unwrap_or("")
}

fn layer(path: &str) -> Option<usize> {
    LAYERS.iter().position(|names| names.contains(&top(path)))
}

pub fn violations(tree: &Tree) -> Vec<Violation> {
    let is_free = |path: &str| path == "lib.rs" || top(path) == FREE;
    let mut found: Vec<Violation> = Vec::new();
    let arrows = tree.arrows();
    for path in tree.paths().filter(|path| !is_free(path) && layer(path).is_none()) {
        found.push(Violation::NoLayer(path.to_owned()));
    }
    let mut inside: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (&from, targets) in arrows.iter().filter(|(from, _)| !is_free(from)) {
        for &to in targets.iter().filter(|to| !is_free(to)) {
            let down = match (layer(from), layer(to)) {
                (Some(from_layer), Some(to_layer)) => {
                    to_layer > from_layer || (to_layer == from_layer && top(from) != top(to))
                }
                _ => false,
            };
            if down {
                found.push(Violation::Arrow { from: from.to_owned(), to: to.to_owned() });
            }
            inside.entry(from).or_default().insert(to);
        }
    }
    let too_large =
        |files: &Vec<&str>| files.len() > LARGEST_CIRCLE || files.iter().any(|file| folder(file) != folder(files[0]));
    let circles = circles(&inside).into_iter().filter(too_large);
    found.extend(circles.map(|files| Violation::Circle(files.into_iter().map(str::to_owned).collect())));
    found
}

/// Sets of files of which each reaches each: those of more than one file.
fn circles<'t>(arrows: &BTreeMap<&'t str, BTreeSet<&'t str>>) -> Vec<Vec<&'t str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = arrows.keys().map(|&file| (file, reachable(arrows, file))).collect();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let mut circles = Vec::new();
    for (&file, targets) in &reached {
        let mutual = |other: &&str| reached.get(*other).is_some_and(|back| back.contains(file));
        let circle: Vec<&str> = targets.iter().copied().filter(mutual).collect();
        if circle.len() > 1 && seen.insert(circle[0]) {
            circles.push(circle);
        }
    }
    circles
}

/// The files that one reaches; itself only where a way leads back.
fn reachable<'t>(arrows: &BTreeMap<&'t str, BTreeSet<&'t str>>, from: &str) -> BTreeSet<&'t str> {
    let mut reached = BTreeSet::new();
    let mut look: Vec<&str> = vec![from];
    while let Some(file) = look.pop() {
        for &next in arrows.get(file).into_iter().flatten() {
            if reached.insert(next) {
                look.push(next);
            }
        }
    }
    reached
}
