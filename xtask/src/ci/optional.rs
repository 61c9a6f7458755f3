//! The steps that need more than a stable toolchain, and say SKIP where they do not have it.

use std::time::Instant;

use super::parallel::side_by_side;
use super::report::{self, Verdict};
use super::runner::{self, Ended, Invocation};
use super::steps::Cmd;

/// Seconds for each fuzz target.
const FUZZ_SECONDS: u32 = 5;

/// Seconds for the targets whose input is what a guest does to the emulated NIC: they start from less, and a
/// guest is the nearest that an attacker comes.
const FUZZ_GUEST_SECONDS: u32 = 60;

/// Those targets, by the beginning of their names.
const GUEST_TARGETS: &[&str] = &["gve_", "vfio_user"];

/// What makes a libFuzzer program of a target: coverage that libFuzzer can see, and AddressSanitizer. These are
/// plain compiler options (rustc book, unstable book), so that no further tool has to be built first.
const FUZZ_ENV: &[(&str, &str)] = &[
    (
        "RUSTFLAGS",
        "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
         -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
         -Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address -Cdebug-assertions -Ccodegen-units=1",
    ),
    ("CARGO_TARGET_DIR", "target/fuzz"),
];

/// What a target runs with. AddressSanitizer keeps freed blocks to find who uses them still: 256 MiB by default, so
/// that every block is made of memory that was never touched, which costs half of the time.
const FUZZ_RUN_ENV: &[(&str, &str)] = &[("ASAN_OPTIONS", "quarantine_size_mb=16")];

/// What Miri interprets: it is some hundred times slower than the machine, so unit tests only, and only of crates
/// that do not forbid unsafe code, for it finds nothing in the others. A mapping is outside of what it can model in
/// full: tests that need one are marked `cfg_attr(miri, ignore)`.
const MIRI: &[Cmd] = &[
    Cmd {
        line: "cargo +nightly miri test --package devmem-netmem --lib page_pool",
        env: MIRI_ENV,
    },
    Cmd {
        line: "cargo +nightly miri test --package devmem-netmem --lib -- --skip page_pool",
        env: MIRI_ENV,
    },
    Cmd {
        line: "cargo +nightly miri test --package devmem-cabi --package devmem-tcp-c --lib",
        env: MIRI_ENV,
    },
];

const MIRI_ENV: &[(&str, &str)] = &[
    // Proptest looks for its file of regressions.
    ("MIRIFLAGS", "-Zmiri-disable-isolation"),
    ("PROPTEST_CASES", "4"),
    // Tests that expect panics would spend seconds on each one's backtrace.
    ("RUST_BACKTRACE", "0"),
    ("CARGO_TARGET_DIR", "target/miri"),
];

/// Judges the dependencies with cargo-deny; installs it if it is not here and the registry can be reached. Without
/// optimisation it is built in half the time, and has little to do.
pub fn deny(deadline: Instant) -> Result<String, Verdict> {
    let run = |line: &str| done(Invocation::new("deny", line, deadline).run());
    let ask = |line: &str| Invocation::new("deny", line, deadline).run_quietly();
    if !runner::succeeds("cargo deny --version")
        && let Ended::Failed(how) | Ended::TimedOut(how) =
            ask("cargo install --locked --debug cargo-deny")
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
    let notes = passed(side_by_side(MIRI, |command| {
        let output = done(command.at("miri", deadline).run())?;
        let none_ran = || Verdict::Failed(format!("no test ran in {}", command.line));
        report::test_note(&output).ok_or_else(none_ran)
    }))?;
    Ok(notes.join(", "))
}

