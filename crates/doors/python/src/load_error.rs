//! Errors of loads.

use devmem_tcp::{Errno, ErrorKind};
use devmem_transfer::load::{CheckpointError, LoadError, SelectionError, StreamFailure};

use crate::error::Error;

impl From<CheckpointError> for Error {
    fn from(error: CheckpointError) -> Self {
        let (kind, errno) = match &error {
            CheckpointError::Load(load) => verdict(load),
            CheckpointError::Header { .. }
            | CheckpointError::Index { .. }
            | CheckpointError::Missing { .. } => (ErrorKind::InvalidInput, Errno::EINVAL),
            CheckpointError::TooLarge | CheckpointError::Limit { .. } => {
                (ErrorKind::OutOfResources, Errno::ENOMEM)
            }
            _ => (ErrorKind::Other, Errno::EIO),
        };
        Self::of_load(kind, errno.0, error.to_string())
    }
}

/// Returns kind and errno of a load's error.
fn verdict(error: &LoadError) -> (ErrorKind, Errno) {
    match error {
        LoadError::Url(_) => (ErrorKind::InvalidInput, Errno::EINVAL),
        LoadError::Connect { source, .. } => (source.kind(), source.errno()),
        LoadError::Route(source) => (source.kind(), source.errno()),
        LoadError::Recv(source) => (source.kind(), source.errno()),
        LoadError::Send(source) => (source.kind(), source.errno()),
        LoadError::Gather(source) => (source.kind(), source.errno()),
        LoadError::NoRoom(_) => (ErrorKind::OutOfResources, Errno::ENOMEM),
        LoadError::Resolve { .. } | LoadError::NoFamily { .. } => {
            (ErrorKind::HostUnreachable, Errno::EHOSTUNREACH)
        }
        LoadError::TlsSetUp(_) => (ErrorKind::InvalidInput, Errno::EINVAL),
        // The server has not proved who it is, or asks who this client is.
        LoadError::Tls { .. } => (ErrorKind::PermissionDenied, Errno::EACCES),
        LoadError::Status { status, .. } | LoadError::Tunnel { status, .. } => match status {
            401 | 403 | 407 => (ErrorKind::PermissionDenied, Errno::EACCES),
            404 | 410 => (ErrorKind::NotFound, Errno::ENOENT),
            _ => (ErrorKind::Other, Errno::EIO),
        },
        _ => (ErrorKind::Other, Errno::EIO),
    }
}

impl From<SelectionError> for Error {
    fn from(error: SelectionError) -> Self {
        Self::of_load(ErrorKind::InvalidInput, Errno::EINVAL.0, error.to_string())
    }
}

impl From<StreamFailure<Error>> for Error {
    fn from(failure: StreamFailure<Error>) -> Self {
        match failure {
            StreamFailure::Load(error) => CheckpointError::from(error).into(),
            StreamFailure::Memory(error) => error,
            other => Self::of_load(
                ErrorKind::OutOfResources,
                Errno::ENOMEM.0,
                other.to_string(),
            ),
        }
    }
}
