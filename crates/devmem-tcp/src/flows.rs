//! The TCP segments that a receiver has steered to its queues.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The TCP segments that are steered.
#[derive(Clone, Debug)]
pub(crate) struct Flows {
    /// Where they go; port 0 stands for any port.
    pub(crate) local: SocketAddr,
    /// Where they come from: one of these, or anywhere if there is none.
    pub(crate) peers: Vec<SocketAddr>,
}

impl Flows {
    /// Returns the settings that steer them to the last `queues` queues of a NIC.
    pub(crate) fn settings(&self, queues: u16) -> Vec<String> {
        let Self { local, peers } = self;
        vec![
            "header split on, threshold 0".to_owned(),
            format!("RSS away from the last {queues} queue(s)"),
            match peers.is_empty() {
                true => format!("TCP to {local} steered to them"),
                false => format!("TCP from {peers:?} to {local} steered to them"),
            },
        ]
    }
}

/// Returns any address and port of the IP version of `peer`.
pub(crate) fn any_like(peer: SocketAddr) -> SocketAddr {
    let any = match peer.ip().to_canonical() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    SocketAddr::new(any, 0)
}
