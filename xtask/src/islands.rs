//! `cargo xtask unsafe`: the word `unsafe` stays on its islands, and an island is small enough to prove.

use crate::finding::Finding;
use crate::source::Source;
use crate::workspace::{Package, Workspace};

/// The only places with unsafe code: a file, or a folder (with `/` at its end).
const ISLANDS: &[&str] = &[
    "crates/netmem/src/process.rs",
    "crates/netmem/src/region.rs",
    "crates/devmem-linux/src/sys/",
    "crates/vfio-user/src/dma.rs",
    "crates/vfio-user/src/eventfd.rs",
    "crates/cabi/src/raw/",
    "crates/packetdrill/src/ffi.rs",
    "crates/packetdrill/tests/player/loaded.rs",
    "crates/capi/src/ffi/",
    "fuzz/bodies/cabi_calls.rs",
];

/// Production lines of an island file: everything in it is part of the proof.
const ISLAND_LINES_MAX: usize = 300;

/// What the comment that an island file opens with must have: a reason follows.
const OPENING: &str = "// UNSAFETY:";

/// Checks the whole workspace.
pub fn check(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, source) in &workspace.sources {
        match is_island(path) {
            true => findings.extend(check_island(path, source)),
            false => findings.extend(check_mainland(path, source)),
        }
    }
    for package in &workspace.packages {
        for root in &package.roots {
            let source = workspace.sources.get(root);
            findings.extend(check_root(package, root, source));
        }
    }
    findings
}

fn is_island(path: &str) -> bool {
    ISLANDS.iter().any(|island| match island.ends_with('/') {
        true => path.starts_with(island),
        false => path == *island,
    })
}

fn has_island(package: &Package) -> bool {
    ISLANDS
        .iter()
        .any(|island| island.starts_with(&format!("{}/", package.folder)))
}

fn check_island(path: &str, source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let reason = source
        .opening
        .iter()
        .find_map(|line| line.strip_prefix(OPENING));
    if reason.is_none_or(|reason| reason.trim().is_empty()) {
        let what = format!("the comment an island opens with has no `{OPENING}` and a reason");
        findings.push(Finding::new(path, 1, what));
    }
    let lines = source.production_lines();
    if lines >= ISLAND_LINES_MAX {
        let what = format!(
            "{lines} lines: an island stays under {ISLAND_LINES_MAX}, all of it is part of the proof"
        );
        findings.push(Finding::new(path, 0, what));
    }
    findings
}

fn check_mainland(path: &str, source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(error) = &source.error {
        findings.push(Finding::new(
            path,
            0,
            format!("cannot be read as Rust: {error}"),
        ));
    }
    for line in source.lines_saying("unsafe") {
        findings.push(Finding::new(
            path,
            line,
            format!(
                "unsafe code outside of the islands ({})",
                ISLANDS.join(", ")
            ),
        ));
    }
    findings
}

