//! Settings of TCP, and the constants behind their defaults, each with its source.
//!
//! [`Config`] is shared by all connections of a stack. [`ConnectionConfig`](connection::ConnectionConfig) adds the limits of the path to one peer. What a
//! program may set for one connection is [`Settings`].

pub(crate) mod connection;
mod ecn;

use core::time::Duration;

use crate::fast_open::config::FastOpenConfig;
use crate::settings::Settings;
use crate::tuning::Tuning;

pub use ecn::{EcnConfig, EcnMode, EcnPolicy};

/// Smallest MSS that a peer or a path can impose: with all options in use, 8 bytes of payload are left
/// (linux include/net/tcp.h `TCP_MIN_SND_MSS`).
pub const MIN_MSS: u16 = 48;

/// MSS assumed for a peer without an MSS option, over IPv4 (RFC 9293 3.7.1).
pub const DEFAULT_MSS: u16 = 536;

/// Largest window field of a segment whose window is not scaled.
pub const MAX_UNSCALED_WINDOW: u32 = 65_535;

/// Bytes that the timestamps option takes of each segment, padding included (RFC 7323 appendix A).
pub const TIMESTAMPS_LEN: u16 = 12;

/// Bytes that AccECN's option takes of each segment, padding included (RFC 9768 3.2.3).
pub const ACCECN_LEN: u16 = wire::AccEcn::MAX_LEN as u16;

/// First retransmission timeout, and that of a SYN (RFC 6298 2.1).
pub const RTO_INITIAL: Duration = Duration::from_secs(1);

/// Smallest retransmission timeout, which is as long as a peer may delay an ACK (linux `TCP_RTO_MIN`; RFC 6298 2.4 asks for
/// 1 s, which no common stack uses).
pub const RTO_MIN: Duration = Duration::from_millis(200);

/// Largest retransmission timeout (linux `TCP_RTO_MAX`; RFC 6298 2.5 allows any of at least 60 s).
pub const RTO_MAX: Duration = Duration::from_secs(120);

/// How often a SYN is repeated before that, with equal intervals (linux `tcp_syn_linear_timeouts`: the last SYN is sent
/// after 67 s, and the connection attempt fails after 131 s). Fewer retries end it when doubling intervals would.
pub const SYN_LINEAR_TIMEOUTS: u8 = 4;

/// How often a SYN-ACK is repeated (linux `TCP_SYNACK_RETRIES`: together 63 s).
pub const SYN_ACK_RETRIES: u8 = 5;

/// How often data is repeated before the connection is given up: RFC 9293 3.8.3 R2 (linux
/// `TCP_RETR2`).
pub const DATA_RETRIES: u8 = 15;

/// Segments that may be sent before the first ACK: the initial window (RFC 6928).
pub const INITIAL_CWND: u16 = 10;

/// Longest time that an ACK is delayed (linux `TCP_DELACK_MIN`; RFC 9293 3.8.6.3 allows 500 ms).
pub const DELAYED_ACK: Duration = Duration::from_millis(40);

/// Segments that are acknowledged one by one after a connection opens, while the peer's congestion window
/// grows with each ACK (linux include/net/tcp.h `TCP_MAX_QUICKACKS`).
pub const QUICK_ACKS: u8 = 16;

/// Time that a connection stays in TIME-WAIT: 2 MSL (linux `TCP_TIMEWAIT_LEN`).
pub const TIME_WAIT: Duration = Duration::from_secs(60);

/// Time without progress after which a connection that its program has closed is given up, whether the peer is silent or
/// keeps its window closed (linux `tcp_orphan_retries`: 8 timeouts; RFC 9293 3.8.3 asks for 100 s).
pub const ORPHAN_TIMEOUT: Duration = Duration::from_secs(100);

/// Most challenge ACKs that one connection sends within [`CHALLENGE_ACK_INTERVAL`] (RFC 5961 7 asks for a limit).
pub const CHALLENGE_ACK_LIMIT: u8 = 10;

/// The interval to which [`CHALLENGE_ACK_LIMIT`] applies.
pub const CHALLENGE_ACK_INTERVAL: Duration = Duration::from_secs(5);

/// Smallest interval between two ACKs that only answer segments outside the receive window
/// (linux `sysctl_tcp_invalid_ratelimit`).
pub const INVALID_ACK_INTERVAL: Duration = Duration::from_millis(500);

/// Divisor: a super-segment of less than window / divisor waits for the next ACK (linux `sysctl_tcp_tso_win_divisor`).
pub const TSO_WIN_DIVISOR: u8 = 3;

/// Age from which on TS.Recent no longer rejects segments (RFC 7323 5.5).
pub const TS_RECENT_MAX_AGE: Duration = Duration::from_secs(24 * 24 * 60 * 60);

