//! Why a file cannot be loaded into.

use std::io;
use std::path::{Path, PathBuf};

use client::{Remedy, displays_remedy};

/// Why a file cannot be loaded into, or a load cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PartialError {
    /// The system refuses an operation on a file.
    Io {
        /// The operation.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The file cannot have as many bytes as the source.
    TooLong {
        /// The file with the bytes.
        part: PathBuf,
        /// How many it would have.
        bytes: u64,
        /// The error.
        source: io::Error,
    },
    /// Another load has the file open.
    Busy {
        /// The file with the bytes.
        part: PathBuf,
    },
    /// The bytes that are there are of another file.
    Other {
        /// The file with the bytes.
        part: PathBuf,
        /// What is different.
        difference: String,
    },
}

impl PartialError {
    /// Returns the reason, in one line.
    pub fn reason(&self) -> String {
        match self {
            Self::Io {
                operation,
                path,
                source,
            } => format!("{operation} {}: {source}", path.display()),
            Self::TooLong {
                part,
                bytes,
                source,
            } => {
                let part = part.display();
                format!("{part} cannot have the {bytes} bytes of the source: {source}")
            }
            Self::Busy { part } => format!("{} is being written by another load", part.display()),
            Self::Other { part, difference } => {
                let part = part.display();
                format!(
                    "{part} is of another file or version than the server has now: {difference}"
                )
            }
        }
    }

    /// Returns what helps.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::Io { .. } => None,
            Self::TooLong { .. } => {
                Some("check the size that the server tells, or load a part of the source".into())
            }
            Self::Busy { .. } => Some("wait for its end, or name another file".into()),
            Self::Other { .. } => Some("without resuming, it is loaded from the start".into()),
        }
    }
}

displays_remedy!(PartialError);

/// Returns the error of an `operation` on a file.
pub(super) fn failed(
    operation: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> PartialError {
    let path = path.to_owned();
    move |source| PartialError::Io {
        operation,
        path,
        source,
    }
}
