//! Reads the output of a test program (linux Documentation/dev-tools/ktap.rst).

use crate::verdict::Verdict;

/// Result of one test case of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// Its result. A case that fails as expected (XFAIL) counts as skipped.
    pub verdict: Verdict,
    /// The reason, unless the case passed.
    pub reason: String,
}

/// Returns the test cases in the output of a program. The reason of a failed case is the last exception or failed check
/// before its result.
pub fn cases(output: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut reason = String::new();
    for line in output.lines() {
        if let Some(said) = line.strip_prefix("# ") {
            note_reason(&mut reason, said);
        } else if let Some(mut case) = result(line) {
            let said = std::mem::take(&mut reason);
            if case.verdict == Verdict::Failed && case.reason.is_empty() {
                case.reason = said;
            }
            cases.push(case);
        }
    }
    cases
}

/// Returns the last `bytes` bytes of an output, from a line on, and of what stands ahead of them the results alone.
pub fn shortened(output: &str, bytes: usize) -> String {
    let Some(cut) = output.len().checked_sub(bytes) else {
        return output.to_owned();
    };
    let mut kept = String::new();
    let mut at = 0;
    for line in output.split_inclusive('\n') {
        if at >= cut || result(line.trim_end()).is_some() {
            kept.push_str(line);
        }
        at += line.len();
    }
    kept
}

/// Keeps a line with the reason of a failure: `Exception| NAME: text`, or a line with `Check failed`.
fn note_reason(reason: &mut String, said: &str) {
    let words = said.trim();
    let exception = words.strip_prefix("Exception|").map(str::trim);
    // Of a traceback, only the last line is useful without the source.
    let is_place = |text: &str| {
        text.starts_with("File ") || text.starts_with("Traceback") || text.starts_with('~')
    };
    match exception {
        Some("") => {}
        Some(text) if is_place(text) => {}
        Some(text) => text.clone_into(reason),
        None if words.contains("Check failed") => words.clone_into(reason),
        None => {}
    }
}

/// Parses a line `ok N NAME` or `not ok N NAME`, with `# SKIP reason` or `# XFAIL reason` at its end.
fn result(line: &str) -> Option<Case> {
    let (passed, rest) = match line.strip_prefix("not ok ") {
        Some(rest) => (false, rest),
        None => (true, line.strip_prefix("ok ")?),
    };
    let (number, rest) = rest.split_once(' ')?;
    number.parse::<u32>().ok()?;
    let (name, directive) = match rest.split_once('#') {
        Some((name, directive)) => (name, directive.trim()),
        None => (rest, ""),
    };
    let (kind, reason) = directive.split_once(' ').unwrap_or((directive, ""));
    let verdict = match (kind, passed) {
        ("SKIP" | "XFAIL", _) => Verdict::Skipped,
        (_, true) => Verdict::Passed,
        (_, false) => Verdict::Failed,
    };
    Some(Case {
        name: name.trim().trim_start_matches("- ").to_owned(),
        verdict,
        reason: reason.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_its_result_and_its_reason() {
        let output = "KTAP version 1\n1..4\nok 1 ping.v4\nok 2 ping.tcp # SKIP Test requires command: socat\n\
            # Exception| Traceback (most recent call last):\n# Exception|   File \"x.py\", line 3, in y\n\
            # Exception| NlError: Operation not supported\nnot ok 3 ping.hw\n\
            # # Check failed 1 != 2 wrong queue\nnot ok 4 ping.q # XFAIL known\n# Totals: pass:1 fail:1\n";
        let cases = cases(output);
        let found: Vec<_> = cases
            .iter()
            .map(|case| (&*case.name, case.verdict, &*case.reason))
            .collect();
        let expected = [
            ("ping.v4", Verdict::Passed, ""),
            ("ping.tcp", Verdict::Skipped, "Test requires command: socat"),
            (
                "ping.hw",
                Verdict::Failed,
                "NlError: Operation not supported",
            ),
            ("ping.q", Verdict::Skipped, "known"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_reason_belongs_to_the_next_result_only() {
        let output = "# Check failed 1 != 2\nok 1 a\nnot ok 2 b\n";
        let cases = cases(output);
        assert_eq!(cases[1].verdict, Verdict::Failed);
        assert_eq!(cases[1].reason, "");
    }

    #[test]
    fn a_shortened_output_has_all_results_and_its_end() {
        let output = "1..3\nok 1 a\n# Check failed 1 != 2\nnot ok 2 b\n# last\nok 3 c\n";
        assert_eq!(shortened(output, output.len()), output);
        let short = shortened(output, "# last\nok 3 c\n".len());
        assert_eq!(short, "ok 1 a\nnot ok 2 b\n# last\nok 3 c\n");
        let names =
            |text: &str| -> Vec<String> { cases(text).into_iter().map(|case| case.name).collect() };
        for bytes in 0..output.len() {
            assert_eq!(names(&shortened(output, bytes)), ["a", "b", "c"]);
        }
        assert_eq!(shortened("no result\n", 0), "");
    }

    #[test]
    fn other_lines_are_not_results() {
        assert_eq!(cases("ok\nok then\nnot ok x y\n\nokay 1 a\n"), []);
    }
}
