//! The address `auto` of a NIC that is opened: addresses from a DHCP server and from routers.

use std::time::Duration;

use devmem_uapi::Errno;
use lease::{Acquired, Families, LeasePort, Outcome, OwnAddresses};

use super::claim::own_addresses;
use super::{NetdevBuilder, random_bytes};
use crate::error::{Error, ErrorKind};
use crate::link::LinkKind;

/// How long an open waits for addresses: three messages of a client, of which the network may lose some.
const LEASE_TIMEOUT: Duration = Duration::from_secs(30);

impl NetdevBuilder {
    /// Refuses the address `auto` where there is no DHCP server, or the address is that of the kernel.
    pub(super) fn check_auto(&self) -> Result<(), Error> {
        let has_lan = matches!(self.link, LinkKind::Packet(_) | LinkKind::Macvtap(_));
        let (reason, remedy) = match self.auto {
            true if !has_lan => (
                "only a NIC on a packet or macvtap link gets its addresses from the network",
                "give one, such as 10.77.0.2/24",
            ),
            true if self.ports.is_some() => (
                "a NIC that shares ports has addresses of the interface",
                "give one of them instead of auto",
            ),
            _ => return Ok(()),
        };
        Err(Error::invalid(reason).with_remedy(remedy))
    }

    /// Waits for addresses on `port`.
    pub(super) fn acquire(&self, port: Option<LeasePort>) -> Result<Option<Acquired>, Error> {
        let Some(port) = port else {
            return Ok(None);
        };
        let random = u64::from_ne_bytes(random_bytes()?);
        let families = match self.mtu {
            Some(mtu) if mtu < stack::MIN_IPV6_MTU => Families::Ipv4,
            _ => Families::Both,
        };
        let replaced = self.replaced_interface().map(str::to_owned);
        let own = OwnAddresses::new(move || {
            // It has worked when the options were checked. If it fails, the kernel has no memory.
            let addresses = own_addresses().ok()?.into_iter();
            let others = addresses.filter(|(interface, _)| Some(interface) != replaced.as_ref());
            Some(others.map(|(_, ip)| ip).collect())
        });
        let outcome = lease::acquire(port, own, families, random, LEASE_TIMEOUT);
        match outcome.map_err(Error::system("poll"))? {
            Outcome::Acquired(acquired) => Ok(Some(*acquired)),
            Outcome::Nothing(offered) => Err(self.no_address(&offered)),
        }
    }

    /// Returns the error of an open that got no address; `offered` tells what was not usable.
    fn no_address(&self, offered: &[String]) -> Error {
        let seconds = LEASE_TIMEOUT.as_secs();
        let mut reason = format!(
            "no DHCP server and no router gave an address on {} within {seconds} s",
            self.link
        );
        let check = match offered {
            [] => "check that the network has a DHCP server and admits this MAC address",
            offered => {
                reason.push_str(": ");
                reason.push_str(&offered.join(", and "));
                "correct what the server or the router offers"
            }
        };
        let remedy = format!(
            "give a free address of the network with its prefix length, such as 10.0.0.77/24, or {check}"
        );
        Error::new(ErrorKind::TimedOut, Errno::ETIMEDOUT, reason).with_remedy(remedy)
    }
}
