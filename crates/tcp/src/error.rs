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
    /// The peer did not answer in time (ETIMEDOUT).
    #[error("connection timed out")]
    TimedOut,
    /// The network says that the peer cannot be reached (EHOSTUNREACH).
    #[error("no route to host")]
    HostUnreachable,
    /// The network says that the peer's network cannot be reached (ENETUNREACH).
    #[error("network is unreachable")]
    NetUnreachable,
    /// This side aborted the connection (ECONNABORTED).
    #[error("connection aborted")]
    Aborted,
}
