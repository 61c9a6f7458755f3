//! The error of a controller that refuses.

use crate::error::LoadError;
use crate::remedy::Remedy;

/// Returns the error of a controller that refuses a command.
pub(super) fn refused(host: &str, problem: String, remedy: impl Into<Remedy>) -> LoadError {
    LoadError::NvmeRefused {
        host: host.to_owned(),
        problem,
        remedy: remedy.into(),
    }
}
