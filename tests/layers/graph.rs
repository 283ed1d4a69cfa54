//! Which file uses which: from every path in the code that begins with `crate`, `super`, `self` or a child module, with re-exports followed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The files of a crate, by path from `src`, and their code without comments, strings and test modules.
pub struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    pub fn read(folder: &Path) -> Tree {
        let mut files = Vec::new();
        collect(folder, folder, &mut files);
        Tree::of(files)
    }

    /// Files that hold tests alone are left out.
    pub fn of(files: impl IntoIterator<Item = (String, String)>) -> Tree {
        let is_test = |path: &str| path.split('/').any(|part| part == "tests" || part == "tests.rs");
        let files = files.into_iter().filter(|(path, _)| !is_test(path));
        Tree { files: files.map(|(path, text)| (path, code_of(&text))).collect() }
    }

    /// Adds a line to a file.
    pub fn append(&mut self, path: &str, line: &str) {
        let text = self.files.get_mut(path).unwrap_or_else(|| panic!("there is no {path}"));
        text.push('\n');
        text.push_str(&code_of(line));
    }

    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// For each file the files that it uses. What a file only passes on (`pub use`) it does not use.
    pub fn arrows(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let modules: BTreeMap<Vec<String>, &str> =
            self.files.keys().map(|path| (module_of(path), path.as_str())).collect();
        let mut exports = BTreeMap::new();
        let mut uses = BTreeMap::new();
        for (path, code) in &self.files {
            let module = module_of(path);
            let is_child = |name: &str| modules.contains_key(&joined(&module, name));
            for found in paths_of(code, &is_child) {
                let Some(target) = absolute(&module, &found.segments) else { continue };
                if found.exported {
                    if let Some(name) = &found.name {
                        exports.insert(joined(&module, name), target);
                    }
                } else {
                    uses.entry(path.as_str()).or_insert_with(Vec::new).push(target);
                }
            }
        }
        let file_of = |target: &[String]| resolve(target, &modules, &exports, 0);
        let mut arrows: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for path in self.files.keys() {
            let targets = uses.get(path.as_str()).into_iter().flatten().filter_map(|target| file_of(target));
            arrows.insert(path, targets.filter(|target| target != path).collect());
        }
        arrows
    }
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(root, &path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).expect("inside").to_string_lossy().replace('\\', "/");
            files.push((name, std::fs::read_to_string(&path).expect("a source file")));
        }
    }
}

/// `driver/stream.rs` is `driver::stream`, `driver/mod.rs` is `driver`, and `lib.rs` is the root.
fn module_of(path: &str) -> Vec<String> {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let parts = path.split('/').filter(|part| !["mod", "lib"].contains(part));
    parts.map(str::to_owned).collect()
}

fn joined(module: &[String], name: &str) -> Vec<String> {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

/// The path from the root. `None`: it leads out of the crate.
fn absolute(module: &[String], segments: &[String]) -> Option<Vec<String>> {
    let mut base = module.to_vec();
    let mut rest = segments;
    match segments.first().map(String::as_str) {
        Some("crate") => {
            base.clear();
            rest = &rest[1..];
        }
        Some("self") => rest = &rest[1..],
        _ => {}
    }
    while rest.first().is_some_and(|segment| segment == "super") {
        base.pop()?;
        rest = &rest[1..];
    }
    base.extend(rest.iter().cloned());
    Some(base)
}

/// The file that defines what a path names: the deepest module on it, or where that has it from.
fn resolve<'t>(
    target: &[String],
    modules: &BTreeMap<Vec<String>, &'t str>,
    exports: &BTreeMap<Vec<String>, Vec<String>>,
    depth: usize,
) -> Option<&'t str> {
    let length = (0..=target.len()).rev().find(|length| modules.contains_key(&target[..*length]))?;
    let (module, rest) = target.split_at(length);
    if let Some(name) = rest.first()
        && let Some(other) = exports.get(&joined(module, name)).filter(|_| depth < 8)
    {
        let further: Vec<String> = other.iter().chain(&rest[1..]).cloned().collect();
        return resolve(&further, modules, exports, depth + 1);
    }
    modules.get(module).copied()
}

/// A path in the code.
struct Found {
    segments: Vec<String>,
    /// Whether it is re-exported, and under which name.
    exported: bool,
    name: Option<String>,
}

