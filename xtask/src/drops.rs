//! `cargo xtask drops`: the book explains every drop reason that the code has, and no other.

use std::collections::BTreeSet;

use crate::workspace::{Finding, Workspace};

/// The page with a table for each source.
const PAGE: &str = "docs/src/reference/drops.md";

/// Files in which a reason gets its name, as `Reason => "name",`.
const SOURCES: &[&str] = &[
    "crates/core/nic/src/drops.rs",
    "crates/core/stack/src/drops.rs",
    "crates/core/tcp/src/state/mod.rs",
];

/// Checks the whole workspace.
pub fn check(workspace: &Workspace) -> Vec<Finding> {
    let explained = explained(workspace.text(PAGE));
    let mut findings = Vec::new();
    let mut existing = BTreeSet::new();
    for source in SOURCES {
        let names = named(workspace.text(source));
        if names.is_empty() {
            findings.push(Finding::new(source, 0, "no drop reason is named here"));
        }
        existing.extend(names);
    }
    for name in existing.difference(&explained) {
        findings.push(Finding::new(PAGE, 0, format!("does not explain {name}")));
    }
    for name in explained.difference(&existing) {
        let what = format!("explains {name}, which does not exist");
        findings.push(Finding::new(PAGE, 0, what));
    }
    findings
}

/// Lists the names that a source gives. Names of other things, such as TCP states, are not in snake case.
fn named(source: &str) -> BTreeSet<&str> {
    let arms = source.lines().filter_map(|line| line.split_once(" => \""));
    let names = arms.filter_map(|(_, rest)| rest.strip_suffix("\","));
    names
        .filter(|name| !name.contains(|letter: char| letter.is_ascii_uppercase()))
        .collect()
}

/// Lists the names in the first column of the page's tables.
fn explained(page: &str) -> BTreeSet<&str> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.filter_map(|row| row.split(" |").next());
    cells
        .flat_map(|cell| cell.trim_end_matches('`').split("`, `"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_without_explanation_and_an_explanation_without_reason_are_found() {
        let mut workspace = Workspace::default();
        for (index, source) in SOURCES.iter().enumerate() {
            let text = format!(
                "    Self::A => \"reason_{index}\",\n    State::B => \"LISTEN\",\n    other => 7,\n"
            );
            workspace.texts.insert((*source).to_owned(), text);
        }
        let mut findings = |page: &str| {
            workspace.texts.insert(PAGE.to_owned(), page.to_owned());
            check(&workspace).len()
        };
        assert_eq!(
            findings("| `reason_0`, `reason_1` | x |\n| `reason_2` | `y` |\n"),
            0
        );
        assert_eq!(findings("| `reason_0` | x |\n| `reason_1` | x |\n"), 1);
        assert_eq!(
            findings("| `reason_0`, `reason_1`, `reason_2`, `reason_3` | x |\n"),
            1
        );
    }
}
