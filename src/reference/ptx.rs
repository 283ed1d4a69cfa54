//! What PTX text declares: its entries, their parameters, and how many threads they take. The code itself is not looked at.

use std::fmt;
use std::iter::Peekable;

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
    pub(super) threads: Threads,
}

/// How many threads a block of an entry has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Threads {
    /// `.maxntid`: no more than this, in all.
    pub(super) most: Option<u64>,
    /// `.reqntid`: these, and no others.
    pub(super) exactly: Option<[u32; 3]>,
}

impl Threads {
    /// No block can have more.
    pub(super) fn limit(&self) -> u64 {
        let exactly = self.exactly.map(|block| block.iter().map(|&size| u64::from(size)).product());
        self.most.unwrap_or(u64::MAX).min(exactly.unwrap_or(u64::MAX))
    }
}

/// Why text is no PTX that a driver takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PtxError {
    /// From 1 on.
    line: usize,
    what: String,
    /// Whether it is of a version after the driver's.
    pub(super) is_newer: bool,
}

/// The newest major version of PTX that is taken.
const NEWEST: u32 = 9;

impl fmt::Display for PtxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PTX input, line {}; error: {}", self.line, self.what)
    }
}

/// The entries of a module.
pub(super) fn entries(text: &str) -> Result<Vec<Entry>, PtxError> {
    let mut parser = Parser { tokens: tokens(text)?.into_iter().peekable(), line: 1 };
    parser.header()?;
    let mut found: Vec<(Entry, bool)> = Vec::new();
    let mut depth = 0_usize;
    while let Some(token) = parser.next() {
        match token {
            Token::Mark('{') => depth += 1,
            Token::Mark('}') => {
                depth = depth.checked_sub(1).ok_or_else(|| parser.error("a `}` that closes nothing"))?
            }
            Token::Word(".entry") if depth == 0 => {
                let (entry, defined) = parser.entry()?;
                depth += usize::from(defined);
                match found.iter_mut().find(|(other, _)| other.name == entry.name) {
                    // One may be declared before it is defined.
                    Some((other, was_defined)) if !(*was_defined && defined) => {
                        if other.parameters != entry.parameters {
                            return Err(parser.error(format!("`{}` was declared with other parameters", entry.name)));
                        }
                        if defined {
                            (*other, *was_defined) = (entry, true);
                        }
                    }
                    Some(_) => return Err(parser.error(format!("`{}` is defined twice", entry.name))),
                    None => found.push((entry, defined)),
                }
            }
            _ => {}
        }
    }
    if depth > 0 {
        return Err(parser.error("the text ends inside of `{`"));
    }
    // What is only declared is another module's.
    Ok(found.into_iter().filter(|(_, defined)| *defined).map(|(entry, _)| entry).collect())
}

/// A token. Comments are none; what is in a string is not looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Token<'t> {
    /// A name, a number, an instruction or, with a point at its front, a directive.
    Word(&'t str),
    String,
    Mark(char),
}

/// The tokens of a text, each with its line.
fn tokens(text: &str) -> Result<Vec<(usize, Token<'_>)>, PtxError> {
    let mut found = Vec::new();
    let (mut rest, mut line) = (text, 1);
    let is_of_word = |c: char| c.is_alphanumeric() || "_$%.".contains(c);
    while let Some(first) = rest.chars().next() {
        let until = |end: &str, skipped: usize, what: &str| match rest[skipped..].find(end) {
            Some(at) => Ok(skipped + at + end.len()),
            None => Err(PtxError { line, what: format!("{what} that does not end"), is_newer: false }),
        };
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            until("*/", 2, "a comment")?
        } else if first == '"' {
            found.push((line, Token::String));
            until("\"", 1, "a string")?
        } else if is_of_word(first) {
            let length = rest.find(|c| !is_of_word(c)).unwrap_or(rest.len());
            found.push((line, Token::Word(&rest[..length])));
            length
        } else {
            if !first.is_whitespace() {
                found.push((line, Token::Mark(first)));
            }
            first.len_utf8()
        };
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    Ok(found)
}

struct Parser<'t, I: Iterator<Item = (usize, Token<'t>)>> {
    tokens: Peekable<I>,
    /// Of the last token.
    line: usize,
}

