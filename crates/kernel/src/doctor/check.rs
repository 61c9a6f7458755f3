//! One check, and its result.

use std::fmt;

use serde::Serialize;

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    /// As needed.
    Good,
    /// Not as needed, but set-up or the remedy fixes it.
    Mendable,
    /// Missing, and no change of settings can fix that.
    Missing,
    /// It could not be determined.
    Unknown,
}

impl fmt::Display for CheckState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Good => "good",
            Self::Mendable => "fixable",
            Self::Missing => "missing",
            Self::Unknown => "unknown",
        })
    }
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its name, stable for programs.
    pub name: &'static str,
    /// Its result.
    pub state: CheckState,
    /// The finding, in a few words.
    pub found: String,
    /// The command that fixes it, or another remedy.
    pub remedy: Option<String>,
}

impl Check {
    pub(super) fn new(name: &'static str, state: CheckState, found: impl Into<String>) -> Self {
        Self {
            name,
            state,
            found: found.into(),
            remedy: None,
        }
    }

    pub(super) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..self
        }
    }
}
