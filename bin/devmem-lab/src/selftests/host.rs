//! Runs the programs in guests, and prints a table of their test cases.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context as _;
use lab::kit::Kit;
use lab::machine;
use lab::machine_plan::MachinePlan;
use lab::pass_on::{Output, PassOn};
use lab::plan;
use serde::Serialize;
use tool::output::{Failure, note, print_json};
use tool::terminal::tell_table;

use super::ktap::{self, Case};
use super::report::ProgramEnd;
use super::tree::{TREE, Tree};
use crate::places::{MIN_MEMORY_MIB, PROGRAM_PATH, ROOT};
use crate::verdict::Verdict;

/// Exit codes of timeout(1) for a program that exceeded its limit: it ended on SIGTERM, or was killed.
const TIMEOUT_CODES: [i32; 2] = [124, 137];

/// Exit code of a program that skips (linux tools/testing/selftests/kselftest.h `KSFT_SKIP`).
const SKIP_CODE: i32 = 4;

/// Configuration of a run.
#[derive(Clone, Debug)]
pub struct SelftestPlan {
    /// The machine.
    pub machine: MachinePlan,
    /// The root file system of the programs.
    pub root: PathBuf,
    /// Maximum seconds for a program.
    pub limit: u64,
    /// Command of bash to run before each program.
    pub before: Option<String>,
    /// File for the output of all programs.
    pub transcript: Option<PathBuf>,
    /// Print one JSON object to stdout at the end.
    pub json: bool,
}

/// Results of a program.
#[derive(Debug, Serialize)]
struct ProgramReport {
    program: String,
    seconds: f64,
    cases: Vec<CaseReport>,
}

#[derive(Debug, Serialize)]
struct CaseReport {
    case: String,
    verdict: Verdict,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
}

/// Results of all programs.
#[derive(Debug, Serialize)]
struct SelftestReport {
    passed: usize,
    failed: usize,
    skipped: usize,
    kernel: String,
    /// How often a guest was started again because it gave no sign of life while booting.
    boot_retries: u32,
    kernel_complaints: Vec<String>,
    programs: Vec<ProgramReport>,
}

/// Runs the programs of a tree. If a guest ends during a program, the remaining programs run in a new guest.
///
/// # Errors
///
/// A guest does not start; a test case failed; the guest's kernel logged a warning.
pub fn run(kit: &Kit, tree: &Tree, plan: &SelftestPlan) -> Result<(), Failure> {
    let mut machine = plan.machine.clone();
    machine.memory_mib = machine.memory_mib.max(MIN_MEMORY_MIB);
    machine.trees = tree.parts(&format!("{ROOT}{TREE}"));
    machine.trees.push((plan.root.clone(), ROOT.to_owned()));
    let mut collector =
        ProgramCollector::new(&tree.programs, plan.transcript.as_ref(), print_case)?;
    let mut kernel_complaints = Vec::new();
    let mut boot_retries = 0;
    while !collector.left.is_empty() {
        let before = collector.left.len();
        note(format_args!("{before} programs: starting a guest"));
        let limit = plan.limit.to_string();
        let mut words = vec![PROGRAM_PATH, "__programs", "--limit", &limit];
        words.extend(plan.before.iter().flat_map(|command| ["--before", command]));
        words.push("--");
        let words = words.into_iter().map(str::to_owned);
        let command = words.chain(collector.left.iter().cloned());
        let outcome = machine::run(
            kit,
            &machine,
            &plan::job(&machine, command.collect()),
            &mut collector,
        );
        match outcome {
            Ok(outcome) => {
                kernel_complaints.extend(outcome.kernel_complaints);
                boot_retries += outcome.boot_retries;
            }
            // No program has run, so the failure is not one of the first program.
            Err(failure) if collector.programs.is_empty() => return Err(failure),
            Err(failure) => collector.lose_one(&failure.to_string()),
        }
        if collector.left.len() == before {
            return Err(Failure::failed("the guest ran none of the programs"));
        }
    }
    let ended = Ended {
        programs: collector.programs,
        kernel_complaints,
        boot_retries,
    };
    report(kit, plan, ended)
}

