//! Reads the output of a test program (linux Documentation/dev-tools/ktap.rst).

use crate::suite::Verdict;

/// Result of one test case of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// Its result; a test case that is expected to fail and does so is skipped.
    pub verdict: Verdict,
    /// The reason, unless it passed.
    pub reason: String,
}

/// Returns the test cases in the output of a program. The reason of one that failed is the last exception or check that
/// was printed before its result.
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

/// Keeps a line that says why a test case fails: `Exception| NAME: words`, `Check failed words`, or the words of a skip.
fn note_reason(reason: &mut String, said: &str) {
    let words = said.trim();
    let exception = words.strip_prefix("Exception|").map(str::trim);
    // The lines of a traceback before the last one are of no use without the source.
    let is_place = |text: &str| {
        text.starts_with("File ") || text.starts_with("Traceback") || text.starts_with('~')
    };
    match exception {
        Some("") => {}
        Some(text) if is_place(text) => {}
        Some(text) => text.clone_into(reason),
        None if words.starts_with("Check failed") => words.clone_into(reason),
        None if words.contains("Check failed") => words.clone_into(reason),
        None => {}
    }
}

/// Reads a line `ok N NAME` or `not ok N NAME`, with `# SKIP reason` or `# XFAIL reason` at its end.
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
        let told: Vec<_> = cases
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
        assert_eq!(told, expected);
    }

    #[test]
    fn a_reason_belongs_to_the_next_result_only() {
        let output = "# Check failed 1 != 2\nok 1 a\nnot ok 2 b\n";
        let cases = cases(output);
        assert_eq!(cases[1].verdict, Verdict::Failed);
        assert_eq!(cases[1].reason, "");
    }

    #[test]
    fn other_lines_are_no_results() {
        assert_eq!(cases("ok\nok then\nnot ok x y\n\nokay 1 a\n"), []);
    }
}
