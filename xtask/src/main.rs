//! `cargo xtask`: the checks that cargo itself does not make, and the run that CI makes of all of them.
//!
//! Key types: [`workspace::Workspace`] (what is checked: packages and source files), [`source::Source`]
//! (a Rust file as tokens, so that comments and strings never count as code) and [`finding::Finding`]
//! (one broken rule in one place). Each check is a function from the first two to a list of the third,
//! with its table of rules at the top of its file.
//!
//! It judges sources; it does not build, and it changes no file.

#![forbid(unsafe_code)]

mod ci;
mod finding;
mod islands;
mod layers;
mod names;
mod sizes;
mod source;
mod walks;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;

use finding::Finding;
use workspace::Workspace;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  layers   dependency direction, and the names that only some crates may say
  unsafe   the word `unsafe` only in its islands
  sizes    lines per file, and (advice) per function
  walks    the functions that ARCHITECTURE.md walks through exist
  names    nothing of the writer's machine and no unfinished-work marks in committed files
  ci       everything CI runs, step by step, with a table at the end
           [--list] [--only STEP,STEP] [--skip STEP,STEP] [--require-all]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(Outcome::Passed) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::FAILURE,
        Ok(Outcome::Usage) => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// How a command ended.
enum Outcome {
    Passed,
    Failed,
    Usage,
}

fn run(arguments: &[String]) -> Result<Outcome> {
    let Some((command, rest)) = arguments.split_first() else {
        return Ok(Outcome::Usage);
    };
    if command == "ci" {
        return ci::run(rest);
    }
    let Some(check) = Check::from_name(command).filter(|_| rest.is_empty()) else {
        return Ok(Outcome::Usage);
    };
    let workspace = Workspace::load()?;
    let report = check.run(&workspace);
    print!("{}", report.text);
    Ok(if report.passed {
        Outcome::Passed
    } else {
        Outcome::Failed
    })
}

/// One of the checks of sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    Layers,
    Unsafe,
    Sizes,
    Walks,
    Names,
}

/// What a check has to say.
struct Report {
    passed: bool,
    text: String,
}

impl Check {
    const ALL: [Self; 5] = [
        Self::Layers,
        Self::Unsafe,
        Self::Sizes,
        Self::Walks,
        Self::Names,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Layers => "layers",
            Self::Unsafe => "unsafe",
            Self::Sizes => "sizes",
            Self::Walks => "walks",
            Self::Names => "names",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|check| check.name() == name)
    }

    fn run(self, workspace: &Workspace) -> Report {
        let (findings, advice) = match self {
            Self::Layers => (layers::check(workspace), Vec::new()),
            Self::Unsafe => (islands::check(workspace), Vec::new()),
            Self::Sizes => sizes::check(workspace),
            Self::Walks => (walks::check(workspace), Vec::new()),
            Self::Names => (names::check(workspace), Vec::new()),
        };
        self.report(workspace, &findings, &advice)
    }

    fn report(self, workspace: &Workspace, findings: &[Finding], advice: &[Finding]) -> Report {
        let mut text = String::new();
        for note in advice {
            text += &format!("{}: advice: {note}\n", self.name());
        }
        for finding in findings {
            text += &format!("{}: {finding}\n", self.name());
        }
        let verdict = if findings.is_empty() { "ok" } else { "FAILED" };
        text += &format!(
            "{}: {verdict}: {} packages, {} Rust files, {} findings\n",
            self.name(),
            workspace.packages.len(),
            workspace.sources.len(),
            findings.len()
        );
        Report {
            passed: findings.is_empty(),
            text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_is_reached_by_its_name() {
        for check in Check::ALL {
            assert_eq!(Check::from_name(check.name()), Some(check));
            assert!(
                USAGE.contains(&format!("\n  {} ", check.name())),
                "{} is not in the usage",
                check.name()
            );
        }
        assert_eq!(Check::from_name("nothing"), None);
    }

    #[test]
    fn a_report_with_a_finding_has_not_passed() {
        let workspace = Workspace::default();
        assert!(Check::Sizes.report(&workspace, &[], &[]).passed);
        let finding = Finding::new("crates/wire/src/lib.rs", 3, "too long");
        let report = Check::Sizes.report(&workspace, &[finding], &[]);
        assert!(!report.passed);
        assert!(
            report
                .text
                .contains("sizes: crates/wire/src/lib.rs:3: too long\n")
        );
        assert!(report.text.contains("sizes: FAILED: "));
    }

    #[test]
    fn advice_alone_passes() {
        let advice = Finding::new("crates/wire/src/lib.rs", 3, "long function");
        assert!(
            Check::Sizes
                .report(&Workspace::default(), &[], &[advice])
                .passed
        );
    }

    #[test]
    fn an_unknown_command_is_a_usage_error() {
        assert!(matches!(run(&["nothing".to_owned()]), Ok(Outcome::Usage)));
        assert!(matches!(run(&[]), Ok(Outcome::Usage)));
        assert!(matches!(
            run(&["layers".to_owned(), "extra".to_owned()]),
            Ok(Outcome::Usage)
        ));
    }
}
