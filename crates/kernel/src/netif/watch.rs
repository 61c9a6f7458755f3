//! Changes of one interface, as messages of the kernel.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use super::rtnetlink::{
    self, AF_UNSPEC, IFF_LOWER_UP, IFF_UP, LinkBody, RTM_DELLINK, RTM_GETLINK, RTM_NEWLINK,
};
use crate::netlink::{NetlinkError, NetlinkMessage, NetlinkSocket};

/// `IFLA_STATS64`.
const IFLA_STATS64: u16 = 23;
/// Offset of `rx_dropped` in `struct rtnl_link_stats64`: its seventh field.
const RX_DROPPED_AT: usize = 6 * size_of::<u64>();

/// State of an interface to which a link is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is up.
    Up,
    /// It is down; the link gets packets again when it is up.
    Down,
    /// It was removed, or moved to another network namespace: the link gets no packets any more.
    Gone,
}

/// What a message of the kernel says about an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceState {
    /// Its state. [`Presence::Up`] needs a carrier, too.
    pub presence: Presence,
    /// Frames that it dropped instead of receiving them, since it exists.
    pub rx_dropped: Option<u64>,
}

impl InterfaceState {
    /// Parses a message as one about the interface `index`: a change, or the reply to a request.
    pub(super) fn parse(message: &NetlinkMessage<'_>, index: u32) -> Option<Self> {
        let gone = Self {
            presence: Presence::Gone,
            rx_dropped: None,
        };
        if message.refusal() == Some(Errno::NODEV) {
            return Some(gone);
        }
        let ([family_and_kind, found, flags, _], attributes) = message.split::<LinkBody>()?;
        // Messages of AF_BRIDGE are about the interface as a port of a bridge.
        let [family, ..] = family_and_kind.to_ne_bytes();
        if (found, family) != (index, AF_UNSPEC) {
            return None;
        }
        let presence = match (message.kind, flags & (IFF_UP | IFF_LOWER_UP)) {
            (RTM_NEWLINK, both) if both == IFF_UP | IFF_LOWER_UP => Presence::Up,
            (RTM_NEWLINK, _) => Presence::Down,
            (RTM_DELLINK, _) => return Some(gone),
            _ => return None,
        };
        let counters = attributes.find(IFLA_STATS64);
        let rx_dropped =
            counters.and_then(|counters| counters.value.get(RX_DROPPED_AT..)?.first_chunk());
        Some(Self {
            presence,
            rx_dropped: rx_dropped.copied().map(u64::from_ne_bytes),
        })
    }
}

/// Watches an interface. The descriptor is readable when there is a message; nothing here waits.
#[derive(Debug)]
pub struct InterfaceWatch {
    socket: NetlinkSocket,
    index: u32,
}

impl InterfaceWatch {
    /// Watches the interface `index` of the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// No netlink socket can be opened.
    pub fn new(index: u32) -> Result<Self, NetlinkError> {
        let socket = NetlinkSocket::route_with_link_changes()?;
        Ok(Self { socket, index })
    }

    /// Asks for the current state, which [`latest`](Self::latest) returns.
    ///
    /// # Errors
    ///
    /// The error of send(2).
    pub fn ask(&mut self) -> Result<(), Errno> {
        self.socket.ask(rtnetlink::link(RTM_GETLINK, self.index))
    }

    /// Returns what the latest message about the interface says; `None` if none has arrived since the last call.
    pub fn latest(&mut self) -> Option<InterfaceState> {
        let (mut latest, index) = (None, self.index);
        let taken = self.socket.take_arrived(|message| {
            latest = InterfaceState::parse(&message, index).or(latest);
        });
        if taken.is_err() {
            // Messages were lost. If this fails, too, the next question will tell.
            let _ = self.ask();
        }
        latest
    }
}

impl AsFd for InterfaceWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netif::Interface;
    use crate::netns;
    use crate::test_util::in_netns;

    #[test]
    fn changes_and_the_end_of_an_interface_are_seen_and_those_of_others_are_not() {
        in_netns(
            "netif::watch::tests::changes_and_the_end_of_an_interface_are_seen_and_those_of_others_are_not",
            || {
                let (mut a, mut b) = Interface::create_veth_pair("a", "b").unwrap();
                let mut watch = InterfaceWatch::new(a.index()).unwrap();
                assert_eq!(watch.latest(), None);
                b.set_mtu(1400).unwrap();
                assert_eq!(watch.latest(), None);
                let presence =
                    |watch: &mut InterfaceWatch| watch.latest().map(|seen| seen.presence);
                a.set_mtu(1400).unwrap();
                assert_eq!(presence(&mut watch), Some(Presence::Down));
                a.set_up().unwrap();
                b.set_up().unwrap();
                watch.ask().unwrap();
                let seen = watch.latest().unwrap();
                assert_eq!((seen.presence, seen.rx_dropped), (Presence::Up, Some(0)));
                b.delete().unwrap();
                assert_eq!(presence(&mut watch), Some(Presence::Gone));
                watch.ask().unwrap();
                assert_eq!(presence(&mut watch), Some(Presence::Gone));
            },
        );
    }

    #[test]
    fn an_interface_that_moves_to_another_namespace_is_gone() {
        in_netns(
            "netif::watch::tests::an_interface_that_moves_to_another_namespace_is_gone",
            || {
                let (a, _b) = Interface::create_veth_pair("a", "b").unwrap();
                let mut watch = InterfaceWatch::new(a.index()).unwrap();
                let entered = std::thread::spawn(|| {
                    netns::enter_new().unwrap();
                    netns::NetNs::current().unwrap()
                });
                a.move_to(entered.join().unwrap().as_fd()).unwrap();
                let seen = watch.latest().unwrap();
                assert_eq!(seen.presence, Presence::Gone);
            },
        );
    }
}
