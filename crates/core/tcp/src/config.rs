//! What TCP is told from above, and every number with its source.
//!
//! [`Config`] is shared by all connections of a stack; [`ConnectionOptions`] is what a program may set for one of them,
//! [`ConnectionConfig`] both, with the limits of one connection's path.

mod ecn;
mod options;

use core::time::Duration;
use std::sync::Arc;

use crate::policy::{OwnPolicy, Policy};

pub use ecn::{EcnConfig, EcnMode, EcnPolicy};
pub use options::{
    CongestionKind, ConnectionConfig, ConnectionOptions, Keepalive, LinkLimits, SuperPayload,
    UnfitPayload,
};

/// Smallest MSS that a peer or a path can talk us down to: full options leave 8 bytes of it
/// (linux include/net/tcp.h `TCP_MIN_SND_MSS`).
pub const MIN_MSS: u16 = 48;

/// MSS assumed of a peer that names none over IPv4 (RFC 9293 3.7.1).
pub const DEFAULT_MSS: u16 = 536;

/// Largest shift of a window scale option (RFC 7323 2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;

/// Largest window field of a segment whose window is not scaled.
pub const MAX_UNSCALED_WINDOW: u32 = 65_535;

/// Bytes that the timestamps option takes of each segment, padding included (RFC 7323 appendix A).
pub const TIMESTAMPS_LEN: u16 = 12;

/// Bytes that AccECN's option takes of each segment, padding included (RFC 9768 3.2.3).
pub const ACCECN_LEN: u16 = wire::AccEcn::MAX_LEN as u16;

/// First retransmission timeout, and that of a SYN (RFC 6298 2.1).
pub const RTO_INITIAL: Duration = Duration::from_secs(1);

/// Smallest retransmission timeout (linux `TCP_RTO_MIN`; RFC 6298 2.4 asks for 1 s, which nobody
/// does).
pub const RTO_MIN: Duration = Duration::from_millis(200);

/// Largest retransmission timeout (linux `TCP_RTO_MAX`; RFC 6298 2.5 allows any of at least 60 s).
pub const RTO_MAX: Duration = Duration::from_secs(120);

/// How often a SYN is repeated with doubling intervals (linux `TCP_SYN_RETRIES`).
pub const SYN_RETRIES: u8 = 6;

/// How often a SYN is repeated before that, with equal intervals (linux `tcp_syn_linear_timeouts`: the last of all
/// leaves after 67 s, and the end comes after 131 s).
pub const SYN_LINEAR_TIMEOUTS: u8 = 4;

/// How often a SYN-ACK is repeated (linux `TCP_SYNACK_RETRIES`: together 63 s).
pub const SYN_ACK_RETRIES: u8 = 5;

/// How often data is repeated before the connection is given up: RFC 9293 3.8.3 R2 (linux
/// `TCP_RETR2`).
pub const DATA_RETRIES: u8 = 15;

/// Segments that may leave before anything was acknowledged (RFC 6928).
pub const INITIAL_CWND: u16 = 10;

/// Longest time an ACK is put off (linux `TCP_DELACK_MIN`; RFC 9293 3.8.6.3 allows 500 ms).
pub const DELAYED_ACK: Duration = Duration::from_millis(40);

/// Segments that are acknowledged one by one after a connection opens, while the peer's window
/// grows with each ACK (linux include/net/tcp.h `TCP_MAX_QUICKACKS`).
pub const QUICK_ACKS: u8 = 16;

/// Time that a closed connection keeps its name: one 2 MSL (linux `TCP_TIMEWAIT_LEN`).
pub const TIME_WAIT: Duration = Duration::from_secs(60);

/// Time that a connection nobody reads any more waits for the peer's FIN (linux `TCP_FIN_TIMEOUT`).
pub const FIN_WAIT_2_TIMEOUT: Duration = Duration::from_secs(60);

/// Time without progress after which a connection that its user closed is given up, be it that the
/// peer is silent or that it keeps its window shut (linux `tcp_orphan_retries`: 8 timeouts; RFC
/// 9293 3.8.3 wants 100 s).
pub const ORPHAN_TIMEOUT: Duration = Duration::from_secs(100);

/// Challenge ACKs that one connection sends within [`CHALLENGE_ACK_INTERVAL`] (RFC 5961 7 wants
/// some limit).
pub const CHALLENGE_ACK_LIMIT: u8 = 10;

/// The interval to which [`CHALLENGE_ACK_LIMIT`] applies.
pub const CHALLENGE_ACK_INTERVAL: Duration = Duration::from_secs(5);

/// Smallest interval between two ACKs that only answer segments outside the window
/// (linux `sysctl_tcp_invalid_ratelimit`).
pub const INVALID_ACK_INTERVAL: Duration = Duration::from_millis(500);

/// The part of the window that a super-segment which is not full waits for (linux `sysctl_tcp_tso_win_divisor`).
pub const TSO_WIN_DIVISOR: u8 = 3;

/// Age at which a remembered timestamp no longer condemns a segment (RFC 7323 5.5).
pub const TS_RECENT_MAX_AGE: Duration = Duration::from_secs(24 * 24 * 60 * 60);

/// Send buffer, default: more than the window of a Linux receiver (`tcp_rmem`, 6 MiB), so that a peer that pauses holds its
/// sender up only when it has no room. Linux has 4 MiB (`tcp_wmem`) and counts copies; device memory is not copied.
pub const SND_BUF_MAX: usize = 8 << 20;

