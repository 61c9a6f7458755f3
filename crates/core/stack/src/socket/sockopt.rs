//! SocketSettings of a socket.

use std::time::Duration;

use tcp::{CongestionKind, Connection, Keepalive};

use super::error::OptionError;
use super::timestamps::Timestamping;

/// One option with its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketOption {
    /// Small segments leave at once.
    #[doc(alias = "TCP_NODELAY")]
    NoDelay(bool),
    /// A silent peer is asked whether it is there.
    #[doc(alias = "SO_KEEPALIVE")]
    KeepAlive(Option<Keepalive>),
    /// Longest time that sent data may stay unacknowledged.
    #[doc(alias = "TCP_USER_TIMEOUT")]
    UserTimeout(Option<Duration>),
    /// Frags that touch in device memory are received as one, under one token. The kernel never
    /// does; off unless set.
    MergeFrags(bool),
    /// MSG_ZEROCOPY counts: sends with it are reported in the error queue.
    #[doc(alias = "SO_ZEROCOPY")]
    Zerocopy(bool),
    /// Small segments wait until they are full, or this is taken back, or 200 ms are over.
    #[doc(alias = "TCP_CORK")]
    Cork(bool),
    /// Most unread payload, in bytes. The window scale was chosen when the connection began.
    #[doc(alias = "SO_RCVBUF")]
    RcvBuf(u32),
    /// Most payload that waits to be sent or acknowledged, in bytes.
    #[doc(alias = "SO_SNDBUF")]
    SndBuf(usize),
    /// With more than half of so many bytes never sent, the socket is not writable.
    #[doc(alias = "TCP_NOTSENT_LOWAT")]
    NotsentLowat(u32),
    /// Differentiated services bits of outgoing packets; ECN bits are TCP's own.
    #[doc(alias = "IP_TOS")]
    Tos(u8),
    /// Times of sends are reported in the error queue, those of receives with what is received.
    #[doc(alias = "SO_TIMESTAMPING")]
    Timestamping(Timestamping),
    /// How many routers may pass outgoing packets on; `None`: 64.
    #[doc(alias = "IP_TTL")]
    #[doc(alias = "IPV6_UNICAST_HOPS")]
    HopLimit(Option<u8>),
    /// How the congestion window grows from now on.
    #[doc(alias = "TCP_CONGESTION")]
    Congestion(CongestionKind),
}

/// Names an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionName {
    /// [`SocketOption::NoDelay`].
    NoDelay,
    /// [`SocketOption::KeepAlive`].
    KeepAlive,
    /// [`SocketOption::UserTimeout`].
    UserTimeout,
    /// [`SocketOption::MergeFrags`].
    MergeFrags,
    /// [`SocketOption::Zerocopy`].
    Zerocopy,
    /// [`SocketOption::Cork`].
    Cork,
    /// [`SocketOption::RcvBuf`].
    RcvBuf,
    /// [`SocketOption::SndBuf`].
    SndBuf,
    /// [`SocketOption::NotsentLowat`].
    NotsentLowat,
    /// [`SocketOption::Tos`].
    Tos,
    /// [`SocketOption::Timestamping`].
    Timestamping,
    /// [`SocketOption::Congestion`].
    Congestion,
    /// [`SocketOption::HopLimit`].
    HopLimit,
}

/// The options of one socket. A listener's are what its connections begin with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SocketSettings {
    nodelay: bool,
    keepalive: Option<Keepalive>,
    user_timeout: Option<Duration>,
    pub(crate) merge_frags: bool,
    pub(crate) zerocopy: bool,
    pub(crate) cork: bool,
    pub(crate) rcv_buf: u32,
    snd_buf: usize,
    pub(crate) notsent_lowat: Option<u32>,
    pub(crate) tos: u8,
    pub(crate) timestamping: Timestamping,
    pub(crate) hop_limit: Option<u8>,
    congestion: CongestionKind,
}

impl SocketSettings {
    /// Returns what `config` says.
    pub(crate) fn new(config: &tcp::ConnectionOptions) -> Self {
        Self {
            nodelay: config.nodelay,
            keepalive: config.keepalive,
            user_timeout: config.user_timeout,
            merge_frags: false,
            zerocopy: false,
            cork: false,
            rcv_buf: config.rcv_buf_max,
            snd_buf: config.snd_buf_max,
            notsent_lowat: None,
            tos: 0,
            timestamping: Timestamping::default(),
            hop_limit: None,
            congestion: config.congestion,
        }
    }

    /// Returns the free bytes of the send queue from which on it counts as writable (linux
    /// `sk_stream_min_wspace`: a third of the buffer).
    pub(crate) fn write_low(&self) -> usize {
        (self.snd_buf / 3).max(1)
    }

