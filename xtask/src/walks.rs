//! `cargo xtask walks`: checks the walks in ARCHITECTURE.md against the code.
//!
//! A walk is a block of code, fenced as `walk`. Each of its lines is a hop: a file (that of the hop above, if it is left out)
//! and a function of that file, indented below the hop that calls it. The check fails if the file has no such function, or if
//! the body of the caller does not call a function of that name. The line below the block counts its functions and files; the
//! check counts them, too.

use std::collections::BTreeSet;

use crate::workspace::{Finding, Workspace, production_part};

/// The file with the walks.
const MAP: &str = "ARCHITECTURE.md";
/// The first line of a walk, and the last one.
const FENCE: &str = "```walk";
const END: &str = "```";
/// A line that is no hop: the title of a step.
const TITLE: char = '#';

/// Checks the whole workspace.
pub fn check(workspace: &Workspace) -> Vec<Finding> {
    let walks = walks(workspace.text(MAP));
    let mut findings = Vec::new();
    for walk in &walks {
        for hop in &walk.hops {
            let problem = hop.problem(walk, workspace);
            findings.extend(problem.map(|what| Finding::new(MAP, hop.line, what)));
        }
        let total = walk.total();
        if walk.stated != total {
            let what = format!("the line below the walk is not {total:?}");
            findings.push(Finding::new(MAP, walk.line, what));
        }
    }
    if walks.is_empty() {
        findings.push(Finding::new(MAP, 0, format!("no block {FENCE}")));
    }
    findings
}

/// One block.
#[derive(Debug, Default)]
struct Walk {
    /// Its first line.
    line: usize,
    hops: Vec<Hop>,
    /// The line below it.
    stated: String,
}

/// One line of a block.
#[derive(Debug, PartialEq, Eq)]
struct Hop {
    line: usize,
    /// Index of the hop that calls it; `None` if a program does.
    caller: Option<usize>,
    /// Path from the root.
    file: String,
    /// `Type::method` or `module::function`.
    function: String,
    /// Column of the function.
    column: usize,
}

impl Walk {
    fn total(&self) -> String {
        let files: BTreeSet<_> = self.hops.iter().map(|hop| &hop.file).collect();
        format!("{} functions in {} files.", self.hops.len(), files.len())
    }

    /// Adds the hop of a line.
    fn add(&mut self, number: usize, line: &str) {
        let Some(function) = line.split_whitespace().last() else {
            return;
        };
        let column = line.trim_end().len() - function.len();
        let file = match line.split_once(' ') {
            Some((file, _)) if !file.is_empty() => path_of(file),
            _ => self
                .hops
                .last()
                .map_or(String::new(), |hop| hop.file.clone()),
        };
        self.hops.push(Hop {
            line: number,
            caller: self.hops.iter().rposition(|hop| hop.column < column),
            file,
            function: function.to_owned(),
            column,
        });
    }
}

/// Returns the path from the root of `nic/rx.rs`: file `rx.rs` of the crate `nic` of the core.
fn path_of(file: &str) -> String {
    let (package, rest) = file.split_once('/').unwrap_or((file, ""));
    format!("crates/core/{package}/src/{rest}")
}

impl Hop {
    /// Returns what is wrong with the hop.
    fn problem(&self, walk: &Walk, workspace: &Workspace) -> Option<String> {
        if self.bodies(workspace).is_empty() {
            return Some(format!("{} has no {}", self.file, self.function));
        }
        let caller = &walk.hops[self.caller?];
        let name = self.function.rsplit("::").next().unwrap_or_default();
        let is_called = caller
            .bodies(workspace)
            .iter()
            .any(|body| calls(body, name));
        (!is_called).then(|| format!("{} does not call {name}", caller.function))
    }

    /// Lists the bodies of the function: of more than one if the configuration chooses.
    fn bodies(&self, workspace: &Workspace) -> Vec<String> {
        let text = production_part(workspace.text(&self.file));
        functions(&self.file, text)
            .into_iter()
            .filter(|(name, _)| *name == self.function)
            .map(|(_, body)| body)
            .collect()
    }
}

/// Reads the blocks.
fn walks(map: &str) -> Vec<Walk> {
    let mut walks = Vec::new();
    let mut lines = (1..).zip(map.lines());
    while let Some((number, line)) = lines.next() {
        if line != FENCE {
            continue;
        }
        let mut walk = Walk {
            line: number,
            ..Walk::default()
        };
        for (number, line) in lines.by_ref().take_while(|(_, line)| *line != END) {
            if !line.starts_with(TITLE) {
                walk.add(number, line);
            }
        }
        let below = lines.by_ref().map(|(_, line)| line);
        walk.stated = below.skip_while(|line| line.is_empty()).take(1).collect();
        walks.push(walk);
    }
    walks
}

/// Returns whether the text of a function calls one of that name, or passes it on by its path.
fn calls(body: &str, name: &str) -> bool {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    body.match_indices(name).any(|(at, _)| {
        let (before, after) = (&body[..at], &body[at + name.len()..]);
        let is_call = after.starts_with('(') || after.starts_with("::<");
        let is_path = before.ends_with("::") && !after.starts_with(is_of_name);
        !before.ends_with(is_of_name) && !before.ends_with("fn ") && (is_call || is_path)
    })
}

