//! `cargo xtask map`: ARCHITECTURE.md shows every package, `deny.toml` says which packages may depend on it, README
//! gives the commands that CI runs.

use crate::workspace::{Finding, Workspace};

/// README's two commands, and the beginning of the line of `.ci/run` that runs each.
const COMMANDS: [&str; 2] = [
    "cargo run --release --bin devmem-tcp -- demo",
    "cargo test --workspace",
];

/// Checks the whole workspace.
pub fn check(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    let map = workspace.text("ARCHITECTURE.md");
    for folder in workspace.packages() {
        if !map.lines().any(|line| {
            line.split([' ', '|'])
                .any(|word| word.trim_matches('`') == folder)
        }) {
            let what = format!("the package {folder} is not in the map");
            findings.push(Finding::new("ARCHITECTURE.md", 0, what));
        }
    }
    for (path, manifest) in &workspace.texts {
        let names = manifest
            .lines()
            .filter_map(|line| line.strip_prefix("name = \""));
        // The first name is the package's. The fuzz targets are a workspace of their own.
        let name = names.map(|name| name.trim_end_matches('"')).next();
        let Some(name) =
            name.filter(|_| path.ends_with("/Cargo.toml") && path != "fuzz/Cargo.toml")
        else {
            continue;
        };
        if !workspace
            .text("deny.toml")
            .contains(&format!("{{ crate = \"{name}\", wrappers"))
        {
            let what = format!("does not say which packages may depend on {name}");
            findings.push(Finding::new("deny.toml", 0, what));
        }
    }
    findings.extend(users_of_mapped(workspace));
    let readme = workspace.text("README.md");
    for command in COMMANDS {
        if !readme.contains(&format!("\n{command}\n")) {
            findings.push(Finding::new("README.md", 0, format!("lacks `{command}`")));
        }
        let runs = |line: &str| line.trim_start().starts_with(command);
        if !workspace.text(".ci/run").lines().any(runs) {
            findings.push(Finding::new(
                ".ci/run",
                0,
                format!("does not run `{command}`"),
            ));
        }
    }
    let manifest = workspace.text("Cargo.toml").lines();
    let oldest = manifest
        .filter_map(|line| line.strip_prefix("rust-version = \""))
        .next();
    let oldest = format!(
        "Rust {} or later",
        oldest.unwrap_or("?").trim_end_matches('"')
    );
    if !readme.contains(&oldest) {
        findings.push(Finding::new(
            "README.md",
            0,
            format!("does not say `{oldest}`"),
        ));
    }
    findings
}

/// A crate that depends on `mapped` can name a `DmaRight` and reach bytes that the CPU may not read. So tests, which
/// cargo-deny leaves out, need a place in its list, too.
fn users_of_mapped(workspace: &Workspace) -> Vec<Finding> {
    let listed = workspace
        .text("deny.toml")
        .split("crate = \"devmem-mapped\"")
        .nth(1);
    let listed = listed
        .and_then(|rest| Some(rest.split_once(']')?.0))
        .unwrap_or("");
    let manifests = workspace
        .texts
        .iter()
        .filter(|(path, _)| path.ends_with("/Cargo.toml"));
    let users = manifests.filter(|(_, text)| text.lines().any(|line| line.starts_with("mapped")));
    let refused = users.filter(|(_, text)| {
        let name = text.lines().find(|line| line.starts_with("name = "));
        name.is_none_or(|name| !listed.contains(name.trim_start_matches("name = ")))
    });
    refused
        .map(|(path, _)| Finding::new(path, 0, "may not depend on mapped, nor may its tests"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_found() {
        let mut workspace = Workspace::default();
        let mut findings = |path: &str, text: &str| {
            workspace.texts.insert(path.to_owned(), text.to_owned());
            check(&workspace).len()
        };
        assert_eq!(findings("Cargo.toml", "rust-version = \"1.91\"\n"), 5);
        assert_eq!(
            findings("crates/core/wire/Cargo.toml", "[package]\nname = \"a\"\n"),
            7
        );
        assert_eq!(
            findings("deny.toml", "{ crate = \"a\", wrappers = [] }\n"),
            6
        );
        assert_eq!(
            findings("ARCHITECTURE.md", "crates/core/wire  headers\n"),
            5
        );
        let readme = format!("Rust 1.91 or later\n{}\n\n{}\n", COMMANDS[0], COMMANDS[1]);
        assert_eq!(findings("README.md", &readme), 2);
        let run = format!("    {} --bytes 1\n    {}\n", COMMANDS[0], COMMANDS[1]);
        assert_eq!(findings(".ci/run", &run), 0);
    }

    #[test]
    fn not_even_the_tests_of_the_stack_may_map_memory() {
        let mut workspace = Workspace::default();
        let list =
            "{ crate = \"devmem-mapped\", wrappers = [\n \"devmem-nic\",\n] }, \"devmem-stack\"";
        workspace
            .texts
            .insert("deny.toml".to_owned(), list.to_owned());
        for (folder, name, refused) in [("nic", "devmem-nic", 0), ("stack", "devmem-stack", 1)] {
            let manifest = format!(
                "[package]\nname = \"{name}\"\n[dev-dependencies]\nmapped.workspace = true\n"
            );
            workspace
                .texts
                .insert(format!("crates/{folder}/Cargo.toml"), manifest);
            assert_eq!(users_of_mapped(&workspace).len(), refused, "{name}");
        }
    }
}
