//! `unix:PATH` and `unix-listen:PATH`: the two ends of a wire between processes.

use std::path::Path;

use nic::{UnixLink, UnixListenLink, WireHello};

use crate::error::OpenError;

/// Connects to the end of a wire that listens at `path`.
pub(super) fn join(path: &Path, ours: WireHello) -> Result<UnixLink, OpenError> {
    UnixLink::join(path, ours).map_err(|source| OpenError::Unix {
        path: path.to_owned(),
        source,
    })
}

/// Listens at `path`.
pub(super) fn listen(path: &Path, ours: WireHello) -> Result<UnixListenLink, OpenError> {
    UnixListenLink::at(path, ours).map_err(|source| OpenError::UnixListen {
        path: path.to_owned(),
        source,
    })
}
