//! The system calls of a script.

use std::collections::HashMap;
use std::sync::Arc;

use devmem_posix::sockaddr::Family;
use devmem_uapi::sockopt::SCM_TIMESTAMPING;
use devmem_uapi::{Cmsg, CmsgIter, SockExtendedErr};

use super::loaded::{Loaded, Outcome};
use super::packet::payload;
use super::script::Expr;

/// A call, not made yet.
pub struct Call {
    pub name: String,
    pub args: Vec<Expr>,
}

/// How far the streams were written and read, by live file.
#[derive(Debug, Clone, Default)]
pub struct Streams {
    written: HashMap<i32, u32>,
    read: HashMap<i32, u32>,
}

impl Streams {
    pub fn merge(&mut self, later: Streams) {
        self.written.extend(later.written);
        self.read.extend(later.read);
    }
}

/// What a call needs of the player.
pub struct Env {
    pub loaded: Arc<Loaded>,
    pub fds: HashMap<i64, i32>,
    pub family: Family,
    pub local: Vec<u8>,
    pub remote: Vec<u8>,
    pub streams: Streams,
    /// When the script began, in microseconds.
    pub started: i64,
}

/// What came of it.
pub struct Played {
    pub outcome: Outcome,
    /// The result is a new file.
    pub opened: bool,
    /// A new pipe's ends: the script's number and the live one of each.
    pub ends: Vec<(i64, i32)>,
    pub streams: Streams,
    /// What differs beside the result.
    pub complaint: Option<String>,
}

/// The bytes that scripts send: byte `at` of the stream.
fn sent_byte(at: u32) -> u8 {
    (at as u8).wrapping_mul(7) ^ (at >> 8) as u8
}

pub fn is_sent_pattern(from: u32, bytes: &[u8]) -> bool {
    (from..).zip(bytes).all(|(at, byte)| *byte == sent_byte(at))
}

pub fn errno(name: &str) -> i32 {
    let known = devmem_uapi::Errno::NAMED
        .iter()
        .find(|errno| errno.name() == Some(name));
    known.unwrap_or_else(|| panic!("errno {name}")).0
}

const MSG_ERRQUEUE: i64 = 0x2000;

