//! `cargo xtask map`: checks that ARCHITECTURE.md lists every package, and `deny.toml` the packages that may depend on it.

use crate::workspace::{Finding, Workspace};

/// Checks the whole workspace.
pub fn check(workspace: &Workspace) -> Vec<Finding> {
    let (map, list) = (
        workspace.text("ARCHITECTURE.md"),
        workspace.text("deny.toml"),
    );
    let mut findings = Vec::new();
    for (folder, manifest) in workspace.packages() {
        let is_named = |line: &str| line.split([' ', '|', '`']).any(|word| word == folder);
        if !map.lines().any(is_named) {
            let what = format!("the package {folder} is not in the map");
            findings.push(Finding::new("ARCHITECTURE.md", 0, what));
        }
        let name = name_of(manifest);
        // Separate workspaces, on which nothing depends.
        if !["fuzz", "crates/doors/python"].contains(&folder)
            && !list.contains(&format!("{{ crate = \"{name}\", wrappers"))
        {
            let what = format!("does not list the packages that may depend on {name}");
            findings.push(Finding::new("deny.toml", 0, what));
        }
    }
    findings.extend(users_of_mapped(workspace));
    findings
}

/// Packages whose tests use `mapped`, because they stand for a NIC. cargo-deny, which does not look at tests, would warn of them in its list.
const TESTS_WITH_MAPPED: [&str; 1] = ["devmem-gpu-stub"];

/// Checks the dependents of `mapped`, including dev-dependencies, which cargo-deny ignores: a crate that depends on `mapped`
/// can create a `DmaRight` and access bytes that the CPU may not read.
fn users_of_mapped(workspace: &Workspace) -> Vec<Finding> {
    let list = workspace.text("deny.toml");
    let entry = list.split("crate = \"devmem-mapped\"").nth(1);
    let entry = entry.and_then(|rest| rest.split(']').next()).unwrap_or("");
    let uses = |manifest: &str| manifest.lines().any(|line| line.starts_with("mapped"));
    let is_listed = |manifest: &str| {
        let name = name_of(manifest);
        entry.contains(&format!("\"{name}\"")) || TESTS_WITH_MAPPED.contains(&name)
    };
    let refused = workspace
        .packages()
        .filter(|(_, text)| uses(text) && !is_listed(text));
    let what = "neither it nor its tests may depend on mapped";
    refused
        .map(|(folder, _)| Finding::new(folder, 0, what))
        .collect()
}

fn name_of(manifest: &str) -> &str {
    let mut names = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("name = \""));
    names.next().map_or("", |name| name.trim_end_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_package_is_found() {
        let mut workspace = Workspace::default();
        let mut findings = |path: &str, text: &str| {
            workspace.texts.insert(path.to_owned(), text.to_owned());
            check(&workspace).len()
        };
        let manifest = "[package]\nname = \"a\"\n";
        assert_eq!(findings("crates/wire/Cargo.toml", manifest), 2);
        let list = "{ crate = \"a\", wrappers = [] }\n";
        assert_eq!(findings("deny.toml", list), 1);
        assert_eq!(findings("ARCHITECTURE.md", "crates/wire  headers\n"), 0);
    }

    #[test]
    fn not_even_the_tests_of_the_stack_may_map_memory() {
        let mut workspace = Workspace::default();
        let list = "crate = \"devmem-mapped\", [\"devmem-nic\"] \"devmem-stack\"".to_owned();
        workspace.texts.insert("deny.toml".to_owned(), list);
        for (folder, name, refused) in [("nic", "devmem-nic", 0), ("stack", "devmem-stack", 1)] {
            let manifest = format!("[package]\nname = \"{name}\"\nmapped.workspace = true\n");
            let path = format!("crates/{folder}/Cargo.toml");
            workspace.texts.insert(path, manifest);
            assert_eq!(users_of_mapped(&workspace).len(), refused, "{name}");
        }
    }
}
