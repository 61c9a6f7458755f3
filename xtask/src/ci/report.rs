//! What the run says at its end.

use std::fmt;
use std::time::Duration;

use super::steps::Step;

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It ran and found nothing wrong; with a note.
    Passed(String),
    /// It found something wrong, or could not run although it is required.
    Failed(String),
    /// It could not run here; with the reason.
    Skipped(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, note) = match self {
            Self::Passed(note) => ("ok", note),
            Self::Failed(note) => ("FAILED", note),
            Self::Skipped(note) => ("SKIP", note),
        };
        match note.is_empty() {
            true => f.write_str(word),
            false => write!(f, "{word}  {note}"),
        }
    }
}

/// One line of the table.
pub struct Line {
    /// The step.
    pub name: &'static str,
    /// How it ended.
    pub verdict: Verdict,
    /// How long it took.
    pub took: Duration,
}

/// Lists steps without running them.
pub fn list(steps: &[&Step]) -> String {
    let line = |step: &&Step| {
        let need = if step.required {
            "required"
        } else {
            "if it can"
        };
        format!("{:<8} {need:<10} {}\n", step.name, step.why)
    };
    steps.iter().map(line).collect()
}

/// Returns the table and the closing line.
pub fn summary(lines: &[Line], took: Duration) -> String {
    let mut text = String::from("=== summary\n");
    for line in lines {
        text += &format!(
            "{:<8} {:>6.1} s  {}\n",
            line.name,
            line.took.as_secs_f64(),
            line.verdict
        );
    }
    let count =
        |matches: fn(&Verdict) -> bool| lines.iter().filter(|line| matches(&line.verdict)).count();
    text += &format!(
        "ci: {} passed, {} failed, {} skipped in {:.0} s\n",
        count(|verdict| matches!(verdict, Verdict::Passed(_))),
        count(|verdict| matches!(verdict, Verdict::Failed(_))),
        count(|verdict| matches!(verdict, Verdict::Skipped(_))),
        took.as_secs_f64()
    );
    text
}

/// Adds up libtest's closing lines, and the lines in which a test says that it could not run here.
///
/// Returns `None` where no test ran.
pub fn test_note(output: &str) -> Option<String> {
    let (mut passed, mut ignored, mut binaries) = (0_u64, 0_u64, 0_u64);
    for line in output.lines() {
        if let Some(result) = line.strip_prefix("test result: ok. ") {
            passed += number_before(result, "passed");
            ignored += number_before(result, "ignored");
            binaries += 1;
        }
    }
    let skips = output
        .lines()
        .filter(|line| line.trim_start().starts_with("SKIP "))
        .count();
    (passed > 0).then(|| {
        format!("test result: {passed} passed; 0 failed; {ignored} ignored; {skips} SKIP lines; {binaries} binaries")
    })
}

fn number_before(result: &str, word: &str) -> u64 {
    let part = result
        .split(';')
        .find_map(|part| part.trim().strip_suffix(word));
    part.and_then(|number| number.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_of_all_binaries_are_added_up() {
        let output = "\
            running 2 tests\n\
            test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            SKIP no TUN device here\n\
            test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out; finished in 0.00s\n";
        let note = test_note(output).unwrap();
        assert_eq!(
            note,
            "test result: 42 passed; 0 failed; 1 ignored; 1 SKIP lines; 2 binaries"
        );
    }

    #[test]
    fn output_without_a_test_that_ran_gives_no_note() {
        assert_eq!(
            test_note("running 0 tests\ntest result: ok. 0 passed; 0 failed; 0 ignored\n"),
            None
        );
        assert_eq!(test_note(""), None);
    }

    #[test]
    fn the_summary_counts_each_verdict() {
        let line = |name, verdict| Line {
            name,
            verdict,
            took: Duration::from_millis(1500),
        };
        let lines = [
            line("fmt", Verdict::Passed(String::new())),
            line("test", Verdict::Failed("status 101".to_owned())),
            line("miri", Verdict::Skipped("no nightly".to_owned())),
        ];
        let text = summary(&lines, Duration::from_secs(5));
        assert!(text.contains("fmt         1.5 s  ok\n"), "{text}");
        assert!(
            text.contains("test        1.5 s  FAILED  status 101\n"),
            "{text}"
        );
        assert!(
            text.contains("miri        1.5 s  SKIP  no nightly\n"),
            "{text}"
        );
        assert!(
            text.ends_with("ci: 1 passed, 1 failed, 1 skipped in 5 s\n"),
            "{text}"
        );
    }
}