const NAMES: &[(&str, i64)] = &[
    ("SOCK_STREAM", 1),
    ("IPPROTO_TCP", 6),
    ("SOL_SOCKET", 1),
    ("SOL_TCP", 6),
    ("SOL_IP", 0),
    ("SO_REUSEADDR", 2),
    ("SO_ERROR", 4),
    ("SO_SNDBUF", 7),
    ("SO_RCVBUF", 8),
    ("SO_KEEPALIVE", 9),
    ("SO_LINGER", 13),
    ("SO_MARK", 36),
    ("SO_ZEROCOPY", 60),
    ("SO_TIMESTAMP", 29),
    ("SO_TIMESTAMPNS", 35),
    ("SO_TIMESTAMPING", 37),
    ("SCM_TIMESTAMPING", 37),
    ("SO_TIMESTAMP_NEW", 63),
    ("SO_TIMESTAMPNS_NEW", 64),
    ("SO_TIMESTAMPING_NEW", 65),
    ("TCP_NODELAY", 1),
    ("TCP_MAXSEG", 2),
    ("TCP_CORK", 3),
    ("TCP_KEEPIDLE", 4),
    ("TCP_KEEPINTVL", 5),
    ("TCP_KEEPCNT", 6),
    ("TCP_QUICKACK", 12),
    ("TCP_SYNCNT", 7),
    ("TCP_DEFER_ACCEPT", 9),
    ("TCP_USER_TIMEOUT", 18),
    ("TCP_NOTSENT_LOWAT", 25),
    ("TCP_FASTOPEN", 23),
    ("TCP_INQ", 36),
    ("TCP_CM_INQ", 36),
    ("IP_TOS", 1),
    ("O_RDWR", 2),
    ("O_NONBLOCK", 0o4000),
    ("F_GETFL", 3),
    ("F_SETFL", 4),
    ("SIOCINQ", 0x541b),
    ("SIOCOUTQ", 0x5411),
    ("SHUT_RD", 0),
    ("SHUT_WR", 1),
    ("SHUT_RDWR", 2),
    ("MSG_PEEK", 2),
    ("MSG_TRUNC", 0x20),
    ("MSG_DONTWAIT", 0x40),
    ("MSG_EOR", 0x80),
    ("MSG_WAITALL", 0x100),
    ("MSG_ERRQUEUE", 0x2000),
    ("MSG_NOSIGNAL", 0x4000),
    ("MSG_MORE", 0x8000),
    ("MSG_ZEROCOPY", 0x400_0000),
    ("MSG_FASTOPEN", 0x2000_0000),
    ("SPLICE_F_MOVE", 1),
    ("SPLICE_F_NONBLOCK", 2),
    ("SPLICE_F_MORE", 4),
    ("POLLIN", 1),
    ("POLLOUT", 4),
    ("POLLERR", 8),
    ("POLLHUP", 16),
    ("POLLRDHUP", 0x2000),
    ("EPOLLIN", 1),
    ("EPOLLOUT", 4),
    ("EPOLLERR", 8),
    ("EPOLLHUP", 16),
    ("EPOLLRDHUP", 0x2000),
    ("EPOLLET", 1 << 31),
    ("EPOLLONESHOT", 1 << 30),
    ("EPOLL_CTL_ADD", 1),
    ("EPOLL_CTL_DEL", 2),
    ("EPOLL_CTL_MOD", 3),
    ("SOF_TIMESTAMPING_TX_SOFTWARE", 1 << 1),
    ("SOF_TIMESTAMPING_RX_SOFTWARE", 1 << 3),
    ("SOF_TIMESTAMPING_SOFTWARE", 1 << 4),
    ("SOF_TIMESTAMPING_OPT_ID", 1 << 7),
    ("SOF_TIMESTAMPING_TX_SCHED", 1 << 8),
    ("SOF_TIMESTAMPING_TX_ACK", 1 << 9),
    ("SOF_TIMESTAMPING_OPT_TSONLY", 1 << 11),
    ("SOF_TIMESTAMPING_OPT_ID_TCP", 1 << 16),
    ("SCM_TSTAMP_SND", 0),
    ("SCM_TSTAMP_SCHED", 1),
    ("SCM_TSTAMP_ACK", 2),
    ("ENOMSG", 42),
    ("SO_EE_ORIGIN_TIMESTAMPING", 4),
    ("SO_EE_ORIGIN_ZEROCOPY", 5),
    ("SO_EE_CODE_ZEROCOPY_COPIED", 1),
];

/// The number of an expression.
pub fn value(expr: &Expr) -> i64 {
    match expr {
        Expr::Num(number) => *number,
        Expr::Or(all) => all.iter().map(value).fold(0, |bits, more| bits | more),
        Expr::Name(name) => {
            let known = NAMES.iter().find(|(known, _)| known == name);
            known.unwrap_or_else(|| panic!("constant {name}")).1
        }
        Expr::List(list) if list.len() == 1 => value(&list[0]),
        other => panic!("not a number: {other:?}"),
    }
}

fn int(expr: &Expr) -> i32 {
    value(expr) as u32 as i32
}

fn field<'e>(expr: &'e Expr, name: &str) -> &'e Expr {
    let Expr::Struct(fields) = expr else {
        panic!("not a structure: {expr:?}")
    };
    let found = fields.iter().find(|(known, _)| known == name);
    &found.unwrap_or_else(|| panic!("no field {name}")).1
}