/// Most bytes between two ACKs of a bulk transfer without loss, default: a quarter of Linux' send buffer (`tcp_wmem`), which the
/// sender fills in the meantime.
pub const ACK_BYTES_MAX: u32 = 1 << 20;

/// When a listener answers a SYN with a cookie and keeps no state (linux `tcp_syncookies`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SynCookies {
    /// Never: SYNs are dropped when the backlog is full.
    Never,
    /// When the backlog is full.
    #[default]
    WhenFull,
    /// Always, for tests.
    Always,
}

/// Settings for all connections of a stack. The defaults are those of Linux, where Linux has the setting.
///
/// MPTCP and the urgent pointer are not supported and have no settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// Initial settings of sockets.
    pub settings: Settings,
    /// Unsent payload, in bytes, from which on nothing more is queued (linux `net.ipv4.tcp_notsent_lowat`), of sockets
    /// without TCP_NOTSENT_LOWAT; `None`: no limit.
    pub notsent_lowat: Option<u32>,
    /// Initial size of a receive buffer, in bytes (linux `tcp_rmem`, second number); only reported to programs.
    pub rcv_buf_start: u32,
    /// Offers window scaling (RFC 7323 2).
    pub window_scaling: bool,
    /// Offers timestamps (RFC 7323 3).
    pub timestamps: bool,
    /// Offers selective acknowledgement (RFC 2018).
    pub sack: bool,
    /// Explicit congestion notification.
    pub ecn: EcnConfig,
    /// Payload in SYNs (RFC 7413).
    pub fast_open: FastOpenConfig,
    /// When listeners answer with SYN cookies.
    pub syn_cookies: SynCookies,
    /// When ACKs are sent.
    pub acks: AckConfig,
    /// Timeouts and repetitions.
    pub timers: TimerConfig,
    /// Segments that may be sent before the first ACK.
    pub initial_cwnd: u16,
    /// Reduces the congestion window after a pause (RFC 5681 4.1, linux `tcp_slow_start_after_idle`).
    pub slow_start_after_idle: bool,
    /// Pacing: segments are spread over the round trip instead of sent as one burst.
    pub pacing: bool,
    /// Longest payload of one outgoing segment before the NIC cuts it, in bytes, where that is less than what the link takes
    /// ([`SuperPayload::longest`](crate::link::SuperPayload::longest)); `None`: what the link takes. 65,160 is better for programs that send 64 KiB at a time or
    /// less.
    pub max_gso_payload: Option<u32>,
    /// Divisor: a super-segment of less than window / divisor waits for an ACK that is due soon; 0: it does not wait (linux
    /// `tcp_tso_win_divisor`).
    pub tso_win_divisor: u8,
    /// After repeated timeouts of large packets, tries smaller ones: the path may drop large packets without an ICMP error
    /// (RFC 4821 7.7; linux `tcp_mtu_probing` = 1, which is not Linux's default).
    pub mtu_probing: bool,
    /// Choices that the RFCs leave open.
    pub tuning: Tuning,
}

impl Config {
    /// Returns the unsent bytes of a socket with `settings` from which on nothing more is queued; `None`: no limit.
    #[must_use]
    pub fn notsent_limit(&self, settings: &Settings) -> Option<u32> {
        // u32::MAX means no limit (linux `tcp_notsent_lowat`).
        let bytes = settings.notsent_lowat.or(self.notsent_lowat);
        bytes.filter(|&bytes| bytes != u32::MAX)
    }
}

/// When ACKs are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AckConfig {
    /// Longest time that an ACK is delayed.
    pub delay: Duration,
    /// Segments that are acknowledged one by one after the connection opens.
    pub quick: u8,
    /// Bytes after which an ACK is due; `None`: a quarter of the window, at most [`ACK_BYTES_MAX`].
    pub bytes: Option<u32>,
    /// Smallest interval between two ACKs that only answer unacceptable segments without payload.
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
            settings: Settings::default(),
            notsent_lowat: None,
            rcv_buf_start: 128 << 10,
            window_scaling: true,
            timestamps: true,
            sack: true,
            ecn: EcnConfig::default(),
            fast_open: FastOpenConfig::default(),
            syn_cookies: SynCookies::WhenFull,
            acks: AckConfig::default(),
            timers: TimerConfig::default(),
            initial_cwnd: INITIAL_CWND,
            slow_start_after_idle: true,
            pacing: false,
            max_gso_payload: None,
            tso_win_divisor: TSO_WIN_DIVISOR,
            mtu_probing: true,
            tuning: Tuning::OWN,
        }
    }
}
