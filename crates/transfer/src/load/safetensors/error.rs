//! Why a checkpoint cannot be loaded.

use client::url::UrlError;
use client::{Cause, LoadError, Remedy};

use super::header::HeaderError;
use super::limits::CheckpointLimit;

/// Why a checkpoint cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file or a part of it could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A header is invalid.
    #[error("{file} is no safetensors file: {error}")]
    Header {
        /// URL of the file.
        file: String,
        /// The mistake.
        error: HeaderError,
    },
    /// The index of the shards is invalid.
    #[error("{file} is no index of safetensors files: {problem}")]
    Index {
        /// URL of the index.
        file: String,
        /// The mistake.
        problem: Cause,
    },
    /// A file lacks a tensor that the index places in it.
    #[error("{file} has no tensor {name:?}, which the index says it has")]
    Missing {
        /// Name of the tensor.
        name: String,
        /// URL of the file.
        file: String,
    },
    /// The server does not tell the size of a file.
    #[error("the server does not tell the size of {file}")]
    NoSize {
        /// URL of the file.
        file: String,
    },
    /// The description of the checkpoint is too large to be read into host memory.
    #[error("the checkpoint with {file} is too large to be described: {error}")]
    Limit {
        /// URL of the file with which it is too large.
        file: String,
        /// The limit.
        error: CheckpointLimit,
    },
    /// The tensors need more memory than there is in this address space.
    #[error("the tensors do not fit into memory")]
    TooLarge,
}

impl CheckpointError {
    /// Returns what helps.
    pub fn remedy(&self) -> Option<Remedy> {
        let remedy = match self {
            Self::Load(error) => return error.remedy(),
            Self::Header { error, .. } => return error.remedy().map(Remedy::from),
            Self::Index { problem, .. } => return problem.remedy().cloned(),
            Self::Missing { .. } => "index and shards are not those of one checkpoint",
            Self::NoSize { .. } => "use a server that does: nginx, or an object store",
            Self::Limit { .. } => "load its files one by one",
            Self::TooLarge => "load the file to a file: its tensors need not fit then",
        };
        Some(remedy.into())
    }
}

impl From<UrlError> for CheckpointError {
    fn from(error: UrlError) -> Self {
        Self::Load(error.into())
    }
}
