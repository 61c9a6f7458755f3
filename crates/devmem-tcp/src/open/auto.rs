//! The address `auto` of a NIC that is opened: addresses from a DHCP server and from routers.

use std::time::Duration;

use devmem_uapi::Errno;

use super::{NetdevBuilder, invalid, random_bytes};
use crate::error::{ErrorKind, OpenError, Refusal};
use crate::lease::{self, Acquired, Families, LeasePort};
use crate::link_spec::LinkSpec;

/// How long an open waits for addresses: three messages of a client, of which the network may lose some.
const PATIENCE: Duration = Duration::from_secs(30);

impl NetdevBuilder {
    /// Refuses the address `auto` where there is no DHCP server, or the address is that of the kernel.
    pub(super) fn check_auto(&self) -> Result<(), OpenError> {
        let has_lan = matches!(self.link, LinkSpec::Packet(_) | LinkSpec::Macvtap(_));
        let reason = match self.auto {
            true if !has_lan => {
                "only a NIC on a packet or macvtap link gets its addresses from the network; give one, such as 10.77.0.2/24"
            }
            true if self.ports.is_some() => {
                "a NIC that shares ports has addresses of the interface; give one of them instead of auto"
            }
            _ => return Ok(()),
        };
        Err(invalid(reason).into())
    }

    /// Waits for addresses on `port`.
    pub(super) fn acquire(&self, port: Option<LeasePort>) -> Result<Option<Acquired>, OpenError> {
        let Some(port) = port else {
            return Ok(None);
        };
        let random = u64::from_ne_bytes(random_bytes()?);
        let families = match self.mtu {
            Some(mtu) if mtu < stack::MIN_IPV6_MTU => Families::Ipv4,
            _ => Families::Both,
        };
        let acquired = lease::acquire(port, families, random, PATIENCE);
        let acquired = acquired.map_err(OpenError::system("poll"))?;
        let Some(acquired) = acquired else {
            let seconds = PATIENCE.as_secs();
            let reason = format!(
                "no DHCP server and no router gave an address on {} within {seconds} s",
                self.link
            );
            let remedy = "give a free address of the network with its prefix length, such as 10.0.0.77/24, or \
                          check that the network has a DHCP server and admits this MAC address";
            return Err(Refusal::new(ErrorKind::TimedOut, Errno::ETIMEDOUT, reason)
                .with_remedy(remedy)
                .into());
        };
        Ok(Some(acquired))
    }
}
