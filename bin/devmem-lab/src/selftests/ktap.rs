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
    fn other_lines_are_not_results() {
        assert_eq!(cases("ok\nok then\nnot ok x y\n\nokay 1 a\n"), []);
    }
}