/// Makes a call.
#[expect(clippy::too_many_lines, reason = "one arm for each call of a script")]
pub fn play(env: &Env, call: &Call) -> Played {
    let mut played = Played {
        outcome: Ok(0),
        opened: matches!(call.name.as_str(), "socket" | "accept" | "epoll_create"),
        ends: Vec::new(),
        streams: Streams::default(),
        complaint: None,
    };
    let args = &call.args;
    let fd = || {
        let fd = value(&args[0]);
        *env.fds.get(&fd).unwrap_or_else(|| panic!("file {fd}"))
    };
    let so = &env.loaded;
    played.outcome = match call.name.as_str() {
        "socket" => so.socket(env.family.domain().into(), int(&args[1]), int(&args[2])),
        "bind" => so.bind(fd(), &env.local),
        "listen" => so.listen(fd(), int(&args[1])),
        "accept" => so.accept(fd()),
        "connect" => so.connect(fd(), &env.remote),
        "close" => so.close(fd()),
        "shutdown" => so.shutdown(fd(), int(&args[1])),
        "fcntl" => so.fcntl(fd(), int(&args[1]), args.get(2).map_or(0, int)),
        "epoll_create" => so.epoll_create(),
        // The player's own: packetdrill has Python for it.
        "cwnd" => {
            let mut info = vec![0; 240];
            let outcome = so.getsockopt(fd(), (6, 11), &mut info);
            outcome.map(|_| {
                let cwnd = info.get(80..84).expect("tcpi_snd_cwnd");
                u32::from_ne_bytes(cwnd.try_into().expect("four bytes")).into()
            })
        }
        "read" => receive(env, &mut played, fd(), (value(&args[2]), None)),
        "recv" => receive(
            env,
            &mut played,
            fd(),
            (value(&args[2]), Some(int(&args[3]))),
        ),
        "write" => send(env, &mut played, fd(), (value(&args[2]), None)),
        "sendto" => {
            let flags = int(&args[3]);
            send_with(env, &mut played, fd(), value(&args[2]), |bytes| {
                so.sendto(fd(), bytes, flags, &env.remote)
            })
        }
        "send" => send(
            env,
            &mut played,
            fd(),
            (value(&args[2]), Some(int(&args[3]))),
        ),
        "pipe" => so.pipe().map(|live| {
            let Expr::List(list) = &args[0] else {
                panic!("pipe wants a list")
            };
            played.ends = list.iter().map(value).zip(live).collect();
            0
        }),
        "splice" => {
            let target = env.fds[&value(&args[2])];
            let offset = |arg: &Expr| match arg {
                Expr::Name(_) => 0,
                given => value(given),
            };
            so.splice(
                (fd(), target),
                (offset(&args[1]), offset(&args[3])),
                value(&args[4]) as usize,
                value(&args[5]) as u32,
            )
        }
        "sendmsg" => {
            let Expr::List(iov) = field(&args[1], "msg_iov") else {
                panic!("msg_iov is a list")
            };
            let lens = iov.iter().map(|entry| value(field(entry, "iov_len")));
            send_pieces(
                env,
                &mut played,
                fd(),
                &lens.collect::<Vec<_>>(),
                int(&args[2]),
            )
        }
        "recvmsg" if i64::from(int(&args[2])) & MSG_ERRQUEUE != 0 => {
            errqueue(env, &mut played, fd(), &args[1], int(&args[2]))
        }
        "recvmsg" => receive_with(env, &mut played, fd(), &args[1], int(&args[2])),
        "setsockopt" => {
            let bytes = match &args[3] {
                Expr::Struct(_) => [field(&args[3], "onoff"), field(&args[3], "linger")]
                    .map(|e| int(e).to_ne_bytes())
                    .concat(),
                number => int(number).to_ne_bytes().to_vec(),
            };
            so.setsockopt(fd(), (int(&args[1]), int(&args[2])), &bytes)
        }
        "getsockopt" => {
            let mut bytes = vec![0; 4];
            let outcome = so.getsockopt(fd(), (int(&args[1]), int(&args[2])), &mut bytes);
            if outcome.is_ok() {
                let seen = i32::from_ne_bytes(bytes.try_into().expect("an int"));
                played.differ(seen.into(), value(&args[3]));
            }
            outcome
        }
        "ioctl" => {
            let mut number = 0;
            let outcome = so.ioctl(fd(), value(&args[1]) as u64, &mut number);
            played.differ(number.into(), value(&args[2]));
            outcome
        }
        "poll" => poll(env, &mut played, &args[0], int(&args[2])),
        "epoll_ctl" => {
            let file = env.fds[&value(&args[2])];
            so.epoll_ctl(
                fd(),
                int(&args[1]),
                file,
                value(field(&args[3], "events")) as u32,
            )
        }
        "epoll_wait" => {
            let (outcome, events) = so.epoll_wait(fd(), int(&args[3]));
            if outcome == Ok(1) {
                played.differ(events.into(), value(field(&args[1], "events")));
            }
            outcome
        }
        other => panic!("call {other}"),
    };
    played
}

