//! `cargo xtask sizes`: files that a reader can hold in mind.

use crate::finding::Finding;
use crate::source::Source;
use crate::workspace::Workspace;

/// Production lines at which a file must be split.
const FILE_LINES_MAX: usize = 700;

/// Production lines at which a file deserves a second look.
const FILE_LINES_ADVICE: usize = 400;

/// Lines of a function at which it deserves a second look.
const FUNCTION_LINES_ADVICE: usize = 60;

/// Checks the whole workspace: findings, and advice that fails nothing.
pub fn check(workspace: &Workspace) -> (Vec<Finding>, Vec<Finding>) {
    let (mut findings, mut advice) = (Vec::new(), Vec::new());
    for (path, source) in &workspace.sources {
        if is_test_file(path) {
            continue;
        }
        findings.extend(check_file(path, source));
        advice.extend(advise(path, source));
    }
    (findings, advice)
}

/// Tells whether a path names a file of tests: an integration test, or the sibling `tests.rs` of a module.
fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.split('/').any(|part| part == "tests")
}

fn check_file(path: &str, source: &Source) -> Option<Finding> {
    let lines = source.production_lines();
    (lines > FILE_LINES_MAX).then(|| {
        Finding::new(
            path,
            0,
            format!("{lines} lines besides tests: split it ({FILE_LINES_MAX} at most)"),
        )
    })
}

fn advise(path: &str, source: &Source) -> Vec<Finding> {
    let mut advice = Vec::new();
    let lines = source.production_lines();
    if (FILE_LINES_ADVICE + 1..=FILE_LINES_MAX).contains(&lines) {
        advice.push(Finding::new(
            path,
            0,
            format!("{lines} lines besides tests"),
        ));
    }
    for function in &source.functions {
        if function.lines > FUNCTION_LINES_ADVICE && !source.is_test(function.line) {
            let what = format!("function {} has {} lines", function.name, function.lines);
            advice.push(Finding::new(path, function.line, what));
        }
    }
    advice
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "crates/tcp/src/receiver.rs";

    fn file(lines: usize) -> Source {
        Source::parse(&"const A: u8 = 0;\n".repeat(lines))
    }

    #[test]
    fn a_file_over_the_limit_is_found() {
        assert_eq!(check_file(PATH, &file(700)), None);
        let finding = check_file(PATH, &file(701)).unwrap();
        assert_eq!(
            finding.what,
            "701 lines besides tests: split it (700 at most)"
        );
    }

    #[test]
    fn tests_do_not_count() {
        let text = format!(
            "{}#[cfg(test)]\nmod tests {{\n{}}}\n",
            "const A: u8 = 0;\n".repeat(700),
            "\n".repeat(900)
        );
        assert_eq!(check_file(PATH, &Source::parse(&text)), None);
    }

    #[test]
    fn a_long_file_is_advised_on() {
        assert_eq!(advise(PATH, &file(400)), []);
        assert_eq!(advise(PATH, &file(401)).len(), 1);
    }

    #[test]
    fn a_long_function_is_advised_on_unless_it_is_a_test() {
        let function = format!("fn a() {{\n{}}}\n", "    b();\n".repeat(59));
        assert_eq!(
            advise(PATH, &Source::parse(&function))[0].what,
            "function a has 61 lines"
        );
        let test = format!("#[cfg(test)]\nmod tests {{\n{function}}}\n");
        assert_eq!(advise(PATH, &Source::parse(&test)), []);
    }

    #[test]
    fn test_files_are_left_out_and_others_are_not() {
        let mut workspace = Workspace::default();
        let long = "const A: u8 = 0;\n".repeat(701);
        for path in ["crates/tcp/src/state/tests.rs", "crates/tcp/tests/trace.rs"] {
            workspace.add(path.to_owned(), long.clone());
        }
        assert_eq!(check(&workspace).0, []);
        workspace.add(PATH.to_owned(), long);
        assert_eq!(check(&workspace).0.len(), 1);
    }
}