/// What all guests of a run have reported.
struct Ended {
    programs: Vec<ProgramReport>,
    kernel_complaints: Vec<String>,
    boot_retries: u32,
}

fn report(kit: &Kit, plan: &SelftestPlan, ended: Ended) -> Result<(), Failure> {
    let Ended {
        programs,
        kernel_complaints,
        boot_retries,
    } = ended;
    let count = |verdict| {
        let cases = programs.iter().flat_map(|program| &program.cases);
        cases.filter(|case| case.verdict == verdict).count()
    };
    let report = SelftestReport {
        passed: count(Verdict::Passed),
        failed: count(Verdict::Failed),
        skipped: count(Verdict::Skipped),
        kernel: kit.kernel.release.clone(),
        boot_retries,
        kernel_complaints,
        programs,
    };
    for line in &report.kernel_complaints {
        note(format_args!("the guest's kernel logged: {line}"));
    }
    note(format_args!(
        "{} passed, {} failed, {} skipped, with Linux {}",
        report.passed, report.failed, report.skipped, report.kernel
    ));
    if plan.json {
        print_json(&report)?;
    }
    match (report.failed, report.kernel_complaints.len()) {
        (0, 0) => Ok(()),
        (0, count) => Err(Failure::failed(format!(
            "the guest's kernel logged {count} warnings"
        ))),
        (failed, _) => Err(Failure::failed(format!("{failed} test cases failed"))
            .with_remedy("keep the output of the programs with --transcript FILE")),
    }
}

/// Collects the results of the programs.
#[derive(Debug)]
struct ProgramCollector {
    line: Vec<u8>,
    /// Programs that have not ended, in run order.
    left: Vec<String>,
    programs: Vec<ProgramReport>,
    transcript: Option<File>,
    /// Start of the current program.
    since: Instant,
    /// Shows a case of a program at once; tests show nothing.
    show: fn(&str, &CaseReport),
    passed_on: PassOn,
}

impl ProgramCollector {
    fn new(
        programs: &[String],
        transcript: Option<&PathBuf>,
        show: fn(&str, &CaseReport),
    ) -> Result<Self, Failure> {
        let create = |path: &PathBuf| {
            File::create(path).with_context(|| format!("--transcript: create {}", path.display()))
        };
        Ok(Self {
            line: Vec::new(),
            left: programs.to_vec(),
            programs: Vec::new(),
            transcript: transcript.map(create).transpose()?,
            since: Instant::now(),
            show,
            passed_on: PassOn::default(),
        })
    }

    /// Adds the result of the first program in `left`.
    fn take(&mut self, ended: &ProgramEnd) -> io::Result<()> {
        if self.left.first() != Some(&ended.program) {
            return Err(io::Error::other(
                "the guest reported another program than the next",
            ));
        }
        if let Some(transcript) = &mut self.transcript {
            let ProgramEnd {
                program,
                code,
                output,
                ..
            } = ended;
            writeln!(transcript, "=== {program}: exit code {code}\n{output}")?;
        }
        self.end(cases_of(ended), ended.seconds);
        Ok(())
    }

    /// Records that the guest ended during the first program in `left`.
    fn lose_one(&mut self, why: &str) {
        let lost = case("the guest keeps running", Verdict::Failed, why);
        let seconds = self.since.elapsed().as_secs_f64();
        self.end(vec![lost], seconds);
    }

    fn end(&mut self, cases: Vec<Case>, seconds: f64) {
        if self.left.is_empty() {
            return;
        }
        let program = self.left.remove(0);
        self.since = Instant::now();
        let cases: Vec<_> = cases.into_iter().map(reported).collect();
        cases.iter().for_each(|case| (self.show)(&program, case));
        self.programs.push(ProgramReport {
            program,
            seconds,
            cases,
        });
    }
}