/// A library or binary root without an island forbids unsafe code; the library of a crate with an island cannot.
/// Tests and benches are held to it by the workspace's lint and by the words of their files.
fn check_root(package: &Package, root: &str, source: Option<&Source>) -> Vec<Finding> {
    let Some(source) = source else {
        return vec![Finding::new(
            root,
            0,
            "cargo builds this file and git does not have it",
        )];
    };
    if !root.starts_with(&format!("{}/src/", package.folder)) {
        return Vec::new();
    }
    let library_of_island = has_island(package) && root == format!("{}/src/lib.rs", package.folder);
    let forbids = source
        .attributes
        .iter()
        .any(|attribute| attribute == "forbid(unsafe_code)");
    match forbids || library_of_island {
        true => Vec::new(),
        false => vec![Finding::new(root, 0, "lacks #![forbid(unsafe_code)]")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: &str = "crates/netmem/src/region.rs";

    fn package(folder: &str) -> Package {
        Package {
            folder: folder.to_owned(),
            edges: Vec::new(),
            roots: Vec::new(),
        }
    }

    #[test]
    fn unsafe_code_outside_of_the_islands_is_found() {
        let source = Source::parse("// unsafe\nfn a() {\n    unsafe { b() }\n}\n");
        let findings = check_mainland("crates/tcp/src/lib.rs", &source);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].line, 3);
    }

    #[test]
    fn an_unsafe_attribute_counts_as_unsafe_code() {
        let source = Source::parse("#[unsafe(no_mangle)]\nfn a() {}\n");
        assert_eq!(check_mainland("crates/tcp/src/lib.rs", &source).len(), 1);
    }

    #[test]
    fn the_lint_name_is_not_unsafe_code() {
        let source = Source::parse("#![forbid(unsafe_code)]\n#![deny(unsafe_op_in_unsafe_fn)]\n");
        assert_eq!(check_mainland("crates/tcp/src/lib.rs", &source), []);
    }

    #[test]
    fn the_islands_are_these() {
        assert!(is_island(REGION));
        assert!(is_island("crates/devmem-linux/src/sys/tun.rs"));
        assert!(!is_island("crates/netmem/src/region_extra.rs"));
        assert!(!is_island("crates/netmem/src/lib.rs"));
        assert!(!is_island("crates/devmem-linux/src/sys.rs"));
    }

    #[test]
    fn an_island_opens_with_its_reason() {
        for with in [
            "// UNSAFETY: maps memory\nfn a() { unsafe {} }\n",
            "//! A region.\n//!\n// UNSAFETY: maps memory\n// and more\nfn a() {}\n",
        ] {
            assert_eq!(check_island(REGION, &Source::parse(with)), [], "{with}");
        }
        for without in [
            "fn a() { unsafe {} }\n",
            "// UNSAFETY:\nfn a() {}\n",
            "\n// UNSAFETY: late\n",
            "//! A region.\nfn a() {}\n// UNSAFETY: later\n",
        ] {
            let found = check_island(REGION, &Source::parse(without));
            assert_eq!(found.len(), 1, "{without}");
        }
    }

    #[test]
    fn an_island_of_300_lines_is_too_long_and_its_tests_do_not_count() {
        let text = |lines: usize| {
            format!(
                "// UNSAFETY: maps memory\n{}",
                "const A: u8 = 0;\n".repeat(lines - 1)
            )
        };
        assert_eq!(check_island(REGION, &Source::parse(&text(299))), []);
        assert_eq!(check_island(REGION, &Source::parse(&text(300))).len(), 1);
        let tests = format!(
            "{}#[cfg(test)]\nmod tests {{\n{}}}\n",
            text(299),
            "\n".repeat(200)
        );
        assert_eq!(check_island(REGION, &Source::parse(&tests)), []);
    }

    #[test]
    fn a_crate_without_an_island_forbids_unsafe_code_in_its_roots() {
        let tcp = package("crates/tcp");
        let forbids = Source::parse("#![forbid(unsafe_code)]\n");
        let silent = Source::parse("// #![forbid(unsafe_code)]\n");
        assert_eq!(
            check_root(&tcp, "crates/tcp/src/lib.rs", Some(&forbids)),
            []
        );
        assert_eq!(
            check_root(&tcp, "crates/tcp/src/lib.rs", Some(&silent)).len(),
            1
        );
        assert_eq!(
            check_root(&tcp, "crates/tcp/src/main.rs", Some(&silent)).len(),
            1
        );
        assert_eq!(
            check_root(&tcp, "crates/tcp/tests/trace.rs", Some(&silent)),
            []
        );
    }

    #[test]
    fn the_library_of_a_crate_with_an_island_cannot_forbid_but_its_binary_can() {
        let netmem = package("crates/netmem");
        let silent = Source::parse("mod region;\n");
        assert_eq!(
            check_root(&netmem, "crates/netmem/src/lib.rs", Some(&silent)),
            []
        );
        assert_eq!(
            check_root(&netmem, "crates/netmem/src/main.rs", Some(&silent)).len(),
            1
        );
    }

    #[test]
    fn a_root_that_git_does_not_have_is_found() {
        assert_eq!(
            check_root(&package("crates/tcp"), "crates/tcp/src/lib.rs", None).len(),
            1
        );
    }
}
