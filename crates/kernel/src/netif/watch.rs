//! Changes of one interface, as messages of the kernel.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use super::rtnetlink::{self, RTM_GETLINK};
use crate::netlink::{NetlinkError, NetlinkSocket};

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
pub struct Sighting {
    /// Its state. [`Presence::Up`] needs a carrier, too.
    pub presence: Presence,
    /// Frames that it dropped instead of receiving them, since it exists.
    pub rx_dropped: Option<u64>,
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
    pub fn latest(&mut self) -> Option<Sighting> {
        let (mut latest, index) = (None, self.index);
        let taken = self.socket.take_arrived(|message| {
            latest = rtnetlink::sighting(&message, index).or(latest);
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