/// All paths of a file that begin inside the crate.
fn paths_of(code: &str, is_child: &dyn Fn(&str) -> bool) -> Vec<Found> {
    let tokens = tokens_of(code);
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let token = tokens[at].as_str();
        let after_path = at > 0 && tokens[at - 1] == "::";
        let in_use = at > 0 && tokens[at - 1] == "use";
        let begins = ["crate", "super", "self"].contains(&token) && tokens.get(at + 1).is_some_and(|next| next == "::");
        if (begins || (in_use && is_child(token))) && !after_path {
            // `pub use`, `pub(crate) use`.
            let exported = in_use && at > 1 && (tokens[at - 2] == "pub" || tokens[at - 2] == ")");
            at = tree_of(&tokens, at, &mut Vec::new(), exported, &mut found);
        } else {
            at += 1;
        }
    }
    found
}

/// Reads a path, or a tree of them in braces, and gives the place after it.
fn tree_of(
    tokens: &[String],
    mut at: usize,
    prefix: &mut Vec<String>,
    exported: bool,
    found: &mut Vec<Found>,
) -> usize {
    let length = prefix.len();
    loop {
        match tokens.get(at).map(String::as_str) {
            Some("{") => {
                at += 1;
                while tokens.get(at).is_some_and(|token| token != "}") {
                    at = tree_of(tokens, at, prefix, exported, found);
                    if tokens.get(at).is_some_and(|token| token == ",") {
                        at += 1;
                    }
                }
                prefix.truncate(length);
                return at + 1;
            }
            Some(token) if token == "*" || is_name(token) => {
                // `{self, ..}` is the module itself.
                if token != "*" && (token != "self" || prefix.is_empty()) {
                    prefix.push(token.to_owned());
                }
                at += 1;
            }
            _ => {
                prefix.truncate(length);
                return at.max(1) + usize::from(prefix.len() == length && tokens.get(at).is_some_and(|t| t == "::"));
            }
        }
        if tokens.get(at).is_some_and(|token| token == "::")
            && tokens.get(at + 1).is_some_and(|next| next == "{" || next == "*" || is_name(next))
        {
            at += 1;
            continue;
        }
        let mut name = prefix.last().cloned();
        if tokens.get(at).is_some_and(|token| token == "as") {
            name = tokens.get(at + 1).cloned();
            at += 2;
        }
        found.push(Found { segments: prefix.clone(), exported, name });
        prefix.truncate(length);
        return at;
    }
}

fn is_name(token: &str) -> bool {
    token.chars().next().is_some_and(|first| first.is_alphabetic() || first == '_')
}

/// Names, `::`, and single signs.
fn tokens_of(code: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut signs = code.chars().peekable();
    while let Some(sign) = signs.next() {
        if sign.is_alphanumeric() || sign == '_' {
            let mut name = String::from(sign);
            while let Some(next) = signs.next_if(|next| next.is_alphanumeric() || *next == '_') {
                name.push(next);
            }
            tokens.push(name);
        } else if sign == ':' && signs.next_if_eq(&':').is_some() {
            tokens.push("::".to_owned());
        } else if !sign.is_whitespace() {
            tokens.push(sign.to_string());
        }
    }
    tokens
}

/// The code without comments, the contents of strings, and what is for tests alone.
fn code_of(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if rest.starts_with("//") {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
        } else if rest.starts_with("/*") {
            rest = rest.find("*/").map_or("", |end| &rest[end + 2..]);
        } else if first == '"' {
            let mut escaped = false;
            let end = rest[1..].char_indices().find(|(_, sign)| {
                let ends = *sign == '"' && !escaped;
                escaped = *sign == '\\' && !escaped;
                ends
            });
            rest = end.map_or("", |(end, _)| &rest[end + 2..]);
        } else if rest.starts_with("'\"'") {
            rest = &rest[3..];
        } else if rest.starts_with("#[cfg(test)]") || rest.starts_with("#[cfg(all(test") {
            rest = after_item(rest);
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    code
}

/// What comes after an attribute and the item that it is of: up to the end of its braces, or its semicolon.
fn after_item(text: &str) -> &str {
    let start = text.find("]\n").or_else(|| text.find("] ")).map_or(text.len(), |end| end + 1);
    let mut depth = 0_usize;
    for (at, sign) in text[start..].char_indices() {
        match sign {
            '{' => depth += 1,
            '}' if depth == 1 => return &text[start + at + 1..],
            '}' => depth = depth.saturating_sub(1),
            ';' if depth == 0 => return &text[start + at + 1..],
            _ => {}
        }
    }
    ""
}
