//! Plays a script against the loaded library.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use devmem_posix::sockaddr::{Family, emit};

use super::calls::{self, Played};
use super::loaded::Loaded;
use super::packet::{self, Opt, Path, Segment};
use super::script::{Event, Expr, What, When, parse};

/// How far a packet or a call may be from its time; packetdrill's own default.
const TOLERANCE_USECS: i64 = 4000;

/// Real time after which a call that should have returned has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long packetdrill reads the clock before an event instead of sleeping.
const SPIN_USECS: u32 = 20;

/// The remote end's first sequence number; nothing special, near to no wrap.
const REMOTE_ISN: u32 = 0x1234_0000;

/// The port that scripts bind.
const LOCAL_PORT: u16 = 8080;

/// How a script is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ip {
    V4,
    V6,
    /// IPv4 on an IPv6 socket.
    Mapped,
}

impl Ip {
    fn family(self) -> Family {
        match self {
            Self::V4 => Family::V4,
            Self::V6 | Self::Mapped => Family::V6,
        }
    }

    fn addresses(self) -> (IpAddr, IpAddr) {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        match self {
            Self::V6 => (ip("fd3d:fa7b:d17d::77"), ip("2001:db8::1")),
            Self::V4 | Self::Mapped => (ip("192.168.7.77"), ip("192.0.2.1")),
        }
    }

    /// An MTU with which the MSS is 1460 in either family, as scripts have it.
    fn mtu(self) -> u16 {
        match self {
            Self::V6 => 1520,
            Self::V4 | Self::Mapped => 1500,
        }
    }
}

/// The connection that the script speaks of.
#[derive(Debug, Clone, Copy)]
struct Connection {
    path: Path,
    local_isn: Option<u32>,
    /// What a live timestamp of ours exceeds the script's by.
    ts_delta: Option<u32>,
    /// Payload bytes of ours seen, relative.
    remote_fin: bool,
}

/// A call that goes on in another thread.
struct Blocked {
    line: usize,
    ends: i64,
    /// Its result, and when it returned.
    result: mpsc::Receiver<(Played, i64)>,
}

pub struct Player {
    loaded: Arc<Loaded>,
    ip: Ip,
    fds: HashMap<i64, i32>,
    started: i64,
    last: i64,
    connection: Option<Connection>,
    next_remote_port: u16,
    blocked: Option<Blocked>,
    /// What the blocked call is to return.
    pending: Option<(Expr, Option<String>)>,
    bytes: calls::Streams,
}

/// Plays a script; a difference is a panic that names its line.
pub fn play(text: &str, ip: Ip, flags: &str) {
    let flags = format!("mtu={},{flags}", ip.mtu());
    let loaded = Arc::new(Loaded::new(&flags));
    let started = loaded.now();
    let mut player = Player {
        loaded,
        ip,
        fds: HashMap::new(),
        started,
        last: 0,
        connection: None,
        next_remote_port: 40_000,
        blocked: None,
        pending: None,
        bytes: calls::Streams::default(),
    };
    for event in parse(text) {
        player.event(event);
    }
    player.join();
}

impl Player {
    fn now(&self) -> i64 {
        self.loaded.now() - self.started
    }

    fn event(&mut self, event: Event) {
        let Event {
            line,
            when,
            ends_after,
            what,
        } = event;
        let at = match when {
            When::After(after) => Some(self.last + after),
            When::At(at) => Some(at),
            When::Any => None,
        };
        if let What::Out(expected) = what {
            let seen = self.expect_packet(line, &expected);
            self.check_time(line, at, seen);
            self.last = at.unwrap_or(seen);
            return;
        }
        self.sleep_until(line, at);
        match what {
            What::In(segment) => self.inject(line, &segment),
            What::Call {
                name,
                args,
                result,
                errno,
            } => {
                let call = calls::Call { name, args };
                self.call(line, call, ends_after, (result, errno));
            }
            What::Out(_) => {}
        }
        self.last = at.unwrap_or_else(|| self.now());
    }

    fn sleep_until(&mut self, line: usize, at: Option<i64>) {
        let Some(at) = at else { return };
        self.wait_until(at);
        self.check_time(line, Some(at), self.now());
    }

    /// As packetdrill waits: it sleeps until shortly before `at`, and then reads the clock until the time has come.
    fn wait_until(&self, at: i64) {
        loop {
            let left = at - self.now();
            match u32::try_from(left) {
                Ok(0) | Err(_) => return,
                Ok(left) if left > SPIN_USECS => self.loaded.usleep(left - SPIN_USECS),
                Ok(_) => {}
            }
        }
    }