/// Builds every fuzz target and runs each for a short time.
pub fn fuzz(deadline: Instant) -> Result<String, Verdict> {
    if !runner::succeeds("cargo +nightly --version") {
        return Err(Verdict::Skipped("needs a nightly toolchain".to_owned()));
    }
    let fetch = "cargo +nightly fetch --locked --manifest-path fuzz/Cargo.toml";
    let fetched = Invocation::new("fuzz", fetch, deadline).run_quietly();
    if let Ended::Failed(how) | Ended::TimedOut(how) = fetched {
        let reason = format!("cannot fetch what the fuzz targets need: {how}");
        return Err(Verdict::Skipped(reason));
    }
    let failed = |error: anyhow::Error| Verdict::Failed(format!("{error:#}"));
    // A target triple of its own keeps the sanitizer out of build scripts.
    let host = runner::host_triple().map_err(failed)?;
    let build = format!(
        "cargo +nightly build --locked --release --target {host} --manifest-path fuzz/Cargo.toml"
    );
    let mut build = Invocation::new("fuzz", &build, deadline);
    build.env = FUZZ_ENV;
    done(build.run())?;
    let targets = runner::stems_in("fuzz/fuzz_targets").map_err(failed)?;
    if targets.is_empty() {
        return Err(Verdict::Failed("no fuzz target".to_owned()));
    }
    let programs = format!("target/fuzz/{host}/release");
    passed(side_by_side(&targets, |target| {
        run_target(target, &programs, deadline)
    }))?;
    let long = targets.iter().filter(|target| is_guest(target)).count();
    Ok(format!(
        "{} targets {FUZZ_SECONDS} s each, {long} targets {FUZZ_GUEST_SECONDS} s each",
        targets.len() - long
    ))
}

fn run_target(target: &str, programs: &str, deadline: Instant) -> Result<(), Verdict> {
    let seconds = if is_guest(target) {
        FUZZ_GUEST_SECONDS
    } else {
        FUZZ_SECONDS
    };
    let corpus = make_folder(format!("fuzz/corpus/{target}"))?;
    let artifacts = make_folder(format!("fuzz/artifacts/{target}"))?;
    let kept = make_folder(format!("fuzz/regressions/{target}"))?;
    let line = format!(
        "{programs}/{target} {corpus} {kept} \
         -max_total_time={seconds} -timeout=10 -artifact_prefix={artifacts}/"
    );
    let mut run = Invocation::new(&format!("fuzz-{target}"), &line, deadline);
    run.env = FUZZ_RUN_ENV;
    let ended = run.run();
    if let Ended::Failed(how) = &ended {
        let keep = format!("keep the input of {artifacts} as {kept}/NAME");
        return Err(Verdict::Failed(format!("{target}: {how}; {keep}")));
    }
    done(ended).map(drop)
}

fn is_guest(target: &str) -> bool {
    GUEST_TARGETS
        .iter()
        .any(|beginning| target.starts_with(beginning))
}

/// Returns what came of each, or the first verdict that is not a pass.
fn passed<T>(results: Option<Vec<Result<T, Verdict>>>) -> Result<Vec<T>, Verdict> {
    let died = || Verdict::Failed("a thread of this step panicked".to_owned());
    results.ok_or_else(died)?.into_iter().collect()
}

/// Makes a folder, and returns its path from the root.
fn make_folder(path: String) -> Result<String, Verdict> {
    let made = std::fs::create_dir_all(runner::in_root(&path));
    made.map_err(|error| Verdict::Failed(format!("{path}: {error}")))?;
    Ok(path)
}

/// Returns the output of a command that succeeded, or its step's verdict. A step that is not required has no
/// claim on more time than there is.
pub fn done(ended: Ended) -> Result<String, Verdict> {
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
    fn one_failure_is_the_verdict_of_all() {
        let failed = || Err(Verdict::Failed("two".to_owned()));
        assert_eq!(passed(Some(vec![Ok(1), Ok(3)])), Ok(vec![1, 3]));
        assert_eq!(
            passed(Some(vec![Ok(1), failed()])),
            Err(Verdict::Failed("two".to_owned()))
        );
        assert!(matches!(passed::<u8>(None), Err(Verdict::Failed(_))));
    }

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
