//! Socket options: what a program set, kept from the first call on, and their values as bytes.
//!
//! A socket has options before the stack has anything to apply them to, so they live here and are
//! handed over when a connection or listener begins. What Linux has and this table has not is
//! refused with ENOPROTOOPT: nothing is accepted that is not done.

use std::time::Duration;

use devmem_uapi::{Errno, sockopt};
use stack::{SocketOption, StampIds, Timestamping};
use tcp::{CongestionKind, Keepalive};

use crate::abi::{IP_TOS, IPV6_TCLASS, IPV6_V6ONLY, SOL_TCP, so, sof, tcp_opt};
use crate::sockaddr::Family;

/// Smallest receive buffer (linux `SOCK_MIN_RCVBUF`, twice 1152).
const RCVBUF_MIN: u32 = 2304;
/// Smallest send buffer (linux `SOCK_MIN_SNDBUF`, twice 2304).
const SNDBUF_MIN: u32 = 4608;
/// What SO_RCVBUF says until it is set (linux `net.ipv4.tcp_rmem`, second number).
const RCVBUF_DEFAULT: u32 = 131_072;
/// What SO_SNDBUF says until it is set (linux `net.ipv4.tcp_wmem`, second number).
const SNDBUF_DEFAULT: u32 = 16_384;
/// Longest keepalive time in seconds (linux `MAX_TCP_KEEPIDLE`, `MAX_TCP_KEEPINTVL`).
const KEEPALIVE_MAX: i32 = 32_767;
/// Most keepalive probes (linux `MAX_TCP_KEEPCNT`), and most SYNs (linux `MAX_TCP_SYNCNT`).
const COUNT_MAX: i32 = 127;
/// Longest TCP_LINGER2 in seconds (linux `TCP_FIN_TIMEOUT_MAX`).
const LINGER2_MAX: i32 = 120;
/// Smallest and largest TCP_MAXSEG (linux `TCP_MIN_MSS`, `MAX_TCP_WINDOW`).
const MAXSEG: std::ops::RangeInclusive<i32> = 88..=32_767;
/// Bytes of a `struct timeval` on 64-bit machines.
const TIMEVAL_LEN: usize = 16;

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
    /// Flags of SO_TIMESTAMPING.
    pub(crate) timestamping: u32,
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
    nodelay: bool,
    cork: bool,
    zerocopy: bool,
    notsent_lowat: u32,
    tos: u8,
    mark: i32,
    /// Largest buffer that may be asked for, before doubling.
    buffer_max: u32,
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
            timestamping: 0,
            max_seg: base.user_mss,
            congestion: None,
            keepalive: base.keepalive.is_some(),
            keepalive_times: base.keepalive.unwrap_or_default(),
            syn_count: None,
            fin_timeout: None,
            defer_accept: base.defer_accept,
            user_timeout: base.user_timeout,
            rcv_buf: None,
            snd_buf: None,
            nodelay: base.nodelay,
            cork: false,
            zerocopy: false,
            notsent_lowat: 0,
            tos: 0,
            mark: 0,
            buffer_max,
        }
    }

    /// Returns the settings of TCP for a connection that begins with these options.
    pub(crate) fn config(&self, base: &tcp::Config) -> tcp::Config {
        let mut config = base.clone();
        config.user_mss = self.max_seg;
        config.nodelay = self.nodelay;
        config.keepalive = self.keepalive.then_some(self.keepalive_times);
        config.user_timeout = self.user_timeout;
        config.defer_accept = self.defer_accept;
        if let Some(bytes) = self.rcv_buf {
            config.rcv_buf_max = bytes / 2;
            config.rcv_space_initial = config.rcv_space_initial.min(bytes / 2);
        }
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
    pub(crate) fn after_opening(&self) -> [SocketOption; 5] {
        [
            SocketOption::Zerocopy(self.zerocopy),
            SocketOption::Cork(self.cork),
            SocketOption::NotsentLowat(self.notsent_lowat),
            SocketOption::Tos(self.tos),
            SocketOption::Timestamping(timestamping(self.timestamping)),
        ]
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
            sockopt::SOL_IP if name == IP_TOS => self.set_tos(byte_or_int(value)?),
            sockopt::SOL_IPV6 if family == Family::V6 => match name {
                IPV6_TCLASS => self.set_tos(int(value)?.max(0)),
                IPV6_V6ONLY => {
                    self.v6_only = int(value)? != 0;
                    Ok(Effect::None)
                }
                _ => Err(Errno::ENOPROTOOPT),
            },
            _ => Err(Errno::ENOPROTOOPT),
        }
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
            so::RCVTIMEO => self.rcv_timeout = timeval(value)?,
            so::SNDTIMEO => self.snd_timeout = timeval(value)?,
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
            so::RCVBUF => {
                let bytes = self.buffer(value)?.max(RCVBUF_MIN);
                self.rcv_buf = Some(bytes);
                return Ok(Effect::Apply(SocketOption::RcvBuf(bytes / 2)));
            }
            so::SNDBUF => {
                let bytes = self.buffer(value)?.max(SNDBUF_MIN);
                self.snd_buf = Some(bytes);
                return Ok(Effect::Apply(SocketOption::SndBuf(bytes as usize)));
            }
            so::TIMESTAMPING => {
                let flags = int(value)?.cast_unsigned();
                let numbers = flags & (sof::OPT_ID | sof::OPT_ID_TCP);
                if flags & !sof::ALL != 0 || numbers == sof::OPT_ID_TCP {
                    return Err(Errno::EINVAL);
                }
                self.timestamping = flags;
                return Ok(Effect::Apply(SocketOption::Timestamping(timestamping(
                    flags,
                ))));
            }
            // Kept and told; there are no rules that it could match.
            so::MARK => self.mark = int(value)?,
            so::ZEROCOPY => {
                let on = int(value)?;
                if !(0..=1).contains(&on) {
                    return Err(Errno::EINVAL);
                }
                self.zerocopy = on == 1;
                return Ok(Effect::Apply(SocketOption::Zerocopy(self.zerocopy)));
            }
            _ => return Err(Errno::ENOPROTOOPT),
        }
        Ok(Effect::None)
    }

    /// Returns a buffer's size as Linux keeps it: bounded, then doubled for bookkeeping.
    fn buffer(&self, value: &[u8]) -> Result<u32, Errno> {
        // Taken for unsigned: a negative size is a huge one, and bounded.
        let bytes = int(value)?.cast_unsigned().min(self.buffer_max);
        Ok(bytes.saturating_mul(2))
    }

    fn set_tcp(&mut self, name: i32, value: &[u8]) -> Result<Effect, Errno> {
        if name == tcp_opt::CONGESTION {
            self.congestion = Some(congestion(value)?);
            return Ok(Effect::None);
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
            tcp_opt::MAXSEG | tcp_opt::INQ => return Err(Errno::EINVAL),
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
            (sockopt::SOL_SOCKET, so::RCVTIMEO) => return Ok(timeval_bytes(self.rcv_timeout)),
            (sockopt::SOL_SOCKET, so::TIMESTAMPING) => {
                // The second word names a clock of hardware: none.
                return Ok([self.timestamping.to_ne_bytes(), [0; 4]].concat());
            }
            (sockopt::SOL_SOCKET, so::SNDTIMEO) => return Ok(timeval_bytes(self.snd_timeout)),
            (SOL_TCP, tcp_opt::CONGESTION) => {
                let name = congestion_name(self.congestion.unwrap_or(base.congestion));
                let mut bytes = name.as_bytes().to_vec();
                bytes.resize(TCP_CA_NAME_MAX, 0);
                return Ok(bytes);
            }
            (sockopt::SOL_IP, IP_TOS) => return Ok(i32::from(self.tos).to_ne_bytes().to_vec()),
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
            so::MARK => self.mark,
            _ => return Err(Errno::ENOPROTOOPT),
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
            tcp_opt::SYNCNT => self.syn_count.unwrap_or(base.syn_retries).into(),
            tcp_opt::LINGER2 => match self.fin_timeout {
                Some(Duration::ZERO) => -1,
                other => secs(other.unwrap_or(base.fin_wait_2_timeout)),
            },
            tcp_opt::DEFER_ACCEPT => seconds_of(self.defer_accept),
            tcp_opt::USER_TIMEOUT => {
                let ms = self.user_timeout.map_or(0, |time| time.as_millis());
                i32::try_from(ms).unwrap_or(i32::MAX)
            }
            tcp_opt::NOTSENT_LOWAT => self.notsent_lowat.cast_signed(),
            tcp_opt::INQ => self.inq.into(),
            // Before there is a connection, what was asked for.
            tcp_opt::MAXSEG => self.max_seg.unwrap_or(tcp::config::DEFAULT_MSS).into(),
            _ => return Err(Errno::ENOPROTOOPT),
        })
    }
}

