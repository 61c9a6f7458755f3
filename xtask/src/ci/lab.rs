//! The acceptance tests in a guest.

use std::time::Instant;

use super::optional::done;
use super::report::{self, Verdict};
use super::runner::{Ended, Invocation};

/// Bytes of a large stream: all of it in under three minutes of a machine with two processors.
const BYTES: &str = "4M";

/// Tests that need a NIC, which the guest has: the package's folder and the test.
const TESTS: &[(&str, &str)] = &[
    ("crates/devmem-linux", "nic"),
    ("crates/devmem-tcp", "kernel_nic"),
    ("bin/devmem-tcp", "lab_nic"),
    ("bin/devmem-tcp", "lab_backend"),
];

/// Stands before the name of a test program in the guest's output.
const MARK: &str = "=== in the guest: ";

/// Boots a stock Linux guest on our NICs and runs the acceptance tests in it. QEMU and the kernel are fetched once,
/// into the user's cache.
pub fn lab(deadline: Instant) -> Result<String, Verdict> {
    const TOOL: &str = "cargo run --release --quiet --bin devmem-tcp -- lab";
    let invocation = |line: &str| Invocation::new("lab", &format!("{TOOL} {line}"), deadline);
    let built = Invocation::new("lab", "cargo build --release --bin devmem-tcp", deadline);
    done(built.run())?;
    if let Ended::Failed(how) | Ended::TimedOut(how) = invocation("fetch").run() {
        return Err(Verdict::Skipped(format!("no QEMU and kernel: {how}")));
    }
    let output = done(invocation(&format!("test --bytes {BYTES} --json")).run())?;
    let counts = |line: &&str| line.contains(" passed, ") && line.contains(" failed, in ");
    let none_ran = || Verdict::Failed("the lab says nothing of its rows".to_owned());
    let line = output.lines().find(counts).ok_or_else(none_ran)?;
    let mut notes = vec![line.trim_start_matches("devmem-tcp: ").to_owned()];
    // The tool in the guest is the one that runs it.
    let mut run = invocation("run --env DEVMEM_TEST_TOOL=/bin/devmem-tcp");
    for (test, program) in test_programs(deadline)? {
        run.arg("--put");
        run.arg(format!("{program}:/{test}"));
    }
    for argument in ["--", "sh", "-c"] {
        run.arg(argument);
    }
    run.arg(script());
    notes.extend(notes_of(&done(run.run())?)?);
    Ok(notes.join("; "))
}

/// One boot for all programs; one that fails does not hide another.
fn script() -> String {
    let one = |(_, test): &(&str, &str)| {
        format!("echo '{MARK}{test}'; /{test} --test-threads=1 || failed=1; ")
    };
    let all: String = TESTS.iter().map(one).collect();
    format!("failed=0; {all}exit $failed")
}

/// Adds up what each program said.
fn notes_of(output: &str) -> Result<Vec<String>, Verdict> {
    let said: Vec<&str> = output.split(MARK).skip(1).collect();
    let note = |(_, test): &(&str, &str)| {
        let own = said
            .iter()
            .find_map(|part| part.strip_prefix(&format!("{test}\n")));
        let note = own.and_then(report::test_note);
        note.map(|note| format!("{test}: {note}"))
            .ok_or_else(|| Verdict::Failed(format!("no test ran in {test}")))
    };
    TESTS.iter().map(note).collect()
}

/// Builds the test programs, with the features that `cargo test --workspace` gives them (they are then built
/// already), and returns the path of each.
fn test_programs(deadline: Instant) -> Result<Vec<(&'static str, String)>, Verdict> {
    let mut build = Invocation::new("lab", "cargo test --workspace --no-run", deadline);
    for argument in ["--message-format", "json"] {
        build.arg(argument);
    }
    for (_, test) in TESTS {
        build.arg("--test");
        build.arg(*test);
    }
    let output = done(build.run())?;
    let program = |(folder, test): &(&str, &'static str)| {
        let path = program_in(&output, folder, test);
        let none = || Verdict::Failed(format!("cargo names no program of the test {test}"));
        Ok((*test, path.ok_or_else(none)?))
    };
    TESTS.iter().map(program).collect()
}

/// Finds the program of a test among cargo's messages.
fn program_in(messages: &str, folder: &str, test: &str) -> Option<String> {
    const KEY: &str = "\"executable\":\"";
    let manifest = format!("/{folder}/Cargo.toml\"");
    let name = format!("\"name\":\"{test}\"");
    let of_test = |line: &&str| line.contains(&manifest) && line.contains(&name);
    messages.lines().filter(of_test).find_map(|line| {
        let (_, rest) = line.split_once(KEY)?;
        Some(rest.split_once('"')?.0.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_by_its_package_and_its_name() {
        let line = |folder: &str, name: &str| {
            format!(
                "{{\"manifest_path\":\"/w/{folder}/Cargo.toml\",\"target\":{{\"name\":\"{name}\"}},\"executable\":\"/t/{folder}-{name}\"}}\n"
            )
        };
        let messages = line("bin/a", "nic") + &line("crates/b", "nic") + &line("crates/b", "other");
        let found = |folder, name| program_in(&messages, folder, name);
        assert_eq!(found("crates/b", "nic").unwrap(), "/t/crates/b-nic");
        assert_eq!(found("bin/a", "nic").unwrap(), "/t/bin/a-nic");
        assert_eq!(found("bin/a", "other"), None);
    }

    #[test]
    fn each_program_must_have_run_a_test() {
        let ran = |(_, test): &(&str, &str)| {
            format!("{MARK}{test}\ntest result: ok. 2 passed; 0 failed; 0 ignored;\n")
        };
        let all: String = TESTS.iter().map(ran).collect();
        let notes = notes_of(&all).unwrap();
        assert_eq!(notes.len(), TESTS.len());
        assert!(
            notes[0].starts_with("nic: test result: 2 passed;"),
            "{notes:?}"
        );
        let (_, last) = TESTS[TESTS.len() - 1];
        let but_one = all.replace(
            &format!("{MARK}{last}\ntest result: ok. 2"),
            &format!("{MARK}{last}\ntest result: ok. 0"),
        );
        assert_eq!(
            notes_of(&but_one),
            Err(Verdict::Failed(format!("no test ran in {last}")))
        );
    }
}
