//! Why a file cannot be loaded into.

use std::io;
use std::path::{Path, PathBuf};

use client::Remedy;

/// Why a file cannot be loaded into, or a load cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PartialError {
    /// The system refuses an operation on a file.
    #[error("{operation} {}: {error}", .path.display())]
    Io {
        /// The operation.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The file cannot have as many bytes as the source.
    #[error("{} cannot have the {bytes} bytes of the source: {error}", .part.display())]
    TooLong {
        /// The file with the bytes.
        part: PathBuf,
        /// How many it would have.
        bytes: u64,
        /// The error.
        error: io::Error,
    },
    /// Another load has the file open.
    #[error("{} is being written by another load", .part.display())]
    Busy {
        /// The file with the bytes.
        part: PathBuf,
    },
    /// The bytes that are there are of another file.
    #[error(
        "{} is of another file or version than the server has now: {difference}",
        .part.display()
    )]
    Other {
        /// The file with the bytes.
        part: PathBuf,
        /// What is different.
        difference: String,
    },
}

impl PartialError {
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

/// Returns the error of an `operation` on a file.
pub(super) fn failed(
    operation: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> PartialError {
    let path = path.to_owned();
    move |error| PartialError::Io {
        operation,
        path,
        error,
    }
}
