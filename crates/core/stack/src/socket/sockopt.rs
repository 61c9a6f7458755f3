//! Options of a socket: setsockopt and getsockopt.

use std::time::Duration;

use tcp::{CongestionKind, Keepalive};

use super::error::OptionError;
use super::timestamps::Timestamping;

/// One option with its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketOption {
    /// Small segments are sent at once.
    #[doc(alias = "TCP_NODELAY")]
    NoDelay(bool),
    /// A silent peer is probed.
    #[doc(alias = "SO_KEEPALIVE")]
    KeepAlive(Option<Keepalive>),
    /// Maximum time for which sent data may stay unacknowledged.
    #[doc(alias = "TCP_USER_TIMEOUT")]
    UserTimeout(Option<Duration>),
    /// Frags that are adjacent in device memory are received as one, with one token. Off by default; the kernel does not
    /// have this option.
    MergeFrags(bool),
    /// Sends with MSG_ZEROCOPY are reported in the error queue.
    #[doc(alias = "SO_ZEROCOPY")]
    Zerocopy(bool),
    /// Small segments wait until they are full, the option is switched off, or 200 ms have passed.
    #[doc(alias = "TCP_CORK")]
    Cork(bool),
    /// Maximum bytes of unread payload. The window scale does not change after the connection was opened.
    #[doc(alias = "SO_RCVBUF")]
    RcvBuf(u32),
    /// Maximum bytes of payload that wait to be sent or acknowledged.
    #[doc(alias = "SO_SNDBUF")]
    SndBuf(usize),
    /// The socket is not writable while half of this number of bytes or more has not been sent.
    #[doc(alias = "TCP_NOTSENT_LOWAT")]
    NotsentLowat(u32),
    /// Differentiated services bits of sent packets. TCP sets the ECN bits.
    #[doc(alias = "IP_TOS")]
    Tos(u8),
    /// Timestamps of sends are reported in the error queue, those of receives with the received bytes.
    #[doc(alias = "SO_TIMESTAMPING")]
    Timestamping(Timestamping),
    /// TTL or hop limit of sent packets; `None`: 64.
    #[doc(alias = "IP_TTL")]
    #[doc(alias = "IPV6_UNICAST_HOPS")]
    HopLimit(Option<u8>),
    /// The congestion control algorithm.
    #[doc(alias = "TCP_CONGESTION")]
    Congestion(CongestionKind),
    /// Routers may fragment packets of IPv4 (IP_PMTUDISC_DONT), for paths on which ICMP errors are lost. Off by default.
    #[doc(alias = "IP_MTU_DISCOVER")]
    MayFragment(bool),
    /// How often a SYN is repeated with doubling intervals.
    #[doc(alias = "TCP_SYNCNT")]
    SynRetries(u8),
}

/// The values of all options of one socket. Connections inherit those of their listener.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SocketSettings {
    /// Those of TCP, as they are in effect: [`SocketSettings::limit_send_buffer`] may have reduced the send buffer.
    pub(crate) tcp: tcp::Settings,
    /// SO_SNDBUF, as it was set.
    snd_buf: usize,
    pub(crate) merge_frags: bool,
    pub(crate) zerocopy: bool,
    pub(crate) tos: u8,
    pub(crate) timestamping: Timestamping,
    pub(crate) hop_limit: Option<u8>,
    pub(crate) may_fragment: bool,
}

impl SocketSettings {
    /// Returns the settings `tcp`, and defaults for the other options.
    pub(crate) fn new(tcp: &tcp::Settings) -> Self {
        Self {
            tcp: *tcp,
            snd_buf: tcp.snd_buf_max,
            ..Self::default()
        }
    }

    /// Limits the send queue to `most` bytes, if SO_SNDBUF allows more. Bytes that are queued already stay.
    pub(crate) fn limit_send_buffer(&mut self, most: usize) {
        self.tcp.snd_buf_max = self.snd_buf.min(most);
    }

    /// Returns the free bytes of the send queue at which the socket is writable (linux `sk_stream_min_wspace`: a third of
    /// the buffer).
    pub(crate) fn write_low(&self) -> usize {
        (self.tcp.snd_buf_max / 3).max(1)
    }

    /// Sets an option.
    pub(crate) fn set(&mut self, option: SocketOption) -> Result<(), OptionError> {
        match option {
            SocketOption::NoDelay(nodelay) => self.tcp.nodelay = nodelay,
            SocketOption::KeepAlive(keepalive) => self.tcp.keepalive = checked(keepalive)?,
            SocketOption::UserTimeout(timeout) => self.tcp.user_timeout = timeout,
            SocketOption::MergeFrags(merge) => self.merge_frags = merge,
            SocketOption::Zerocopy(zerocopy) => self.zerocopy = zerocopy,
            SocketOption::Cork(cork) => self.tcp.cork = cork,
            SocketOption::RcvBuf(bytes) => self.tcp.rcv_buf_max = bytes,
            SocketOption::NotsentLowat(bytes) => {
                // 0 means the default (linux `tcp_notsent_lowat`).
                self.tcp.notsent_lowat = Some(bytes).filter(|&bytes| bytes != 0);
            }
            SocketOption::Tos(tos) => self.tos = tos & !wire::Ecn::MASK,
            SocketOption::Timestamping(timestamping) => self.timestamping = timestamping,
            SocketOption::Congestion(kind) => self.tcp.congestion = kind,
            SocketOption::HopLimit(hops) => self.hop_limit = hops,
            SocketOption::MayFragment(may) => self.may_fragment = may,
            SocketOption::SynRetries(count) => self.tcp.syn_retries = count,
            SocketOption::SndBuf(bytes) => self.snd_buf = bytes,
        }
        // The next send finds out whether that is too much for the memory of its bytes.
        self.limit_send_buffer(usize::MAX);
        Ok(())
    }
}

/// Checks keepalive times: with an interval of 0, probes would never stop.
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
    fn every_option_changes_a_setting_of_its_own() {
        let second = Duration::from_secs(1);
        let timestamping = Timestamping {
            acked: true,
            ..Timestamping::default()
        };
        let options = [
            SocketOption::NoDelay(true),
            SocketOption::KeepAlive(Some(Keepalive::default())),
            SocketOption::UserTimeout(Some(second)),
            SocketOption::MergeFrags(true),
            SocketOption::Zerocopy(true),
            SocketOption::Cork(true),
            SocketOption::RcvBuf(4096),
            SocketOption::SndBuf(4096),
            SocketOption::NotsentLowat(1),
            SocketOption::Tos(0x10),
            SocketOption::HopLimit(Some(1)),
            SocketOption::MayFragment(true),
            SocketOption::SynRetries(2),
            SocketOption::Congestion(CongestionKind::NewReno),
            SocketOption::Timestamping(timestamping),
        ];
        let set = options.map(|option| {
            let mut settings = SocketSettings::default();
            settings.set(option).unwrap();
            settings
        });
        for (at, settings) in set.iter().enumerate() {
            assert_ne!(*settings, SocketSettings::default(), "{:?}", options[at]);
            assert!(!set[..at].contains(settings), "{:?}", options[at]);
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
        assert_eq!(options, SocketSettings::default());
    }
}
