//! `cargo xtask walks`: the walks of ARCHITECTURE.md name functions that exist.

use std::collections::BTreeSet;

use crate::finding::Finding;
use crate::workspace::Workspace;

/// Where the walks are told.
const MAP: &str = "ARCHITECTURE.md";
/// The heading over them; the next one of its rank ends them.
const HEADING: &str = "## The walks";

/// Checks the whole workspace.
pub fn check(workspace: &Workspace) -> Vec<Finding> {
    let sources = workspace.sources.iter();
    let product = sources.filter(|(path, _)| path.starts_with("crates/"));
    let functions = product
        .flat_map(|(_, source)| &source.functions)
        .map(|function| function.name.as_str())
        .collect();
    let map = workspace.texts.get(MAP).map_or("", String::as_str);
    check_map(map, &functions)
}

fn check_map(map: &str, functions: &BTreeSet<&str>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut steps = 0;
    let mut inside = false;
    for (index, line) in map.lines().enumerate() {
        if line.starts_with("## ") {
            inside = line == HEADING;
        }
        if !inside {
            continue;
        }
        for name in quoted_paths(line) {
            steps += 1;
            if !functions.contains(name) {
                let what = format!("no function of the crates is called {name}");
                findings.push(Finding::new(MAP, index + 1, what));
            }
        }
    }
    if steps == 0 {
        findings.push(Finding::new(MAP, 0, format!("no step under {HEADING:?}")));
    }
    findings
}

/// Lists the last parts of what a line quotes as `path::function`; `Enum::Variant` is none.
fn quoted_paths(line: &str) -> impl Iterator<Item = &str> {
    let quoted = line.split('`').skip(1).step_by(2);
    quoted
        .filter_map(|path| path.rsplit_once("::"))
        .filter_map(|(_, last)| {
            let is_function = last
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
            is_function.then_some(last)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FUNCTIONS: [&str; 2] = ["parse", "poll_rx"];

    fn whats(map: &str) -> Vec<(usize, String)> {
        let findings = check_map(map, &FUNCTIONS.into_iter().collect());
        findings
            .into_iter()
            .map(|finding| (finding.line, finding.what))
            .collect()
    }

    #[test]
    fn a_step_that_is_a_function_is_fine() {
        assert_eq!(
            whats("## The walks\n1. `Nic::poll_rx`, `RxHeaders::parse`; `DropReason::RxRunt`\n"),
            []
        );
    }

    #[test]
    fn a_step_that_is_no_function_is_found_at_its_line() {
        let found = whats("## The walks\n1. `Nic::poll_rx` -> `Nic::gone`\n");
        assert_eq!(
            found,
            [(2, "no function of the crates is called gone".to_owned())]
        );
    }

    #[test]
    fn what_is_told_elsewhere_is_left_alone() {
        assert_eq!(
            whats("`a::b`\n## The walks\n`a::parse`\n## Other\n`a::c`\n"),
            []
        );
    }

    #[test]
    fn a_map_without_walks_is_found() {
        assert_eq!(whats("# Architecture\n").len(), 1);
        assert_eq!(whats("").len(), 1);
    }
}
