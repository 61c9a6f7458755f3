//! What a connection is told from above, and every number with its source.

use core::ops::RangeInclusive;
use core::time::Duration;

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

/// Longest payload of one outgoing segment before the NIC cuts it, with an IP header that says how long it is
/// (linux `GSO_LEGACY_MAX_SIZE` less headers, which an IP total length must still hold).
pub const LEGACY_GSO_PAYLOAD: usize = 65_160;

/// Longest payload of one outgoing segment before the NIC cuts it, whatever NIC (linux `GSO_MAX_SIZE`, 8 times 65,535,
/// less the longest IPv4 and TCP headers).
pub const MAX_GSO_PAYLOAD: usize = 8 * 65_535 - 80;

/// Lengths below [`MAX_GSO_PAYLOAD`] that no segment has: Linux lays the payload of a packet in 15 pieces of 32 KiB and the
/// rest in pieces of 16, 8 and 4 KiB, and where it needs all three they are one more than it may have (`MAX_SKB_FRAGS`).
pub const UNFIT_GSO_PAYLOAD: RangeInclusive<u64> =
    (15 << 15) + (24 << 10) + 1..=(15 << 15) + (28 << 10);

/// Smallest and largest number of bytes that arrive between two ACKs of an undisturbed bulk
/// transfer, default. PERF.md measured no gain past the upper one.
pub const ACK_BYTES_MAX: u32 = 256 * 1024;

/// Which congestion control a connection starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CongestionKind {
    /// RFC 5681 with RFC 6582's recovery point.
    NewReno,
    /// RFC 9438, the default, as in Linux.
    #[default]
    Cubic,
}

/// Whether routers may mark packets of a connection instead of dropping them: explicit congestion notification
/// (RFC 3168), told back packet by packet where both sides can (AccECN, RFC 9768). The numbers are those of linux's sysctl
/// `tcp_ecn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EcnPolicy {
    /// Never (0).
    Off,
    /// Asks for it, and grants it to who asks (1).
    Request,
    /// Grants it to who asks (2), the default, as in Linux.
    #[default]
    Accept,
    /// Asks for AccECN, and grants either to who asks (3).
    Accurate,
    /// Asks for RFC 3168's, and grants either to who asks (4).
    RequestAcceptAccurate,
    /// Grants either to who asks (5).
    AcceptAccurate,
}

/// What two sides agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EcnMode {
    /// No packet may be marked.
    #[default]
    Off,
    /// RFC 3168: one echo per window.
    Classic,
    /// AccECN, RFC 9768: every marked packet is told.
    Accurate,
}

impl EcnPolicy {
    /// Returns what a value of linux's sysctl `tcp_ecn` means; `None` for those that mean nothing here.
    #[must_use]
    pub const fn from_sysctl(value: u8) -> Option<EcnPolicy> {
        match value {
            0 => Some(EcnPolicy::Off),
            1 => Some(EcnPolicy::Request),
            2 => Some(EcnPolicy::Accept),
            3 => Some(EcnPolicy::Accurate),
            4 => Some(EcnPolicy::RequestAcceptAccurate),
            5 => Some(EcnPolicy::AcceptAccurate),
            _ => None,
        }
    }

    /// Returns what a SYN of ours asks for.
    #[must_use]
    pub const fn asks(self) -> EcnMode {
        match self {
            EcnPolicy::Off | EcnPolicy::Accept | EcnPolicy::AcceptAccurate => EcnMode::Off,
            EcnPolicy::Request | EcnPolicy::RequestAcceptAccurate => EcnMode::Classic,
            EcnPolicy::Accurate => EcnMode::Accurate,
        }
    }

    /// Returns the most that a peer is granted.
    #[must_use]
    pub const fn grants(self) -> EcnMode {
        match self {
            EcnPolicy::Off => EcnMode::Off,
            EcnPolicy::Request | EcnPolicy::Accept => EcnMode::Classic,
            EcnPolicy::Accurate | EcnPolicy::RequestAcceptAccurate | EcnPolicy::AcceptAccurate => {
                EcnMode::Accurate
            }
        }
    }
}

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

/// Who decides when received data is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AckStyle {
    /// As soon as the link is empty: nothing is gained by waiting, and no bulk transfer pays for it.
    #[default]
    Drained,
    /// As Linux does, segment by segment: quick ACKs, then every second full segment, else after
    /// [`DELAYED_ACK`]. For scripts that compare.
    Linux,
}

/// When to ask a silent peer whether it is still there (RFC 9293 3.8.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence before the first probe.
    pub idle: Duration,
    /// Time between two probes.
    pub interval: Duration,
    /// Probes without an answer after which the connection is dead.
    pub count: u8,
}