    fn check_time(&self, line: usize, expected: Option<i64>, seen: i64) {
        if let Some(expected) = expected {
            let off = (seen - expected).abs();
            assert!(
                off <= TOLERANCE_USECS,
                "line {line} ({:?}): expected at {:.6} s, was at {:.6} s",
                self.ip,
                expected as f64 / 1e6,
                seen as f64 / 1e6
            );
        }
    }

    // --- Packets ---

    fn inject(&mut self, line: usize, segment: &Segment) {
        let opens = segment.flags.contains('S') && segment.ack.is_none();
        let answers_ours = self
            .connection
            .is_some_and(|c| c.local_isn.is_some() && !c.remote_fin);
        if self.connection.is_none() || opens && !answers_ours {
            let (local, remote) = self.ip.addresses();
            self.next_remote_port += 1;
            let path = Path {
                src: (remote, self.next_remote_port),
                dst: (local, LOCAL_PORT),
            };
            self.connection = Some(Connection {
                path,
                local_isn: None,
                ts_delta: None,
                remote_fin: false,
            });
        }
        let connection = self.connection.expect("made above");
        let local = |n: u32| n.wrapping_add(connection.local_isn.unwrap_or(0));
        let options = segment.options.iter().flatten().map(|option| match option {
            Opt::Sack(blocks) => {
                Opt::Sack(blocks.iter().map(|(a, b)| (local(*a), local(*b))).collect())
            }
            Opt::Ts { val, ecr } => {
                let ecr = if *ecr == 0 {
                    0
                } else {
                    ecr.wrapping_add(connection.ts_delta.unwrap_or(0))
                };
                Opt::Ts { val: *val, ecr }
            }
            other => other.clone(),
        });
        let live = Segment {
            seq: segment.seq.wrapping_add(REMOTE_ISN),
            ack: segment.ack.map(local),
            options: Some(options.collect()),
            ..segment.clone()
        };
        let bytes = packet::build(connection.path, &live, segment.seq);
        assert!(packet::is_well_formed(&bytes), "line {line}");
        assert_eq!(self.loaded.netdev_send(&bytes), Ok(0), "line {line}");
    }

