//! Whether a NIC that is opened may have its addresses: they are not those of this machine, and no other station has them.

use std::net::IpAddr;
use std::time::Duration;

use devmem_linux::netif;
use devmem_linux::netlink::NetlinkError;
use devmem_uapi::Errno;
use nic::LinkState;
use runtime::Clock;
use runtime::fds::sleep_until_readable;
use rustix::event::{PollFd, PollFlags};
use stack::{AddressCheck, AddressConflict, ConflictOutcome, PROBE_WAIT, PROBES};

use super::{NetdevBuilder, QueueStack};
use crate::error::{Error, ErrorKind};
use crate::link::{LinkKind, MacvtapMode};

/// Longest wait for the answers of other stations: a flood of frames delays the questions.
const PROBE_TIMEOUT: Duration = PROBE_WAIT.saturating_mul(10 * PROBES as u32);

impl NetdevBuilder {
    /// Returns what the stack does before it uses its addresses, on a TAP that was `created` or on another link.
    pub(super) fn address_check(&self, created: bool) -> AddressCheck {
        match self.link {
            // The kernel of this machine has them, and answers for them.
            LinkKind::Packet(_) if self.ports.is_some() => AddressCheck::Never,
            LinkKind::Packet(_) | LinkKind::Macvtap(_) => AddressCheck::AskFirst,
            // Only this kernel is at its other end, and its addresses are known.
            LinkKind::Tap(_) if created => AddressCheck::Announce,
            // It may be a port of a bridge.
            LinkKind::Tap(_) => AddressCheck::AskFirst,
            LinkKind::Unix(_) | LinkKind::UnixListen(_) | LinkKind::Memory(_) => {
                AddressCheck::AskMeanwhile
            }
        }
    }

    /// Refuses addresses that this machine has itself, on links to networks that it is in: its packets to them do not leave it, and
    /// it does not answer questions of its own. A wire to one other program is a network of its own.
    pub(super) fn check_own_addresses(&self) -> Result<(), Error> {
        let taken = |(ip, _): &&(IpAddr, u8)| self.peers.iter().any(|(peer, _)| peer == ip);
        if let Some((ip, _)) = self.addresses.iter().find(taken) {
            let reason = format!("both ends of {} would have the address {ip}", self.link);
            return Err(
                Error::invalid(reason).with_remedy("give them two addresses of one network")
            );
        }
        match &self.link {
            LinkKind::Packet(_) if self.ports.is_some() => return Ok(()),
            LinkKind::Tap(_) | LinkKind::Packet(_) | LinkKind::Macvtap(_) => {}
            LinkKind::Unix(_) | LinkKind::UnixListen(_) | LinkKind::Memory(_) => return Ok(()),
        }
        for (interface, ip) in own_addresses()? {
            let is_replaced = self.replaced_interface() == Some(&interface);
            let is_taken = self.addresses.iter().any(|(ours, _)| *ours == ip);
            if is_taken && !is_replaced {
                return Err(self.own_address(ip, &interface));
            }
        }
        Ok(())
    }

    /// Returns the interface at which the NIC takes the place of this machine.
    pub(super) fn replaced_interface(&self) -> Option<&str> {
        match (&self.link, self.macvtap_mode) {
            (LinkKind::Macvtap(name), Some(MacvtapMode::Passthru)) => Some(name),
            _ => None,
        }
    }

    fn own_address(&self, ip: IpAddr, interface: &str) -> Error {
        let reason = format!(
            "{ip} is an address of this machine, on {interface}, and the NIC on {} is another station",
            self.link
        );
        let remedy = match &self.link {
            LinkKind::Packet(name) => format!(
                "give a free address of the network, or share TCP ports of this one: packet:{name},ports=5201-5210"
            ),
            LinkKind::Macvtap(name) => format!(
                "give a free address of the network, or take the place of this machine at {name}: macvtap:{name},mode=passthru"
            ),
            _ => "give another address of the network".to_owned(),
        };
        Error::new(ErrorKind::AddrInUse, Errno::EADDRINUSE, reason).with_remedy(remedy)
    }

    /// Waits until the stacks of the shards have asked whether another station has their addresses. Not while the link is down:
    /// they ask when it is up.
    ///
    /// # Errors
    /// A station has one of them.
    pub(super) fn await_addresses(
        &self,
        stacks: &mut [QueueStack],
        clock: &Clock,
    ) -> Result<(), Error> {
        let start = clock.now();
        while stacks
            .iter()
            .any(|(stack, _)| stack.is_checking_addresses())
        {
            let now = clock.now();
            let mut worked = false;
            for (stack, _) in stacks.iter_mut() {
                worked |= stack.poll(now).worked;
            }
            let Some((first, _)) = stacks.first() else {
                return Ok(());
            };
            let taken = first.address_conflicts().since(0);
            if let Some(conflict) = taken
                .iter()
                .find(|it| it.outcome != ConflictOutcome::Defended)
            {
                return Err(self.taken(conflict));
            }
            let is_late = now.saturating_since(start) >= PROBE_TIMEOUT;
            if is_late || first.nic().link_state() != LinkState::Up {
                stacks
                    .iter_mut()
                    .for_each(|(stack, _)| stack.use_addresses_now());
            } else if !worked {
                sleep(stacks, clock);
            }
        }
        Ok(())
    }

    fn taken(&self, conflict: &AddressConflict) -> Error {
        let AddressConflict { ip, by, .. } = conflict;
        let reason = format!(
            "another station of {} has the address {ip}: {by}",
            self.link
        );
        let remedy = match self.link {
            LinkKind::Packet(_) | LinkKind::Macvtap(_) => {
                "give a free address of the network, or auto for one of its DHCP server"
            }
            _ => "give a free address of the network",
        };
        Error::new(ErrorKind::AddrInUse, Errno::EADDRINUSE, reason).with_remedy(remedy)
    }
}

/// Sleeps until a frame arrives, or something is due.
fn sleep(stacks: &[QueueStack], clock: &Clock) {
    let due = stacks.iter().filter_map(|(stack, _)| stack.next_deadline());
    let sleep = due
        .min()
        .map_or(PROBE_WAIT, |due| due.saturating_since(clock.now()));
    let fds = stacks.iter().flat_map(|(_, fds)| fds);
    let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    sleep_until_readable(&mut fds, sleep.min(PROBE_WAIT));
}

/// Returns the addresses of this network namespace, each with the name of its interface.
pub(super) fn own_addresses() -> Result<Vec<(String, IpAddr)>, Error> {
    let read =
        || -> Result<_, NetlinkError> { Ok((netif::all_addresses()?, netif::interfaces()?)) };
    let (addresses, interfaces) = read().map_err(|error| {
        let errno = Errno(error.errno.raw_os_error());
        Error::new(ErrorKind::of_errno(errno), errno, error.to_string())
    })?;
    let named = |(index, ip): (u32, IpAddr)| {
        let name = interfaces.iter().find(|(of, _, _)| *of == index);
        let name = name.map_or_else(|| format!("interface {index}"), |(_, name, _)| name.clone());
        (name, ip)
    };
    Ok(addresses.into_iter().map(named).collect())
}
