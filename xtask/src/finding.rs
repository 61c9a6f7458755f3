//! One broken rule in one place.

use std::fmt;

/// A rule that a file breaks, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Path from the workspace root.
    pub path: String,
    /// Line, counted from 1; 0 where the whole file is meant.
    pub line: usize,
    /// What is wrong and what to do.
    pub what: String,
}

impl Finding {
    /// Returns a finding at a line of a file.
    pub fn new(path: impl Into<String>, line: usize, what: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            line,
            what: what.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.what),
            line => write!(f, "{}:{line}: {}", self.path, self.what),
        }
    }
}