impl<'t, I: Iterator<Item = (usize, Token<'t>)>> Parser<'t, I> {
    fn next(&mut self) -> Option<Token<'t>> {
        let (line, token) = self.tokens.next()?;
        self.line = line;
        Some(token)
    }

    fn peek(&mut self) -> Option<Token<'t>> {
        self.tokens.peek().map(|(_, token)| *token)
    }

    fn error(&self, what: impl Into<String>) -> PtxError {
        PtxError { line: self.line, what: what.into(), is_newer: false }
    }

    fn word(&mut self, what: &str) -> Result<&'t str, PtxError> {
        match self.next() {
            Some(Token::Word(word)) => Ok(word),
            _ => Err(self.error(format!("{what} is missing"))),
        }
    }

    fn number(&mut self, what: &str) -> Result<u64, PtxError> {
        let word = self.word(what)?;
        let digits = word.strip_suffix(['U', 'u']).unwrap_or(word);
        let parsed = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
            Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16),
            None if digits.len() > 1 && digits.starts_with('0') => u64::from_str_radix(digits, 8),
            None => digits.parse(),
        };
        parsed.map_err(|_| self.error(format!("{what} is no number: `{word}`")))
    }

    fn takes(&mut self, mark: char) -> bool {
        let found = self.peek() == Some(Token::Mark(mark));
        if found {
            self.next();
        }
        found
    }

    /// `.version`, `.target` and perhaps `.address_size`, which come before all else.
    fn header(&mut self) -> Result<(), PtxError> {
        if self.word("`.version`").ok() != Some(".version") {
            return Err(self.error("the text does not begin with `.version`"));
        }
        let version = self.word("the version")?;
        let parts = version.split_once('.').map(|(major, minor)| (major.parse::<u32>(), minor.parse::<u32>()));
        let Some((Ok(major), Ok(_))) = parts else {
            return Err(self.error(format!("`{version}` is no version of PTX")));
        };
        if major > NEWEST {
            return Err(PtxError { is_newer: true, ..self.error(format!("version {version} is not supported")) });
        }
        if self.word("`.target`").ok() != Some(".target") {
            return Err(self.error("`.target` does not follow `.version`"));
        }
        self.word("the target")?;
        while self.takes(',') {
            self.word("another target")?;
        }
        if self.peek() == Some(Token::Word(".address_size")) {
            self.next();
            let bits = self.number("the size of addresses")?;
            if !matches!(bits, 32 | 64) {
                return Err(self.error(format!("addresses of {bits} bits")));
            }
        }
        Ok(())
    }

    /// What follows `.entry`, up to its `{` or `;`, and whether it was the first: then the entry is defined here.
    fn entry(&mut self) -> Result<(Entry, bool), PtxError> {
        let name = self.word("the entry's name")?.to_owned();
        if name.starts_with(|c: char| c == '.' || c.is_numeric()) {
            return Err(self.error(format!("`{name}` is no name")));
        }
        let parameters = if self.takes('(') { self.parameters()? } else { Vec::new() };
        let mut threads = Threads::default();
        loop {
            match self.next() {
                Some(Token::Mark('{')) => return Ok((Entry { name, parameters, threads }, true)),
                Some(Token::Mark(';')) => return Ok((Entry { name, parameters, threads }, false)),
                Some(Token::Word(".maxntid")) => {
                    threads.most = Some(self.sizes()?.iter().map(|&size| u64::from(size)).product());
                }
                Some(Token::Word(".reqntid")) => threads.exactly = Some(self.sizes()?),
                // It has an end of its own.
                Some(Token::Word(".pragma")) => while !self.takes(';') && self.next().is_some() {},
                Some(_) => {}
                None => return Err(self.error(format!("the text ends before the code of `{name}`"))),
            }
        }
    }

    /// One to three numbers.
    fn sizes(&mut self) -> Result<[u32; 3], PtxError> {
        let mut sizes = [1; 3];
        for (at, size) in sizes.iter_mut().enumerate() {
            if at > 0 && !self.takes(',') {
                break;
            }
            let number = self.number("a number of threads")?;
            *size = u32::try_from(number).map_err(|_| self.error(format!("{number} threads")))?;
        }
        Ok(sizes)
    }

    /// The parameters after `(`, with its `)`.
    fn parameters(&mut self) -> Result<Vec<Parameter>, PtxError> {
        let mut found: Vec<Parameter> = Vec::new();
        if self.takes(')') {
            return Ok(found);
        }
        loop {
            let (alignment, size) = self.parameter()?;
            let end = found.last().map_or(0, |last| last.offset + last.size);
            found.push(Parameter { offset: end.next_multiple_of(alignment), size });
            if self.takes(')') {
                return Ok(found);
            }
            if !self.takes(',') {
                return Err(self.error("a parameter is not followed by `,` or `)`"));
            }
        }
    }

    /// The alignment and size of one parameter.
    fn parameter(&mut self) -> Result<(usize, usize), PtxError> {
        if self.word("`.param`")? != ".param" {
            return Err(self.error("an entry's parameter does not begin with `.param`"));
        }
        let (mut alignment, mut element, mut lanes, mut is_of_pointee) = (None, None, 1, false);
        let name = loop {
            let word = self.word("a parameter's name")?;
            match word {
                ".align" => {
                    let bytes = self.number("an alignment")?;
                    if !bytes.is_power_of_two() || bytes > 1 << 16 {
                        return Err(self.error(format!("an alignment of {bytes} bytes")));
                    }
                    // After `.ptr` it is that of what the pointer points to.
                    if !is_of_pointee {
                        alignment = Some(bytes as usize);
                    }
                }
                ".ptr" => is_of_pointee = true,
                ".global" | ".shared" | ".const" | ".local" | ".generic" => {}
                ".v2" => lanes = 2,
                ".v4" => lanes = 4,
                _ if word.starts_with('.') => {
                    let size = size_of(word).ok_or_else(|| self.error(format!("a parameter of type `{word}`")))?;
                    element = Some(size * lanes);
                }
                _ => break word,
            }
        };
        let element = element.ok_or_else(|| self.error(format!("parameter `{name}` has no type")))?;
        let mut size = element;
        while self.takes('[') {
            let count = self.number("the length of an array")?;
            let whole = usize::try_from(count).ok().and_then(|count| size.checked_mul(count));
            size = whole.filter(|size| *size <= MOST_BYTES).ok_or_else(|| self.error(TOO_LARGE))?;
            if !self.takes(']') {
                return Err(self.error("`[` without `]`"));
            }
        }
        Ok((alignment.unwrap_or(element), size))
    }
}