impl Played {
    fn differ(&mut self, seen: i64, expected: i64) {
        if seen != expected {
            self.complaint = Some(format!("{seen:#x} instead of {expected:#x}"));
        }
    }
}

/// recv with flags, or read.
fn receive(env: &Env, played: &mut Played, fd: i32, (len, flags): (i64, Option<i32>)) -> Outcome {
    let mut bytes = vec![0; usize::try_from(len).expect("a length")];
    let outcome = match flags {
        Some(flags) => env.loaded.recv(fd, &mut bytes, flags),
        None => env.loaded.read(fd, &mut bytes),
    };
    let flags = flags.unwrap_or(0);
    let at = env.streams.read.get(&fd).copied().unwrap_or(1);
    if let Ok(n) = outcome {
        let n = n as usize;
        let discards = i64::from(flags) & 0x20 != 0;
        if !discards && bytes[..n] != payload(at, n) {
            played.complaint = Some(format!("{n} bytes from {at} on are others than were sent"));
        }
        let peeks = flags & 2 != 0;
        played
            .streams
            .read
            .insert(fd, if peeks { at } else { at + n as u32 });
    }
    outcome
}

/// sendmsg of pieces of these lengths.
fn send_pieces(env: &Env, played: &mut Played, fd: i32, lens: &[i64], flags: i32) -> Outcome {
    let at = env.streams.written.get(&fd).copied().unwrap_or(0);
    let total: i64 = lens.iter().sum();
    let bytes: Vec<u8> = (at..at + total as u32).map(sent_byte).collect();
    let mut rest = bytes.as_slice();
    let mut pieces = Vec::new();
    for len in lens {
        let (piece, after) = rest.split_at(usize::try_from(*len).expect("a length"));
        pieces.push(piece);
        rest = after;
    }
    let outcome = env.loaded.sendmsg(fd, &pieces, flags);
    let written = at + outcome.unwrap_or(0) as u32;
    played.streams.written.insert(fd, written);
    outcome
}

/// send with flags, or write.
fn send(env: &Env, played: &mut Played, fd: i32, (len, flags): (i64, Option<i32>)) -> Outcome {
    send_with(env, played, fd, len, |bytes| match flags {
        None => env.loaded.write(fd, bytes),
        Some(flags) => env.loaded.send(fd, bytes, flags),
    })
}

/// Sends the next `len` bytes of the stream by `call`.
fn send_with(
    env: &Env,
    played: &mut Played,
    fd: i32,
    len: i64,
    call: impl FnOnce(&[u8]) -> Outcome,
) -> Outcome {
    let at = env.streams.written.get(&fd).copied().unwrap_or(0);
    let bytes: Vec<u8> = (at..at + len as u32).map(sent_byte).collect();
    let outcome = call(&bytes);
    played
        .streams
        .written
        .insert(fd, at + outcome.unwrap_or(0) as u32);
    outcome
}

/// recvmsg of the error queue: compares the extended error with the script's.
fn errqueue(env: &Env, played: &mut Played, fd: i32, msg: &Expr, flags: i32) -> Outcome {
    let (outcome, control, msg_flags) = env.loaded.recvmsg(fd, &mut [0; 16], flags);
    if outcome.is_ok() {
        played.differ(msg_flags.into(), value(field(msg, "msg_flags")));
        let entry = CmsgIter::new(&control).find_map(|cmsg| SockExtendedErr::parse(&cmsg));
        let Some(entry) = entry else {
            played.complaint = Some("no extended error".to_owned());
            return outcome;
        };
        let Expr::List(list) = field(msg, "msg_control") else {
            panic!("msg_control is a list")
        };
        let (Some((entry_of, before)), true) = (list.split_last(), list.len() <= 2) else {
            panic!("one message of the error queue, and a time before it")
        };
        let first = CmsgIter::new(&control).next().expect("found one above");
        match before {
            [time] => played.check_time(&first, field(time, "cmsg_data"), env.started),
            _ if first.ty == SCM_TIMESTAMPING => {
                played.complaint = Some("a time that nobody expects".to_owned());
            }
            _ => {}
        }
        let data = field(entry_of, "cmsg_data");
        for (name, seen) in [
            ("ee_errno", entry.errno),
            ("ee_origin", entry.origin.into()),
            ("ee_code", entry.code.into()),
            ("ee_info", entry.info),
            ("ee_data", entry.data),
        ] {
            if i64::from(seen) != value(field(data, name)) {
                played.complaint = Some(format!("{name} is {seen}"));
            }
        }
    }
    outcome
}