/// Returns the test cases of a program that has ended. A case is added for a program that ended before all cases were done.
fn cases_of(ended: &ProgramEnd) -> Vec<Case> {
    let mut cases = ktap::cases(&ended.output);
    // A program that skips all cases prints one case and exits with 4.
    let failed = cases.iter().any(|case| case.verdict == Verdict::Failed);
    if TIMEOUT_CODES.contains(&ended.code) {
        cases.push(case(
            "the program ends in time",
            Verdict::Failed,
            "the program exceeded --limit",
        ));
    } else if let Some(reason) = skipped_whole(ended).filter(|_| cases.is_empty()) {
        cases.push(case("the program runs", Verdict::Skipped, reason));
    } else if cases.is_empty() || (ended.code != 0 && ended.code != SKIP_CODE && !failed) {
        let last = last_line(&ended.output);
        let reason = format!("exit code {}: {}", ended.code, last.unwrap_or("no output"));
        cases.push(case("the program runs", Verdict::Failed, &reason));
    }
    if let Some(complaint) = &ended.complaint {
        cases.push(case("no kernel warning", Verdict::Failed, complaint));
    }
    cases
}

/// Returns the reason of a program that skips all its cases before it has begun: a script has the exit code for that; a program in Python
/// ends with the exception for that, or with the one for a netlink family that the kernel does not have.
fn skipped_whole(ended: &ProgramEnd) -> Option<&str> {
    let last = last_line(&ended.output)?;
    if ended.code == SKIP_CODE {
        return Some(last.trim_start_matches("SKIP: "));
    }
    let (exception, reason) = last.split_once(": ")?;
    let is_skip = ["KsftSkipEx", "KsftXfailEx"]
        .iter()
        .any(|name| exception.ends_with(name));
    let lacks_family =
        exception.ends_with("YnlException") && reason.ends_with("not supported by the kernel");
    (is_skip || lacks_family).then_some(reason)
}

fn last_line(output: &str) -> Option<&str> {
    output.lines().rfind(|line| !line.trim().is_empty())
}

fn case(name: &str, verdict: Verdict, reason: &str) -> Case {
    Case {
        name: name.to_owned(),
        verdict,
        reason: reason.to_owned(),
    }
}

/// Returns the report of a case, without control characters.
fn reported(case: Case) -> CaseReport {
    /// Maximum characters of a name and of a reason.
    const CHARS_MAX: usize = 400;
    let plain = |text: &str| -> String {
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        text.chars().take(CHARS_MAX).map(plain).collect()
    };
    CaseReport {
        case: plain(&case.name),
        verdict: case.verdict,
        reason: plain(&case.reason),
    }
}

/// Prints a row of the table.
fn print_case(program: &str, case: &CaseReport) {
    let mark = case.verdict.mark();
    let CaseReport { case, reason, .. } = case;
    tell_table(format_args!("{mark} {program:<34} {case:<40} {reason}\n"));
}

impl Output for ProgramCollector {
    fn stdout(&mut self, bytes: &[u8]) -> io::Result<()> {
        /// More than the length of any program's result.
        const MAX_LINE_BYTES: usize = 4 << 20;
        for byte in bytes {
            match byte {
                b'\n' => {
                    let line = std::mem::take(&mut self.line);
                    let ended = serde_json::from_slice(&line).map_err(|error| {
                        io::Error::other(format!(
                            "the guest printed something that is not a result: {error}"
                        ))
                    })?;
                    self.take(&ended)?;
                }
                _ if self.line.len() < MAX_LINE_BYTES => self.line.push(*byte),
                _ => return Err(io::Error::other("the result of a program is too long")),
            }
        }
        Ok(())
    }

