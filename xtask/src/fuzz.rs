//! `cargo xtask fuzz`: checks that the table in fuzz/README.md, the programs of the package, the kept inputs and the replay
//! tests name the same fuzz targets.

use std::collections::BTreeSet;

use crate::workspace::{Finding, Workspace};

/// Checks the whole workspace.
pub fn check(workspace: &Workspace) -> Vec<Finding> {
    let paths = || workspace.texts.keys();
    let names = |prefix: &str| -> BTreeSet<&str> {
        let below = paths().filter_map(|path| path.strip_prefix(prefix));
        below
            .filter_map(|path| path.split(['/', '.']).next())
            .collect()
    };
    let targets = names("fuzz/fuzz_targets/");
    let readme = between(workspace.text("fuzz/README.md"), "\n| `", "` |");
    let programs = between(
        workspace.text("fuzz/Cargo.toml"),
        "[[bin]]\nname = \"",
        "\"",
    );
    let tests = workspace
        .rust()
        .filter(|(path, _)| path.ends_with("fuzz_replay.rs"));
    let replayed = tests
        .flat_map(|(_, test)| between(test, "replay(\"", "\""))
        .collect();
    // Only text files are listed, and a kept input need not be text. The replay test fails if there is no kept input.
    let claims = [
        ("fuzz/README.md", "its table has", readme),
        ("fuzz/Cargo.toml", "it has", programs),
        (
            "fuzz/regressions",
            "tests named fuzz_replay replay",
            replayed,
        ),
    ];
    let mut findings = Vec::new();
    for (path, has, named) in claims {
        for target in named.symmetric_difference(&targets) {
            let more = ["less", "more"][usize::from(named.contains(target))];
            let what = format!("{has} {target} {more} than fuzz/fuzz_targets");
            findings.push(Finding::new(path, 0, what));
        }
    }
    if targets.is_empty() {
        findings.push(Finding::new("fuzz/fuzz_targets", 0, "there is no target"));
    }
    findings
}

/// Lists the texts between each `start` and the next `end`.
fn between<'a>(text: &'a str, start: &str, end: &str) -> BTreeSet<&'a str> {
    let parts = text.split(start).skip(1);
    parts
        .filter_map(|part| Some(part.split_once(end)?.0))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_four_lists_must_name_the_same_targets() {
        let mut workspace = Workspace::default();
        let mut findings = |path: &str, text: &str| {
            workspace.texts.insert(path.to_owned(), text.to_owned());
            check(&workspace).len()
        };
        assert_eq!(findings("fuzz/fuzz_targets/cmsg.rs", ""), 3);
        let readme = "a `b`\n| `cmsg` | a `buffer` |\n";
        assert_eq!(findings("fuzz/README.md", readme), 2);
        let manifest = "name = \"x\"\n[[bin]]\nname = \"cmsg\"\n";
        assert_eq!(findings("fuzz/Cargo.toml", manifest), 1);
        let test = "fn a() {\n    replay(\"cmsg\", cmsg::run);\n";
        assert_eq!(findings("crates/uapi/tests/fuzz_replay.rs", test), 0);
        assert_eq!(findings("fuzz/fuzz_targets/rx.rs", ""), 3);
    }
}
