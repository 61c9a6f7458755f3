//! `mem:NAME`: an in-memory wire between two NICs of this process.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use devmem_uapi::Errno;
use netmem::PerProcess;
use nic::{CablePlug, WireLink, WireOptions};

use crate::error::{Error, Remedy};

/// A named in-memory wire.
struct NamedWire {
    /// Detects that one of the ends was dropped.
    cable: CablePlug,
    /// The ends of the queues for the second NIC, until that is opened.
    second: Option<Vec<WireLink>>,
}

/// In-memory wires with both ends alive. A child of fork(2) starts with none.
static WIRES: PerProcess<Mutex<HashMap<String, NamedWire>>> = PerProcess::new();

/// Returns one end of the wire `name`, a link for each queue. A third NIC is refused, and a second one with another number of
/// queues; the name is free again when one of the two is dropped.
pub(super) fn links(
    name: &str,
    queues: u16,
    mtu: u16,
    offload: bool,
) -> Result<Vec<WireLink>, Error> {
    let mut wires = WIRES.get().lock().unwrap_or_else(PoisonError::into_inner);
    wires.retain(|_, wire| !wire.cable.is_ended());
    if let Some(wire) = wires.get_mut(name) {
        let Some(second) = wire.second.as_ref() else {
            let reason = format!("the in-memory wire '{name}' already joins two NICs");
            let taken = Error::of_errno(Errno::EBUSY, reason);
            return Err(taken.with_remedy(Remedy::OtherWire));
        };
        let theirs = second.len();
        if theirs != usize::from(queues) {
            let reason = format!(
                "the NIC at the other end of the in-memory wire '{name}' has {theirs} shards, this one {queues}"
            );
            return Err(Error::invalid(reason).with_remedy(Remedy::SameShards));
        }
        return Ok(wire.second.take().unwrap_or_default());
    }
    let options = WireOptions {
        mtu,
        offload,
        wakeup: true,
        ..WireOptions::default()
    };
    let pair = |_| WireLink::pair(options);
    let pairs: std::io::Result<Vec<_>> = (0..queues).map(pair).collect();
    let (ours, theirs): (Vec<_>, Vec<_>) =
        pairs.map_err(Error::system("eventfd"))?.into_iter().unzip();
    if let Some(first) = ours.first() {
        let wire = NamedWire {
            cable: first.cable(),
            second: Some(theirs),
        };
        wires.insert(name.to_owned(), wire);
    }
    Ok(ours)
}
