//! The error of a controller that refuses.

use crate::load::error::LoadError;

/// Returns the error of a controller that refuses a command.
pub(super) fn refused(host: &str, problem: String, remedy: &'static str) -> LoadError {
    LoadError::NvmeRefused {
        host: host.to_owned(),
        problem,
        remedy,
    }
}
