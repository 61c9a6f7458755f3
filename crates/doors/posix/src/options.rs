//! Socket options: what a program set, kept from the first call on, and their values as bytes.
//!
//! A socket has options before the stack has anything to apply them to, so they live here and are
//! handed over when a connection or listener begins. What Linux has and this table has not is
//! refused with ENOPROTOOPT: nothing is accepted that is not done.

mod times;
mod values;

use std::time::Duration;

use devmem_uapi::{Errno, sockopt};
use stack::SocketOption;
use tcp::{CongestionKind, Keepalive};

use crate::abi::{
    IP_BIND_ADDRESS_NO_PORT, IP_MTU_DISCOVER, IP_TOS, IP_TTL, IPV6_MTU_DISCOVER, IPV6_TCLASS,
    IPV6_UNICAST_HOPS, IPV6_V6ONLY, PMTUDISC, SOL_TCP, so, tcp_opt,
};
use crate::sockaddr::Family;
pub(crate) use times::Times;
pub(crate) use values::int;
use values::{
    TCP_CA_NAME_MAX, byte_or_int, congestion, congestion_name, count, seconds, seconds_of, shown,
    timeouts_of, timeval, timeval_bytes,
};

/// Smallest receive buffer (linux `SOCK_MIN_RCVBUF`, twice 1152).
const RCVBUF_MIN: u32 = 2304;
/// Smallest send buffer (linux `SOCK_MIN_SNDBUF`, twice 2304).
const SNDBUF_MIN: u32 = 4608;
/// What SO_RCVBUF says until it is set (linux `net.ipv4.tcp_rmem`, second number).
const RCVBUF_DEFAULT: u32 = 131_072;
/// What SO_SNDBUF says until it is set (linux `net.ipv4.tcp_wmem`, second number).
const SNDBUF_DEFAULT: u32 = 16_384;
/// Routers that may pass a packet on if nothing else is said (linux `IPDEFTTL`).
const HOPS_DEFAULT: u8 = 64;
/// Longest keepalive time in seconds (linux `MAX_TCP_KEEPIDLE`, `MAX_TCP_KEEPINTVL`).
const KEEPALIVE_MAX: i32 = 32_767;
/// Longest TCP_LINGER2 in seconds (linux `TCP_FIN_TIMEOUT_MAX`).
const LINGER2_MAX: i32 = 120;
/// Largest buffer of SO_RCVBUFFORCE and SO_SNDBUFFORCE, before doubling (linux `__sock_set_rcvbuf`).
const FORCED_MAX: u32 = (i32::MAX / 2).unsigned_abs();
/// Smallest TCP_WINDOW_CLAMP (linux `tcp_set_window_clamp`).
const WINDOW_CLAMP_MIN: u32 = RCVBUF_MIN / 2;
/// Options of level `SOL_SOCKET` that are kept and told again, and change nothing: nobody is here who would read
/// them. There is no packet scheduler (SO_PRIORITY) and no packet filter (SO_MARK); a stream has neither broadcasts nor
/// packets without checksums; a byte that a peer calls urgent always stays in the stream (SO_OOBINLINE).
const REMEMBERED: [i32; 7] = [
    so::DEBUG,
    so::BROADCAST,
    so::OOBINLINE,
    so::NO_CHECK,
    so::PRIORITY,
    so::MARK,
    so::SELECT_ERR_QUEUE,
];
/// Smallest and largest TCP_MAXSEG (linux `TCP_MIN_MSS`, `MAX_TCP_WINDOW`).
const MAXSEG: std::ops::RangeInclusive<i32> = 88..=32_767;

/// What SO_LINGER says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Linger {
    pub(crate) on: bool,
    pub(crate) seconds: i32,
}

