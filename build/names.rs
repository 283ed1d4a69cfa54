//! The names that the crate needs of a header, read from the list of calls and looked for in generated bindings.

/// A call of the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listed<'a> {
    pub name: &'a str,
    pub needed: bool,
}

/// The calls in the text of `src/sys/calls.rs`.
pub fn listed(list: &str) -> Vec<Listed<'_>> {
    let calls = list.lines().filter_map(|line| {
        let mut words = line.trim_start().splitn(3, ' ');
        let needed = match words.next()? {
            "needed" => true,
            "optional" => false,
            _ => return None,
        };
        words.next()?.parse::<u32>().ok()?;
        let (name, _) = words.next()?.split_once('(')?;
        Some(Listed { name, needed })
    });
    calls.collect()
}

/// The calls that the bindings do not declare.
pub fn undeclared<'a>(calls: &[Listed<'a>], bindings: &str) -> Vec<Listed<'a>> {
    calls.iter().copied().filter(|call| !bindings.contains(&format!(" fn {}(", call.name))).collect()
}

/// The types that the bindings do not have under these names. An enum is `pub use self::NAME_enum as NAME`.
pub fn missing_types<'a>(types: &[&'a str], bindings: &str) -> Vec<&'a str> {
    let has = |name: &str| {
        [format!(" as {name};"), format!("pub type {name} ="), format!("pub struct {name}(")]
            .iter()
            .any(|text| bindings.contains(text))
    };
    types.iter().copied().filter(|name| !has(name)).collect()
}

/// `CUDA_VERSION` of the header that the bindings were made from.
pub fn cuda_version(bindings: &str) -> Option<u32> {
    let (_, rest) = bindings.split_once("pub const CUDA_VERSION: u32 = ")?;
    rest.split_once(';')?.0.parse().ok()
}
