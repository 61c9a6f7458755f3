//! `cargo xtask unsafe`: checks that unsafe code is only in the islands, and that an island is small enough to prove.
//!
//! The workspace denies the lint `unsafe_code`, so unsafe code needs an attribute that allows it. This check searches for
//! these attributes.

use crate::workspace::{Finding, Workspace, production_part};

/// The only files, and folders (with `/` at the end), that may contain unsafe code.
const ISLANDS: &[&str] = &[
    "crates/core/mapped/src/copy.rs",
    "crates/core/mapped/src/mapping.rs",
    "crates/core/mapped/src/mapping/lent.rs",
    "crates/core/mapped/src/process.rs",
    "crates/core/mapped/src/vectors.rs",
    "crates/core/peer-socket/src/rights.rs",
    "crates/kernel/src/sys/",
    "crates/gvnic/vfio-user/src/eventfd.rs",
    "crates/devices/gpu/src/adder.rs",
    "crates/devices/gpu/src/adopt.rs",
    "crates/devices/gpu/src/app_stream.rs",
    "crates/devices/gpu/src/sys/",
    "crates/devices/cuda/src/sys/",
    "crates/devices/hip/src/sys.rs",
    "crates/devices/hip/src/sys/hsa.rs",
    "crates/devices/gpu-stub/src/calls.rs",
    "crates/devices/gpu-stub/src/cuda.rs",
    "crates/devices/gpu-stub/src/entry.rs",
    "crates/devices/gpu-stub/src/hip.rs",
    "crates/devices/gpu-stub/src/host.rs",
    "crates/devices/gpu-stub/src/kernels.rs",
    "crates/devices/gpu-stub/src/machine.rs",
    "crates/devices/gpu-stub/src/streams.rs",
    "crates/devices/gpu-stub/tests/gpu/adopted.rs",
    "crates/devices/vulkan/src/sys/",
    "crates/doors/cabi/src/raw/",
    "crates/doors/packetdrill/src/ffi.rs",
    "crates/doors/packetdrill/src/interpose.rs",
    "crates/doors/packetdrill/tests/player/loaded.rs",
    "crates/doors/capi/src/ffi/",
    "crates/doors/nccl/src/ffi/",
    "crates/doors/nccl/src/raw/",
    "crates/doors/nccl-load/src/ffi/",
    "crates/doors/nixl/src/ffi/",
    "crates/doors/nixl/src/raw/",
    "crates/doors/nixl/tests/two_processes/loaded/",
    "crates/doors/python/src/raw/",
    "crates/doors/streamer/src/ffi/",
    "crates/doors/nccl/tests/judge/loaded/",
    "crates/doors/nccl/tests/released/nccl.rs",
    "crates/doors/nccl/tests/released/runtime/address.rs",
    "crates/doors/nccl/tests/released/runtime/calls.rs",
    "crates/doors/nccl/tests/released/runtime/memory.rs",
    "crates/doors/nccl/tests/released/runtime/redirect.rs",
    "fuzz/bodies/cabi_calls.rs",
];

/// Maximum number of production lines of an island file, because all of them are part of the proof.
const ISLAND_LINES_MAX: usize = 300;

/// Start of the line with the reason, in the first comment of an island file.
const OPENING: &str = "// UNSAFETY: ";

/// Checks the whole workspace.
pub fn check(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in workspace.rust() {
        match ISLANDS.iter().any(|island| covers(island, path)) {
            true => findings.extend(check_island(path, text)),
            false => findings.extend(check_mainland(path, text)),
        }
    }
    for (folder, _) in workspace.packages() {
        findings.extend(check_root(workspace, folder));
    }
    for island in ISLANDS {
        if !workspace.rust().any(|(path, _)| covers(island, path)) {
            findings.push(Finding::new(file!(), 0, format!("{island} does not exist")));
        }
    }
    findings
}

fn covers(island: &str, path: &str) -> bool {
    path == island || island.ends_with('/') && path.starts_with(island)
}

