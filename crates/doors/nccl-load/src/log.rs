//! What the plugin has logged.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of lines that are kept of each kind; older ones are dropped.
const LINES_MAX: usize = 256;

/// Lines of one kind, oldest first.
type Lines = Mutex<VecDeque<String>>;

static WARNINGS: Lines = Mutex::new(VecDeque::new());
static NOTES: Lines = Mutex::new(VecDeque::new());

/// Kind of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// Something failed.
    Warning,
    /// Anything else.
    Note,
}

impl Level {
    fn lines(self) -> MutexGuard<'static, VecDeque<String>> {
        let lines = match self {
            Self::Warning => &WARNINGS,
            Self::Note => &NOTES,
        };
        lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a line.
    pub(crate) fn add(self, line: String) {
        let mut lines = self.lines();
        if lines.len() == LINES_MAX {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}

/// Removes the warnings, and returns the last one.
pub(crate) fn take_last_warning() -> Option<String> {
    let mut warnings = Level::Warning.lines();
    let last = warnings.pop_back();
    warnings.clear();
    last
}

/// Removes and returns the lines of the plugin's log that are no warnings, oldest first, at most the last 256. A process has one log for all
/// plugins.
pub fn take_notes() -> Vec<String> {
    Level::Note.lines().drain(..).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_keeps_the_last_lines() {
        for line in 0..LINES_MAX + 2 {
            Level::Note.add(line.to_string());
        }
        let notes = take_notes();
        assert_eq!(notes.len(), LINES_MAX);
        assert_eq!(notes[0], "2");
        assert!(take_notes().is_empty());
    }
}
