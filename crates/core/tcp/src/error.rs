//! Errors that end a connection.

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

/// What is unreachable, by an ICMP error (RFC 1122 3.2.2.1; linux `icmp_err_convert`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unreachable {
    /// The network, also if it is prohibited.
    Net,
    /// The host, also if it is prohibited, or the hop limit was exceeded.
    Host,
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
            Unreachable::Protocol => TcpError::ProtocolUnreachable,
            Unreachable::Port => TcpError::Refused,
        }
    }
}