impl Default for Keepalive {
    /// Linux's `TCP_KEEPALIVE_TIME`, `TCP_KEEPALIVE_INTVL` and `TCP_KEEPALIVE_PROBES`.
    fn default() -> Keepalive {
        Keepalive {
            idle: Duration::from_secs(7200),
            interval: Duration::from_secs(75),
            count: 9,
        }
    }
}

/// How a connection behaves. The defaults are Linux's where Linux has one.
///
/// Not supported, and therefore not here: TCP Fast Open (RFC 7413), MPTCP, the
/// urgent pointer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Largest segment that the link to the peer can carry: its MTU less IP and TCP headers without
    /// options.
    pub mss: u16,
    /// A smaller one that the path is known to carry: segments obey it, what we announce does not.
    pub path_mss: Option<u16>,
    /// A smaller one that the user wants, for what is announced and for what is sent (TCP_MAXSEG).
    pub user_mss: Option<u16>,
    /// Most payload that the connection may ever be allowed to hold for its reader; chooses the
    /// window scale.
    pub rcv_buf_max: u32,
    /// What a receive buffer is at first (linux `tcp_rmem`, second number); only told, never used.
    pub rcv_buf_start: u32,
    /// Receive space of a new connection, before the first `Connection::set_rcv_space`; never more than
    /// [`Config::rcv_buf_max`].
    pub rcv_space_initial: u32,
    /// Most payload that waits in the send queue, acknowledged bytes not counted.
    pub snd_buf_max: usize,
    /// Offers window scaling (RFC 7323 2).
    pub window_scaling: bool,
    /// Offers timestamps (RFC 7323 3).
    pub timestamps: bool,
    /// Offers selective acknowledgement (RFC 2018).
    pub sack: bool,
    /// Whether routers may mark packets instead of dropping them (RFC 3168).
    pub ecn: EcnPolicy,
    /// Repeats a SYN that asked for ECN and was not answered without asking: there are middleboxes that drop such
    /// SYNs (RFC 3168 6.1.1.1; linux `tcp_ecn_fallback` = 1, Linux's default).
    ///
    /// With AccECN also distrusts a path that changes codepoints of the handshake (RFC 9768 3.2.3.2), and the second
    /// repetition is the first that does not ask.
    pub ecn_fallback: bool,
    /// Sends AccECN's option, which counts bytes, beside its flags, which count packets (linux `tcp_ecn_option`: 0, or 2,
    /// the default).
    pub accecn_option: bool,
    /// Who decides when received data is acknowledged.
    pub ack_style: AckStyle,
    /// Marks every super-segment with PSH, as Linux does to have the peer's GRO pass it on at once.
    pub push_super_segments: bool,
    /// Cuts super-segments as Linux does: to what leaves in a millisecond, but at least so many segments (linux
    /// `tcp_tso_autosize`, `tcp_min_tso_segs`), and to half of the congestion window (`tcp_cwnd_test`). `None`: each is as
    /// long as may be, which costs least.
    pub min_tso_segs: Option<u8>,
    /// Longest time an ACK is put off.
    pub delayed_ack: Duration,
    /// Segments that are acknowledged one by one after the connection opens.
    pub quick_acks: u8,
    /// Bytes after which an ACK is due; `None`: chosen from the window, at most [`ACK_BYTES_MAX`].
    pub ack_bytes: Option<u32>,
    /// Asks silent peers whether they are alive; `None`: never, as RFC 9293 3.8.4 wants by default.
    pub keepalive: Option<Keepalive>,
    /// Sends small segments at once instead of gathering them (TCP_NODELAY; off is RFC 9293 3.7.4,
    /// Nagle).
    pub nodelay: bool,
    /// Holds small segments back until they are full (TCP_CORK).
    pub cork: bool,
    /// Longest time that sent data may stay unacknowledged; `None`: [`DATA_RETRIES`] decides (RFC
    /// 5482).
    pub user_timeout: Option<Duration>,
    /// The congestion control.
    pub congestion: CongestionKind,
    /// Segments that may leave before anything was acknowledged.
    pub initial_cwnd: u16,
    /// Forgets part of the congestion window in a pause (RFC 5681 4.1, linux `tcp_slow_start_after_idle`).
    pub slow_start_after_idle: bool,
    /// The part of the window that a super-segment which is not full waits for while an ACK is about to come; 0: it does
    /// not wait (linux `tcp_tso_win_divisor`).
    pub tso_win_divisor: u8,
    /// Spaces out segments over the round trip instead of sending a window at once.
    pub pacing: bool,
    /// Smallest retransmission timeout.
    pub rto_min: Duration,
    /// Largest retransmission timeout.
    pub rto_max: Duration,
    /// First retransmission timeout.
    pub rto_initial: Duration,
    /// How often a SYN is repeated with doubling intervals, after [`Config::syn_linear_timeouts`].
    pub syn_retries: u8,
    /// How often a SYN is repeated with equal intervals at first.
    pub syn_linear_timeouts: u8,
    /// How often a SYN-ACK is repeated.
    pub syn_ack_retries: u8,
    /// Timeouts of a SYN-ACK during which an ACK without data opens no connection: the first data does
    /// (TCP_DEFER_ACCEPT); 0: any ACK does.
    pub defer_accept: u8,
    /// When a listener answers by SYN cookies.
    pub syn_cookies: SynCookies,
    /// Smallest interval between two ACKs that only answer segments which are not acceptable and carry nothing.
    pub invalid_ack_interval: Duration,
    /// How often data is repeated before the connection is given up.
    pub data_retries: u8,
    /// Takes repeated timeouts of large packets for a path that swallows them without a word, and tries smaller ones
    /// (RFC 4821 7.7; linux `tcp_mtu_probing` = 1, which is not Linux's default).
    pub mtu_probing: bool,
    /// Probes for an ACK that is overdue in a recovery, too (RFC 9002 6.2 does so in QUIC; RFC 8985 and Linux wait for
    /// the retransmission timer there).
    pub recovery_probes: bool,
    /// How long TIME-WAIT lasts.
    pub time_wait: Duration,
    /// How long a closed connection stays in FIN-WAIT-2.
    pub fin_wait_2_timeout: Duration,
    /// Longest payload of one outgoing segment; less, if the NIC takes less ([`LinkLimits::max_gso_payload`]).
    /// [`LEGACY_GSO_PAYLOAD`] is better for who sends mostly 64 KiB at a time or less.
    pub max_gso_payload: usize,
    /// What is added to the millisecond clock of the timestamps option, so that it tells nobody our
    /// uptime.
    pub timestamp_offset: u32,
}