fn check_island(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut opening = text.lines().take_while(|line| line.starts_with("//"));
    if !opening.any(|line| line.starts_with(OPENING)) {
        let what = format!("the first comment of the file lacks `{OPENING}` and a reason");
        findings.push(Finding::new(path, 1, what));
    }
    let lines = production_part(text).lines().count();
    if lines >= ISLAND_LINES_MAX && !path.ends_with("/tests.rs") {
        let what = format!("{lines} lines: an island must have fewer than {ISLAND_LINES_MAX}");
        findings.push(Finding::new(path, 0, what));
    }
    findings
}

fn check_mainland(path: &str, text: &str) -> Vec<Finding> {
    let allows = |line: &str| {
        let line = line.trim_start();
        let attributes = ["allow(unsafe_code", "expect(unsafe_code"];
        let at = attributes.iter().find_map(|attribute| line.find(attribute));
        // Excludes comments and strings.
        let is_code = |at: usize| !line.starts_with("//") && !line[..at].contains('"');
        line.starts_with("unsafe_code,") || at.is_some_and(is_code)
    };
    let found = text.lines().enumerate().filter(|(_, line)| allows(line));
    let what = || {
        format!(
            "unsafe code outside of the islands ({})",
            ISLANDS.join(", ")
        )
    };
    found
        .map(|(at, _)| Finding::new(path, at + 1, what()))
        .collect()
}

/// Checks that a library or program without an island forbids unsafe code.
fn check_root(workspace: &Workspace, folder: &str) -> Vec<Finding> {
    let prefix = format!("{folder}/src/");
    let has_island = ISLANDS.iter().any(|island| island.starts_with(&prefix));
    let roots = ["lib.rs", "main.rs"].map(|name| format!("{prefix}{name}"));
    let forbids = |root: &String| {
        let text = workspace.texts.get(root)?;
        let forbids = text.lines().any(|line| line == "#![forbid(unsafe_code)]");
        let exempt = has_island && root.ends_with("/lib.rs");
        (!forbids && !exempt).then(|| Finding::new(root, 0, "lacks #![forbid(unsafe_code)]"))
    };
    roots.iter().filter_map(forbids).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_outside_of_the_islands_is_found() {
        let allows = concat!("#![allow", "(unsafe_code)]\n");
        assert_eq!(
            check_mainland("crates/core/tcp/src/lib.rs", allows).len(),
            1
        );
        let expects = concat!(
            "fn a() {\n    #[expect",
            "(unsafe_code, reason = \"b\")]\n}\n"
        );
        assert_eq!(
            check_mainland("crates/core/tcp/src/lib.rs", expects)[0].line,
            2
        );
    }

    #[test]
    fn an_island_must_start_with_its_reason_and_be_short() {
        let good = "//! Maps.\n// UNSAFETY: maps memory\nfn a() {}\n";
        assert_eq!(check_island("a.rs", good), []);
        assert_eq!(check_island("a.rs", "//! Maps.\nfn a() {}\n").len(), 1);
        let long = good.to_owned() + &"fn b() {}\n".repeat(ISLAND_LINES_MAX);
        assert_eq!(check_island("a.rs", &long).len(), 1);
    }

    #[test]
    fn a_root_without_an_island_must_forbid_unsafe_code() {
        let mut workspace = Workspace::default();
        let mut findings = |folder: &str, name: &str, text: &str| {
            let path = format!("{folder}/src/{name}");
            workspace.texts.insert(path, text.to_owned());
            check_root(&workspace, folder).len()
        };
        assert_eq!(findings("crates/core/tcp", "lib.rs", "fn a() {}\n"), 1);
        assert_eq!(
            findings("crates/core/wire", "lib.rs", "#![forbid(unsafe_code)]\n"),
            0
        );
        assert_eq!(findings("crates/kernel", "lib.rs", "mod sys;\n"), 0);
        assert_eq!(findings("crates/kernel", "main.rs", "mod a;\n"), 1);
    }
}
