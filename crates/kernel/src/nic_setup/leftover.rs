//! Reading state files without changing anything.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::state::{self, StateError};

/// Status of a state file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftoverStatus {
    /// Its process has died and left the interface changed.
    Left,
    /// Its process is alive and will restore the settings.
    InUse,
    /// It belongs to another network namespace: restore there.
    OtherNamespace,
    /// It is from an earlier boot; the reboot has undone the changes.
    Void,
}

/// The content of a state file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Leftover {
    /// The interface that was changed.
    pub interface: String,
    /// The process that changed it.
    pub pid: u32,
    /// Its status.
    pub standing: LeftoverStatus,
    /// The changes, as commands.
    pub changes: Vec<String>,
    /// The path of the file.
    pub path: PathBuf,
}

impl Leftover {
    /// Reads a state file; [`state_files`](super::state_files) lists them.
    ///
    /// # Errors
    ///
    /// See [`StateError`]: it cannot be read, or cannot be trusted.
    pub fn read(path: &Path) -> Result<Self, StateError> {
        let record = state::read(path)?;
        let standing = if record.is_void() {
            LeftoverStatus::Void
        } else if state::is_owned(path)? {
            LeftoverStatus::InUse
        } else if !record.is_of_this_namespace()? {
            LeftoverStatus::OtherNamespace
        } else {
            LeftoverStatus::Left
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
