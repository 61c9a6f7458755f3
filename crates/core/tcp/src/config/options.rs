//! Settings of one connection: the options that its program sets, and the limits of its path.

use core::num::NonZeroU32;
use core::ops::RangeInclusive;
use core::time::Duration;
use std::sync::Arc;

use super::{Config, FIN_WAIT_2_TIMEOUT, MIN_MSS, SND_BUF_MAX, SYN_RETRIES};

/// Kind of congestion control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CongestionKind {
    /// RFC 5681 with RFC 6582's recovery point.
    NewReno,
    /// RFC 9438, the default, as in Linux.
    #[default]
    Cubic,
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

/// Options that a program may set for one connection or listener (setsockopt); the rest of TCP's settings is
/// [`Config`], which all connections of a stack share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionOptions {
    /// Largest segment in both directions, in bytes, at least [`MIN_MSS`] (TCP_MAXSEG); `None`: what the link carries.
    pub user_mss: Option<u16>,
    /// Most payload that the connection may ever hold for its reader, in bytes (SO_RCVBUF); the window scale follows from
    /// it.
    pub rcv_buf_max: u32,
    /// Receive space of a new connection, in bytes, before the first `Connection::set_rcv_space`; never more than
    /// [`ConnectionOptions::rcv_buf_max`].
    pub rcv_space_initial: u32,
    /// Most unacknowledged payload in the send queue, in bytes (SO_SNDBUF).
    pub snd_buf_max: usize,
    /// Unsent payload, in bytes, from which on nothing more is queued (linux `net.ipv4.tcp_notsent_lowat`), of sockets
    /// without TCP_NOTSENT_LOWAT; `None`: no limit.
    pub notsent_lowat: Option<u32>,
    /// Probes silent peers (SO_KEEPALIVE and its three times); `None`: never, which RFC 9293 3.8.4 requires as the default.
    pub keepalive: Option<Keepalive>,
    /// Longest time that sent data may stay unacknowledged (TCP_USER_TIMEOUT, RFC 5482); `None`:
    /// [`TimerConfig::data_retries`](super::TimerConfig::data_retries) decides.
    pub user_timeout: Option<Duration>,
    /// How long a closed connection stays in FIN-WAIT-2 (TCP_LINGER2).
    pub fin_wait_2_timeout: Duration,
    /// How often a SYN is repeated with doubling intervals, after
    /// [`TimerConfig::syn_linear_timeouts`](super::TimerConfig::syn_linear_timeouts) (TCP_SYNCNT).
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

impl ConnectionOptions {
    /// Returns how many bytes of `space` the first window of a connection may promise.
    ///
    /// If the first window were larger than the buffer, silly window avoidance would take it as the measure: with a buffer of
    /// less than a segment, no later gain would be large enough, and the window would stay closed (RFC 9293 3.8.6.2.2).
    pub(crate) fn first_space(&self, space: u32) -> u32 {
        space.min(self.rcv_buf_max)
    }
}

impl Default for ConnectionOptions {
    fn default() -> ConnectionOptions {
        ConnectionOptions {
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

/// Limits of the link to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkLimits {
    /// Longest payload of one packet, in bytes: the MTU less the headers of IP and TCP, without options.
    pub mss: u16,
    /// Payload lengths of super-packets, which the link's NIC cuts.
    pub super_payload: SuperPayload,
}

/// Allowed payload lengths of a super-packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SuperPayload {
    /// The longest, in bytes.
    pub longest: u32,
    /// Shorter lengths that the link refuses, if any.
    pub unfit: Option<UnfitPayload>,
}

/// A range of payload lengths, in bytes, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnfitPayload {
    /// The shortest.
    pub first: NonZeroU32,
    /// The longest.
    pub last: u32,
}

impl UnfitPayload {
    /// Returns the range; `None` if it begins at 0 or is empty.
    pub fn new(range: RangeInclusive<u32>) -> Option<UnfitPayload> {
        let (first, last) = range.into_inner();
        let first = NonZeroU32::new(first).filter(|first| first.get() <= last)?;
        Some(UnfitPayload { first, last })
    }
}

impl LinkLimits {
    /// Returns the limits of a link whose packets have at most `mss` bytes of payload, and whose super-packets at most
    /// `longest`.
    pub const fn new(mss: u16, longest: u32) -> Self {
        Self {
            mss,
            super_payload: SuperPayload {
                longest,
                unfit: None,
            },
        }
    }
}

impl SuperPayload {
    /// Returns `len`, or the most whole packets of `mss` bytes below it that the link takes as one super-packet; `len` is
    /// at most [`SuperPayload::longest`].
    pub(crate) fn fit(self, len: u64, mss: u64) -> u64 {
        match self.unfit {
            Some(UnfitPayload { first, last })
                if (u64::from(first.get())..=u64::from(last)).contains(&len) =>
            {
                u64::from(first.get() - 1) / mss * mss
            }
            _ => len,
        }
    }
}

/// All settings of one connection.
#[derive(Debug, Clone)]
pub struct ConnectionConfig {
    /// Settings of all connections of its stack.
    pub shared: Arc<Config>,
    /// Its own options, which its program may change later.
    pub options: ConnectionOptions,
    /// Limits of the link to its peer.
    pub link: LinkLimits,
    /// Largest payload of a packet that the path carries, in bytes, if it is known to be less than the link's. It limits the
    /// segments that are sent, not the MSS that is announced.
    pub path_mss: Option<u16>,
    /// Offset of the timestamps option's clock, so that timestamps do not reveal the uptime of this host
    /// ([`IsnGenerator::timestamp_offset`](crate::IsnGenerator::timestamp_offset)).
    pub timestamp_offset: u32,
}

impl ConnectionConfig {
    /// Returns the settings of a connection over `link`, with the options of `shared` and an unknown path.
    #[must_use]
    pub fn new(shared: &Arc<Config>, link: LinkLimits) -> ConnectionConfig {
        ConnectionConfig {
            shared: Arc::clone(shared),
            options: shared.options,
            link,
            path_mss: None,
            timestamp_offset: 0,
        }
    }

    /// Returns the MSS that is announced to the peer, in bytes: the link's, or less if the program limits it.
    #[must_use]
    pub fn mss(&self) -> u16 {
        let link = self.link.mss;
        self.options
            .user_mss
            .map_or(link, |user| user.max(MIN_MSS).min(link))
    }

    /// Returns the allowed payload lengths of one outgoing segment.
    pub(crate) fn super_payload(&self) -> SuperPayload {
        let link = self.link.super_payload;
        SuperPayload {
            longest: self
                .shared
                .max_gso_payload
                .map_or(link.longest, |most| most.min(link.longest)),
            ..link
        }
    }
}
