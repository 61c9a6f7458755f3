//! The steps that need more than a stable toolchain, and say SKIP where they do not have it.

use std::time::Duration;

use super::report::Verdict;
use super::runner::{self, Ended, Invocation};
use super::steps::all;

/// Time for each fuzz target in seconds, as libFuzzer's argument wants it.
const FUZZ_SECONDS: &str = "20";

/// Judges the dependencies with cargo-deny; installs it if it is not here and the registry can be reached.
pub fn deny(limit: Duration) -> Verdict {
    if !runner::succeeds(&["cargo", "deny", "--version"]) {
        let install = Invocation::new(
            "deny-install",
            &["cargo", "install", "--locked", "cargo-deny"],
            limit,
        );
        if let Ended::Failed(how) = install.run_quietly() {
            return Verdict::Skipped(format!(
                "no cargo-deny, and installing it did not work: {how}"
            ));
        }
    }
    let offline_part = [
        "cargo",
        "deny",
        "--all-features",
        "check",
        "bans",
        "licenses",
        "sources",
    ];
    if let Ended::Failed(how) = Invocation::new("deny", &offline_part, limit).run() {
        return Verdict::Failed(how);
    }
    // The advisory database is a git repository elsewhere. Without it the rest is still worth having.
    let fetch = Invocation::new("deny-fetch", &["cargo", "deny", "fetch", "db"], limit);
    if let Ended::Failed(how) = fetch.run_quietly() {
        return Verdict::Passed(format!(
            "bans, licences, sources; SKIP advisories: no database ({how})"
        ));
    }
    let advisories = [
        "cargo",
        "deny",
        "--all-features",
        "check",
        "--disable-fetch",
        "advisories",
    ];
    match Invocation::new("deny", &advisories, limit).run() {
        Ended::Succeeded(_) => Verdict::Passed("bans, licences, sources, advisories".to_owned()),
        Ended::Failed(how) => Verdict::Failed(how),
    }
}

/// Runs unit tests under Miri; adds the component if rustup can.
pub fn miri(limit: Duration) -> Verdict {
    const TOOL: &[&str] = &["cargo", "+nightly", "miri", "--version"];
    if !runner::succeeds(TOOL) {
        let add = [
            "rustup",
            "component",
            "add",
            "--toolchain",
            "nightly",
            "miri",
            "rust-src",
        ];
        let added = Invocation::new("miri-install", &add, limit).run_quietly();
        if let Ended::Failed(how) = added {
            return Verdict::Skipped(format!("no nightly toolchain with miri: {how}"));
        }
    }
    all(MIRI.iter().map(|line| {
        let mut invocation = Invocation::new("miri", line, limit);
        invocation.env = &[
            // Proptest wants to write its regressions, and a mapping is outside of what Miri can model in
            // full: tests that need one are marked `cfg_attr(miri, ignore)`.
            ("MIRIFLAGS", "-Zmiri-disable-isolation"),
            ("PROPTEST_CASES", "8"),
            ("CARGO_TARGET_DIR", "target/miri"),
        ];
        invocation
    }))
}

/// What Miri interprets: it is some hundred times slower than the machine, so unit tests only.
const MIRI: &[&[&str]] = &[
    &[
        "cargo",
        "+nightly",
        "miri",
        "test",
        "--package",
        "devmem-wire",
        "--lib",
    ],
    &[
        "cargo",
        "+nightly",
        "miri",
        "test",
        "--package",
        "devmem-netmem",
        "--lib",
    ],
];

/// Builds every fuzz target and runs each for a short time.
pub fn fuzz(limit: Duration) -> Verdict {
    if !runner::succeeds(&["cargo", "+nightly", "fuzz", "--version"]) {
        return Verdict::Skipped("needs a nightly toolchain and cargo-fuzz".to_owned());
    }
    let fetch = [
        "cargo",
        "+nightly",
        "fetch",
        "--locked",
        "--manifest-path",
        "fuzz/Cargo.toml",
    ];
    if let Ended::Failed(how) = Invocation::new("fuzz-fetch", &fetch, limit).run_quietly() {
        return Verdict::Skipped(format!("cannot fetch what the fuzz targets need: {how}"));
    }
    if let Ended::Failed(how) =
        Invocation::new("fuzz-build", &["cargo", "+nightly", "fuzz", "build"], limit).run()
    {
        return Verdict::Failed(how);
    }
    let targets = match runner::output(&["cargo", "+nightly", "fuzz", "list"]) {
        Ok(targets) => targets,
        Err(error) => return Verdict::Failed(format!("{error:#}")),
    };
    let seconds = format!("-max_total_time={FUZZ_SECONDS}");
    for target in targets.lines() {
        let line = [
            "cargo",
            "+nightly",
            "fuzz",
            "run",
            target,
            "--",
            &seconds,
            "-timeout=10",
            "-print_final_stats=1",
        ];
        if let Ended::Failed(how) = Invocation::new("fuzz", &line, limit).run() {
            return Verdict::Failed(format!(
                "{target}: {how}; keep the input under fuzz/regressions/{target}/"
            ));
        }
    }
    match targets.lines().count() {
        0 => Verdict::Failed("no fuzz target".to_owned()),
        count => Verdict::Passed(format!("{count} targets, {FUZZ_SECONDS} s each")),
    }
}
