//! Why a connection ended.

use thiserror::Error;

/// What a socket over a dead connection reports.
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
    /// The network says that the peer cannot be reached (EHOSTUNREACH).
    #[error("no route to host")]
    HostUnreachable,
    /// The network says that the peer's network cannot be reached (ENETUNREACH).
    #[error("network is unreachable")]
    NetUnreachable,
    /// The peer's host does not speak TCP (ENOPROTOOPT).
    #[error("the peer's host does not speak TCP")]
    ProtocolUnreachable,
    /// This side aborted the connection (ECONNABORTED).
    #[error("connection aborted")]
    Aborted,
}

/// What an ICMP error says about the way to the peer (RFC 1122 3.2.2.1; linux `icmp_err_convert`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unreachable {
    /// The network, or it is forbidden.
    Net,
    /// The host, or it is forbidden, or the hop limit ran out.
    Host,
    /// TCP, at the host.
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
