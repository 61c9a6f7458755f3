//! `unix:PATH` and `unix-listen:PATH`: the two ends of a wire between processes.

use std::path::Path;

use nic::{NeedsOffloads, UnixLink, UnixListenLink, WireHello};

use crate::error::OpenError;

/// Connects to the end of a wire that listens at `path`. The other end may read the send queues if `shares` is set.
pub(super) fn join(path: &Path, ours: WireHello, shares: bool) -> Result<UnixLink, OpenError> {
    let joined = UnixLink::join(path, ours).and_then(|mut link| {
        if shares {
            link.share_send_memory()?;
        }
        Ok(link)
    });
    joined.map_err(|source| {
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

/// Listens at `path`. Each peer may read the send queues while it is the peer if `shares` is set.
pub(super) fn listen(
    path: &Path,
    ours: WireHello,
    shares: bool,
) -> Result<UnixListenLink, OpenError> {
    let refused = |source| OpenError::UnixListen {
        path: path.to_owned(),
        source,
    };
    let mut link = UnixListenLink::at(path, ours).map_err(refused)?;
    if shares {
        link.share_send_memory();
    }
    Ok(link)
}
