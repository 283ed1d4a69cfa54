//! Structures of the driver are filled from zeros (`src/sys/zeroed.rs`), so that bindings of a header with one more field compile.

use std::path::Path;

#[test]
fn no_structure_of_the_driver_is_written_out_field_by_field() {
    let mut found = Vec::new();
    look(Path::new("src"), &mut found);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn one_that_is_written_out_is_found() {
    for (line, is_found) in [
        ("let mut uuid = CUuuid { bytes: [0; 16] };", true),
        ("    CUDA_KERNEL_NODE_PARAMS {", true),
        ("let all = CUmemAccessDesc { location, flags };", true),
        ("let all = CUmemAccessDesc { flags, ..zeroed() };", false),
        ("let mut uuid: CUuuid = zeroed();", false),
        ("fn call() -> CUresult {", false),
        ("unsafe impl Plain for CUuuid {}", false),
        ("if asked == CUresult::CUDA_SUCCESS { version } else { 0 }", false),
        // A union has one field at a time.
        ("let value = CUlaunchAttributeValue { priority };", false),
    ] {
        assert_eq!(writes_one_out(line), is_found, "{line}");
    }
}

fn look(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            look(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("pregenerated.rs") {
            let text = std::fs::read_to_string(&path).expect("a text");
            let lines = text.lines().enumerate().filter(|(_, line)| writes_one_out(line));
            found.extend(lines.map(|(at, line)| format!("{}:{}: {}", path.display(), at + 1, line.trim())));
        }
    }
}

/// Whether a line begins a literal of such a structure. A literal of several lines is found by its name at the end of one.
fn writes_one_out(line: &str) -> bool {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    line.match_indices(" {").any(|(at, _)| {
        let before = &line[..at];
        let name = before.rsplit(|c| !is_of_name(c)).next().unwrap_or_default();
        let is_of_driver = name.starts_with("CU") && name != "CUresult" && !name.ends_with("Value");
        let context = before[..before.len() - name.len()].trim_end();
        let is_declaration =
            ["->", "::", "for", "struct", "impl", "trait", "=="].iter().any(|word| context.ends_with(word));
        let rest = line[at + 2..].trim_start();
        is_of_driver && !is_declaration && !rest.starts_with('}') && !rest.contains("..")
    })
}
