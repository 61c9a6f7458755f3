//! Results of rows and of test cases.

use serde::{Deserialize, Serialize};

/// Result of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The tested function works.
    Passed,
    /// The tested function does not work.
    Failed,
    /// The guest's kernel does not have the tested function.
    Skipped,
}

impl Verdict {
    /// Returns its word in a table, padded to six characters.
    pub fn mark(self) -> &'static str {
        match self {
            Self::Passed => "ok    ",
            Self::Failed => "FAILED",
            Self::Skipped => "SKIP  ",
        }
    }
}