impl Config {
    /// Returns what a new connection may promise of `space`.
    ///
    /// A first promise larger than any later one would teach the window that gains of less than a segment are not
    /// worth telling, and with a buffer of less than a segment it would never open again (RFC 9293 3.8.6.2.2).
    pub(crate) fn first_space(&self, space: u32) -> u32 {
        space.min(self.rcv_buf_max)
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            mss: 1460,
            path_mss: None,
            user_mss: None,
            rcv_buf_max: 6 << 20,
            rcv_buf_start: 128 << 10,
            rcv_space_initial: 64 << 10,
            snd_buf_max: SND_BUF_MAX,
            window_scaling: true,
            timestamps: true,
            sack: true,
            ecn: EcnPolicy::Accept,
            ecn_fallback: true,
            accecn_option: true,
            ack_style: AckStyle::Drained,
            push_super_segments: false,
            min_tso_segs: None,
            delayed_ack: DELAYED_ACK,
            quick_acks: QUICK_ACKS,
            ack_bytes: None,
            keepalive: None,
            nodelay: false,
            cork: false,
            user_timeout: None,
            congestion: CongestionKind::Cubic,
            initial_cwnd: INITIAL_CWND,
            slow_start_after_idle: true,
            tso_win_divisor: TSO_WIN_DIVISOR,
            pacing: false,
            rto_min: RTO_MIN,
            rto_max: RTO_MAX,
            rto_initial: RTO_INITIAL,
            syn_retries: SYN_RETRIES,
            syn_linear_timeouts: SYN_LINEAR_TIMEOUTS,
            syn_ack_retries: SYN_ACK_RETRIES,
            defer_accept: 0,
            syn_cookies: SynCookies::WhenFull,
            invalid_ack_interval: INVALID_ACK_INTERVAL,
            data_retries: DATA_RETRIES,
            mtu_probing: true,
            recovery_probes: true,
            time_wait: TIME_WAIT,
            fin_wait_2_timeout: FIN_WAIT_2_TIMEOUT,
            max_gso_payload: MAX_GSO_PAYLOAD,
            timestamp_offset: 0,
        }
    }
}

/// What the link to a peer takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkLimits {
    /// Longest payload of one packet: the MTU less the headers of IP and TCP, without options.
    pub mss: u16,
    /// Longest payload of a super-packet, which the link's NIC cuts.
    pub max_gso_payload: usize,
}

impl LinkLimits {
    /// A link whose super-packets have an IP header that says how long they are.
    pub const fn of_mss(mss: u16) -> Self {
        Self {
            mss,
            max_gso_payload: LEGACY_GSO_PAYLOAD,
        }
    }
}

impl Config {
    /// Returns these settings for a connection over a link with these limits.
    #[must_use]
    pub fn for_link(&self, link: LinkLimits) -> Config {
        let LinkLimits {
            mss,
            max_gso_payload,
        } = link;
        Config {
            mss: self.user_mss.map_or(mss, |user| user.max(MIN_MSS).min(mss)),
            max_gso_payload: self.max_gso_payload.min(max_gso_payload),
            ..self.clone()
        }
    }
}
