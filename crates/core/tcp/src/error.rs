//! Errors that end a connection.

use std::net::IpAddr;

use thiserror::Error;

/// Error of a connection that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum TcpError {
    /// The peer refused the connection: a RST answered the SYN (ECONNREFUSED).
    #[error("connection refused")]
    Refused,
    /// The peer reset the connection (ECONNRESET).
    #[error("connection reset by peer")]
    Reset,
    /// The peer reset the connection after it had ended its half (EPIPE; linux net/ipv4/tcp_input.c `tcp_reset`).
    #[error("connection reset by peer, which had ended its half before")]
    BrokenPipe,
    /// The peer did not answer in time (ETIMEDOUT).
    #[error("connection timed out")]
    TimedOut,
    /// An ICMP error: the peer is unreachable (EHOSTUNREACH).
    #[error("no route to host")]
    HostUnreachable,
    /// The peer, or the router to it, does not answer the question for its hardware address (EHOSTUNREACH).
    #[error("{} {ip} does not answer {}", if *is_router { "the router" } else { "the host" }, question(*ip))]
    NextHopSilent {
        /// The host on the link.
        ip: IpAddr,
        /// It is the router to the peer.
        is_router: bool,
    },
    /// An ICMP error: the peer's network is unreachable (ENETUNREACH).
    #[error("network is unreachable")]
    NetUnreachable,
    /// An ICMP error: the peer's host has no TCP (ENOPROTOOPT).
    #[error("the peer's host does not speak TCP")]
    ProtocolUnreachable,
    /// The link to the peer has ended for good (ENETDOWN).
    #[error("the link has ended, and no packet of the peer can arrive any more")]
    LinkGone,
    /// Another station of the link has the local address of the connection (EADDRNOTAVAIL).
    #[error("another station of the network uses the address of this NIC, which has given it up")]
    AddressTaken,
    /// This side aborted the connection (ECONNABORTED).
    #[error("connection aborted")]
    Aborted,
    /// A device of this host could not copy payload to or from its memory (EIO).
    #[error("the device that holds the payload failed: {call}: {name} ({code})")]
    DeviceFailed {
        /// The function of the device's library.
        call: &'static str,
        /// The name of the error in the library.
        name: &'static str,
        /// The number of the error.
        code: i32,
    },
}

/// Returns the name of the question for a hardware address.
fn question(ip: IpAddr) -> &'static str {
    match ip {
        IpAddr::V4(_) => "ARP",
        IpAddr::V6(_) => "neighbour discovery",
    }
}

/// What is unreachable, by an ICMP error (RFC 1122 3.2.2.1; linux `icmp_err_convert`), or because a host on the link is silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unreachable {
    /// The network, also if it is prohibited.
    Net,
    /// The host, also if it is prohibited, or the hop limit was exceeded.
    Host,
    /// This host on the link, which is the peer, or the router to it.
    NextHop {
        /// Its address.
        ip: IpAddr,
        /// It is the router to the peer.
        is_router: bool,
    },
    /// The protocol TCP at the host.
    Protocol,
    /// The port.
    Port,
}

impl From<Unreachable> for TcpError {
    fn from(what: Unreachable) -> TcpError {
        match what {
            Unreachable::Net => TcpError::NetUnreachable,
            Unreachable::Host => TcpError::HostUnreachable,
            Unreachable::NextHop { ip, is_router } => TcpError::NextHopSilent { ip, is_router },
            Unreachable::Protocol => TcpError::ProtocolUnreachable,
            Unreachable::Port => TcpError::Refused,
        }
    }
}