/// recvmsg of payload: compares every control message with the script's.
fn receive_with(env: &Env, played: &mut Played, fd: i32, msg: &Expr, flags: i32) -> Outcome {
    let Expr::List(iov) = field(msg, "msg_iov") else {
        panic!("msg_iov is a list")
    };
    let len = usize::try_from(value(field(&iov[0], "iov_len"))).expect("a length");
    let mut bytes = vec![0; len];
    let (outcome, control, msg_flags) = env.loaded.recvmsg(fd, &mut bytes, flags);
    let Ok(n) = outcome else {
        return outcome;
    };
    let at = env.streams.read.get(&fd).copied().unwrap_or(1);
    played.streams.read.insert(fd, at + n as u32);
    if bytes[..n as usize] != payload(at, n as usize) {
        played.complaint = Some(format!("{n} bytes from {at} on are others than were sent"));
    }
    played.differ(msg_flags.into(), value(field(msg, "msg_flags")));
    let Expr::List(expected) = field(msg, "msg_control") else {
        panic!("msg_control is a list")
    };
    let seen: Vec<Cmsg<'_>> = CmsgIter::new(&control).collect();
    played.differ(seen.len() as i64, expected.len() as i64);
    for (seen, expected) in seen.iter().zip(expected) {
        played.differ(seen.level.into(), value(field(expected, "cmsg_level")));
        played.differ(seen.ty.into(), value(field(expected, "cmsg_type")));
        let data = field(expected, "cmsg_data");
        match data {
            Expr::Struct(_) => played.check_time(seen, data, env.started),
            number => {
                let left = seen.data.first_chunk::<4>().expect("an int");
                played.differ(i32::from_ne_bytes(*left).into(), value(number));
            }
        }
    }
    outcome
}

/// How far a time may be from the script's; packetdrill's own default.
const TOLERANCE_NANOS: i64 = 4_000_000;

impl Played {
    /// Compares a message's time, less that of the script's begin in microseconds, with the script's.
    fn check_time(&mut self, seen: &Cmsg<'_>, expected: &Expr, started: i64) {
        let word = |at: usize| {
            let bytes = seen.data.get(at..).and_then(|rest| rest.first_chunk::<8>());
            i64::from_ne_bytes(*bytes.expect("three times"))
        };
        let unit = match i64::from(seen.ty) {
            29 | 63 => 1000,
            _ => 1,
        };
        let nanos = word(0) * 1_000_000_000 + word(8) * unit - started * 1000;
        let wanted =
            value(field(expected, "scm_sec")) * 1_000_000_000 + value(field(expected, "scm_nsec"));
        let is_it = match seen.ty {
            37 | 65 => seen.data.len() == 48 && seen.data[16..].iter().all(|byte| *byte == 0),
            _ => seen.data.len() == 16,
        };
        if !is_it || (nanos - wanted).abs() > TOLERANCE_NANOS {
            self.complaint = Some(format!("the time is {nanos} ns instead of {wanted}"));
        }
    }
}

fn poll(env: &Env, played: &mut Played, list: &Expr, timeout: i32) -> Outcome {
    let Expr::List(list) = list else {
        panic!("poll wants a list")
    };
    let entry = |expr: &Expr| libc::pollfd {
        fd: env.fds[&value(field(expr, "fd"))],
        events: value(field(expr, "events")) as i16,
        revents: 0,
    };
    let mut fds: Vec<_> = list.iter().map(entry).collect();
    let outcome = env.loaded.poll(&mut fds, timeout);
    for (seen, expected) in fds.iter().zip(list) {
        played.differ(seen.revents.into(), value(field(expected, "revents")));
    }
    outcome
}
