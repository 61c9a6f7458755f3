//! State and measurements of a connection.

use std::time::Duration;

/// State of a connection (RFC 9293 3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum TcpState {
    /// No connection.
    #[default]
    Closed,
    /// Waits for a SYN-ACK.
    SynSent,
    /// Waits for the ACK of its SYN-ACK.
    SynReceived,
    /// Open in both directions.
    Established,
    /// This side has sent a FIN, which is not acknowledged.
    FinWait1,
    /// The FIN of this side is acknowledged; the peer may still send.
    FinWait2,
    /// The peer has sent its FIN; this side may still send.
    CloseWait,
    /// Both sides have sent a FIN, this side first; its FIN is not acknowledged.
    Closing,
    /// Both sides have sent a FIN, the peer first; the FIN of this side is not acknowledged.
    LastAck,
    /// Both FINs are acknowledged; the connection waits for late segments.
    TimeWait,
}

/// The name of RFC 9293: `FIN-WAIT-2`.
impl std::fmt::Display for TcpState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Closed => "CLOSED",
            Self::SynSent => "SYN-SENT",
            Self::SynReceived => "SYN-RECEIVED",
            Self::Established => "ESTABLISHED",
            Self::FinWait1 => "FIN-WAIT-1",
            Self::FinWait2 => "FIN-WAIT-2",
            Self::CloseWait => "CLOSE-WAIT",
            Self::Closing => "CLOSING",
            Self::LastAck => "LAST-ACK",
            Self::TimeWait => "TIME-WAIT",
        })
    }
}

