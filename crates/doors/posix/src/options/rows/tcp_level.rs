//! Options of level `SOL_TCP`.

use std::time::Duration;

use devmem_uapi::Errno;
use stack::SocketOption;

use crate::abi::{SOL_TCP, tcp_opt};
use crate::options::row::{Check, Row, View};
use crate::options::values::{
    TCP_CA_NAME_MAX, congestion, congestion_name, seconds, seconds_of, timeouts_of, whole_seconds,
};
use crate::options::{Effect, Options, RCVBUF_MIN};

/// Longest keepalive time in seconds (linux `MAX_TCP_KEEPIDLE`, `MAX_TCP_KEEPINTVL`).
const KEEPALIVE_MAX: i32 = 32_767;
/// Most keepalive probes (linux `MAX_TCP_KEEPCNT`), and most SYNs (linux `MAX_TCP_SYNCNT`).
const COUNT_MAX: i32 = 127;
/// Longest TCP_LINGER2 in seconds (linux `TCP_FIN_TIMEOUT_MAX`).
const LINGER2_MAX: i32 = 120;
/// Smallest TCP_WINDOW_CLAMP (linux `tcp_set_window_clamp`).
const WINDOW_CLAMP_MIN: u32 = RCVBUF_MIN / 2;
/// Smallest and largest TCP_MAXSEG (linux `TCP_MIN_MSS`, `MAX_TCP_WINDOW`).
const MAXSEG: std::ops::RangeInclusive<i32> = 88..=32_767;

const fn row(name: i32) -> Row {
    Row::new(SOL_TCP, name)
}

