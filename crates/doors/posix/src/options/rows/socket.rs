//! Options of level `SOL_SOCKET`.

use devmem_uapi::{Errno, sockopt};
use stack::SocketOption;

use crate::abi::{IPPROTO_TCP, SOCK_STREAM, so};
use crate::options::row::{Check, Row};
use crate::options::values::{int, shown, timeval, timeval_bytes};
use crate::options::{Effect, IFINDEX, Linger, Options, RCVBUF_MIN, Times};

/// Smallest send buffer (linux `SOCK_MIN_SNDBUF`, twice 2304).
const SNDBUF_MIN: u32 = 4608;
/// Default of SO_RCVBUF (linux `net.ipv4.tcp_rmem`, second number).
const RCVBUF_DEFAULT: u32 = 131_072;
/// Default of SO_SNDBUF (linux `net.ipv4.tcp_wmem`, second number).
const SNDBUF_DEFAULT: u32 = 16_384;
/// Largest buffer of SO_RCVBUFFORCE and SO_SNDBUFFORCE, before doubling (linux `__sock_set_rcvbuf`).
const FORCED_MAX: u32 = (i32::MAX / 2).unsigned_abs();

const fn row(name: i32) -> Row {
    Row::new(sockopt::SOL_SOCKET, name)
}

pub(super) static ROWS: &[Row] = &[
    row(so::TYPE).get_int(|_| SOCK_STREAM),
    row(so::PROTOCOL).get_int(|_| IPPROTO_TCP),
    row(so::DOMAIN).get_int(|v| v.family.domain().into()),
    row(so::SNDLOWAT).get_int(|_| 1),
    row(so::REUSEADDR)
        .int(Check::Any, |o, n| o.reuse_addr = n != 0)
        .get_int(|v| v.options.reuse_addr.into()),
    row(so::REUSEPORT)
        .int(Check::Any, |o, n| o.reuse_port = n != 0)
        .get_int(|v| v.options.reuse_port.into()),
    row(so::LINGER)
        .bytes(set_linger)
        .get_bytes(|v| linger_bytes(v.options.linger)),
    row(so::RCVLOWAT)
        // 0 means 1, a negative number means the maximum (linux `sk_setsockopt`).
        .int(Check::Any, |o, n| {
            o.rcv_lowat = usize::try_from(n).unwrap_or(usize::MAX).max(1);
        })
        .get_int(|v| i32::try_from(v.options.rcv_lowat).unwrap_or(i32::MAX)),
    rcv_timeout(so::RCVTIMEO),
    rcv_timeout(so::RCVTIMEO_NEW),
    snd_timeout(so::SNDTIMEO),
    snd_timeout(so::SNDTIMEO_NEW),
    row(so::KEEPALIVE)
        .int(Check::Any, |o, n| o.keepalive = n != 0)
        .apply(Options::keepalive_option)
        .get_int(|v| v.options.keepalive.into()),
    row(so::RCVBUF)
        .int(Check::Any, |o, n| set_rcv_buf(o, n, o.buffer_max))
        .apply(Options::rcv_buf_option)
        .get_int(|v| shown(v.options.rcv_buf.unwrap_or(RCVBUF_DEFAULT))),
    row(so::SNDBUF)
        .int(Check::Any, |o, n| set_snd_buf(o, n, o.buffer_max))
        .apply(snd_buf_option)
        .get_int(|v| shown(v.options.snd_buf.unwrap_or(SNDBUF_DEFAULT))),
    // Linux requires CAP_NET_ADMIN; here the stack belongs to the program.
    row(so::RCVBUFFORCE)
        .int(Check::Any, |o, n| {
            set_rcv_buf(o, n.max(0), FORCED_MAX);
        })
        .apply(Options::rcv_buf_option),
    row(so::SNDBUFFORCE)
        .int(Check::Any, |o, n| {
            set_snd_buf(o, n.max(0), FORCED_MAX);
        })
        .apply(snd_buf_option),
    row(so::TIMESTAMP)
        .int(Check::Any, |o, n| {
            o.times.set_timestamp(so::TIMESTAMP, n != 0);
        })
        .apply(Options::times_option)
        .get_int(|v| v.options.times.is_timestamp(so::TIMESTAMP).into()),
    row(so::TIMESTAMPNS)
        .int(Check::Any, |o, n| {
            o.times.set_timestamp(so::TIMESTAMPNS, n != 0);
        })
        .apply(Options::times_option)
        .get_int(|v| v.options.times.is_timestamp(so::TIMESTAMPNS).into()),
    row(so::TIMESTAMP_NEW)
        .int(Check::Any, |o, n| {
            o.times.set_timestamp(so::TIMESTAMP_NEW, n != 0);
        })
        .apply(Options::times_option)
        .get_int(|v| v.options.times.is_timestamp(so::TIMESTAMP_NEW).into()),
    row(so::TIMESTAMPNS_NEW)
        .int(Check::Any, |o, n| {
            o.times.set_timestamp(so::TIMESTAMPNS_NEW, n != 0);
        })
        .apply(Options::times_option)
        .get_int(|v| v.options.times.is_timestamp(so::TIMESTAMPNS_NEW).into()),
    row(so::TIMESTAMPING)
        .int(Check::By(Times::check_flags), |o, n| {
            o.times.set_timestamping(so::TIMESTAMPING, n);
        })
        .apply(Options::times_option)
        .get_bytes(|v| v.options.times.timestamping_bytes(so::TIMESTAMPING)),
    row(so::TIMESTAMPING_NEW)
        .int(Check::By(Times::check_flags), |o, n| {
            o.times.set_timestamping(so::TIMESTAMPING_NEW, n);
        })
        .apply(Options::times_option)
        .get_bytes(|v| v.options.times.timestamping_bytes(so::TIMESTAMPING_NEW)),
    // The stack has one interface, so every socket is bound to it.
    row(so::BINDTOIFINDEX)
        .int(Check::By(is_interface), |_, _| {})
        .get_int(|_| 0),
    row(so::ZEROCOPY)
        .int(Check::SWITCH, |o, n| o.zerocopy = n == 1)
        .apply(|o| Effect::Apply(SocketOption::Zerocopy(o.zerocopy)))
        .get_int(|v| v.options.zerocopy.into()),
    row(so::DEBUG)
        .int(Check::Any, |o, n| o.remembered.debug = n != 0)
        .get_int(|v| v.options.remembered.debug.into()),
    row(so::BROADCAST)
        .int(Check::Any, |o, n| o.remembered.broadcast = n != 0)
        .get_int(|v| v.options.remembered.broadcast.into()),
    row(so::OOBINLINE)
        .int(Check::Any, |o, n| o.remembered.oob_inline = n != 0)
        .get_int(|v| v.options.remembered.oob_inline.into()),
    row(so::NO_CHECK)
        .int(Check::Any, |o, n| o.remembered.no_check = n != 0)
        .get_int(|v| v.options.remembered.no_check.into()),
    row(so::PRIORITY)
        .int(Check::Any, |o, n| o.remembered.priority = n)
        .get_int(|v| v.options.remembered.priority),
    row(so::MARK)
        .int(Check::Any, |o, n| o.remembered.mark = n)
        .get_int(|v| v.options.remembered.mark),
    row(so::SELECT_ERR_QUEUE)
        .int(Check::Any, |o, n| o.remembered.select_err_queue = n != 0)
        .get_int(|v| v.options.remembered.select_err_queue.into()),
];