/// Lists the functions of a file that rustfmt has formatted, as `owner::name`, with their bodies: items of the file start at
/// the first column, those of an `impl` or a `trait` are indented by one level.
fn functions(path: &str, text: &str) -> Vec<(String, String)> {
    let module = module_of(path);
    let mut found = Vec::new();
    let mut owner = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let item = line.trim_start();
        let indent = line.len() - item.len();
        let declared = without_modifiers(item);
        if indent == 0 && line.starts_with('}') {
            owner.clear();
        } else if indent == 0 && declared.starts_with("impl") {
            owner = implementor(declared);
        } else if let (0, Some(name)) = (indent, word_after(declared, "trait ")) {
            name.clone_into(&mut owner);
        }
        let named = word_after(declared, "fn ");
        let Some(name) = named.filter(|_| indent == 0 || indent == 4 && !owner.is_empty()) else {
            continue;
        };
        let owner = if indent == 0 { module } else { &owner };
        let mut body = String::new();
        if !line.ends_with(['}', ';']) {
            let margin = &line[..indent];
            let (end, end_of_declaration) = (format!("{margin}}}"), format!("{margin})"));
            let is_inside = |line: &&str| {
                *line != end && !(line.starts_with(&end_of_declaration) && line.ends_with(';'))
            };
            for line in lines.by_ref().take_while(is_inside) {
                body += line;
                body.push('\n');
            }
        }
        found.push((format!("{owner}::{name}"), body));
    }
    found
}

/// Returns the last name of a module's path: the file's name, or its folder's.
fn module_of(path: &str) -> &str {
    let stem = path.trim_end_matches(".rs");
    let stem = stem.strip_suffix("/mod").unwrap_or(stem);
    stem.rsplit('/').next().unwrap_or(stem)
}

fn without_modifiers(item: &str) -> &str {
    let mut rest = item;
    for modifier in [
        "pub ",
        "pub(crate) ",
        "pub(super) ",
        "const ",
        "async ",
        "unsafe ",
    ] {
        rest = rest.strip_prefix(modifier).unwrap_or(rest);
    }
    rest
}

fn word_after<'a>(item: &'a str, keyword: &str) -> Option<&'a str> {
    let text = item.strip_prefix(keyword)?;
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    Some(&text[..end.unwrap_or(text.len())]).filter(|word| !word.is_empty())
}

/// Returns the name of the type of `impl<..> Type<..> {` or `impl<..> Trait for Type<..> {`.
fn implementor(item: &str) -> String {
    let mut depth = 0_i32;
    let outside: String = item
        .chars()
        .filter(|&c| {
            depth += i32::from(c == '<') - i32::from(c == '>');
            depth == 0 && c != '>'
        })
        .collect();
    let subject = outside.trim_start_matches("impl").trim_start();
    let subject = subject.rsplit(" for ").next().unwrap_or(subject);
    let path = subject.split([' ', '{']).next().unwrap_or(subject);
    path.rsplit("::").next().unwrap_or(path).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NIC: &str = "\
pub fn judge() {
    Self::other(1);
}
impl<L: Link> Nic<L> {
    pub(crate) fn poll_rx(
        &mut self,
    ) -> usize {
        note(1);
        self.rx.receive(now).map(rx_checksum::judge)
    }
}
impl<P> fmt::Display for Segment<P> {
    fn fmt(&self) {}
}
";
    const LINK: &str = "\
pub trait Link {
    fn receive(
        &mut self,
    ) -> u8;

    fn room(&self) -> bool {
        true
    }
}
";

    fn checked(block: &str) -> Vec<String> {
        let mut workspace = Workspace::default();
        let mut add = |path: &str, text: &str| {
            workspace.texts.insert(path.to_owned(), text.to_owned());
        };
        add("crates/core/nic/src/rx_checksum.rs", NIC);
        add("crates/core/nic/src/link.rs", LINK);
        add(MAP, &format!("# A\n{block}\n## B\n"));
        let findings = check(&workspace);
        let show = |finding: Finding| format!("{}: {}", finding.line, finding.what);
        findings.into_iter().map(show).collect()
    }

    #[test]
    fn hops_that_call_each_other_and_their_number_are_right() {
        let block = "\
```walk
# 1. one
nic/rx_checksum.rs  Nic::poll_rx
nic/link.rs           Link::receive
# 2. two
nic/rx_checksum.rs    rx_checksum::judge
```

3 functions in 2 files.
";
        assert_eq!(checked(block), [""; 0]);
        let miscounted = block.replace("3 functions", "4 functions");
        let what = "2: the line below the walk is not \"3 functions in 2 files.\"";
        assert_eq!(checked(&miscounted), [what]);
    }

    #[test]
    fn a_function_that_is_not_there_or_not_called_is_found() {
        let block = "\
```walk
nic/rx_checksum.rs  Nic::poll_rx
nic/link.rs           Link::room
                        Link::receive
                      Link::poll_rx
```
4 functions in 2 files.
";
        assert_eq!(
            checked(block),
            [
                "4: Nic::poll_rx does not call room",
                "5: Link::room does not call receive",
                "6: crates/core/nic/src/link.rs has no Link::poll_rx",
            ]
        );
        assert_eq!(checked("").len(), 1, "no block");
    }

    #[test]
    fn a_call_is_not_a_longer_name_or_a_field() {
        assert!(calls("self.receive(x)", "receive"));
        assert!(calls("a::<u8>::parse::<T>(x)", "parse"));
        assert!(calls("map(Self::parse)", "parse"));
        assert!(!calls("self.receive_all(x); self.receive = 1", "receive"));
        assert!(!calls("fn receive(x)", "receive"));
        assert!(!calls("try_receive(x)", "receive"));
    }
}
