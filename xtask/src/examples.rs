//! `cargo xtask examples`: checks that the examples in the documentation of a library are tests. A library without any says `doctest = false`:
//! otherwise `cargo test` starts rustdoc, which reads the whole crate, for nothing.

use crate::workspace::{Finding, Workspace};

/// What a manifest says of a library without examples.
const OFF: &str = "doctest = false";

/// Words behind the fence of a block that rustdoc compiles, beside `edition...` and the codes of errors.
const COMPILED: &[&str] = &[
    "rust",
    "no_run",
    "ignore",
    "should_panic",
    "compile_fail",
    "standalone_crate",
];

/// Checks the whole workspace.
pub fn check(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (folder, manifest) in workspace.packages() {
        if workspace.text(&format!("{folder}/src/lib.rs")).is_empty() {
            continue;
        }
        let sources = format!("{folder}/src/");
        let mut files = workspace
            .rust()
            .filter(|(path, _)| path.starts_with(&sources));
        let example = files.find_map(|(path, text)| Some((path, first_example(text)?)));
        let is_off = manifest.lines().any(|line| line == OFF);
        match (example, is_off) {
            (Some((path, line)), true) => {
                let what = format!("is no test: remove `{OFF}` from {folder}/Cargo.toml");
                findings.push(Finding::new(path, line, what));
            }
            (None, false) => {
                let what = format!("add `{OFF}` to [lib]: its documentation has no example");
                findings.push(Finding::new(&format!("{folder}/Cargo.toml"), 0, what));
            }
            (Some(_), false) | (None, true) => {}
        }
    }
    findings
}

/// Returns the line, counted from 1, at which the first example in the documentation of a file begins.
fn first_example(text: &str) -> Option<usize> {
    let mut is_inside = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        let comment = ["///", "//!"]
            .iter()
            .find_map(|start| line.strip_prefix(start));
        let Some(info) = comment.and_then(|rest| rest.trim_start().strip_prefix("```")) else {
            continue;
        };
        if !is_inside && is_compiled(info) {
            return Some(number);
        }
        is_inside = !is_inside;
    }
    None
}

fn is_compiled(info: &str) -> bool {
    let is_error = |word: &str| word.len() == 5 && word.starts_with('E');
    info.split([',', ' '])
        .filter(|word| !word.is_empty())
        .all(|word| COMPILED.contains(&word) || word.starts_with("edition") || is_error(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(manifest: &str, source: &str) -> Vec<usize> {
        let mut workspace = Workspace::default();
        let files = [
            ("a/Cargo.toml", format!("[package]\n{manifest}")),
            ("a/src/lib.rs", "//! A library.\n".to_owned()),
            ("a/src/part.rs", source.to_owned()),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text));
        workspace.texts.extend(files);
        let found = check(&workspace);
        found.into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn an_example_must_be_a_test_and_no_example_needs_no_run() {
        let text = "//! ```text\n//! a picture\n//! ```\n";
        assert_eq!(findings("doctest = false\n", text), []);
        assert_eq!(findings("", text), [0]);
        for fence in ["```", "```rust", "``` no_run", "```compile_fail,E0277"] {
            let source = format!("{text}/// {fence}\n/// code\n/// ```\n");
            assert_eq!(findings("doctest = false\n", &source), [4], "{fence}");
            assert_eq!(findings("", &source), [], "{fence}");
        }
    }
}
