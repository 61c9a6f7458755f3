//! Facts about a connection, as in Linux's `TCP_INFO`.

use core::time::Duration;

use wire::Instant;

use crate::chrono::Chrono;
use crate::fast_open::start::ClientFail;
use crate::state_kind::StateKind;

/// Phase of congestion control (linux `enum tcp_ca_state`, with its numbers).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CaState {
    /// No loss is suspected.
    #[default]
    Open = 0,
    /// Something arrived out of order.
    Disorder = 1,
    /// The peer echoed a mark: the window shrinks.
    Cwr = 2,
    /// Losses are repaired as ACKs come in.
    Recovery = 3,
    /// The retransmission timer ran out.
    Loss = 4,
}

/// A snapshot of one connection (linux include/uapi/linux/tcp.h `struct tcp_info`; names without
/// `tcpi_`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Info {
    /// The state.
    pub state: StateKind,
    /// Both sides offered timestamps.
    pub timestamps: bool,
    /// Both sides offered SACK.
    pub sack: bool,
    /// Both sides agreed on ECN (RFC 3168).
    pub ecn: bool,
    /// With AccECN (RFC 9768).
    pub accecn: bool,
    /// A packet of the peer's data had an ECN codepoint.
    pub ecn_seen: bool,
    /// Shift of the windows that the peer sends.
    pub snd_wscale: u8,
    /// Shift of the windows that we send.
    pub rcv_wscale: u8,
    /// Phase of congestion control.
    pub ca_state: CaState,
    /// Doublings of the retransmission or persist timeout.
    pub backoff: u8,
    /// When payload was last received; if none was, when the connection opened.
    pub last_data_recv: Instant,
    /// When payload was last sent; if none was, when the connection opened.
    pub last_data_sent: Instant,
    /// Times with queued or unacknowledged data, and what limited sending.
    pub chrono: Chrono,
    /// Largest reordering seen, in packets; 3 at first.
    pub reordering: u32,
    /// Packets that are known to have arrived, retransmissions counted once.
    pub delivered: u32,
    /// Current retransmission timeout.
    pub rto: Duration,
    /// Payload bytes of a full outgoing packet.
    pub snd_mss: u16,
    /// Payload bytes of a full incoming packet, as far as seen.
    pub rcv_mss: u16,
    /// Packets sent and not acknowledged.
    pub unacked: u32,
    /// Packets the peer reported by SACK.
    pub sacked: u32,
    /// Packets believed lost.
    pub lost: u32,
    /// Packets sent again and not acknowledged.
    pub retrans: u32,
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Its mean deviation.
    pub rttvar: Duration,
    /// Smallest round-trip time seen.
    pub min_rtt: Duration,
    /// Largest segment that we announced to the peer, in bytes.
    pub adv_mss: u16,
    /// Slow start threshold in packets; `u32::MAX` before the first loss.
    pub snd_ssthresh: u32,
    /// Congestion window in packets.
    pub snd_cwnd: u32,
    /// Bytes the peer lets us have in flight.
    pub snd_wnd: u32,
    /// Bytes we let the peer have in flight.
    pub rcv_wnd: u32,
    /// Receive space granted from above.
    pub rcv_space: u32,
    /// Packets sent again over the connection's life.
    pub total_retrans: u64,
    /// Timeouts of the retransmission timer in a row, without an answer.
    pub retransmits: u8,
    /// Timeouts of the retransmission timer over the connection's life (the kernel: TcpTimeouts of nstat(8)).
    pub total_rto: u64,
    /// Tail loss probes sent (TcpExtTCPLossProbes).
    pub tail_probes: u64,
    /// Fast recoveries begun, for losses inferred from what arrived (TcpExtTCPSackRecovery, TcpExtTCPRenoRecovery).
    pub recoveries: u64,
    /// Recoveries and timeouts that turned out needless and were taken back (TcpExtTCPFullUndo and its like).
    pub undone: u64,
    /// Zero window or keepalive probes without an answer.
    pub probes: u8,
    /// Current sending rate limit in bytes per second; 0 without pacing.
    pub pacing_rate: u64,
    /// Bytes of payload acknowledged by the peer.
    pub bytes_acked: u64,
    /// Packets delivered by ACKs that echo a mark.
    pub delivered_ce: u32,
    /// Packets of data received that routers had marked; with AccECN packets without data, too.
    pub ce_received: u64,
    /// With AccECN, bytes of payload delivered with ECT(1), modulo 2^32, as far as the peer told.
    pub delivered_e1_bytes: u32,
    /// With ECT(0).
    pub delivered_e0_bytes: u32,
    /// Marked.
    pub delivered_ce_bytes: u32,
    /// With AccECN, bytes of payload received with ECT(1), modulo 2^32.
    pub received_e1_bytes: u32,
    /// With ECT(0).
    pub received_e0_bytes: u32,
    /// Marked.
    pub received_ce_bytes: u32,
    /// Times the window was reduced because the peer echoed a mark.
    pub ecn_reductions: u64,
    /// Bytes of payload received in order.
    pub bytes_received: u64,
    /// Bytes of payload sent, repetitions included.
    pub bytes_sent: u64,
    /// Bytes of payload sent again.
    pub bytes_retrans: u64,
    /// Bytes queued and never sent.
    pub notsent_bytes: u64,
    /// Segments sent.
    pub segs_out: u64,
    /// Segments received.
    pub segs_in: u64,
    /// Segments with payload sent.
    pub data_segs_out: u64,
    /// Segments with payload received.
    pub data_segs_in: u64,
    /// Rounds of D-SACK received: unnecessary retransmissions of this side.
    pub dsack_dups: u64,
    /// D-SACKs sent: unnecessary retransmissions of the peer.
    pub dsacks_out: u64,
    /// Times that packets were made smaller because larger ones vanished.
    pub mtu_black_holes: u64,
    /// Times reordering was seen by the sender.
    pub reord_seen: u64,
    /// Out-of-order segments received.
    pub rcv_ooopack: u64,
    /// Challenge ACKs sent.
    pub challenge_acks: u64,
    /// Segments refused because of an old timestamp.
    pub paws_rejected: u64,
    /// Receive queue: bytes in order and unread.
    pub readable: usize,
    /// Bytes held out of order.
    pub out_of_order: usize,
    /// Payload of a SYN was accepted: of ours by the peer, or of the peer's by us (TCPI_OPT_SYN_DATA).
    pub syn_data_acked: bool,
    /// Why Fast Open failed, if it did.
    pub fast_open_client_fail: ClientFail,
}
