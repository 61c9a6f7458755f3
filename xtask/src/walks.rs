//! `cargo xtask walks`: checks that the functions in the walks of ARCHITECTURE.md exist.
//!
//! A name is compared as a whole: `Type::method` needs that method in an `impl` or `trait` of that type,
//! `module::function` that function in that module's file.

use std::collections::BTreeSet;

use crate::workspace::{Finding, Workspace, production_part};

/// The file with the walks.
const MAP: &str = "ARCHITECTURE.md";
/// The heading of the walks, which end at the next heading of the same level.
const HEADING: &str = "## The walks";

/// Checks the whole workspace.
pub fn check(workspace: &Workspace) -> Vec<Finding> {
    let mut known = BTreeSet::new();
    for (path, text) in workspace.production() {
        known.extend(names_in(path, production_part(text)));
    }
    check_map(workspace.text(MAP), &known)
}

fn check_map(map: &str, known: &BTreeSet<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut steps = 0;
    let mut inside = false;
    for (index, line) in map.lines().enumerate() {
        if line.starts_with("## ") {
            inside = line == HEADING;
        }
        let names = line
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|name| is_path(name));
        for name in names.filter(|_| inside) {
            steps += 1;
            if !known.contains(name) {
                let what = format!("there is no {name} in the crates");
                findings.push(Finding::new(MAP, index + 1, what));
            }
        }
    }
    if steps == 0 {
        findings.push(Finding::new(MAP, 0, format!("no step below {HEADING:?}")));
    }
    findings
}

/// Returns whether quoted text is a path of two parts.
fn is_path(name: &str) -> bool {
    let of_name = |part: &str| {
        !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    name.split_once("::")
        .is_some_and(|(owner, last)| of_name(owner) && of_name(last))
}

/// Lists `owner::name` for the functions, types and variants of a file that rustfmt has formatted: items of the file
/// start at the first column, those of an `impl`, a `trait` or an `enum` are indented by one level.
fn names_in(path: &str, text: &str) -> Vec<String> {
    let module = module_of(path);
    let mut names = Vec::new();
    let mut owner = String::new();
    for line in text.lines() {
        let item = line.trim_start();
        let declared = without_modifiers(item);
        match line.len() - item.len() {
            0 if line.starts_with('}') => owner.clear(),
            0 => {
                if let Some(name) = word_after(declared, "fn ") {
                    names.push(format!("{module}::{name}"));
                }
                for keyword in ["struct ", "enum ", "trait "] {
                    if let Some(name) = word_after(declared, keyword) {
                        names.push(format!("{module}::{name}"));
                        owner = name.to_owned();
                    }
                }
                if declared.starts_with("impl") {
                    owner = implementor(declared);
                }
            }
            4 if !owner.is_empty() => {
                let variant = item
                    .chars()
                    .next()
                    .is_some_and(|first| first.is_ascii_uppercase());
                let name = match word_after(declared, "fn ") {
                    None if variant => word(item),
                    name => name,
                };
                names.extend(name.map(|name| format!("{owner}::{name}")));
            }
            _ => {}
        }
    }
    names
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
    word(item.strip_prefix(keyword)?)
}

fn word(text: &str) -> Option<&str> {
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

    const FILE: &str = "\
pub fn judge() {}
pub struct Nic<L: Link> {
}
impl<L: Link> Nic<L> {
    pub(crate) fn poll_rx(&mut self) {}
}
impl<P> fmt::Display for Segment<P> {
    fn fmt(&self) {}
}
enum Room {
    None,
    Bytes(u8),
}
";

    fn names() -> BTreeSet<String> {
        names_in("crates/core/nic/src/rx_checksum.rs", FILE)
            .into_iter()
            .collect()
    }

    #[test]
    fn a_name_has_its_type_or_its_module() {
        let names = names();
        for name in [
            "rx_checksum::judge",
            "rx_checksum::Nic",
            "Nic::poll_rx",
            "Segment::fmt",
            "Room::None",
            "Room::Bytes",
        ] {
            assert!(names.contains(name), "{name} in {names:?}");
        }
        assert_eq!(module_of("crates/core/stack/src/socket/mod.rs"), "socket");
    }

    #[test]
    fn a_method_of_another_type_is_found_at_its_line() {
        let map = "## The walks\n1. `Nic::poll_rx` -> `Room::poll_rx`, `u32`\n## Other\n`a::b`\n";
        let findings = check_map(map, &names());
        let found: Vec<_> = findings.iter().map(|f| (f.line, f.what.as_str())).collect();
        assert_eq!(found, [(2, "there is no Room::poll_rx in the crates")]);
    }

    #[test]
    fn a_map_without_walks_is_found() {
        assert_eq!(check_map("# Architecture\n", &names()).len(), 1);
        assert_eq!(check_map("`Nic::poll_rx`\n", &names()).len(), 1);
    }
}
