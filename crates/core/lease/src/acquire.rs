//! Waiting for addresses.

use std::time::Duration;

use stack::LeasedAddress;

use crate::autoconf::Autoconf;
use crate::client::Client;
use crate::conversation::Conversation;
use crate::own::OwnAddresses;
use crate::port::LeasePort;

/// The address families that a NIC can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Families {
    /// IPv4 alone: the MTU is too small for IPv6.
    Ipv4,
    /// IPv4 and IPv6.
    Both,
}

/// Addresses that were acquired, and that nothing renews yet. Dropping them returns the one of a DHCP server.
#[derive(Debug)]
pub struct Acquired {
    pub(crate) conversation: Conversation,
    pub(crate) addresses: Vec<LeasedAddress>,
}

impl Acquired {
    /// Returns the addresses.
    pub fn addresses(&self) -> &[LeasedAddress] {
        &self.addresses
    }
}

/// What came of waiting for addresses.
#[derive(Debug)]
pub enum Outcome {
    /// There is an address at least.
    Acquired(Box<Acquired>),
    /// There was none within the time. What was offered, and why it was not usable.
    Nothing(Vec<String>),
}

/// Acquires addresses; `random` makes the numbers of the messages unpredictable. None of `own`, the addresses of this machine, is
/// accepted from a server.
///
/// # Errors
/// poll(2) fails.
pub fn acquire(
    port: LeasePort,
    own: OwnAddresses,
    families: Families,
    random: u64,
    at_most: Duration,
) -> rustix::io::Result<Outcome> {
    let mac = port.mac().0;
    let autoconf = match families {
        Families::Ipv4 => None,
        Families::Both => Some(Autoconf::new(mac)),
    };
    let client = Client::new(mac, random);
    let mut conversation = Conversation::new(client, autoconf, port, own);
    let mut addresses = Vec::new();
    loop {
        while let Some(news) = conversation.news() {
            news.apply_to(&mut addresses);
        }
        let now = conversation.now();
        let is_over = now >= at_most;
        if is_over && addresses.is_empty() {
            return Ok(Outcome::Nothing(conversation.unusable()));
        }
        if is_over || conversation.is_settled(&addresses, now) {
            return Ok(Outcome::Acquired(Box::new(Acquired {
                conversation,
                addresses,
            })));
        }
        // Whether the clients are settled depends on the time, too.
        let pause = Duration::from_millis(100);
        conversation.turn(None, pause.min(at_most - now))?;
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::os::fd::OwnedFd;

    use rustix::io::{read, write};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use wire::{MacAddr, RxHeaders};

    use super::*;

    /// A port, and the other end of its wire, where every frame follows a virtio-net header of 10 bytes.
    fn port() -> (LeasePort, OwnedFd) {
        let (flags, kind) = (SocketFlags::NONBLOCK, SocketType::SEQPACKET);
        let (ours, network) = socketpair(AddressFamily::UNIX, kind, flags, None).expect("a pair");
        (LeasePort::new(ours, MacAddr([2, 0, 0, 0, 0, 1])), network)
    }

    #[test]
    fn without_a_server_there_is_no_address_after_the_time_limit() {
        let (port, network) = port();
        let limit = Duration::from_millis(20);
        assert!(matches!(
            acquire(port, OwnAddresses::new(|| None), Families::Ipv4, 1, limit),
            Ok(Outcome::Nothing(offered)) if offered.is_empty()
        ));
        let mut frame = [0; 2048];
        let len = read(&network, &mut frame).expect("a discovery");
        let frame = &frame[10..len];
        let headers = RxHeaders::parse(frame, frame.len()).expect("well formed");
        assert_eq!(headers.ports(), Some((68, 67)));
        assert_eq!(headers.dst_ip(), Some(Ipv4Addr::BROADCAST.into()));
        assert_eq!(headers.payload_len, 300);
    }

    #[test]
    fn noise_on_the_wire_is_no_address() {
        let (port, network) = port();
        for len in [0, 1, 9, 10, 24, 60, 342, 1500] {
            write(&network, &vec![0xff; len]).expect("room");
        }
        let limit = Duration::from_millis(20);
        assert!(matches!(
            acquire(port, OwnAddresses::new(|| None), Families::Ipv4, 1, limit),
            Ok(Outcome::Nothing(offered)) if offered.is_empty()
        ));
    }
}