/// Returns what flags of SO_TIMESTAMPING ask of the stack.
fn timestamping(flags: u32) -> Timestamping {
    let has = |flag| flags & flag != 0;
    Timestamping {
        scheduled: has(sof::TX_SCHED),
        sent: has(sof::TX_SOFTWARE),
        acked: has(sof::TX_ACK),
        ids: match (has(sof::OPT_ID), has(sof::OPT_ID_TCP)) {
            (false, _) => StampIds::None,
            (true, false) => StampIds::FromAcked,
            (true, true) => StampIds::FromQueued,
        },
    }
}

/// Bytes of a congestion control's name with its terminator (linux `TCP_CA_NAME_MAX`).
const TCP_CA_NAME_MAX: usize = 16;

fn congestion(value: &[u8]) -> Result<CongestionKind, Errno> {
    if value.is_empty() {
        return Err(Errno::EINVAL);
    }
    let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
    match name {
        b"cubic" => Ok(CongestionKind::Cubic),
        b"reno" => Ok(CongestionKind::NewReno),
        _ => Err(Errno::ENOENT),
    }
}

const fn congestion_name(kind: CongestionKind) -> &'static str {
    match kind {
        CongestionKind::Cubic => "cubic",
        CongestionKind::NewReno => "reno",
    }
}