const fn rcv_timeout(name: i32) -> Row {
    row(name)
        .bytes(|o, value| {
            o.rcv_timeout = timeval(value)?;
            Ok(())
        })
        .get_bytes(|v| timeval_bytes(v.options.rcv_timeout))
}

const fn snd_timeout(name: i32) -> Row {
    row(name)
        .bytes(|o, value| {
            o.snd_timeout = timeval(value)?;
            Ok(())
        })
        .get_bytes(|v| timeval_bytes(v.options.snd_timeout))
}

fn set_linger(options: &mut Options, value: &[u8]) -> Result<(), Errno> {
    let on = int(value)? != 0;
    let seconds = int(value.get(4..).unwrap_or_default())?;
    options.linger = Linger { on, seconds };
    Ok(())
}

fn linger_bytes(linger: Linger) -> Vec<u8> {
    let Linger { on, seconds } = linger;
    [i32::from(on).to_ne_bytes(), seconds.to_ne_bytes()].concat()
}

fn is_interface(index: i32) -> Result<(), Errno> {
    let ours = u32::try_from(index) == Ok(IFINDEX.0);
    match index == 0 || ours {
        true => Ok(()),
        false => Err(Errno::ENODEV),
    }
}

/// Returns a buffer's size as Linux stores it: at most `max`, then doubled for overhead. The number is read as unsigned, so
/// a negative size is larger than `max`.
fn doubled(bytes: i32, max: u32) -> u32 {
    bytes.cast_unsigned().min(max).saturating_mul(2)
}

fn set_rcv_buf(options: &mut Options, bytes: i32, max: u32) {
    options.rcv_buf = Some(doubled(bytes, max).max(RCVBUF_MIN));
}

fn set_snd_buf(options: &mut Options, bytes: i32, max: u32) {
    options.snd_buf = Some(doubled(bytes, max).max(SNDBUF_MIN));
}

fn snd_buf_option(options: &Options) -> Effect {
    let bytes = options.snd_buf.unwrap_or(SNDBUF_DEFAULT);
    Effect::Apply(SocketOption::SndBuf(bytes as usize))
}
