//! `unix:PATH` and `unix-listen:PATH`: the two ends of a wire between processes.

use std::path::Path;

use devmem_uapi::Errno;
use devmem_uapi::text::Printable;
use nic::{NeedsOffloads, UnixLink, UnixListenLink, WireHello};

use crate::error::Error;

/// Connects to the end of a wire that listens at `path`. The other end may read the send queues if `shares` is set.
pub(super) fn join(path: &Path, ours: WireHello, shares: bool) -> Result<UnixLink, Error> {
    let joined = UnixLink::join(path, ours).and_then(|mut link| {
        if shares {
            link.share_send_memory()?;
        }
        Ok(link)
    });
    joined.map_err(|error| {
        let path = Printable(path.display());
        let is_impaired = error
            .get_ref()
            .is_some_and(|why| why.is::<NeedsOffloads>());
        if is_impaired {
            let reason = format!(
                "the wire at {path}: the listening end refuses this one, which takes no super-packets because of its impairment"
            );
            return Error::of_errno(Errno::EOPNOTSUPP, reason).with_remedy(
                "let the impaired end listen (unix-listen:PATH) and the other one connect, or impair both",
            );
        }
        Error::of_io(format!("the wire at {path}: {error}"), &error).with_remedy(
            "start its other end first, which takes one peer at a time: a NIC with the link unix-listen:PATH, or devmem-tcp nic \
             --wire unix-listen:PATH",
        )
    })
}

/// Listens at `path`. Each peer may read the send queues while it is the peer if `shares` is set.
pub(super) fn listen(path: &Path, ours: WireHello, shares: bool) -> Result<UnixListenLink, Error> {
    let refused = |error| {
        let path = Printable(path.display());
        Error::of_io(format!("cannot listen at {path}: {error}"), &error).with_remedy(
            "if another process listens there, choose another path, or connect to it with unix:PATH",
        )
    };
    let mut link = UnixListenLink::at(path, ours).map_err(refused)?;
    if shares {
        link.share_send_memory();
    }
    Ok(link)
}
