//! What PTX text declares: its entries and their parameters. The code itself is not looked at.

/// A parameter's place in the parameter space, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Parameter {
    pub(super) offset: usize,
    pub(super) size: usize,
}

/// An entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) parameters: Vec<Parameter>,
}

/// The entries of a module; `None` when the text is no PTX.
pub(super) fn entries(text: &str) -> Option<Vec<Entry>> {
    let text = code_of(text);
    if !text.contains(".version") || !text.contains(".target") {
        return None;
    }
    let mut found: Vec<Entry> = Vec::new();
    for (at, directive) in text.match_indices(".entry") {
        let rest = &text[at + directive.len()..];
        if !rest.starts_with(char::is_whitespace) {
            continue;
        }
        let rest = rest.trim_start();
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || "_$%".contains(*c)).collect();
        if name.is_empty() {
            return None;
        }
        let after = rest[name.len()..].trim_start();
        let parameters = match after.strip_prefix('(') {
            Some(list) => parameters(&list[..list.find(')')?])?,
            None => Vec::new(),
        };
        // One that was declared before it is defined is there twice.
        if found.iter().all(|entry| entry.name != name) {
            found.push(Entry { name, parameters });
        }
    }
    Some(found)
}

/// The text without comments and without what is in strings.
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['/', '"']) {
        let (before, found) = rest.split_at(at);
        code.push_str(before);
        // Where a comment or a string ends, and what ends it.
        let (skipped, end) = match found {
            comment if comment.starts_with("//") => (2, "\n"),
            comment if comment.starts_with("/*") => (2, "*/"),
            string if string.starts_with('"') => (1, "\""),
            _ => {
                code.push('/');
                rest = &found[1..];
                continue;
            }
        };
        code.push(' ');
        let body = &found[skipped..];
        rest = body.find(end).map_or("", |close| &body[close + end.len()..]);
        if end == "\n" {
            code.push('\n');
        }
    }
    code.push_str(rest);
    code
}

fn parameters(list: &str) -> Option<Vec<Parameter>> {
    let mut found: Vec<Parameter> = Vec::new();
    for declaration in list.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        let words: Vec<&str> = declaration.split_whitespace().collect();
        let name = words.last()?;
        // What follows `.ptr` is of what the pointer points to.
        let own = words.split(|word| *word == ".ptr").next()?;
        let element = own.iter().find_map(|word| size_of(word))?;
        let mut alignment = element;
        if let Some(at) = own.iter().position(|word| *word == ".align") {
            alignment = own.get(at + 1)?.parse().ok()?;
        }
        let count = match name.find('[') {
            Some(open) => name[open + 1..].trim_end_matches(']').parse().ok()?,
            None => 1,
        };
        if !usize::is_power_of_two(alignment) {
            return None;
        }
        let end = found.last().map_or(0, |last| last.offset + last.size);
        found.push(Parameter { offset: end.next_multiple_of(alignment), size: element * count });
    }
    Some(found)
}

/// Bytes of a fundamental type such as `.u64`.
fn size_of(word: &str) -> Option<usize> {
    let bits = word.strip_prefix(['.'])?.strip_prefix(['u', 's', 'f', 'b'])?;
    match bits {
        "8" => Some(1),
        "16" => Some(2),
        "32" => Some(4),
        "64" => Some(8),
        "128" => Some(16),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Entry, Parameter, entries};

    fn entry(name: &str, list: &[(usize, usize)]) -> Entry {
        let parameters = list.iter().map(|&(offset, size)| Parameter { offset, size }).collect();
        Entry { name: name.into(), parameters }
    }

    #[test]
    fn entries_and_their_parameters_are_found() {
        let text = ".version 8.0 // .entry no\n.target sm_70\n.visible .entry fill(\n\t.param .u64 fill_0,\n\t.param .f32 fill_1,\n\
                    .param .u64 fill_2\n)\n{ ret; }\n.visible .entry structs(.param .align 8 .b8 s[48], .param .u8 c) { ret; }\n.entry none() {}";
        assert_eq!(
            entries(text).expect("it is PTX"),
            [entry("fill", &[(0, 8), (8, 4), (16, 8)]), entry("structs", &[(0, 48), (48, 1)]), entry("none", &[])]
        );
        assert_eq!(entries("not PTX"), None);
        assert_eq!(entries(".version 8.0 .target sm_70 .entry broken(.param .u64"), None);
    }

    /// As NVRTC and nvcc, clang, and Triton write them.
    #[test]
    fn the_forms_of_other_compilers_are_read() {
        let cases = [
            // The alignment is that of what the pointer points to.
            (
                ".visible .entry k(\n.param .u32 a,\n.param .u64 .ptr .global .align 16 b\n)\n{ ret; }",
                vec![(0, 4), (8, 8)],
            ),
            (".entry k(.param .u64 .ptr .align 1 a) .maxntid 128, 1, 1 .reqntid 128 { ret; }", vec![(0, 8)]),
            (".entry k(.param .align 16 .b8 k_param_0[96], .param .b128 wide) { ret; }", vec![(0, 96), (96, 16)]),
            (".entry k(.param .u32 /* rows, say */ a, // and ) this\n.param .f64 b) { ret; }", vec![(0, 4), (8, 8)]),
            (".file 1 \".entry x(\"\n.entry k(.param .u32 a) { .loc 1 2 3 // \"\n ret; }", vec![(0, 4)]),
            (".entry k(.param .u32 a);\n.entry k(.param .u32 a) { div.rn.f32 %f1, %f2, %f3; ret; }", vec![(0, 4)]),
            (".weak .entry\nk()\n{ call (%rd1), .entryless, (%rd2); }", vec![]),
        ];
        for (code, expected) in cases {
            let text = format!(".version 8.4\n.target sm_90\n.address_size 64\n{code}");
            assert_eq!(entries(&text).expect("it is PTX"), [entry("k", &expected)], "{code}");
        }
        assert_eq!(entries(".version 8.0 .target sm_70 .entry odd(.param .align 3 .b8 a[3]) {}"), None);
        assert_eq!(entries(".version 8.0 /* .target sm_70"), None);
    }

    #[test]
    fn the_crates_own_module_is_understood() {
        let entries = entries(crate::kernels::PTX.to_str().expect("text")).expect("PTX");
        let mut names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        let mut listed: Vec<&str> = crate::kernels::HOST.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        listed.sort_unstable();
        assert_eq!(names, listed, "each kernel has its host function");
    }
}
