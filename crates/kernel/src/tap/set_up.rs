//! Settings of the kernel's end of a TAP, and their restoration.

use std::net::IpAddr;

use super::TX_QUEUE_PACKETS;
use crate::netif::{self, Interface};
use crate::netlink::NetlinkError;

/// The settings of a TAP's interface. Dropping this restores those of an interface that existed before: MTU, queue length, whether
/// it was up, and its addresses. Nothing is restored after `kill -9`.
#[derive(Debug)]
pub struct TapSetUp {
    interface: Interface,
    before: Option<Before>,
}

/// What an interface had before it was set up.
#[derive(Debug)]
struct Before {
    mtu: u32,
    queue_len: u32,
    is_up: bool,
    addresses: Vec<IpAddr>,
    /// Addresses that were added.
    added: Vec<(IpAddr, u8)>,
}

impl TapSetUp {
    /// Reads the settings of `interface`; of one that was just `created`, none are of interest.
    pub(super) fn of(mut interface: Interface, created: bool) -> Result<Self, NetlinkError> {
        let before = match created {
            true => None,
            false => {
                let facts = interface.facts()?;
                Some(Before {
                    mtu: facts.mtu,
                    queue_len: interface.tx_queue_len()?,
                    is_up: facts.up,
                    addresses: netif::addresses(interface.index())?,
                    added: Vec::new(),
                })
            }
        };
        Ok(Self { interface, before })
    }

    pub(super) fn apply(
        &mut self,
        mtu: u16,
        addresses: &[(IpAddr, u8)],
    ) -> Result<(), NetlinkError> {
        self.interface.set_mtu(u32::from(mtu))?;
        self.interface.set_tx_queue_len(TX_QUEUE_PACKETS)?;
        self.interface.quiet_ipv6();
        for &(address, prefix) in addresses {
            self.interface.add_address(address, prefix)?;
            if let Some(before) = &mut self.before
                && !before.addresses.contains(&address)
            {
                before.added.push((address, prefix));
            }
        }
        self.interface.set_up()
    }
}

impl Drop for TapSetUp {
    fn drop(&mut self) {
        let Some(before) = &self.before else { return };
        // Each fails if the interface is gone, or if somebody has changed it since: then it stays as it is.
        for (address, prefix) in &before.added {
            let _ = self.interface.remove_address(*address, *prefix);
        }
        let _ = self.interface.set_mtu(before.mtu);
        let _ = self.interface.set_tx_queue_len(before.queue_len);
        if !before.is_up {
            let _ = self.interface.set_down();
        }
    }
}
