//! Whether what is said of the fuzz targets is true: the table of their README, the programs of their package, the inputs
//! that are kept, and the tests that replay them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::runner;

/// Names in the first column of a table: lines that begin with "| `NAME` |".
fn in_table(readme: &str) -> BTreeSet<String> {
    let name = |line: &str| Some(line.strip_prefix("| `")?.split_once("` |")?.0.to_owned());
    readme.lines().filter_map(name).collect()
}

/// Names of the programs in a manifest: the line after `[[bin]]`.
fn in_manifest(manifest: &str) -> BTreeSet<String> {
    let sections = manifest.split("\n[[bin]]\n").skip(1);
    let name = |section: &str| {
        let (name, _) = section.strip_prefix("name = \"")?.split_once('"')?;
        Some(name.to_owned())
    };
    sections.filter_map(name).collect()
}

/// Names that a replaying test gives.
fn in_tests(test: &str) -> BTreeSet<String> {
    let calls = test.split("replay(\"").skip(1);
    let name = |call: &str| Some(call.split_once('"')?.0.to_owned());
    calls.filter_map(name).collect()
}

/// All replaying tests below a folder.
fn replayed_below(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder of ours").flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") {
            replayed_below(&path, found);
        } else if path.ends_with("fuzz_replay.rs") {
            found.extend(in_tests(
                &fs::read_to_string(&path).expect("a file of ours"),
            ));
        }
    }
}

#[test]
fn the_readme_the_package_the_kept_inputs_and_the_tests_name_the_same_targets() {
    let read = |path: &str| fs::read_to_string(runner::in_root(path)).expect(path);
    let targets: BTreeSet<String> = runner::stems_in("fuzz/fuzz_targets")
        .expect("a folder of ours")
        .into_iter()
        .collect();
    assert!(!targets.is_empty());
    assert_eq!(in_table(&read("fuzz/README.md")), targets, "fuzz/README.md");
    assert_eq!(
        in_manifest(&read("fuzz/Cargo.toml")),
        targets,
        "fuzz/Cargo.toml"
    );
    let kept = runner::stems_in("fuzz/regressions").expect("a folder of ours");
    assert_eq!(BTreeSet::from_iter(kept), targets, "fuzz/regressions");
    let mut replayed = BTreeSet::new();
    for folder in ["crates", "bin"] {
        replayed_below(Path::new(&runner::in_root(folder)), &mut replayed);
    }
    assert_eq!(replayed, targets, "tests that replay kept inputs");
}

#[test]
fn names_are_found_where_they_are_and_nowhere_else() {
    let set = |names: &[&str]| {
        names
            .iter()
            .map(ToString::to_string)
            .collect::<BTreeSet<_>>()
    };
    let readme =
        "see `cmsg`\n| Target | Input |\n|---|---|\n| `cmsg` | a `buffer` |\n| `netlink` | b |\n";
    assert_eq!(in_table(readme), set(&["cmsg", "netlink"]));
    let manifest = "[package]\nname = \"x\"\n\n[[bin]]\nname = \"cmsg\"\npath = \"a.rs\"\n\n[[bin]]\nname = \"b\"\n";
    assert_eq!(in_manifest(manifest), set(&["cmsg", "b"]));
    let test =
        "fn a() {\n    replay::replay(\"cmsg\", cmsg::run);\n    replay(\"b\", b::run);\n}\n";
    assert_eq!(in_tests(test), set(&["cmsg", "b"]));
}