macro_rules! tcp_info {
    ($($(#[$doc:meta])* $field:ident: $type:ty,)*) => {
        /// A snapshot of one connection: Linux' `struct tcp_info` (names without `tcpi_`), and more from the user-space stack.
        /// Fields that the kernel does not report are 0 or false.
        #[derive(Clone, Debug, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct TcpInfo {
            /// State of the connection.
            pub state: TcpState,
            $($(#[$doc])* pub $field: $type,)*
        }

        #[doc(hidden)]
        impl From<tcp::Info> for TcpInfo {
            fn from(info: tcp::Info) -> Self {
                Self {
                    state: info.state.into(),
                    $($field: info.$field,)*
                }
            }
        }
    };
}

tcp_info! {
    /// Both sides offered timestamps.
    timestamps: bool,
    /// Both sides offered SACK.
    sack: bool,
    /// Both sides agreed on ECN (RFC 3168).
    ecn: bool,
    /// Both sides agreed on AccECN (RFC 9768).
    accecn: bool,
    /// A packet with data arrived with an ECN codepoint: the path does not clear them.
    ecn_seen: bool,
    /// Shift of the windows that the peer announces.
    snd_wscale: u8,
    /// Shift of the windows that this side announces.
    rcv_wscale: u8,
    /// Doublings of the retransmission or persist timeout.
    backoff: u8,
    /// Largest reordering seen, in packets; 3 at first.
    reordering: u32,
    /// Packets that the peer has acknowledged, retransmissions counted once.
    delivered: u32,
    /// Current retransmission timeout.
    rto: Duration,
    /// Payload bytes of a full outgoing packet.
    snd_mss: u16,
    /// Payload bytes of a full incoming packet, as far as known.
    rcv_mss: u16,
    /// Packets sent and not acknowledged.
    unacked: u32,
    /// Packets the peer reported by SACK.
    sacked: u32,
    /// Packets believed lost.
    lost: u32,
    /// Packets retransmitted and not acknowledged.
    retrans: u32,
    /// Smoothed round-trip time.
    rtt: Duration,
    /// Its mean deviation.
    rttvar: Duration,
    /// Smallest round-trip time seen.
    min_rtt: Duration,
    /// Slow start threshold in packets; `u32::MAX` before the first loss.
    snd_ssthresh: u32,
    /// Congestion window in packets.
    snd_cwnd: u32,
    /// Bytes that the peer allows in flight.
    snd_wnd: u32,
    /// Bytes that this side allows in flight.
    rcv_wnd: u32,
    /// Receive space of the connection, in bytes.
    rcv_space: u32,
    /// Retransmitted packets since the connection began.
    total_retrans: u64,
    /// Consecutive timeouts of the retransmission timer without an answer.
    retransmits: u8,
    /// Timeouts of the retransmission timer since the connection began.
    total_rto: u64,
    /// Tail loss probes sent (TcpExtTCPLossProbes).
    tail_probes: u64,
    /// Fast recoveries, for losses inferred from SACKs or duplicate ACKs (TcpExtTCPSackRecovery, TcpExtTCPRenoRecovery).
    recoveries: u64,
    /// Recoveries and timeouts that were unnecessary and were undone (TcpExtTCPFullUndo and related).
    undone: u64,
    /// Zero window or keepalive probes without an answer.
    probes: u8,
    /// Current sending rate limit in bytes per second; 0 without pacing.
    pacing_rate: u64,
    /// Bytes of payload acknowledged by the peer.
    bytes_acked: u64,
    /// Packets delivered by ACKs that echo a CE mark.
    delivered_ce: u32,
    /// Received packets with a CE mark.
    ce_received: u64,
    /// With AccECN, bytes of payload delivered with ECT(1), modulo 2^32, as the peer reports.
    delivered_e1_bytes: u32,
    /// With AccECN, bytes of payload delivered with ECT(0), modulo 2^32.
    delivered_e0_bytes: u32,
    /// With AccECN, bytes of payload delivered with CE, modulo 2^32.
    delivered_ce_bytes: u32,
    /// With AccECN, bytes of payload received with ECT(1), modulo 2^32.
    received_e1_bytes: u32,
    /// With AccECN, bytes of payload received with ECT(0), modulo 2^32.
    received_e0_bytes: u32,
    /// With AccECN, bytes of payload received with CE, modulo 2^32.
    received_ce_bytes: u32,
    /// Times that the congestion window was reduced because the peer echoed a mark.
    ecn_reductions: u64,
    /// Bytes of payload received in order.
    bytes_received: u64,
    /// Bytes of payload sent, retransmissions included.
    bytes_sent: u64,
    /// Bytes of payload retransmitted.
    bytes_retrans: u64,
    /// Bytes queued and not sent yet.
    notsent_bytes: u64,
    /// Segments sent.
    segs_out: u64,
    /// Segments received.
    segs_in: u64,
    /// Segments with payload sent.
    data_segs_out: u64,
    /// Segments with payload received.
    data_segs_in: u64,
    /// D-SACKs received: retransmissions of this side that were unnecessary.
    dsack_dups: u64,
    /// D-SACKs sent: retransmissions of the peer that were unnecessary.
    dsacks_out: u64,
    /// Times that packets were made smaller because larger ones were lost without an ICMP message.
    mtu_black_holes: u64,
    /// Times reordering was seen by the sender.
    reord_seen: u64,
    /// Out-of-order segments received.
    rcv_ooopack: u64,
    /// Challenge ACKs sent.
    challenge_acks: u64,
    /// Segments refused because of an old timestamp.
    paws_rejected: u64,
    /// Receive queue: bytes in order and unread.
    readable: usize,
    /// Bytes held out of order.
    out_of_order: usize,
    /// Payload of a SYN was accepted, of ours by the peer or of the peer's by us: TCP Fast Open, see
    /// [`Netdev::connect_with_data`](crate::Netdev::connect_with_data).
    syn_data_acked: bool,
}

#[doc(hidden)]
impl From<tcp::StateKind> for TcpState {
    fn from(state: tcp::StateKind) -> Self {
        match state {
            tcp::StateKind::Closed => Self::Closed,
            tcp::StateKind::SynSent => Self::SynSent,
            tcp::StateKind::SynReceived => Self::SynReceived,
            tcp::StateKind::Established => Self::Established,
            tcp::StateKind::FinWait1 => Self::FinWait1,
            tcp::StateKind::FinWait2 => Self::FinWait2,
            tcp::StateKind::CloseWait => Self::CloseWait,
            tcp::StateKind::Closing => Self::Closing,
            tcp::StateKind::LastAck => Self::LastAck,
            tcp::StateKind::TimeWait => Self::TimeWait,
        }
    }
}