    /// Takes over an option.
    pub(crate) fn set(&mut self, option: SocketOption) -> Result<(), OptionError> {
        match option {
            SocketOption::NoDelay(nodelay) => self.nodelay = nodelay,
            SocketOption::KeepAlive(keepalive) => self.keepalive = checked(keepalive)?,
            SocketOption::UserTimeout(timeout) => self.user_timeout = timeout,
            SocketOption::MergeFrags(merge) => self.merge_frags = merge,
            SocketOption::Zerocopy(zerocopy) => self.zerocopy = zerocopy,
            SocketOption::Cork(cork) => self.cork = cork,
            SocketOption::RcvBuf(bytes) => self.rcv_buf = bytes,
            SocketOption::SndBuf(bytes) => self.snd_buf = bytes,
            SocketOption::NotsentLowat(bytes) => {
                // 0 and all ones are "none" (linux `tcp_notsent_lowat`).
                self.notsent_lowat = Some(bytes).filter(|&bytes| !matches!(bytes, 0 | u32::MAX));
            }
            SocketOption::Tos(tos) => self.tos = tos & !wire::Ecn::MASK,
            SocketOption::Timestamping(timestamping) => self.timestamping = timestamping,
            SocketOption::Congestion(kind) => self.congestion = kind,
            SocketOption::HopLimit(hops) => self.hop_limit = hops,
        }
        Ok(())
    }

    /// Returns an option.
    pub(crate) fn get(&self, name: OptionName) -> SocketOption {
        match name {
            OptionName::NoDelay => SocketOption::NoDelay(self.nodelay),
            OptionName::KeepAlive => SocketOption::KeepAlive(self.keepalive),
            OptionName::UserTimeout => SocketOption::UserTimeout(self.user_timeout),
            OptionName::MergeFrags => SocketOption::MergeFrags(self.merge_frags),
            OptionName::Zerocopy => SocketOption::Zerocopy(self.zerocopy),
            OptionName::Cork => SocketOption::Cork(self.cork),
            OptionName::RcvBuf => SocketOption::RcvBuf(self.rcv_buf),
            OptionName::SndBuf => SocketOption::SndBuf(self.snd_buf),
            OptionName::NotsentLowat => SocketOption::NotsentLowat(self.notsent_lowat.unwrap_or(0)),
            OptionName::Tos => SocketOption::Tos(self.tos),
            OptionName::Timestamping => SocketOption::Timestamping(self.timestamping),
            OptionName::Congestion => SocketOption::Congestion(self.congestion),
            OptionName::HopLimit => SocketOption::HopLimit(self.hop_limit),
        }
    }

    /// Makes a connection behave so.
    pub(crate) fn apply<P: netmem::Payload>(&self, conn: &mut Connection<P>) {
        let Self {
            nodelay,
            keepalive,
            user_timeout,
            snd_buf,
            cork,
            congestion,
            merge_frags: _,
            zerocopy: _,
            rcv_buf: _,
            notsent_lowat: _,
            tos: _,
            timestamping: _,
            hop_limit: _,
        } = *self;
        conn.set_cork(cork);
        conn.set_nodelay(nodelay);
        conn.set_keepalive(keepalive);
        conn.set_user_timeout(user_timeout);
        conn.set_snd_buf(snd_buf);
        conn.set_congestion(congestion);
    }
}

/// Probes at intervals of nothing would never end.
fn checked(keepalive: Option<Keepalive>) -> Result<Option<Keepalive>, OptionError> {
    let least = Duration::from_secs(1);
    match keepalive {
        Some(Keepalive {
            idle,
            interval,
            count,
        }) if idle < least || interval < least || count == 0 => {
            let reason =
                "idle time and interval must be at least one second, the count at least one probe";
            Err(OptionError::BadValue {
                option: "keepalive",
                reason,
            })
        }
        other => Ok(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_got() {
        let mut options = SocketSettings::default();
        let keepalive = Some(Keepalive::default());
        let second = Duration::from_secs(1);
        for (name, option) in [
            (OptionName::NoDelay, SocketOption::NoDelay(true)),
            (OptionName::KeepAlive, SocketOption::KeepAlive(keepalive)),
            (
                OptionName::UserTimeout,
                SocketOption::UserTimeout(Some(second)),
            ),
            (OptionName::MergeFrags, SocketOption::MergeFrags(true)),
            (OptionName::Zerocopy, SocketOption::Zerocopy(true)),
            (OptionName::Cork, SocketOption::Cork(true)),
            (OptionName::RcvBuf, SocketOption::RcvBuf(4096)),
            (OptionName::SndBuf, SocketOption::SndBuf(4096)),
            (OptionName::NotsentLowat, SocketOption::NotsentLowat(1)),
            (OptionName::Tos, SocketOption::Tos(0x10)),
            (OptionName::HopLimit, SocketOption::HopLimit(Some(1))),
            (
                OptionName::Congestion,
                SocketOption::Congestion(CongestionKind::NewReno),
            ),
            (
                OptionName::Timestamping,
                SocketOption::Timestamping(Timestamping {
                    acked: true,
                    ..Timestamping::default()
                }),
            ),
        ] {
            assert_ne!(options.get(name), option);
            options.set(option).unwrap();
            assert_eq!(options.get(name), option);
        }
    }

    #[test]
    fn keepalive_without_pauses_is_refused() {
        let mut options = SocketSettings::default();
        let hasty = Keepalive {
            interval: Duration::ZERO,
            ..Keepalive::default()
        };
        assert!(options.set(SocketOption::KeepAlive(Some(hasty))).is_err());
        assert_eq!(
            options.get(OptionName::KeepAlive),
            SocketOption::KeepAlive(None)
        );
    }
}