    #[expect(
        clippy::too_many_lines,
        reason = "one check for each field of a packet, in their order"
    )]
    fn expect_packet(&mut self, line: usize, expected: &Segment) -> i64 {
        let (bytes, at) = self.loaded.netdev_receive();
        let at = at - self.started;
        assert!(
            !bytes.is_empty(),
            "line {line} ({:?}): no packet comes any more, expected {expected:?}",
            self.ip
        );
        let (path, mut live, mut payload) = packet::read(&bytes);
        // As packetdrill does: what the script has as one may leave in pieces of one size.
        let piece = live.len;
        while live.len < expected.len && piece > 0 {
            let (bytes, _) = self.loaded.netdev_receive();
            assert!(!bytes.is_empty(), "line {line}: the rest does not come");
            let (_, next, more) = packet::read(&bytes);
            let end = live.seq.wrapping_add(u32::try_from(live.len).unwrap());
            assert_eq!(
                (next.seq, &next.ack),
                (end, &live.ack),
                "line {line}: the rest"
            );
            assert!(next.len == piece || live.len + next.len >= expected.len);
            live = Segment {
                seq: live.seq,
                len: live.len + next.len,
                ..next
            };
            payload.extend_from_slice(&more);
        }
        let opens = live.flags.contains('S');
        let connection = self.connection.get_or_insert(Connection {
            path: Path {
                src: path.dst,
                dst: path.src,
            },
            local_isn: None,
            ts_delta: None,
            remote_fin: false,
        });
        assert_eq!(
            (connection.path.dst, connection.path.src),
            (path.src, path.dst),
            "line {line}: another connection"
        );
        if opens && connection.local_isn.is_none() {
            connection.local_isn = Some(live.seq.wrapping_sub(expected.seq));
        }
        let isn = connection.local_isn.unwrap_or_default();
        let expected_ts = expected
            .options
            .iter()
            .flatten()
            .find_map(|option| match option {
                Opt::Ts { val, .. } => Some(*val),
                _ => None,
            });
        let mut seen = Segment {
            seq: live.seq.wrapping_sub(isn),
            ack: live.ack.map(|ack| ack.wrapping_sub(REMOTE_ISN)),
            ..live
        };
        for option in seen.options.iter_mut().flatten() {
            match option {
                Opt::Ts { val, .. } => {
                    let delta = *connection
                        .ts_delta
                        .get_or_insert(val.wrapping_sub(expected_ts.unwrap_or(*val)));
                    *val = val.wrapping_sub(delta);
                }
                Opt::Sack(blocks) => blocks.iter_mut().for_each(|(from, to)| {
                    (*from, *to) = (from.wrapping_sub(REMOTE_ISN), to.wrapping_sub(REMOTE_ISN));
                }),
                _ => {}
            }
        }
        if expected.win.is_none() {
            seen.win = None;
        }
        if expected.options.is_none() {
            seen.options = None;
        }
        if expected.ecn.is_none() {
            seen.ecn = None;
        }
        assert_eq!(
            &seen,
            expected,
            "line {line} ({:?}) at {:.6} s",
            self.ip,
            at as f64 / 1e6
        );
        let from = seen.seq.wrapping_sub(1);
        assert!(
            payload.is_empty() || calls::is_sent_pattern(from, &payload),
            "line {line}: the bytes sent are others"
        );
        at
    }

    // --- Calls ---

    fn call(
        &mut self,
        line: usize,
        call: calls::Call,
        ends_after: Option<i64>,
        expected: (Expr, Option<String>),
    ) {
        self.join();
        let env = calls::Env {
            loaded: Arc::clone(&self.loaded),
            fds: self.fds.clone(),
            family: self.ip.family(),
            local: self.local_address(),
            remote: self.remote_address(),
            streams: self.bytes.clone(),
            started: self.started,
        };
        let Some(ends_after) = ends_after else {
            let played = calls::play(&env, &call);
            return self.judge(line, played, &expected);
        };
        let (tell, told) = mpsc::channel();
        let (finish, result) = mpsc::channel();
        let started = self.started;
        let thread = std::thread::spawn(move || {
            let _ = tell.send(this_task());
            let played = calls::play(&env, &call);
            let _ = finish.send((played, env.loaded.now() - started));
        });
        let task = told.recv().expect("the thread says where it is");
        wait_until_blocked(&thread, &task);
        self.blocked = Some(Blocked {
            line,
            ends: self.last + ends_after,
            result,
        });
        self.pending = Some(expected);
    }

    fn join(&mut self) {
        let Some(Blocked { line, ends, result }) = self.blocked.take() else {
            return;
        };
        self.wait_until(ends);
        let (played, at) = result
            .recv_timeout(PATIENCE)
            .unwrap_or_else(|_| panic!("line {line} ({:?}): the call still waits", self.ip));
        self.check_time(line, Some(ends), at);
        let expected = self.pending.take().expect("kept with the call");
        self.judge(line, played, &expected);
    }

    fn judge(&mut self, line: usize, played: Played, expected: &(Expr, Option<String>)) {
        let Played {
            outcome,
            opened,
            ends,
            streams,
            complaint,
        } = played;
        self.fds.extend(ends);
        self.bytes.merge(streams);
        let expected_errno = expected.1.as_deref().map(calls::errno);
        match (&expected.0, outcome) {
            (Expr::Num(-1), Err(errno)) => {
                let name = devmem_uapi::Errno(errno);
                assert_eq!(
                    Some(errno),
                    expected_errno,
                    "line {line} ({:?}): {name}",
                    self.ip
                );
            }
            (Expr::Num(fd), Ok(live)) if opened => {
                self.fds.insert(*fd, i32::try_from(live).expect("a file"));
            }
            (result, Ok(live)) => {
                let result = calls::value(result);
                assert_eq!(live, result, "line {line} ({:?})", self.ip);
            }
            (result, Err(errno)) => {
                let name = devmem_uapi::Errno(errno);
                panic!("line {line} ({:?}): {name} instead of {result:?}", self.ip);
            }
        }
        if let Some(complaint) = complaint {
            panic!("line {line} ({:?}): {complaint}", self.ip);
        }
    }

    fn local_address(&self) -> Vec<u8> {
        emit(
            SocketAddr::new(self.ip.addresses().0, LOCAL_PORT),
            self.ip.family(),
        )
    }

    fn remote_address(&self) -> Vec<u8> {
        emit(
            SocketAddr::new(self.ip.addresses().1, LOCAL_PORT),
            self.ip.family(),
        )
    }
}

/// The file with the state of the thread that calls.
pub fn this_task() -> String {
    let thread = rustix::thread::gettid().as_raw_nonzero();
    format!("/proc/self/task/{thread}/stat")
}

/// Waits until a thread sleeps in its call, or has returned from it.
pub fn wait_until_blocked<T>(thread: &JoinHandle<T>, task: &str) {
    loop {
        let state = std::fs::read_to_string(task).unwrap_or_default();
        let sleeps = state
            .rsplit(')')
            .next()
            .is_some_and(|rest| rest.trim_start().starts_with('S'));
        if sleeps || thread.is_finished() {
            return;
        }
        std::thread::yield_now();
    }
}
