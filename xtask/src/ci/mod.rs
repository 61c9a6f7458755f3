//! `cargo xtask ci`: everything CI runs, in order, the last steps side by side, with a table of times at the end.
//!
//! A step passes, fails, or is skipped with a reason; a skipped step is listed and counted, and `--require-all`
//! makes it a failure. The whole run keeps inside [`BUDGET`]: a step that is not required is skipped when too
//! little time is left for it.

#[cfg(test)]
mod fuzz_list;
mod lab;
mod optional;
mod parallel;
mod report;
mod runner;
mod steps;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::Outcome;
use parallel::side_by_side;
use report::{Line, Verdict};
use steps::Step;

/// Time for the whole run. CI ends a run at 20 minutes; what comes after this still has to be printed.
const BUDGET: Duration = Duration::from_secs(18 * 60);

/// What the command line asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    list: bool,
    require_all: bool,
    only: Vec<String>,
    skip: Vec<String>,
}

impl Options {
    /// Reads the arguments after `ci`; `None` is a usage error.
    fn parse(arguments: &[String]) -> Option<Self> {
        let mut options = Self::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--list" => options.list = true,
                "--require-all" => options.require_all = true,
                "--only" => options.only.extend(names(arguments.next()?)?),
                "--skip" => options.skip.extend(names(arguments.next()?)?),
                _ => return None,
            }
        }
        Some(options)
    }

    fn wants(&self, step: &Step) -> bool {
        let named = |names: &[String]| names.iter().any(|name| name == step.name);
        (self.only.is_empty() || named(&self.only)) && !named(&self.skip)
    }
}

/// Splits a list of step names; an unknown one is a usage error, else a misspelt step would pass unseen.
fn names(list: &str) -> Option<Vec<String>> {
    let names: Vec<String> = list.split(',').map(str::to_owned).collect();
    names
        .iter()
        .all(|name| steps::STEPS.iter().any(|step| step.name == name))
        .then_some(names)
}

/// Runs the steps.
pub fn run(arguments: &[String]) -> Result<Outcome> {
    let Some(options) = Options::parse(arguments) else {
        return Ok(Outcome::Usage);
    };
    let wanted: Vec<&Step> = steps::STEPS
        .iter()
        .filter(|step| options.wants(step))
        .collect();
    if options.list {
        print!("{}", report::list(&wanted));
        return Ok(Outcome::Passed);
    }
    let started = Instant::now();
    let (beside, alone): (Vec<&Step>, Vec<&Step>) = wanted.iter().partition(|step| step.beside);
    let mut lines: Vec<Line> = alone.iter().map(|step| run_step(step, started)).collect();
    let rest = side_by_side(&beside, |step| run_step(step, started));
    lines.extend(rest.context("a thread that ran steps panicked")?);
    print!("{}", report::summary(&lines, started.elapsed()));
    Ok(if passed(&lines, options.require_all) {
        Outcome::Passed
    } else {
        Outcome::Failed
    })
}

fn run_step(step: &Step, started: Instant) -> Line {
    println!("=== {}: {}", step.name, step.why);
    let begun = Instant::now();
    let left = BUDGET.saturating_sub(started.elapsed());
    let verdict = match steps::out_of_time(step, left) {
        Some(reason) => Verdict::Skipped(reason),
        None => steps::run(step, left),
    };
    println!("=== {}: {verdict}\n", step.name);
    Line {
        name: step.name,
        verdict,
        took: begun.elapsed(),
    }
}

/// A run without a passed step has checked nothing.
fn passed(lines: &[Line], require_all: bool) -> bool {
    let fails = |verdict: &Verdict| match verdict {
        Verdict::Failed(_) => true,
        Verdict::Skipped(_) => require_all,
        Verdict::Passed(_) => false,
    };
    lines
        .iter()
        .any(|line| matches!(line.verdict, Verdict::Passed(_)))
        && !lines.iter().any(|line| fails(&line.verdict))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Option<Options> {
        Options::parse(
            &arguments
                .iter()
                .map(|&argument| argument.to_owned())
                .collect::<Vec<_>>(),
        )
    }

    fn line(verdict: Verdict) -> Line {
        Line {
            name: "test",
            verdict,
            took: Duration::ZERO,
        }
    }

    #[test]
    fn steps_are_chosen_by_name() {
        let options = parse(&["--only", "fmt,test", "--skip", "test"]).unwrap();
        let chosen: Vec<&str> = steps::STEPS
            .iter()
            .filter(|step| options.wants(step))
            .map(|step| step.name)
            .collect();
        assert_eq!(chosen, ["fmt"]);
    }

    #[test]
    fn a_misspelt_step_or_argument_is_a_usage_error() {
        assert_eq!(parse(&["--only", "tset"]), None);
        assert_eq!(parse(&["--only"]), None);
        assert_eq!(parse(&["--fast"]), None);
    }

    #[test]
    fn one_failed_step_fails_the_run() {
        let lines = [
            line(Verdict::Passed(String::new())),
            line(Verdict::Failed(String::new())),
        ];
        assert!(!passed(&lines, false));
        assert!(passed(&lines[..1], true));
    }

    #[test]
    fn a_skipped_step_fails_the_run_only_on_demand() {
        let lines = [
            line(Verdict::Passed(String::new())),
            line(Verdict::Skipped(String::new())),
        ];
        assert!(passed(&lines, false));
        assert!(!passed(&lines, true));
    }

    #[test]
    fn a_run_of_nothing_has_not_passed() {
        assert!(!passed(&[], false));
        assert!(!passed(&[line(Verdict::Skipped(String::new()))], false));
    }
}
