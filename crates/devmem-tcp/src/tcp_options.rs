//! Settings of TCP for the connections of a user-space NIC.

use std::time::Duration;

use crate::congestion::Congestion;
use crate::error::{Error, ErrorKind};

/// When to probe a silent peer (RFC 9293 3.8.4). The defaults are those of Linux: 2 hours, 75 seconds, 9 probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence before the first probe, at least one second.
    #[doc(alias = "TCP_KEEPIDLE")]
    pub idle: Duration,
    /// Time between two probes, at least one second.
    #[doc(alias = "TCP_KEEPINTVL")]
    pub interval: Duration,
    /// Probes without an answer after which the connection ends, at least one.
    #[doc(alias = "TCP_KEEPCNT")]
    pub probes: u8,
}

/// Explicit congestion notification: whether routers may mark packets instead of dropping them. The values are those of Linux'
/// sysctl `tcp_ecn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Ecn {
    /// Never (0).
    Off,
    /// Requests ECN (RFC 3168), and accepts requests for it (1).
    Request,
    /// Accepts requests for ECN (2), the default, as in Linux.
    #[default]
    Accept,
    /// Requests AccECN (RFC 9768), and accepts requests for either (3).
    RequestAccurate,
    /// Requests ECN, and accepts requests for either (4).
    RequestAcceptAccurate,
    /// Accepts requests for either (5).
    AcceptAccurate,
}

/// Settings of TCP with which the connections of a user-space NIC begin. The defaults are Linux' where Linux has one.
///
/// ```
/// use devmem_tcp::{Netdev, tcp::{Ecn, TcpOptions}};
///
/// let mut tcp = TcpOptions::default();
/// tcp.ecn = Ecn::Request;
/// tcp.send_buffer = 1 << 20;
/// let nic = Netdev::builder("mem:options")?.address("10.77.0.2/24")?.tcp(tcp).open()?;
/// # drop(nic);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpOptions {
    /// Sends small segments at once (TCP_NODELAY). Off by default.
    pub nodelay: bool,
    /// Probes silent peers (SO_KEEPALIVE). Off by default.
    pub keepalive: Option<Keepalive>,
    /// Longest time that sent data may stay unacknowledged (TCP_USER_TIMEOUT); `None`: 15 retransmissions, as in Linux.
    pub user_timeout: Option<Duration>,
    /// Largest number of unacknowledged bytes in the send queue (SO_SNDBUF), 8 MiB by default. On a UNIX wire at most 4 MiB of it are host
    /// memory, 2 MiB if the wire shares memory.
    pub send_buffer: usize,
    /// Largest receive window in bytes (SO_RCVBUF), 32 MiB by default, as in Linux since 6.16 (`tcp_rmem`). The memory of the bound queue limits it, too.
    pub receive_buffer: u32,
    /// Congestion control.
    pub congestion: Congestion,
    /// Explicit congestion notification.
    pub ecn: Ecn,
    /// Spaces out segments over the round trip instead of sending a window at once. Off by default.
    pub pacing: bool,
    /// Sends smaller packets after repeated timeouts of large ones (RFC 4821 7.7). On by default.
    pub mtu_probing: bool,
    /// Longest payload of one outgoing super-packet in bytes, before the link cuts it; `None`, the default: what the link
    /// takes. [`TcpOptions::LEGACY_SUPER_PACKET`] is better for programs that send 64 KiB at a time or less.
    pub max_super_packet: Option<u32>,
}

impl TcpOptions {
    /// Longest payload of a super-packet without BIG TCP.
    pub const LEGACY_SUPER_PACKET: u32 = nic::LEGACY_SUPER_PAYLOAD;
}

impl Default for TcpOptions {
    fn default() -> Self {
        let tcp::Config {
            settings,
            pacing,
            mtu_probing,
            max_gso_payload,
            ..
        } = tcp::Config::default();
        Self {
            nodelay: settings.nodelay,
            keepalive: None,
            user_timeout: settings.user_timeout,
            send_buffer: settings.snd_buf_max,
            receive_buffer: stack::RCV_BUF_MAX,
            congestion: Congestion::default(),
            ecn: Ecn::default(),
            pacing,
            mtu_probing,
            max_super_packet: max_gso_payload,
        }
    }
}

#[doc(hidden)]
impl From<TcpOptions> for tcp::Config {
    fn from(ours: TcpOptions) -> Self {
        let TcpOptions {
            nodelay,
            keepalive,
            user_timeout,
            send_buffer,
            receive_buffer,
            congestion,
            ecn,
            pacing,
            mtu_probing,
            max_super_packet,
        } = ours;
        let base = Self::default();
        Self {
            settings: tcp::Settings {
                nodelay,
                keepalive: keepalive.map(tcp::Keepalive::from),
                user_timeout,
                snd_buf_max: send_buffer,
                rcv_buf_max: receive_buffer,
                congestion: congestion.into(),
                ..base.settings
            },
            ecn: tcp::EcnConfig {
                policy: ecn.into(),
                ..base.ecn
            },
            pacing,
            mtu_probing,
            max_gso_payload: max_super_packet,
            ..base
        }
    }
}

impl Default for Keepalive {
    fn default() -> Self {
        tcp::Keepalive::default().into()
    }
}

#[doc(hidden)]
impl From<tcp::Keepalive> for Keepalive {
    fn from(inner: tcp::Keepalive) -> Self {
        let tcp::Keepalive {
            idle,
            interval,
            count,
        } = inner;
        Self {
            idle,
            interval,
            probes: count,
        }
    }
}

impl Keepalive {
    /// Refuses times of less than a second, and no probes: probes without a pause would never end.
    pub(crate) fn check(self) -> Result<Self, Error> {
        let second = Duration::from_secs(1);
        let Self {
            idle,
            interval,
            probes,
        } = self;
        if idle < second || interval < second || probes == 0 {
            let reason = "keepalive without a pause or without probes";
            return Err(
                Error::new(ErrorKind::InvalidInput, devmem_uapi::Errno::EINVAL, reason)
                    .with_remedy(
                        "set idle time and interval to at least one second, and at least one probe",
                    ),
            );
        }
        Ok(self)
    }
}

#[doc(hidden)]
impl From<Keepalive> for tcp::Keepalive {
    fn from(ours: Keepalive) -> Self {
        let Keepalive {
            idle,
            interval,
            probes,
        } = ours;
        Self {
            idle,
            interval,
            count: probes,
        }
    }
}

#[doc(hidden)]
impl From<Ecn> for tcp::EcnPolicy {
    fn from(ours: Ecn) -> Self {
        match ours {
            Ecn::Off => Self::Off,
            Ecn::Request => Self::Request,
            Ecn::Accept => Self::Accept,
            Ecn::RequestAccurate => Self::Accurate,
            Ecn::RequestAcceptAccurate => Self::RequestAcceptAccurate,
            Ecn::AcceptAccurate => Self::AcceptAccurate,
        }
    }
}
