//! `unix:PATH` and `unix-listen:PATH`: the two ends of a wire between processes.

use std::path::Path;

use nic::{NeedsOffloads, UnixLink, UnixListenLink, WireHello};

use crate::error::OpenError;

/// Connects to the end of a wire that listens at `path`.
pub(super) fn join(path: &Path, ours: WireHello) -> Result<UnixLink, OpenError> {
    UnixLink::join(path, ours).map_err(|source| {
        let path = path.to_owned();
        match source
            .get_ref()
            .is_some_and(|why| why.is::<NeedsOffloads>())
        {
            true => OpenError::UnixRefused { path },
            false => OpenError::Unix { path, source },
        }
    })
}

/// Listens at `path`.
pub(super) fn listen(path: &Path, ours: WireHello) -> Result<UnixListenLink, OpenError> {
    UnixListenLink::at(path, ours).map_err(|source| OpenError::UnixListen {
        path: path.to_owned(),
        source,
    })
}
