//! `cargo xtask sizes`: limits the length of files. clippy limits the length of functions.

use crate::workspace::{Finding, Workspace, production_part};

/// Maximum number of lines of a file, without tests.
const FILE_LINES_MAX: usize = 700;

/// Checks the whole workspace.
pub fn check(workspace: &Workspace) -> Vec<Finding> {
    let checked = workspace
        .production()
        .map(|(path, text)| check_file(path, text));
    checked.flatten().collect()
}

fn check_file(path: &str, text: &str) -> Option<Finding> {
    let lines = production_part(text).lines().count();
    let what = || format!("{lines} lines without tests: split the file (limit: {FILE_LINES_MAX})");
    (lines > FILE_LINES_MAX).then(|| Finding::new(path, 0, what()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_over_the_limit_is_found_and_tests_do_not_count() {
        let lines = |count| "const A: u8 = 0;\n".repeat(count);
        let tests = "#[cfg(test)]\nmod tests {\n\n\n}\n";
        assert_eq!(check_file("a.rs", &(lines(FILE_LINES_MAX) + tests)), None);
        assert!(check_file("a.rs", &lines(FILE_LINES_MAX + 1)).is_some());
    }
}
