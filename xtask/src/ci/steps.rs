//! The steps of CI: this table is the definition.

use std::time::{Duration, Instant};

use super::report::{self, Verdict};
use super::runner::{Ended, Invocation, Show};
use super::{lab, optional};
use crate::Check;
use crate::workspace::Workspace;

/// One step.
pub struct Step {
    /// The name for `--only` and `--skip`.
    pub name: &'static str,
    /// What it is good for, in a line.
    pub why: &'static str,
    /// A step that is not required is skipped where its tools or its time are missing.
    pub required: bool,
    /// It may run beside others: it measures nothing, and most of it waits or has one thread.
    pub beside: bool,
    /// It is ended after this time.
    pub limit: Duration,
    /// What it does.
    pub action: Action,
}

/// What a step does.
pub enum Action {
    /// A check of this program.
    Check(Check),
    /// Commands, each of which must succeed.
    Commands(&'static [Cmd]),
    /// A command that must succeed and in which tests must have run.
    Tests(Cmd, Show),
    /// Every fuzz target for a short time.
    Fuzz,
    /// The interpreter on the crates that own memory or parse bytes.
    Miri,
    /// The acceptance tests in a guest.
    Lab,
    /// The dependencies' licences, sources, bans and advisories.
    Deny,
}

/// One command line with its environment.
#[derive(Clone, Copy)]
pub struct Cmd {
    /// Program and arguments, none with a space.
    pub line: &'static str,
    /// Variables set for it.
    pub env: &'static [(&'static str, &'static str)],
}

const fn cmd(line: &'static str) -> Cmd {
    Cmd { line, env: &[] }
}

const fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

const DENY_DOC_WARNINGS: &[(&str, &str)] = &[("RUSTDOCFLAGS", "-D warnings")];

/// The README's command that passes the tests.
#[cfg(test)]
const TEST_COMMAND: &str = "cargo test --workspace";

/// The same, as CI runs it: one failure must not hide another.
const CI_TEST_COMMAND: &str = "cargo test --workspace --no-fail-fast";

/// Everything CI runs, cheap steps first; of those that run beside others, the required ones first, then the longest. The
/// lab needs the optimised tool that the demo builds, and has to come after it.
pub const STEPS: &[Step] = &[
    Step {
        name: "fmt",
        why: "every file as rustfmt writes it",
        required: true,
        beside: false,
        limit: minutes(1),
        action: Action::Commands(&[
            cmd("cargo fmt --all --check -- -l"),
            cmd("cargo fmt --manifest-path fuzz/Cargo.toml --check -- -l"),
        ]),
    },
    check(
        Check::Layers,
        "dependency direction, and who may name a DmaPort",
    ),
    check(Check::Unsafe, "unsafe code on its islands only"),
    check(Check::Sizes, "files a reader can hold in mind"),
    check(
        Check::Walks,
        "the functions of ARCHITECTURE.md's walks exist",
    ),
    check(Check::Names, "nothing of one machine, nothing unfinished"),
    Step {
        name: "clippy",
        why: "every lint of every target, warnings denied",
        required: true,
        beside: false,
        limit: minutes(6),
        action: Action::Commands(&[cmd("cargo clippy --workspace --all-targets -- -D warnings")]),
    },
    Step {
        name: "doc",
        why: "documentation with private items, warnings denied",
        required: true,
        beside: false,
        limit: minutes(4),
        action: Action::Commands(&[
            Cmd {
                line: "cargo doc --workspace --features devmem-tcp/tokio --no-deps --document-private-items",
                env: DENY_DOC_WARNINGS,
            },
            Cmd {
                line: "cargo doc --package devmem-tcp-cli --bin devmem-tcp --no-deps --document-private-items",
                env: DENY_DOC_WARNINGS,
            },
        ]),
    },
    Step {
        name: "test",
        why: "the README's test command",
        required: true,
        beside: true,
        limit: minutes(15),
        action: Action::Tests(cmd(CI_TEST_COMMAND), Show::AsItComes),
    },
    Step {
        name: "demo",
        why: "the README's main command with less to transfer, and gigabytes from device memory to a kernel receiver",
        required: true,
        beside: true,
        limit: minutes(5),
        action: Action::Commands(&[
            cmd("cargo run --release --bin devmem-tcp -- demo --bytes 512M --json"),
            cmd("cargo run --release --bin devmem-tcp -- demo --direction tx --bytes 2G --json"),
            cmd(
                "cargo run --release --bin devmem-tcp -- demo --direction tx --bytes 1G --ipv6 --mtu 9000 --write-size 4097 --json",
            ),
        ]),
    },
    Step {
        name: "loom",
        why: "the return ring under every interleaving of its threads",
        required: true,
        beside: true,
        limit: minutes(7),
        action: Action::Tests(
            Cmd {
                line: "cargo test --package devmem-netmem --lib loom",
                env: &[
                    ("RUSTFLAGS", "--cfg loom"),
                    // The interleavings take seconds even so; an optimised build of what loom needs takes a minute.
                    ("CARGO_PROFILE_DEV_OPT_LEVEL", "0"),
                    ("CARGO_PROFILE_TEST_OPT_LEVEL", "0"),
                    ("CARGO_TARGET_DIR", "target/loom"),
                ],
            },
            Show::Failure,
        ),
    },
    Step {
        name: "lab",
        why: "a stock Linux guest runs device memory TCP on our NICs, with less to transfer",
        required: false,
        beside: true,
        limit: minutes(9),
        action: Action::Lab,
    },
    Step {
        name: "fuzz",
        why: "every fuzz target for a short time, with AddressSanitizer",
        required: false,
        beside: true,
        limit: minutes(9),
        action: Action::Fuzz,
    },
    Step {
        name: "miri",
        why: "undefined behaviour in the crates that own memory or parse bytes",
        required: false,
        beside: true,
        limit: minutes(5),
        action: Action::Miri,
    },
    Step {
        name: "deny",
        why: "licences, sources, duplicates and advisories of the dependencies",
        required: false,
        beside: true,
        limit: minutes(4),
        action: Action::Deny,
    },
];

/// Time a step that is not required must have left to be worth a start.
const WORTH_A_START: Duration = Duration::from_secs(60);

const fn check(check: Check, why: &'static str) -> Step {
    let name = match check {
        Check::Layers => "layers",
        Check::Unsafe => "unsafe",
        Check::Sizes => "sizes",
        Check::Walks => "walks",
        Check::Names => "names",
    };
    Step {
        name,
        why,
        required: true,
        beside: false,
        limit: minutes(1),
        action: Action::Check(check),
    }
}

/// Tells why a step is not worth a start, if so. A required step always starts: it then fails for time.
pub fn out_of_time(step: &Step, left: Duration) -> Option<String> {
    (!step.required && left < WORTH_A_START)
        .then(|| format!("only {} s left of the run", left.as_secs()))
}

/// Runs one step in the time left.
pub fn run(step: &Step, left: Duration) -> Verdict {
    let deadline = Instant::now() + step.limit.min(left);
    match &step.action {
        Action::Check(check) => source_check(*check),
        Action::Commands(commands) => all(commands
            .iter()
            .map(|command| command.at(step.name, deadline))),
        Action::Tests(command, show) => {
            let mut invocation = command.at(step.name, deadline);
            invocation.show = *show;
            tests(invocation)
        }
        Action::Lab => lab::lab(deadline).map_or_else(|verdict| verdict, Verdict::Passed),
        Action::Deny => optional::deny(deadline).map_or_else(|verdict| verdict, Verdict::Passed),
        Action::Miri => optional::miri(deadline).map_or_else(|verdict| verdict, Verdict::Passed),
        Action::Fuzz => optional::fuzz(deadline).map_or_else(|verdict| verdict, Verdict::Passed),
    }
}

impl Cmd {
    /// Prepares the command for a step.
    pub fn at(self, step: &str, deadline: Instant) -> Invocation {
        let mut invocation = Invocation::new(step, self.line, deadline);
        invocation.env = self.env;
        invocation
    }
}

fn source_check(check: Check) -> Verdict {
    let workspace = match Workspace::load() {
        Ok(workspace) => workspace,
        Err(error) => return Verdict::Failed(format!("{error:#}")),
    };
    let report = check.run(&workspace);
    print!("{}", report.text);
    let last = report.text.lines().last().unwrap_or_default().to_owned();
    if report.passed {
        Verdict::Passed(last)
    } else {
        Verdict::Failed(last)
    }
}

/// Runs commands one after another until one fails.
fn all(invocations: impl Iterator<Item = Invocation>) -> Verdict {
    for invocation in invocations {
        if let Ended::Failed(how) | Ended::TimedOut(how) = invocation.run() {
            return Verdict::Failed(how);
        }
    }
    Verdict::Passed(String::new())
}

fn tests(invocation: Invocation) -> Verdict {
    match invocation.run() {
        Ended::Succeeded(output) => report::test_note(&output).map_or_else(
            || Verdict::Failed("no test ran".to_owned()),
            Verdict::Passed,
        ),
        Ended::Failed(how) | Ended::TimedOut(how) => Verdict::Failed(how),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(required: bool) -> Step {
        Step {
            name: "x",
            why: "y",
            required,
            beside: false,
            limit: minutes(1),
            action: Action::Deny,
        }
    }

    #[test]
    fn a_step_has_one_name_of_its_own() {
        for (at, step) in STEPS.iter().enumerate() {
            assert!(
                STEPS[..at].iter().all(|earlier| earlier.name != step.name),
                "{} is there twice",
                step.name
            );
        }
    }

    #[test]
    fn every_check_of_sources_is_a_step_under_its_name() {
        for check in Check::ALL {
            assert!(
                STEPS.iter().any(|step| step.name == check.name()),
                "{check:?}"
            );
        }
    }

    #[test]
    fn only_a_step_that_is_not_required_is_skipped_for_time() {
        assert!(out_of_time(&step(false), Duration::from_secs(59)).is_some());
        assert_eq!(out_of_time(&step(false), Duration::from_secs(60)), None);
        assert_eq!(out_of_time(&step(true), Duration::ZERO), None);
    }

    fn at_once(line: &str) -> Invocation {
        Invocation::new("selftest-steps", line, Instant::now() + minutes(1))
    }

    #[test]
    fn a_failing_command_fails_its_step_and_ends_it() {
        let lines = ["true", "ls /devmem-tcp-no-such-folder", "false"];
        let verdict = all(lines.into_iter().map(at_once));
        let Verdict::Failed(how) = verdict else {
            panic!("{verdict}")
        };
        assert!(how.contains("status 2"), "{how}");
        assert_eq!(
            all(["true"].into_iter().map(at_once)),
            Verdict::Passed(String::new())
        );
    }

    #[test]
    fn tests_in_which_nothing_ran_fail() {
        assert_eq!(
            tests(at_once("true")),
            Verdict::Failed("no test ran".to_owned())
        );
        let one = "echo test result: ok. 1 passed; 0 failed; 0 ignored;";
        assert!(matches!(tests(at_once(one)), Verdict::Passed(_)));
        assert!(matches!(tests(at_once("false")), Verdict::Failed(_)));
    }

    #[test]
    fn the_readme_tells_the_commands_that_ci_runs_and_the_oldest_compiler() {
        let workspace = Workspace::load().unwrap();
        let readme = &workspace.texts["README.md"];
        assert!(
            readme.contains(&format!("\n{}\n", TEST_COMMAND)),
            "the test command"
        );
        assert!(CI_TEST_COMMAND.starts_with(TEST_COMMAND), "CI runs it");
        assert!(
            readme.contains("\ncargo run --release --bin devmem-tcp -- demo\n"),
            "the main command"
        );
        let manifest = &workspace.texts["Cargo.toml"];
        let version = manifest
            .lines()
            .find_map(|line| line.strip_prefix("rust-version = "));
        let version = version
            .expect("the workspace names its oldest compiler")
            .trim_matches('"');
        assert!(
            readme.contains(&format!("Rust {version} or later")),
            "the compiler"
        );
    }
}
