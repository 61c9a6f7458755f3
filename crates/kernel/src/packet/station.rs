//! The station that our stack is in the network of an interface.

use std::net::IpAddr;
use std::ops::RangeInclusive;

/// The station that our stack is in the network of the interface.
#[derive(Clone, Debug)]
pub enum Station {
    /// One more station beside this machine.
    Own {
        /// Our MAC address.
        mac: [u8; 6],
        /// Multicast addresses that our stack receives, beside broadcast.
        multicast: Vec<[u8; 6]>,
    },
    /// This machine: its kernel leaves a range of TCP ports to our stack.
    Shared(SharedStation),
    /// A station that gets its addresses from servers and routers. The socket is for that alone.
    Auto {
        /// Its MAC address.
        mac: [u8; 6],
    },
    /// None: the socket is one end of a cable, which passes the frames of others on.
    Cable,
}

/// TCP ports of this machine that are ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedStation {
    /// Addresses of the interface.
    pub addresses: Vec<IpAddr>,
    /// The ports at these addresses: 1 to [`SharedStation::MAX_PORTS`], without port 0.
    pub ports: RangeInclusive<u16>,
}

impl SharedStation {
    /// Most ports of a range. Each takes a descriptor for each address: a socket of the kernel that holds the port.
    pub const MAX_PORTS: usize = 256;
}
