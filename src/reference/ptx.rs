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
    let text: String = text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n");
    if !text.contains(".version") || !text.contains(".target") {
        return None;
    }
    let mut found = Vec::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find(".entry") {
        rest = &rest[at + ".entry".len()..];
        let name: String =
            rest.trim_start().chars().take_while(|c| c.is_alphanumeric() || "_$%".contains(*c)).collect();
        if name.is_empty() {
            return None;
        }
        let after = rest.trim_start()[name.len()..].trim_start();
        let parameters = match after.strip_prefix('(') {
            Some(list) => parameters(&list[..list.find(')')?])?,
            None => Vec::new(),
        };
        found.push(Entry { name, parameters });
    }
    Some(found)
}

fn parameters(list: &str) -> Option<Vec<Parameter>> {
    let mut found: Vec<Parameter> = Vec::new();
    for declaration in list.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        let words: Vec<&str> = declaration.split_whitespace().collect();
        let element = words.iter().find_map(|word| size_of(word))?;
        let mut alignment = element;
        if let Some(at) = words.iter().position(|word| *word == ".align") {
            alignment = words.get(at + 1)?.parse().ok()?;
        }
        let name = words.last()?;
        let count = match name.find('[') {
            Some(open) => name[open + 1..].trim_end_matches(']').parse().ok()?,
            None => 1,
        };
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
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Entry, Parameter, entries};

    #[test]
    fn entries_and_their_parameters_are_found() {
        let text = ".version 8.0 // .entry no\n.target sm_70\n.visible .entry fill(\n\t.param .u64 fill_0,\n\t.param .f32 fill_1,\n\
                    .param .u64 fill_2\n)\n{ ret; }\n.visible .entry structs(.param .align 8 .b8 s[48], .param .u8 c) { ret; }\n.entry none() {}";
        let expected = |name: &str, list: &[(usize, usize)]| Entry {
            name: name.into(),
            parameters: list.iter().map(|&(offset, size)| Parameter { offset, size }).collect(),
        };
        assert_eq!(
            entries(text).expect("it is PTX"),
            [
                expected("fill", &[(0, 8), (8, 4), (16, 8)]),
                expected("structs", &[(0, 48), (48, 1)]),
                expected("none", &[])
            ]
        );
        assert_eq!(entries("not PTX"), None);
        assert_eq!(entries(".version 8.0 .target sm_70 .entry broken(.param .u64"), None);
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