/// Everything a program may set on a socket.
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
    /// Values of [`REMEMBERED`].
    remembered: [i32; REMEMBERED.len()],
    mtu_discover: i32,
    hop_limit: Option<u8>,
    nodelay: bool,
    cork: bool,
    zerocopy: bool,
    notsent_lowat: u32,
    tos: u8,
    /// Largest buffer that may be asked for, before doubling.
    buffer_max: u32,
    /// Most unread payload if nothing else is said.
    rcv_buf_default: u32,
}

/// What must happen to the socket now that an option is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing: it counts when the next connection begins, or in calls of this table.
    None,
    /// The stack is told.
    Apply(SocketOption),
    /// What waits is acknowledged at once, or as it comes.
    QuickAcks(bool),
}

impl Options {
    /// Returns the options of a fresh socket.
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
            max_seg: base.options.user_mss,
            congestion: None,
            keepalive: base.options.keepalive.is_some(),
            keepalive_times: base.options.keepalive.unwrap_or_default(),
            syn_count: None,
            fin_timeout: None,
            defer_accept: base.options.defer_accept,
            user_timeout: base.options.user_timeout,
            rcv_buf: None,
            snd_buf: None,
            window_clamp: 0,
            remembered: [0; REMEMBERED.len()],
            mtu_discover: *PMTUDISC.start(),
            hop_limit: None,
            nodelay: base.options.nodelay,
            cork: false,
            zerocopy: false,
            notsent_lowat: 0,
            tos: 0,
            buffer_max,
            rcv_buf_default: base.options.rcv_buf_max,
        }
    }

    /// Returns the options of TCP for a connection that begins with these.
    pub(crate) fn config(&self, base: &tcp::Config) -> tcp::ConnectionOptions {
        let mut config = base.options;
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

    /// Returns what the stack is to be told beside the settings of TCP.
    pub(crate) fn after_opening(&self) -> [SocketOption; 6] {
        [
            SocketOption::Zerocopy(self.zerocopy),
            SocketOption::Cork(self.cork),
            SocketOption::NotsentLowat(self.notsent_lowat),
            SocketOption::Tos(self.tos),
            SocketOption::HopLimit(self.hop_limit),
            SocketOption::Timestamping(self.times.asked()),
        ]
    }

    /// Returns how much unread payload there may be.
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

    /// Takes over an option from its bytes.
    ///
    /// # Errors
    /// As setsockopt(2): ENOPROTOOPT for what is not known, EINVAL for a value that cannot be.
    pub(crate) fn set(
        &mut self,
        family: Family,
        (level, name): (i32, i32),
        value: &[u8],
    ) -> Result<Effect, Errno> {
        match level {
            sockopt::SOL_SOCKET => self.set_socket(name, value),
            SOL_TCP => self.set_tcp(name, value),
            sockopt::SOL_IP => self.set_ip(name, value),
            sockopt::SOL_IPV6 if family == Family::V6 => self.set_ipv6(name, value),
            _ => Err(Errno::ENOPROTOOPT),
        }
    }

    fn set_ip(&mut self, name: i32, value: &[u8]) -> Result<Effect, Errno> {
        match name {
            IP_TOS => return self.set_tos(byte_or_int(value)?),
            IP_TTL => return self.set_hop_limit(byte_or_int(value)?, 1),
            IP_BIND_ADDRESS_NO_PORT => match byte_or_int(value)? {
                on @ 0..=1 => self.bind_without_port = on == 1,
                _ => return Err(Errno::EINVAL),
            },
            IP_MTU_DISCOVER => self.set_mtu_discover(byte_or_int(value)?)?,
            _ => return Err(Errno::ENOPROTOOPT),
        }
        Ok(Effect::None)
    }

    fn set_ipv6(&mut self, name: i32, value: &[u8]) -> Result<Effect, Errno> {
        match name {
            IPV6_TCLASS => return self.set_tos(int(value)?.max(0)),
            IPV6_UNICAST_HOPS => return self.set_hop_limit(int(value)?, 0),
            IPV6_V6ONLY => self.v6_only = int(value)? != 0,
            IPV6_MTU_DISCOVER => self.set_mtu_discover(int(value)?)?,
            _ => return Err(Errno::ENOPROTOOPT),
        }
        Ok(Effect::None)
    }

    /// Packets always fit the path; what would have them cut on their way is not done.
    fn set_mtu_discover(&mut self, how: i32) -> Result<(), Errno> {
        if !PMTUDISC.contains(&how) {
            return Err(Errno::EINVAL);
        }
        self.mtu_discover = how;
        Ok(())
    }

    /// -1 is as many as usual.
    fn set_hop_limit(&mut self, hops: i32, least: u8) -> Result<Effect, Errno> {
        self.hop_limit = match u8::try_from(hops) {
            Ok(hops) if hops >= least => Some(hops),
            _ if hops == -1 => None,
            _ => return Err(Errno::EINVAL),
        };
        Ok(Effect::Apply(SocketOption::HopLimit(self.hop_limit)))
    }

    fn set_tos(&mut self, tos: i32) -> Result<Effect, Errno> {
        // The ECN field is TCP's own (linux `__ip_sock_set_tos`).
        self.tos = u8::try_from(tos & 0xff).unwrap_or(0) & !wire::Ecn::MASK;
        Ok(Effect::Apply(SocketOption::Tos(self.tos)))
    }

    fn set_socket(&mut self, name: i32, value: &[u8]) -> Result<Effect, Errno> {
        match name {
            so::LINGER => {
                let on = int(value)? != 0;
                let seconds = int(value.get(4..).unwrap_or_default())?;
                self.linger = Linger { on, seconds };
            }
            so::RCVTIMEO | so::RCVTIMEO_NEW => self.rcv_timeout = timeval(value)?,
            so::SNDTIMEO | so::SNDTIMEO_NEW => self.snd_timeout = timeval(value)?,
            so::REUSEADDR => self.reuse_addr = int(value)? != 0,
            so::REUSEPORT => self.reuse_port = int(value)? != 0,
            so::RCVLOWAT => {
                // 0 and less mean 1 and "all there can be" (linux `sk_setsockopt`).
                self.rcv_lowat = usize::try_from(int(value)?).unwrap_or(usize::MAX).max(1);
            }
            so::KEEPALIVE => {
                self.keepalive = int(value)? != 0;
                return Ok(self.keepalive_option());
            }
            so::RCVBUF => return self.set_rcv_buf(self.buffer(value)?),
            so::SNDBUF => return self.set_snd_buf(self.buffer(value)?),
            so::RCVBUFFORCE => return self.set_rcv_buf(forced(value)?),
            so::SNDBUFFORCE => return self.set_snd_buf(forced(value)?),
            so::TIMESTAMP | so::TIMESTAMPNS | so::TIMESTAMP_NEW | so::TIMESTAMPNS_NEW => {
                self.times.set_timestamp(name, int(value)? != 0);
                return Ok(self.times_option());
            }
            so::TIMESTAMPING | so::TIMESTAMPING_NEW => {
                self.times
                    .set_timestamping(name, int(value)?.cast_unsigned())?;
                return Ok(self.times_option());
            }
            so::BINDTOIFINDEX => match int(value)? {
                // There is one interface, and whatever the socket does is bound to it.
                0 => {}
                index if u32::try_from(index) == Ok(crate::table::IFINDEX.0) => {}
                _ => return Err(Errno::ENODEV),
            },
            so::ZEROCOPY => {
                let on = int(value)?;
                if !(0..=1).contains(&on) {
                    return Err(Errno::EINVAL);
                }
                self.zerocopy = on == 1;
                return Ok(Effect::Apply(SocketOption::Zerocopy(self.zerocopy)));
            }
            _ => return self.remember(name, value),
        }
        Ok(Effect::None)
    }

    fn remember(&mut self, name: i32, value: &[u8]) -> Result<Effect, Errno> {
        let at = REMEMBERED.iter().position(|remembered| *remembered == name);
        let place = at.and_then(|at| self.remembered.get_mut(at));
        let place = place.ok_or(Errno::ENOPROTOOPT)?;
        *place = match (name, int(value)?) {
            (so::PRIORITY | so::MARK, number) => number,
            (_, switch) => (switch != 0).into(),
        };
        Ok(Effect::None)
    }

    fn times_option(&self) -> Effect {
        Effect::Apply(SocketOption::Timestamping(self.times.asked()))
    }

    fn set_rcv_buf(&mut self, bytes: u32) -> Result<Effect, Errno> {
        self.rcv_buf = Some(bytes.max(RCVBUF_MIN));
        Ok(Effect::Apply(SocketOption::RcvBuf(self.rcv_space())))
    }

    fn set_snd_buf(&mut self, bytes: u32) -> Result<Effect, Errno> {
        let bytes = bytes.max(SNDBUF_MIN);
        self.snd_buf = Some(bytes);
        Ok(Effect::Apply(SocketOption::SndBuf(bytes as usize)))
    }

    /// Returns a buffer's size as Linux keeps it: bounded, then doubled for bookkeeping.
    fn buffer(&self, value: &[u8]) -> Result<u32, Errno> {
        // Taken for unsigned: a negative size is a huge one, and bounded.
        let bytes = int(value)?.cast_unsigned().min(self.buffer_max);
        Ok(bytes.saturating_mul(2))
    }

    #[expect(
        clippy::too_many_lines,
        reason = "one row for each option of the level"
    )]
    fn set_tcp(&mut self, name: i32, value: &[u8]) -> Result<Effect, Errno> {
        match name {
            tcp_opt::CONGESTION => {
                let kind = congestion(value)?;
                self.congestion = Some(kind);
                return Ok(Effect::Apply(SocketOption::Congestion(kind)));
            }
            // There is no protocol on top of TCP to be had.
            tcp_opt::ULP if value.is_empty() => return Err(Errno::EINVAL),
            tcp_opt::ULP => return Err(Errno::ENOENT),
            _ => {}
        }
        let number = int(value)?;
        match name {
            tcp_opt::NODELAY => {
                self.nodelay = number != 0;
                return Ok(Effect::Apply(SocketOption::NoDelay(self.nodelay)));
            }
            tcp_opt::CORK => {
                self.cork = number != 0;
                return Ok(Effect::Apply(SocketOption::Cork(self.cork)));
            }
            tcp_opt::MAXSEG if number == 0 => self.max_seg = None,
            tcp_opt::MAXSEG if MAXSEG.contains(&number) => {
                self.max_seg = u16::try_from(number).ok();
            }
            tcp_opt::KEEPIDLE => {
                self.keepalive_times.idle = seconds(number, KEEPALIVE_MAX)?;
                return Ok(self.keepalive_option());
            }
            tcp_opt::KEEPINTVL => {
                self.keepalive_times.interval = seconds(number, KEEPALIVE_MAX)?;
                return Ok(self.keepalive_option());
            }
            tcp_opt::KEEPCNT => {
                self.keepalive_times.count = count(number)?;
                return Ok(self.keepalive_option());
            }
            tcp_opt::SYNCNT => self.syn_count = Some(count(number)?),
            tcp_opt::LINGER2 => {
                // Negative: not at all; 0 and too long: the default (linux `do_tcp_setsockopt`).
                self.fin_timeout = match number {
                    ..=-1 => Some(Duration::ZERO),
                    1..=LINGER2_MAX => Some(Duration::from_secs(number.unsigned_abs().into())),
                    _ => None,
                };
            }
            tcp_opt::DEFER_ACCEPT => self.defer_accept = timeouts_of(number),
            tcp_opt::QUICKACK => return Ok(Effect::QuickAcks(number & 1 == 1)),
            tcp_opt::USER_TIMEOUT => {
                let ms = u64::try_from(number).map_err(|_| Errno::EINVAL)?;
                self.user_timeout = (ms > 0).then(|| Duration::from_millis(ms));
                return Ok(Effect::Apply(SocketOption::UserTimeout(self.user_timeout)));
            }
            tcp_opt::NOTSENT_LOWAT => {
                self.notsent_lowat = number.cast_unsigned();
                return Ok(Effect::Apply(SocketOption::NotsentLowat(
                    self.notsent_lowat,
                )));
            }
            tcp_opt::INQ if (0..=1).contains(&number) => self.inq = number == 1,
            // It has changed nothing in Linux since 4.6.
            tcp_opt::THIN_DUPACK if (0..=1).contains(&number) => {}
            tcp_opt::WINDOW_CLAMP => {
                let bytes = u32::try_from(number).map_err(|_| Errno::EINVAL)?;
                self.window_clamp = match bytes {
                    0 => 0,
                    bytes => bytes.max(WINDOW_CLAMP_MIN),
                };
                return Ok(Effect::Apply(SocketOption::RcvBuf(self.rcv_space())));
            }
            tcp_opt::MAXSEG | tcp_opt::INQ | tcp_opt::THIN_DUPACK => return Err(Errno::EINVAL),
            _ => return Err(Errno::ENOPROTOOPT),
        }
        Ok(Effect::None)
    }

    /// Returns the bytes of an option that depends on nothing but what was set.
    ///
    /// # Errors
    /// ENOPROTOOPT for what is not known.
    pub(crate) fn get(
        &self,
        family: Family,
        (level, name): (i32, i32),
        base: &tcp::Config,
    ) -> Result<Vec<u8>, Errno> {
        let number = match (level, name) {
            (sockopt::SOL_SOCKET, so::LINGER) => {
                let Linger { on, seconds } = self.linger;
                return Ok([i32::from(on).to_ne_bytes(), seconds.to_ne_bytes()].concat());
            }
            (sockopt::SOL_SOCKET, so::RCVTIMEO | so::RCVTIMEO_NEW) => {
                return Ok(timeval_bytes(self.rcv_timeout));
            }
            (sockopt::SOL_SOCKET, so::SNDTIMEO | so::SNDTIMEO_NEW) => {
                return Ok(timeval_bytes(self.snd_timeout));
            }
            (sockopt::SOL_SOCKET, so::TIMESTAMPING | so::TIMESTAMPING_NEW) => {
                return Ok(self.times.timestamping_bytes(name));
            }
            // Neither congestion control has anything to tell, and no protocol is on top of TCP.
            (SOL_TCP, tcp_opt::CC_INFO | tcp_opt::ULP) => return Ok(Vec::new()),
            (SOL_TCP, tcp_opt::CONGESTION) => {
                let name = congestion_name(self.congestion.unwrap_or(base.options.congestion));
                let mut bytes = name.as_bytes().to_vec();
                bytes.resize(TCP_CA_NAME_MAX, 0);
                return Ok(bytes);
            }
            (sockopt::SOL_IP, IP_TOS) => return Ok(i32::from(self.tos).to_ne_bytes().to_vec()),
            (sockopt::SOL_IP, IP_TTL) => self.hop_limit.unwrap_or(HOPS_DEFAULT).into(),
            (sockopt::SOL_IPV6, IPV6_UNICAST_HOPS) if family == Family::V6 => {
                self.hop_limit.unwrap_or(HOPS_DEFAULT).into()
            }
            (sockopt::SOL_IP, IP_BIND_ADDRESS_NO_PORT) => self.bind_without_port.into(),
            (sockopt::SOL_IP, IP_MTU_DISCOVER) => self.mtu_discover,
            (sockopt::SOL_IPV6, IPV6_MTU_DISCOVER) if family == Family::V6 => self.mtu_discover,
            (sockopt::SOL_IPV6, IPV6_TCLASS) if family == Family::V6 => self.tos.into(),
            (sockopt::SOL_IPV6, IPV6_V6ONLY) if family == Family::V6 => self.v6_only.into(),
            (sockopt::SOL_SOCKET, name) => self.get_socket(name, family)?,
            (SOL_TCP, name) => self.get_tcp(name, base)?,
            _ => return Err(Errno::ENOPROTOOPT),
        };
        Ok(number.to_ne_bytes().to_vec())
    }

    fn get_socket(&self, name: i32, family: Family) -> Result<i32, Errno> {
        Ok(match name {
            so::REUSEADDR => self.reuse_addr.into(),
            so::REUSEPORT => self.reuse_port.into(),
            so::TYPE => crate::abi::SOCK_STREAM,
            so::PROTOCOL => crate::abi::IPPROTO_TCP,
            so::DOMAIN => family.domain().into(),
            so::KEEPALIVE => self.keepalive.into(),
            so::RCVBUF => shown(self.rcv_buf.unwrap_or(RCVBUF_DEFAULT)),
            so::SNDBUF => shown(self.snd_buf.unwrap_or(SNDBUF_DEFAULT)),
            so::RCVLOWAT => i32::try_from(self.rcv_lowat).unwrap_or(i32::MAX),
            so::ZEROCOPY => self.zerocopy.into(),
            so::SNDLOWAT => 1,
            so::BINDTOIFINDEX => 0,
            so::TIMESTAMP | so::TIMESTAMPNS | so::TIMESTAMP_NEW | so::TIMESTAMPNS_NEW => {
                self.times.is_timestamp(name).into()
            }
            _ => {
                let mut all = REMEMBERED.iter().zip(self.remembered);
                let found = all.find(|(remembered, _)| **remembered == name);
                found.ok_or(Errno::ENOPROTOOPT)?.1
            }
        })
    }

    fn get_tcp(&self, name: i32, base: &tcp::Config) -> Result<i32, Errno> {
        let secs = |time: Duration| i32::try_from(time.as_secs()).unwrap_or(i32::MAX);
        Ok(match name {
            tcp_opt::NODELAY => self.nodelay.into(),
            tcp_opt::CORK => self.cork.into(),
            tcp_opt::KEEPIDLE => secs(self.keepalive_times.idle),
            tcp_opt::KEEPINTVL => secs(self.keepalive_times.interval),
            tcp_opt::KEEPCNT => self.keepalive_times.count.into(),
            tcp_opt::SYNCNT => self.syn_count.unwrap_or(base.options.syn_retries).into(),
            tcp_opt::LINGER2 => match self.fin_timeout {
                Some(Duration::ZERO) => -1,
                other => secs(other.unwrap_or(base.options.fin_wait_2_timeout)),
            },
            tcp_opt::DEFER_ACCEPT => seconds_of(self.defer_accept),
            tcp_opt::USER_TIMEOUT => {
                let ms = self.user_timeout.map_or(0, |time| time.as_millis());
                i32::try_from(ms).unwrap_or(i32::MAX)
            }
            tcp_opt::NOTSENT_LOWAT => self.notsent_lowat.cast_signed(),
            tcp_opt::INQ => self.inq.into(),
            tcp_opt::WINDOW_CLAMP => i32::try_from(self.rcv_space()).unwrap_or(i32::MAX),
            tcp_opt::THIN_DUPACK | tcp_opt::IS_MPTCP => 0,
            // Before there is a connection, what was asked for.
            tcp_opt::MAXSEG => self.max_seg.unwrap_or(tcp::config::DEFAULT_MSS).into(),
            _ => return Err(Errno::ENOPROTOOPT),
        })
    }
}

/// Returns a buffer's size as [`Options::buffer`] does, but for the bound: the stack is the program's own, and nobody
/// could have more of a right to it (linux asks for CAP_NET_ADMIN).
fn forced(value: &[u8]) -> Result<u32, Errno> {
    let bytes = u32::try_from(int(value)?).unwrap_or(0);
    Ok(bytes.min(FORCED_MAX).saturating_mul(2))
}
