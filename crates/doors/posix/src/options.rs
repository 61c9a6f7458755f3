//! Socket options: the values that a program set, and their encoding as bytes.
//!
//! A socket has options before the stack has anything to apply them to, so they are stored here and
//! applied when a connection or listener begins. Options of Linux that are not implemented are refused with
//! ENOPROTOOPT, never silently accepted.
//!
//! Each option is one [`row::Row`]: its encoding, the accepted values, the field that stores it, its effect on the stack, and
//! the result of getsockopt. The rows of a level are in the file of `rows` with that level's name.

mod fast_open;
mod row;
mod rows;
mod times;
mod values;

#[cfg(test)]
mod tests;

use std::time::Duration;

use devmem_uapi::IfIndex;
use stack::SocketOption;
use tcp::{CongestionKind, Keepalive};

use crate::abi::{PMTUDISC, PMTUDISC_DONT};
pub(crate) use fast_open::FastOpen;
pub(crate) use times::Times;
pub(crate) use values::int;

/// The interface of a stack that has one.
pub(crate) const IFINDEX: IfIndex = IfIndex(1);
/// Smallest receive buffer (linux `SOCK_MIN_RCVBUF`, twice 1152).
const RCVBUF_MIN: u32 = 2304;

/// Value of SO_LINGER.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Linger {
    pub(crate) on: bool,
    pub(crate) seconds: i32,
}

/// Options of level `SOL_SOCKET` that are stored and returned without any effect: there is
/// no packet scheduler (SO_PRIORITY) and no packet filter (SO_MARK); a stream has neither broadcasts nor packets without
/// checksums; urgent data always stays in the stream (SO_OOBINLINE).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Remembered {
    debug: bool,
    broadcast: bool,
    oob_inline: bool,
    no_check: bool,
    priority: i32,
    mark: i32,
    select_err_queue: bool,
}

/// All options of a socket.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) reuse_addr: bool,
    pub(crate) reuse_port: bool,
    pub(crate) v6_only: bool,
    pub(crate) linger: Linger,
    pub(crate) rcv_lowat: usize,
    pub(crate) rcv_timeout: Option<Duration>,
    pub(crate) snd_timeout: Option<Duration>,
    pub(crate) inq: bool,
    pub(crate) times: Times,
    /// IP_BIND_ADDRESS_NO_PORT.
    pub(crate) bind_without_port: bool,
    /// IP_FREEBIND.
    free_bind: bool,
    pub(crate) max_seg: Option<u16>,
    pub(crate) congestion: Option<CongestionKind>,
    keepalive: bool,
    keepalive_times: Keepalive,
    syn_count: Option<u8>,
    fin_timeout: Option<Duration>,
    defer_accept: u8,
    user_timeout: Option<Duration>,
    rcv_buf: Option<u32>,
    snd_buf: Option<u32>,
    /// TCP_WINDOW_CLAMP; 0: none.
    window_clamp: u32,
    remembered: Remembered,
    /// The last value of TCP_QUICKACK that was set; the stack has the current state of a connection.
    quick_acks: bool,
    pub(crate) fast_open: FastOpen,
    mtu_discover: i32,
    hop_limit: Option<u8>,
    nodelay: bool,
    cork: bool,
    zerocopy: bool,
    notsent_lowat: u32,
    tos: u8,
    /// Largest accepted buffer size, before doubling.
    buffer_max: u32,
    /// Maximum unread payload without SO_RCVBUF.
    rcv_buf_default: u32,
}

/// Effect on the socket after an option was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The option takes effect with the next connection, or in calls of this table.
    None,
    /// The stack applies it.
    Apply(SocketOption),
    /// A listener's settings for Fast Open have changed.
    FastOpen,
    /// TCP_QUICKACK: pending data is acknowledged at once, or the delay of ACKs is allowed again.
    QuickAcks(bool),
    /// Maximum segment size of connections that a listener accepts from now on.
    MaxSegment(Option<u16>),
}

impl Options {
    /// Returns the options of a new socket.
    pub(crate) fn new(base: &tcp::Config, buffer_max: u32) -> Self {
        Self {
            reuse_addr: false,
            reuse_port: false,
            v6_only: false,
            linger: Linger::default(),
            rcv_lowat: 1,
            rcv_timeout: None,
            snd_timeout: None,
            inq: false,
            times: Times::default(),
            bind_without_port: false,
            free_bind: false,
            max_seg: base.settings.user_mss,
            congestion: None,
            keepalive: base.settings.keepalive.is_some(),
            keepalive_times: base.settings.keepalive.unwrap_or_default(),
            syn_count: None,
            fin_timeout: None,
            defer_accept: base.settings.defer_accept,
            user_timeout: base.settings.user_timeout,
            rcv_buf: None,
            snd_buf: None,
            window_clamp: 0,
            remembered: Remembered::default(),
            quick_acks: true,
            mtu_discover: *PMTUDISC.start(),
            fast_open: FastOpen::default(),
            hop_limit: None,
            nodelay: base.settings.nodelay,
            cork: false,
            zerocopy: false,
            notsent_lowat: 0,
            tos: 0,
            buffer_max,
            rcv_buf_default: base.settings.rcv_buf_max,
        }
    }

    /// Returns the settings of TCP for a connection that begins with these options.
    pub(crate) fn config(&self, base: &tcp::Config) -> tcp::Settings {
        let mut config = base.settings;
        config.user_mss = self.max_seg;
        config.nodelay = self.nodelay;
        config.keepalive = self.keepalive.then_some(self.keepalive_times);
        config.user_timeout = self.user_timeout;
        config.defer_accept = self.defer_accept;
        config.rcv_buf_max = self.rcv_space();
        config.rcv_space_initial = config.rcv_space_initial.min(config.rcv_buf_max);
        if let Some(bytes) = self.snd_buf {
            config.snd_buf_max = bytes as usize;
        }
        if let Some(count) = self.syn_count {
            config.syn_retries = count;
        }
        if let Some(timeout) = self.fin_timeout {
            config.fin_wait_2_timeout = timeout;
        }
        if let Some(congestion) = self.congestion {
            config.congestion = congestion;
        }
        config
    }

    /// Returns the options that the stack applies beside the settings of TCP.
    pub(crate) fn after_opening(&self) -> [SocketOption; 7] {
        [
            SocketOption::Zerocopy(self.zerocopy),
            SocketOption::Cork(self.cork),
            SocketOption::NotsentLowat(self.notsent_lowat),
            SocketOption::Tos(self.tos),
            SocketOption::HopLimit(self.hop_limit),
            SocketOption::Timestamping(self.times.asked()),
            self.fragment_option(),
        ]
    }

    fn fragment_option(&self) -> SocketOption {
        SocketOption::MayFragment(self.mtu_discover == PMTUDISC_DONT)
    }

    /// Returns the maximum unread payload.
    fn rcv_space(&self) -> u32 {
        let buffer = self.rcv_buf.map_or(self.rcv_buf_default, |bytes| bytes / 2);
        match self.window_clamp {
            0 => buffer,
            clamp => buffer.min(clamp),
        }
    }

    fn keepalive_option(&self) -> Effect {
        Effect::Apply(SocketOption::KeepAlive(
            self.keepalive.then_some(self.keepalive_times),
        ))
    }

    fn times_option(&self) -> Effect {
        Effect::Apply(SocketOption::Timestamping(self.times.asked()))
    }

    fn rcv_buf_option(&self) -> Effect {
        Effect::Apply(SocketOption::RcvBuf(self.rcv_space()))
    }
}
