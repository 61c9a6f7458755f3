//! What the state files say, without touching anything.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::state::{self, StateError};

/// How a state file stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Its process has died: the interface is as that left it.
    Left,
    /// Its process lives, and restores by itself.
    InUse,
    /// It belongs to another network namespace: restore there.
    OtherNamespace,
    /// It is of an earlier boot, which undid everything.
    Void,
}

/// A state file, read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Leftover {
    /// The interface that was changed.
    pub interface: String,
    /// The process that changed it.
    pub pid: u32,
    /// How it stands.
    pub standing: Standing,
    /// What was changed, as the commands that would have done it.
    pub changes: Vec<String>,
    /// The file.
    pub path: PathBuf,
}

impl Leftover {
    /// Reads a state file; [`state_files`](super::state_files) lists them.
    ///
    /// # Errors
    ///
    /// See [`StateError`]: it cannot be read, or is not to be trusted.
    pub fn read(path: &Path) -> Result<Self, StateError> {
        let record = state::read(path)?;
        let standing = if record.is_void() {
            Standing::Void
        } else if state::is_owned(path)? {
            Standing::InUse
        } else if !record.is_of_this_namespace()? {
            Standing::OtherNamespace
        } else {
            Standing::Left
        };
        let changes = record.undo.iter().filter(|undo| undo.is_change());
        Ok(Self {
            changes: changes
                .map(|undo| undo.command(&record.interface))
                .collect(),
            pid: record.pid,
            interface: record.interface,
            standing,
            path: path.to_owned(),
        })
    }
}