pub(super) static ROWS: &[Row] = &[
    row(tcp_opt::NODELAY)
        .int(Check::Any, |o, n| o.nodelay = n != 0)
        .apply(|o| Effect::Apply(SocketOption::NoDelay(o.nodelay)))
        .get_int(|v| v.options.nodelay.into()),
    row(tcp_opt::CORK)
        .int(Check::Any, |o, n| o.cork = n != 0)
        .apply(|o| Effect::Apply(SocketOption::Cork(o.cork)))
        .get_int(|v| v.options.cork.into()),
    row(tcp_opt::MAXSEG)
        .int(Check::By(is_max_seg), |o, n| {
            o.max_seg = u16::try_from(n).ok().filter(|bytes| *bytes > 0);
        })
        .apply(|o| Effect::MaxSegment(o.max_seg))
        // Without a connection, the value that was set.
        .get_int(|v| {
            let asked = v.options.max_seg;
            asked.unwrap_or(tcp::config::DEFAULT_MSS).into()
        }),
    row(tcp_opt::KEEPIDLE)
        .int(Check::In(1..=KEEPALIVE_MAX), |o, n| {
            o.keepalive_times.idle = seconds(n);
        })
        .apply(Options::keepalive_option)
        .get_int(|v| whole_seconds(v.options.keepalive_times.idle)),
    row(tcp_opt::KEEPINTVL)
        .int(Check::In(1..=KEEPALIVE_MAX), |o, n| {
            o.keepalive_times.interval = seconds(n);
        })
        .apply(Options::keepalive_option)
        .get_int(|v| whole_seconds(v.options.keepalive_times.interval)),
    row(tcp_opt::KEEPCNT)
        .int(Check::In(1..=COUNT_MAX), |o, n| {
            o.keepalive_times.count = u8::try_from(n).unwrap_or(u8::MAX);
        })
        .apply(Options::keepalive_option)
        .get_int(|v| v.options.keepalive_times.count.into()),
    row(tcp_opt::SYNCNT)
        .int(Check::In(1..=COUNT_MAX), |o, n| {
            o.syn_count = u8::try_from(n).ok();
        })
        .apply(|o| match o.syn_count {
            Some(count) => Effect::Apply(SocketOption::SynRetries(count)),
            None => Effect::None,
        })
        .get_int(|v| {
            v.options
                .syn_count
                .unwrap_or(v.base.settings.syn_retries)
                .into()
        }),
    row(tcp_opt::LINGER2)
        .int(Check::Any, set_linger2)
        .get_int(linger2),
    row(tcp_opt::DEFER_ACCEPT)
        .int(Check::Any, |o, n| o.defer_accept = timeouts_of(n))
        .get_int(|v| seconds_of(v.options.defer_accept)),
    row(tcp_opt::WINDOW_CLAMP)
        .int(Check::In(0..=i32::MAX), |o, n| {
            o.window_clamp = match n.unsigned_abs() {
                0 => 0,
                bytes => bytes.max(WINDOW_CLAMP_MIN),
            };
        })
        .apply(Options::rcv_buf_option)
        .get_int(|v| i32::try_from(v.options.rcv_space()).unwrap_or(i32::MAX)),
    row(tcp_opt::QUICKACK)
        .int(Check::Any, |o, n| o.quick_acks = n & 1 == 1)
        .apply(|o| Effect::QuickAcks(o.quick_acks))
        .get_int(|v| v.options.quick_acks.into()),
    row(tcp_opt::CONGESTION)
        .bytes(|o, value| {
            o.congestion = Some(congestion(value)?);
            Ok(())
        })
        .apply(congestion_option)
        .get_bytes(congestion_bytes),
    // Without effect in Linux since 4.6.
    row(tcp_opt::THIN_DUPACK)
        .int(Check::SWITCH, |_, _| {})
        .get_int(|_| 0),
    row(tcp_opt::USER_TIMEOUT)
        .int(Check::In(0..=i32::MAX), |o, n| {
            let time = Duration::from_millis(n.unsigned_abs().into());
            o.user_timeout = (!time.is_zero()).then_some(time);
        })
        .apply(|o| Effect::Apply(SocketOption::UserTimeout(o.user_timeout)))
        .get_int(|v| {
            let ms = v.options.user_timeout.map_or(0, |time| time.as_millis());
            i32::try_from(ms).unwrap_or(i32::MAX)
        }),
    row(tcp_opt::NOTSENT_LOWAT)
        .int(Check::Any, |o, n| o.notsent_lowat = n.cast_unsigned())
        .apply(|o| Effect::Apply(SocketOption::NotsentLowat(o.notsent_lowat)))
        .get_int(|v| v.options.notsent_lowat.cast_signed()),
    // Information of congestion controls is not offered.
    row(tcp_opt::CC_INFO).get_bytes(|_| Vec::new()),
    // There is no protocol on top of TCP.
    row(tcp_opt::ULP)
        .bytes(|_, value| match value {
            [] => Err(Errno::EINVAL),
            _ => Err(Errno::ENOENT),
        })
        .get_bytes(|_| Vec::new()),
    row(tcp_opt::INQ)
        .int(Check::SWITCH, |o, n| o.inq = n == 1)
        .get_int(|v| v.options.inq.into()),
    row(tcp_opt::IS_MPTCP).get_int(|_| 0),
];

fn is_max_seg(bytes: i32) -> Result<(), Errno> {
    match bytes == 0 || MAXSEG.contains(&bytes) {
        true => Ok(()),
        false => Err(Errno::EINVAL),
    }
}

/// Negative: the socket does not wait for the peer's FIN; 0 and too long: the default (linux `do_tcp_setsockopt`).
fn set_linger2(options: &mut Options, number: i32) {
    options.fin_timeout = match number {
        ..=-1 => Some(Duration::ZERO),
        1..=LINGER2_MAX => Some(seconds(number)),
        _ => None,
    };
}

fn linger2(view: View<'_>) -> i32 {
    match view.options.fin_timeout {
        Some(Duration::ZERO) => -1,
        other => whole_seconds(other.unwrap_or(view.base.settings.fin_wait_2_timeout)),
    }
}

fn congestion_option(options: &Options) -> Effect {
    match options.congestion {
        Some(kind) => Effect::Apply(SocketOption::Congestion(kind)),
        None => Effect::None,
    }
}

fn congestion_bytes(view: View<'_>) -> Vec<u8> {
    let kind = view
        .options
        .congestion
        .unwrap_or(view.base.settings.congestion);
    let mut bytes = congestion_name(kind).as_bytes().to_vec();
    bytes.resize(TCP_CA_NAME_MAX, 0);
    bytes
}
