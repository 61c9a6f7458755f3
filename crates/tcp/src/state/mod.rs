//! The states of RFC 9293 3.3.2.

/// The name of a connection's state, as Linux and netstat spell it in `Display`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StateKind {
    /// No connection.
    #[default]
    Closed,
    /// Waits for a SYN-ACK.
    SynSent,
    /// Waits for the ACK of its SYN-ACK.
    SynReceived,
    /// Open in both directions.
    Established,
    /// Our FIN is sent or queued, not acknowledged.
    FinWait1,
    /// Our FIN is acknowledged, the peer still sends.
    FinWait2,
    /// The peer's FIN came, we still send.
    CloseWait,
    /// Both FINs are sent, ours is not acknowledged.
    Closing,
    /// Waits for the ACK of our FIN, after the peer's.
    LastAck,
    /// Both FINs are acknowledged; stays for the sake of late segments.
    TimeWait,
}