/// Smallest and largest number of bytes that arrive between two ACKs of an undisturbed bulk
/// transfer, default. PERF.md measured no gain past the upper one.
pub const ACK_BYTES_MAX: u32 = 256 * 1024;

/// When a listener answers a SYN by a cookie and remembers nothing (linux `tcp_syncookies`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SynCookies {
    /// Never: what the backlog cannot hold is dropped.
    Never,
    /// When the backlog is full.
    #[default]
    WhenFull,
    /// Always, for tests.
    Always,
}

/// How TCP behaves, for all connections of a stack. The defaults are Linux's where Linux has one.
///
/// Not supported, and therefore not here: TCP Fast Open (RFC 7413), MPTCP, the
/// urgent pointer.
#[derive(Debug, Clone)]
pub struct Config {
    /// Options that connections begin with.
    pub options: ConnectionOptions,
    /// What a receive buffer is at first, in bytes (linux `tcp_rmem`, second number); only told, never used.
    pub rcv_buf_start: u32,
    /// Offers window scaling (RFC 7323 2).
    pub window_scaling: bool,
    /// Offers timestamps (RFC 7323 3).
    pub timestamps: bool,
    /// Offers selective acknowledgement (RFC 2018).
    pub sack: bool,
    /// Whether routers may mark packets instead of dropping them.
    pub ecn: EcnConfig,
    /// When a listener answers by SYN cookies.
    pub syn_cookies: SynCookies,
    /// When ACKs leave.
    pub acks: AckConfig,
    /// Timeouts and repetitions.
    pub timers: TimerConfig,
    /// Segments that may leave before anything was acknowledged.
    pub initial_cwnd: u16,
    /// Forgets part of the congestion window in a pause (RFC 5681 4.1, linux `tcp_slow_start_after_idle`).
    pub slow_start_after_idle: bool,
    /// Spaces out segments over the round trip instead of sending a window at once.
    pub pacing: bool,
    /// Longest payload of one outgoing segment before the NIC cuts it, in bytes, where that is less than what the link takes
    /// ([`SuperPayload::longest`]); `None`: what the link takes. 65,160 is better for programs that send 64 KiB at a time or
    /// less.
    pub max_gso_payload: Option<u32>,
    /// Divisor: a super-segment that is not full waits for an ACK that is about to come if it has less than window /
    /// divisor; 0: it does not wait (linux `tcp_tso_win_divisor`).
    pub tso_win_divisor: u8,
    /// Takes repeated timeouts of large packets for a path that swallows them without a word, and tries smaller ones
    /// (RFC 4821 7.7; linux `tcp_mtu_probing` = 1, which is not Linux's default).
    pub mtu_probing: bool,
    /// What other stacks do differently.
    pub policy: Arc<dyn Policy>,
}

/// When ACKs leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AckConfig {
    /// Longest time an ACK is put off.
    pub delay: Duration,
    /// Segments that are acknowledged one by one after the connection opens.
    pub quick: u8,
    /// Bytes after which an ACK is due; `None`: chosen from the window, at most [`ACK_BYTES_MAX`].
    pub bytes: Option<u32>,
    /// Smallest interval between two ACKs that only answer segments which are not acceptable and carry nothing.
    pub invalid_interval: Duration,
}

impl Default for AckConfig {
    fn default() -> AckConfig {
        AckConfig {
            delay: DELAYED_ACK,
            quick: QUICK_ACKS,
            bytes: None,
            invalid_interval: INVALID_ACK_INTERVAL,
        }
    }
}

/// Timeouts and repetitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimerConfig {
    /// Smallest retransmission timeout.
    pub rto_min: Duration,
    /// Largest retransmission timeout.
    pub rto_max: Duration,
    /// First retransmission timeout.
    pub rto_initial: Duration,
    /// How often a SYN is repeated with equal intervals at first.
    pub syn_linear_timeouts: u8,
    /// How often a SYN-ACK is repeated.
    pub syn_ack_retries: u8,
    /// How often data is repeated before the connection is given up.
    pub data_retries: u8,
    /// How long TIME-WAIT lasts.
    pub time_wait: Duration,
}

impl Default for TimerConfig {
    fn default() -> TimerConfig {
        TimerConfig {
            rto_min: RTO_MIN,
            rto_max: RTO_MAX,
            rto_initial: RTO_INITIAL,
            syn_linear_timeouts: SYN_LINEAR_TIMEOUTS,
            syn_ack_retries: SYN_ACK_RETRIES,
            data_retries: DATA_RETRIES,
            time_wait: TIME_WAIT,
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            options: ConnectionOptions::default(),
            rcv_buf_start: 128 << 10,
            window_scaling: true,
            timestamps: true,
            sack: true,
            ecn: EcnConfig::default(),
            syn_cookies: SynCookies::WhenFull,
            acks: AckConfig::default(),
            timers: TimerConfig::default(),
            initial_cwnd: INITIAL_CWND,
            slow_start_after_idle: true,
            pacing: false,
            max_gso_payload: None,
            tso_win_divisor: TSO_WIN_DIVISOR,
            mtu_probing: true,
            policy: Arc::new(OwnPolicy),
        }
    }
}