/// The most bytes of a parameter that any driver takes.
const MOST_BYTES: usize = 32_764;
const TOO_LARGE: &str = "a parameter of more than 32764 bytes";

/// Bytes of a type such as `.u64`.
fn size_of(word: &str) -> Option<usize> {
    match word {
        ".u8" | ".s8" | ".b8" => Some(1),
        ".u16" | ".s16" | ".b16" | ".f16" | ".bf16" => Some(2),
        ".u32" | ".s32" | ".b32" | ".f32" | ".f16x2" | ".bf16x2" => Some(4),
        ".u64" | ".s64" | ".b64" | ".f64" | ".f32x2" | ".texref" | ".samplerref" | ".surfref" => Some(8),
        ".b128" => Some(16),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Entry, Parameter, Threads, entries};

    fn entry(name: &str, list: &[(usize, usize)]) -> Entry {
        let parameters = list.iter().map(|&(offset, size)| Parameter { offset, size }).collect();
        Entry { name: name.into(), parameters, threads: Threads::default() }
    }

    #[test]
    fn entries_and_their_parameters_are_found() {
        let text = ".version 8.0 // .entry no\n.target sm_70\n.visible .entry fill(\n\t.param .u64 fill_0,\n\t.param .f32 fill_1,\n\
                    .param .u64 fill_2\n)\n{ ret; }\n.visible .entry structs(.param .align 8 .b8 s[48], .param .u8 c) { ret; }\n.entry none() {}";
        assert_eq!(
            entries(text).expect("it is PTX"),
            [entry("fill", &[(0, 8), (8, 4), (16, 8)]), entry("structs", &[(0, 48), (48, 1)]), entry("none", &[])]
        );
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
            (".entry k(.param .u64 .ptr .align 1 a) .minnctapersm 2 .maxnreg 32 { ret; }", vec![(0, 8)]),
            (".entry k(.param .align 16 .b8 k_param_0[96], .param .b128 wide) { ret; }", vec![(0, 96), (96, 16)]),
            (
                ".entry k(.param .u8 a, .param .b8 b[5], .param .u64 c, .param .b8 d [ 3 ]) { }",
                vec![(0, 1), (1, 5), (8, 8), (16, 3)],
            ),
            (
                ".entry k(.param .align 4 .b8 a[4][6], .param .b8 b[0x10], .param .s16 c) { }",
                vec![(0, 24), (24, 16), (40, 2)],
            ),
            (
                ".entry k(.param .f16 a, .param .bf16x2 b, .param .v2 .f32 c, .param .texref t) { }",
                vec![(0, 2), (4, 4), (8, 8), (16, 8)],
            ),
            (".entry k(.param .u32 /* rows, say */ a, // and ) this\n.param .f64 b) { ret; }", vec![(0, 4), (8, 8)]),
            (".file 1 \".entry x(\"\n.entry k(.param .u32 a) { .loc 1 2 3 // \"\n ret; }", vec![(0, 4)]),
            (".entry k(.param .u32 a);\n.entry k(.param .u32 a) { div.rn.f32 %f1, %f2, %f3; ret; }", vec![(0, 4)]),
            (".weak .entry\nk()\n{ call (%rd1), .entryless, (%rd2); }", vec![]),
            (".entry k\n{ { .reg .u32 %r<2>; } ret; }\n.global .align 4 .b8 x[8] = {1, 2, 3};", vec![]),
            (
                ".func (.param .b32 r) f(.param .b64 p) { ret; }\n.extern .entry other(.param .u32 a);\n.entry k(.param .u16 a) {}",
                vec![(0, 2)],
            ),
            (".entry k(.param .u64 a) .pragma \"nounroll\"; { ret; }", vec![(0, 8)]),
            (
                ".section .debug_str { info: .b8 46,101,110,116,114,121 }\n.entry $L__k%1(.param .u64 a) {}\n.entry k() {}",
                vec![],
            ),
        ];
        for size in ["", ".address_size 32\n", ".address_size 64\n"] {
            for (code, expected) in &cases {
                let text = format!(".version 8.4\n.target sm_90, texmode_independent\n{size}{code}");
                let found = entries(&text).unwrap_or_else(|error| panic!("{code}: {error}"));
                assert_eq!(found.last(), Some(&entry("k", expected)), "{code}");
            }
        }
    }

    #[test]
    fn how_many_threads_an_entry_takes_is_read() {
        let head = ".version 8.4\n.target sm_90\n.address_size 64\n.entry k() ";
        for (directives, most, exactly) in [
            (".maxntid 128, 1, 1", Some(128), None),
            (".maxntid 16,16 .minnctapersm 2", Some(256), None),
            (".reqntid 128", None, Some([128, 1, 1])),
            (".maxntid 64 .reqntid 8, 4, 2", Some(64), Some([8, 4, 2])),
        ] {
            let found = entries(&format!("{head}{directives} {{ ret; }}")).expect("it is PTX");
            assert_eq!(found[0].threads, Threads { most, exactly }, "{directives}");
        }
    }

    #[test]
    fn what_is_no_ptx_is_told_with_its_line() {
        let head = ".version 8.0\n.target sm_70\n.address_size 64\n";
        for (text, line, part) in [
            ("not PTX".into(), 1, "`.version`"),
            (String::new(), 1, "`.version`"),
            (".version eight\n.target sm_70".into(), 1, "`eight`"),
            (".version 8.0 /* .target sm_70".into(), 1, "comment"),
            (".version 8.0\n.entry k() {}".into(), 2, "`.target`"),
            (".version 8.0\n.target sm_70\n.address_size 48".into(), 3, "48 bits"),
            (format!("{head}.file 1 \"open"), 4, "string"),
            (format!("{head}.entry broken(.param .u64"), 4, "name is missing"),
            (format!("{head}.entry odd(.param .align 3 .b8 a[3]) {{}}"), 4, "alignment of 3"),
            (format!("{head}.entry odd(\n.param .f8 a) {{}}"), 5, "`.f8`"),
            (format!("{head}.entry odd(.param a) {{}}"), 4, "`a` has no type"),
            (format!("{head}.entry odd(.reg .u32 a) {{}}"), 4, "`.param`"),
            (format!("{head}.entry odd(.param .u32 a .param .u32 b) {{}}"), 4, "followed by"),
            (format!("{head}.entry odd(.param .b8 a[99999]) {{}}"), 4, "32764"),
            (format!("{head}.entry k() {{}}\n.entry k() {{}}"), 5, "twice"),
            (format!("{head}.entry k();\n.entry k(.param .u32 a) {{}}"), 5, "other parameters"),
            (format!("{head}.entry k() {{\n"), 4, "inside of"),
            (format!("{head}}}"), 4, "closes nothing"),
        ] {
            let error = entries(&text).expect_err(&text);
            assert!(error.line == line && error.what.contains(part), "{text}: {error}");
        }
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