    fn stderr(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.passed_on.stderr(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(program: &str, code: i32, output: &str) -> ProgramEnd {
        ProgramEnd {
            program: program.to_owned(),
            code,
            seconds: 1.0,
            output: output.to_owned(),
            complaint: None,
        }
    }

    fn line(ended: &ProgramEnd) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(ended).unwrap();
        bytes.push(b'\n');
        bytes
    }

    #[test]
    fn results_are_in_run_order_and_a_guest_that_ends_fails_one_program() {
        let names = ["a.py", "b.py", "c.py"].map(str::to_owned);
        let mut collector = ProgramCollector::new(&names, None, |_, _| {}).unwrap();
        collector
            .stdout(&line(&ended("a.py", 0, "ok 1 a.x\n")))
            .unwrap();
        collector.lose_one("BUG: kernel NULL pointer dereference");
        assert!(collector.stdout(&line(&ended("b.py", 0, ""))).is_err());
        collector
            .stdout(&line(&ended("c.py", 1, "not ok 1 c.x\n")))
            .unwrap();
        assert!(collector.left.is_empty());
        let verdicts: Vec<_> = collector
            .programs
            .iter()
            .map(|program| program.cases[0].verdict)
            .collect();
        assert_eq!(
            verdicts,
            [Verdict::Passed, Verdict::Failed, Verdict::Failed]
        );
        assert!(collector.stdout(&line(&ended("c.py", 0, ""))).is_err());
    }

    #[test]
    fn a_program_that_ends_early_has_failed() {
        let reason = |code, output| cases_of(&ended("a.py", code, output)).pop().unwrap().reason;
        assert_eq!(
            reason(1, "ImportError: yaml\n\n"),
            "exit code 1: ImportError: yaml"
        );
        assert_eq!(reason(-1, "ok 1 a.x\n"), "exit code -1: ok 1 a.x");
        assert_eq!(reason(124, "ok 1 a.x\n"), "the program exceeded --limit");
        assert_eq!(cases_of(&ended("a.py", 1, "not ok 1 a.x\n")).len(), 1);
        assert_eq!(cases_of(&ended("a.py", 4, "ok 1 a # SKIP no\n")).len(), 1);
    }

    #[test]
    fn a_program_that_skips_before_its_first_case_is_skipped_and_not_failed() {
        let output = "Traceback (most recent call last):\n  File \"x.py\"\nnet.lib.py.ksft.KsftSkipEx: BPF prog not found\n";
        let skipped = cases_of(&ended("a.py", 1, output));
        assert_eq!(skipped.len(), 1);
        assert_eq!(skipped[0].verdict, Verdict::Skipped);
        assert_eq!(skipped[0].reason, "BPF prog not found");
        let output =
            "Traceback:\npyynl.lib.ynl.YnlException: Family 'psp' not supported by the kernel\n";
        let skipped = cases_of(&ended("a.py", 1, output));
        assert_eq!(skipped[0].verdict, Verdict::Skipped);
        assert_eq!(
            skipped[0].reason,
            "Family 'psp' not supported by the kernel"
        );
        let skipped = cases_of(&ended("a.sh", 4, "SKIP: jq not installed\n"));
        assert_eq!(skipped[0].verdict, Verdict::Skipped);
        assert_eq!(skipped[0].reason, "jq not installed");
        // One that skips after a failed case has failed.
        let failed = cases_of(&ended("a.py", 1, &format!("not ok 1 a.x\n{output}")));
        assert_eq!(failed[0].verdict, Verdict::Failed);
    }

    #[test]
    fn a_program_during_which_the_kernel_logs_an_error_has_failed() {
        let mut ended = ended("a.py", 0, "ok 1 a.x\n");
        ended.complaint = Some("BUG: kernel NULL pointer dereference".to_owned());
        let cases = cases_of(&ended);
        assert_eq!(cases[0].verdict, Verdict::Passed);
        assert_eq!(cases[1].verdict, Verdict::Failed);
        assert!(cases[1].reason.starts_with("BUG:"));
    }
}