fn shown(bytes: u32) -> i32 {
    i32::try_from(bytes).unwrap_or(i32::MAX)
}

/// Reads an int; longer values are cut, as Linux does.
pub(crate) fn int(value: &[u8]) -> Result<i32, Errno> {
    let bytes = value.first_chunk::<4>().ok_or(Errno::EINVAL)?;
    Ok(i32::from_ne_bytes(*bytes))
}

/// Options of level `SOL_IP` may be a single byte (linux `do_ip_setsockopt`).
fn byte_or_int(value: &[u8]) -> Result<i32, Errno> {
    match value {
        [] => Err(Errno::EINVAL),
        value if value.len() >= 4 => int(value),
        value => Ok(value[0].into()),
    }
}

fn seconds(number: i32, most: i32) -> Result<Duration, Errno> {
    match u64::try_from(number) {
        Ok(seconds @ 1..) if number <= most => Ok(Duration::from_secs(seconds)),
        _ => Err(Errno::EINVAL),
    }
}

/// Returns after how many seconds a SYN-ACK has timed out so often (linux `retrans_to_secs`).
fn seconds_of(timeouts: u8) -> i32 {
    let limit = tcp::config::RTO_MAX.as_secs();
    let times = (0..u32::from(timeouts)).map(|doubled| 1u64.checked_shl(doubled).unwrap_or(limit));
    let sum: u64 = times
        .map(|time| if time == 0 { limit } else { time.min(limit) })
        .sum();
    i32::try_from(sum).unwrap_or(i32::MAX)
}

/// Returns the least number of timeouts of a SYN-ACK that take so many seconds (linux `secs_to_retrans`).
fn timeouts_of(seconds: i32) -> u8 {
    (0..u8::MAX)
        .find(|timeouts| seconds_of(*timeouts) >= seconds)
        .unwrap_or(u8::MAX)
}

fn count(number: i32) -> Result<u8, Errno> {
    match u8::try_from(number) {
        Ok(count @ 1..) if number <= COUNT_MAX => Ok(count),
        _ => Err(Errno::EINVAL),
    }
}

/// Reads a `struct timeval`; nothing is for ever (linux `sock_set_timeout`).
fn timeval(value: &[u8]) -> Result<Option<Duration>, Errno> {
    let field = |at: usize| {
        let bytes = value.get(at..)?.first_chunk::<8>()?;
        Some(i64::from_ne_bytes(*bytes))
    };
    let (Some(secs), Some(micros)) = (field(0), field(8)) else {
        return Err(Errno::EINVAL);
    };
    let micros = u64::try_from(micros)
        .ok()
        .filter(|micros| *micros < 1_000_000);
    let micros = micros.ok_or(Errno(33))?;
    // A negative time is none at all: do not wait.
    let time = match u64::try_from(secs) {
        Ok(secs) => Duration::from_secs(secs).saturating_add(Duration::from_micros(micros)),
        Err(_) => return Ok(Some(Duration::ZERO)),
    };
    Ok((!time.is_zero()).then_some(time))
}

fn timeval_bytes(time: Option<Duration>) -> Vec<u8> {
    let time = time.unwrap_or_default();
    let mut bytes = Vec::with_capacity(TIMEVAL_LEN);
    bytes.extend_from_slice(&time.as_secs().to_ne_bytes());
    bytes.extend_from_slice(&u64::from(time.subsec_micros()).to_ne_bytes());
    bytes
}
