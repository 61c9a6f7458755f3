//! The kernel's end of a TAP: whether programs on this host can reach our end.

use devmem_linux::netif::{self, Interface};
use devmem_linux::netlink::NetlinkError;
use devmem_tcp::link::LinkKind;

use crate::plan::TapPlan;

/// Returns a warning if the kernel's end of an open TAP has no address in the network of ours, because then no program on
/// this host can connect to our end. `None` also if the kernel does not tell.
pub fn unreachable(tap: &TapPlan) -> Option<String> {
    let LinkKind::Tap(name) = tap.link.kind() else {
        return None;
    };
    let (ours, theirs) = (tap.ours.address, tap.ours.neighbour());
    let is_network = tap.ours.contains(theirs.address);
    let is_unreachable = is_network && !has_address(name, tap).unwrap_or(true);
    is_unreachable.then(|| {
        format!(
            "{name} has no address in the network of {ours}, so programs on this host cannot connect to it (unless {name} is \
             in a bridge); add one with --peer-addr {theirs}, or now with `ip address add {theirs} dev {name}`"
        )
    })
}

fn has_address(name: &str, tap: &TapPlan) -> Result<bool, NetlinkError> {
    let index = Interface::by_name(name)?.index();
    let addresses = netif::addresses(index)?;
    Ok(addresses
        .into_iter()
        .any(|address| tap.ours.contains(address)))
}
