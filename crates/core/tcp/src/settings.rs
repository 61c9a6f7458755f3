//! Settings of one socket, which its program may change at any time (setsockopt).
//!
//! The socket owns them, and passes them to each event of its connection by reference: there is no second copy. What is fixed
//! for all connections of a stack is [`Config`](crate::config::Config).

use core::time::Duration;

/// How often a SYN is repeated with doubling intervals (linux `TCP_SYN_RETRIES`).
pub const SYN_RETRIES: u8 = 6;

/// Time that a connection which its program has closed waits for the peer's FIN (linux `TCP_FIN_TIMEOUT`).
pub const FIN_WAIT_2_TIMEOUT: Duration = Duration::from_secs(60);

/// Send buffer, default: more than the receive window of a Linux host (`tcp_rmem`, 6 MiB), so that the sender can fill that
/// window while the receiver pauses. Linux has 4 MiB (`tcp_wmem`), which hold copies; device memory is not copied.
pub const SND_BUF_MAX: usize = 8 << 20;

/// Kind of congestion control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CongestionKind {
    /// RFC 5681 with RFC 6582's recovery point.
    NewReno,
    /// RFC 9438, the default, as in Linux.
    #[default]
    Cubic,
    /// BBR, version 3 (draft-ietf-ccwg-bbr). It is paced in any case.
    Bbr,
    /// DCTCP (RFC 8257), for networks whose switches mark from a short queue on. Its connections request ECN whatever the stack's
    /// configuration says, and accept it; without it they behave as [`NewReno`](CongestionKind::NewReno).
    Dctcp,
}

impl CongestionKind {
    /// All of them.
    pub const ALL: [CongestionKind; 4] = [
        CongestionKind::NewReno,
        CongestionKind::Cubic,
        CongestionKind::Bbr,
        CongestionKind::Dctcp,
    ];

    /// Returns whether the connection is paced, whatever the stack's configuration says.
    pub(crate) fn needs_pacing(self) -> bool {
        self == CongestionKind::Bbr
    }
}

/// When to probe a silent peer (RFC 9293 3.8.4).
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

/// Settings of one connection or listener (setsockopt). Connections begin with those of their listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Largest segment in both directions, in bytes, at least [`MIN_MSS`](crate::config::MIN_MSS) (TCP_MAXSEG); `None`: what
    /// the link carries.
    pub user_mss: Option<u16>,
    /// Most payload that the connection may ever hold for its reader, in bytes (SO_RCVBUF); the window scale follows from
    /// it.
    pub rcv_buf_max: u32,
    /// Receive space of a new connection, in bytes, before the first `Connection::set_rcv_space`; never more than
    /// [`Settings::rcv_buf_max`].
    pub rcv_space_initial: u32,
    /// Most unacknowledged payload in the send queue, in bytes (SO_SNDBUF).
    pub snd_buf_max: usize,
    /// Unsent payload, in bytes, from which on nothing more is queued (TCP_NOTSENT_LOWAT), `u32::MAX`: no limit; `None`:
    /// [`Config::notsent_lowat`](crate::config::Config::notsent_lowat) decides.
    pub notsent_lowat: Option<u32>,
    /// Probes silent peers (SO_KEEPALIVE and its three times); `None`: never, which RFC 9293 3.8.4 requires as the default.
    pub keepalive: Option<Keepalive>,
    /// Longest time that sent data may stay unacknowledged (TCP_USER_TIMEOUT, RFC 5482); `None`:
    /// [`TimerConfig::data_retries`](crate::config::TimerConfig::data_retries) decides.
    pub user_timeout: Option<Duration>,
    /// How long a closed connection stays in FIN-WAIT-2 (TCP_LINGER2).
    pub fin_wait_2_timeout: Duration,
    /// How often a SYN is repeated with doubling intervals, after
    /// [`TimerConfig::syn_linear_timeouts`](crate::config::TimerConfig::syn_linear_timeouts) (TCP_SYNCNT).
    pub syn_retries: u8,
    /// Timeouts of a SYN-ACK during which an ACK without data opens no connection: the first data does
    /// (TCP_DEFER_ACCEPT); 0: any ACK does.
    pub defer_accept: u8,
    /// Congestion control (TCP_CONGESTION).
    pub congestion: CongestionKind,
    /// Sends small segments at once instead of gathering them (TCP_NODELAY; off is RFC 9293 3.7.4,
    /// Nagle).
    pub nodelay: bool,
    /// Holds small segments back until they are full (TCP_CORK).
    pub cork: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            user_mss: None,
            rcv_buf_max: 6 << 20,
            rcv_space_initial: 64 << 10,
            snd_buf_max: SND_BUF_MAX,
            notsent_lowat: None,
            keepalive: None,
            user_timeout: None,
            fin_wait_2_timeout: FIN_WAIT_2_TIMEOUT,
            syn_retries: SYN_RETRIES,
            defer_accept: 0,
            congestion: CongestionKind::Cubic,
            nodelay: false,
            cork: false,
        }
    }
}
