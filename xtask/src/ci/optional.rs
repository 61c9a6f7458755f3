//! The steps that need more than a stable toolchain, and say SKIP where they do not have it.

use std::time::Instant;

use super::report::{self, Verdict};
use super::runner::{self, Ended, Invocation};
use super::steps::Cmd;

/// Seconds for each fuzz target.
const FUZZ_SECONDS: u32 = 20;

/// What Miri interprets: it is some hundred times slower than the machine, so unit tests only. A mapping is
/// outside of what it can model in full: tests that need one are marked `cfg_attr(miri, ignore)`.
const MIRI: &[Cmd] = &[
    Cmd {
        line: "cargo +nightly miri test --package devmem-wire --lib",
        env: MIRI_ENV,
    },
    Cmd {
        line: "cargo +nightly miri test --package devmem-netmem --lib",
        env: MIRI_ENV,
    },
];

const MIRI_ENV: &[(&str, &str)] = &[
    // Proptest looks for its file of regressions.
    ("MIRIFLAGS", "-Zmiri-disable-isolation"),
    ("PROPTEST_CASES", "8"),
    ("CARGO_TARGET_DIR", "target/miri"),
];

/// Judges the dependencies with cargo-deny; installs it if it is not here and the registry can be reached.
pub fn deny(deadline: Instant) -> Result<String, Verdict> {
    let run = |line: &str| done(Invocation::new("deny", line, deadline).run());
    let ask = |line: &str| Invocation::new("deny", line, deadline).run_quietly();
    if !runner::succeeds("cargo deny --version")
        && let Ended::Failed(how) | Ended::TimedOut(how) = ask("cargo install --locked cargo-deny")
    {
        let reason = format!("no cargo-deny, and no way to install it: {how}");
        return Err(Verdict::Skipped(reason));
    }
    run("cargo deny --all-features check bans licenses sources")?;
    // The advisory database is a git repository elsewhere. Without it the rest is still worth having.
    if let Ended::Failed(how) | Ended::TimedOut(how) = ask("cargo deny fetch db") {
        return Ok(format!(
            "bans, licences, sources; SKIP advisories: no database: {how}"
        ));
    }
    run("cargo deny --all-features check --disable-fetch advisories")?;
    Ok("bans, licences, sources, advisories".to_owned())
}

/// Runs unit tests under Miri; adds the component if rustup can.
pub fn miri(deadline: Instant) -> Result<String, Verdict> {
    if !runner::succeeds("cargo +nightly miri --version") {
        let add = "rustup component add --toolchain nightly miri rust-src";
        let added = Invocation::new("miri", add, deadline).run_quietly();
        if let Ended::Failed(how) | Ended::TimedOut(how) = added {
            let reason = format!("no nightly toolchain with miri: {how}");
            return Err(Verdict::Skipped(reason));
        }
    }
    let mut notes = Vec::new();
    for command in MIRI {
        let output = done(command.at("miri", deadline).run())?;
        let none_ran = || Verdict::Failed(format!("no test ran in {}", command.line));
        notes.push(report::test_note(&output).ok_or_else(none_ran)?);
    }
    Ok(notes.join(", "))
}

/// Builds every fuzz target and runs each for a short time.
pub fn fuzz(deadline: Instant) -> Result<String, Verdict> {
    let run = |line: &str| Invocation::new("fuzz", line, deadline).run();
    if !runner::succeeds("cargo +nightly fuzz --version") {
        let reason = "needs a nightly toolchain and cargo-fuzz".to_owned();
        return Err(Verdict::Skipped(reason));
    }
    let fetch = "cargo +nightly fetch --manifest-path fuzz/Cargo.toml";
    let fetched = Invocation::new("fuzz", fetch, deadline).run_quietly();
    if let Ended::Failed(how) | Ended::TimedOut(how) = fetched {
        let reason = format!("cannot fetch what the fuzz targets need: {how}");
        return Err(Verdict::Skipped(reason));
    }
    done(run("cargo +nightly fuzz build"))?;
    let failed = |error: anyhow::Error| Verdict::Failed(format!("{error:#}"));
    let targets = runner::output("cargo +nightly fuzz list").map_err(failed)?;
    let targets: Vec<&str> = targets.split_whitespace().collect();
    for target in &targets {
        let (corpus, kept) = (corpus(target)?, format!("fuzz/regressions/{target}"));
        let limits = format!("-max_total_time={FUZZ_SECONDS} -timeout=10");
        let ended = run(&format!(
            "cargo +nightly fuzz run {target} {corpus} {kept} -- {limits}"
        ));
        if let Ended::Failed(how) = &ended {
            let keep = format!("keep the input as {kept}/NAME");
            return Err(Verdict::Failed(format!("{target}: {how}; {keep}")));
        }
        done(ended)?;
    }
    match targets.len() {
        0 => Err(Verdict::Failed("no fuzz target".to_owned())),
        count => Ok(format!("{count} targets, {FUZZ_SECONDS} s each")),
    }
}

/// Makes the folder for what a target finds interesting, and returns its path.
fn corpus(target: &str) -> Result<String, Verdict> {
    let path = format!("fuzz/corpus/{target}");
    let made = std::fs::create_dir_all(runner::in_root(&path));
    made.map_err(|error| Verdict::Failed(format!("{path}: {error}")))?;
    Ok(path)
}

/// Returns the output of a command that succeeded, or its step's verdict. A step that is not required has no
/// claim on more time than there is.
fn done(ended: Ended) -> Result<String, Verdict> {
    match ended {
        Ended::Succeeded(output) => Ok(output),
        Ended::Failed(how) => Err(Verdict::Failed(how)),
        Ended::TimedOut(how) => Err(Verdict::Skipped(how)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_fails_and_missing_time_skips() {
        assert_eq!(
            done(Ended::Succeeded("said".to_owned())),
            Ok("said".to_owned())
        );
        let failed = done(Ended::Failed("status 1".to_owned()));
        assert_eq!(failed, Err(Verdict::Failed("status 1".to_owned())));
        let late = done(Ended::TimedOut("no end".to_owned()));
        assert_eq!(late, Err(Verdict::Skipped("no end".to_owned())));
    }
}
