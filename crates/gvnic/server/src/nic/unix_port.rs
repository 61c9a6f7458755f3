//! The end of a wire at a UNIX socket: it listens for the other end or looks for it, one at a time, again and again.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gve::Offload;
use nic::{WireHello, set_wire_buffers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, accept_with, bind, connect, listen, recv, send, sendmsg, socket_with,
};
use vfio_user::{ListenError, SocketFile, is_shut_out};
use wire::Instant;

use super::port::{Written, read_packet};
use tool::output::{Failure, note};

/// How long to wait before looking for the other end again, or letting it in that could not be let in.
const RETRY: Duration = Duration::from_millis(200);
/// Connections that are accepted, or sent away, in one go.
const BATCH_ENDS: usize = 16;
/// Connections that the kernel keeps until they are accepted: as many as are in one go.
const BACKLOG: i32 = BATCH_ENDS as i32;
/// Connections that are waited for at a time until they say hello; the oldest gives way.
const MAX_SILENT: usize = 8;
/// How long a connection may take to say hello: as long as our own stack waits for the answer.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// One end of a UNIX wire.
///
/// The end that connects says hello first. A connection has no part in the wire, and keeps no other one from it, before
/// it has done so.
#[derive(Debug)]
pub struct UnixPort {
    ours: WireHello,
    way: Way,
    peer: Option<Peer>,
    /// Connections whose hello did not come yet, oldest first; at most [`MAX_SILENT`].
    silent: Vec<Silent>,
}

#[derive(Debug)]
enum Way {
    /// The other end comes to us. The file goes with the port.
    Listen {
        listener: OwnedFd,
        file: SocketFile,
        /// A connection could not be accepted, for want of descriptors or memory: not tried again before this time.
        /// Tried at once, it would fail without end.
        deaf_until: Option<Instant>,
    },
    /// We go to the other end, next at this time.
    Connect { path: PathBuf, at: Instant },
}

/// The other end of the wire.
#[derive(Debug)]
struct Peer {
    socket: OwnedFd,
    /// What it said first.
    hello: WireHello,
}

/// A connection that has yet to say hello.
#[derive(Debug)]
struct Silent {
    socket: OwnedFd,
    since: Instant,
}

/// What came of a connection that was to say hello.
enum Heard {
    Nothing,
    Hello(WireHello),
    /// It is over: why, for people.
    Over(&'static str),
}

impl UnixPort {
    /// Listens at `path`.
    pub fn listen(path: &Path, offloads: bool, mtu: u16) -> Result<Self, Failure> {
        let made = SocketFile::bind(path, |path| -> io::Result<OwnedFd> {
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
            bind(&socket, &SocketAddrUnix::new(path)?)?;
            listen(&socket, BACKLOG)?;
            Ok(socket)
        });
        let (listener, file) = made.map_err(|error| {
            let remedy = match error {
                ListenError::InUse { .. } => "choose another path, or use unix:PATH to join it",
                ListenError::NotASocket { .. } => "choose another path, or move that file away",
                ListenError::System { .. } | ListenError::Interrupts(_) => {
                    "it names a file to be made, in a folder that you may write to"
                }
            };
            Failure::failed(format!("unix-listen: {error}")).with_remedy(remedy)
        })?;
        Ok(Self {
            ours: WireHello { offloads, mtu },
            way: Way::Listen {
                listener,
                file,
                deaf_until: None,
            },
            peer: None,
            silent: Vec::new(),
        })
    }

    /// Looks for somebody who listens at `path`, from the first [`tend`](Self::tend) on.
    pub fn connect(path: &Path, offloads: bool, mtu: u16) -> Self {
        Self {
            ours: WireHello { offloads, mtu },
            way: Way::Connect {
                path: path.to_owned(),
                at: Instant::ZERO,
            },
            peer: None,
            silent: Vec::new(),
        }
    }

    /// Tells whether the other end is there and has said what it takes.
    pub fn is_up(&self) -> bool {
        self.hello().is_some()
    }

    /// Tells whether both ends take super-packets and open checksums.
    pub fn offloads(&self) -> bool {
        self.ours.offloads && self.hello().is_some_and(|theirs| theirs.offloads)
    }

    fn hello(&self) -> Option<WireHello> {
        self.peer.as_ref().map(|peer| peer.hello)
    }

    /// What to poll for reading: connections that come or have yet to say hello, and the other end of the wire.
    pub fn fds(&self) -> (impl Iterator<Item = BorrowedFd<'_>>, Option<BorrowedFd<'_>>) {
        let listener = match &self.way {
            Way::Listen {
                listener,
                deaf_until: None,
                ..
            } => Some(listener.as_fd()),
            Way::Listen { .. } | Way::Connect { .. } => None,
        };
        let silent = self.silent.iter().map(|silent| silent.socket.as_fd());
        let peer = self.peer.as_ref().map(|peer| peer.socket.as_fd());
        (listener.into_iter().chain(silent), peer)
    }

    /// Returns when [`tend`](Self::tend) has to be called though nothing is readable.
    pub fn next_due(&self) -> Option<Instant> {
        let way = match self.way {
            Way::Connect { at, .. } if self.peer.is_none() && self.silent.is_empty() => Some(at),
            Way::Connect { .. } => None,
            Way::Listen { deaf_until, .. } => deaf_until,
        };
        let silent = self.silent.first().map(|silent| silent.since + HELLO_LIMIT);
        way.into_iter().chain(silent).min()
    }

    /// Accepts connections or makes one, and listens for the hello of each.
    pub fn tend(&mut self, now: Instant) {
        match &mut self.way {
            Way::Listen { .. } => self.accept(now),
            Way::Connect { path, at }
                if self.peer.is_none() && self.silent.is_empty() && *at <= now =>
            {
                *at = now + RETRY;
                // Nobody there yet: the link stays down until somebody is.
                let made = look_for(path).ok();
                let greeted = made.filter(|socket| greet(socket.as_fd(), self.ours));
                self.silent
                    .extend(greeted.map(|socket| Silent { socket, since: now }));
            }
            Way::Connect { .. } => {}
        }
        self.hear(now);
    }

    /// Accepts connections: all of them wait for their hello until one has said it, then all others are closed.
    fn accept(&mut self, now: Instant) {
        // The rest of a crowd waits for the next round.
        for _ in 0..BATCH_ENDS {
            let Some(socket) = self.accept_one(now) else {
                return;
            };
            set_wire_buffers(socket.as_fd());
            if self.has_peer() {
                self.send_away(1);
                continue;
            }
            self.silent.push(Silent { socket, since: now });
            if self.silent.len() > MAX_SILENT {
                // One of them may have spoken meanwhile.
                self.hear(now);
            }
            if self.silent.len() > MAX_SILENT {
                note("an end of the wire that did not say hello gave way to newer ones");
                self.silent.remove(0);
            }
        }
    }

    fn accept_one(&mut self, now: Instant) -> Option<OwnedFd> {
        let Way::Listen {
            listener,
            file,
            deaf_until,
        } = &mut self.way
        else {
            return None;
        };
        if deaf_until.is_some_and(|until| until > now) {
            return None;
        }
        match accept_with(&*listener, FLAGS) {
            Ok(socket) => {
                *deaf_until = None;
                Some(socket)
            }
            Err(error) if is_shut_out(&*listener, &error.into()) => {
                if deaf_until.replace(now + RETRY).is_none() {
                    note(format_args!(
                        "{}: the other end of the wire could not be let in: {error}; it waits",
                        file.path().display()
                    ));
                }
                None
            }
            Err(_) => {
                *deaf_until = None;
                None
            }
        }
    }

    /// Tells whether the other end is there, and has not left.
    fn has_peer(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| !peer.is_gone())
    }

    /// Reads hellos; the first one makes its connection the other end of the wire.
    fn hear(&mut self, now: Instant) {
        for silent in std::mem::take(&mut self.silent) {
            if self.has_peer() {
                self.send_away(1);
                continue;
            }
            match silent.hear(now) {
                Heard::Nothing => self.silent.push(silent),
                Heard::Hello(hello) => self.join(silent.socket, hello),
                Heard::Over(why) => {
                    note(format_args!("the other end of the wire {why}: sent away"))
                }
            }
        }
        if !self.silent.is_empty() && self.has_peer() {
            self.send_away(self.silent.len());
            self.silent.clear();
        }
    }

    /// Makes a connection that has said hello the other end of the wire.
    fn join(&mut self, socket: OwnedFd, hello: WireHello) {
        // The end that connected has our hello to come; the end that we connected to has it.
        let is_greeted = match self.way {
            Way::Listen { .. } => greet(socket.as_fd(), self.ours),
            Way::Connect { .. } => true,
        };
        if !is_greeted {
            return;
        }
        if hello.mtu != self.ours.mtu {
            note(format_args!(
                "the other end of the wire has an MTU of {}, this one {}: larger packets may be lost",
                hello.mtu, self.ours.mtu
            ));
        }
        self.peer = Some(Peer { socket, hello });
    }

    fn send_away(&self, connections: usize) {
        if let Way::Listen { file, .. } = &self.way {
            for _ in 0..connections {
                note(format_args!(
                    "{}: one more end of the wire, sent away",
                    file.path().display()
                ));
            }
        }
    }

    /// Reads one frame.
    pub fn read(&mut self, frame: &mut [u8]) -> Option<(usize, Offload)> {
        let peer = self.peer.as_ref()?;
        match read_packet(peer.socket.as_fd(), frame) {
            Ok(Some(packet)) => Some(packet),
            Err(Errno::AGAIN | Errno::INTR) => None,
            // Shorter than a header, or nothing: the other end is gone.
            Ok(None) | Err(_) => {
                self.peer = None;
                None
            }
        }
    }

    /// Writes one frame.
    pub fn write(&mut self, header: &[u8], frame: &[u8]) -> Written {
        let Some(peer) = self.peer.as_ref() else {
            return Written::Lost;
        };
        let parts = [IoSlice::new(header), IoSlice::new(frame)];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(
            &peer.socket,
            &parts,
            &mut SendAncillaryBuffer::default(),
            flags,
        ) {
            Ok(_) => Written::Done,
            Err(Errno::AGAIN | Errno::NOBUFS) => Written::Full,
            Err(Errno::PIPE | Errno::CONNRESET) => {
                self.peer = None;
                Written::Lost
            }
            Err(_) => Written::Lost,
        }
    }
}

impl Peer {
    /// Tells whether the other end has left, perhaps with frames still to be read.
    fn is_gone(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        let polled = poll(&mut fds, Some(&Timespec::default()));
        polled.is_ok() && fds[0].revents().contains(PollFlags::HUP)
    }
}

impl Silent {
    /// Reads the first packet, if it is there.
    fn hear(&self, now: Instant) -> Heard {
        // Longer than a hello, so that a longer packet is seen to be none.
        let mut packet = [0; WireHello::LEN + 1];
        match recv(&self.socket, &mut packet[..], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) if now < self.since + HELLO_LIMIT => Heard::Nothing,
            Err(Errno::AGAIN | Errno::INTR) => Heard::Over("did not say hello"),
            Ok((len, _)) if let Ok(hello) = WireHello::parse(&packet[..len]) => Heard::Hello(hello),
            _ => Heard::Over("does not speak as one, or left"),
        }
    }
}

/// Connects without waiting.
fn look_for(path: &Path) -> Result<OwnedFd, Errno> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Says hello; false if the other end is gone already.
fn greet(socket: BorrowedFd<'_>, ours: WireHello) -> bool {
    set_wire_buffers(socket);
    send(socket, &ours.emit(), SendFlags::NOSIGNAL).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: WireHello = WireHello {
        offloads: false,
        mtu: 1500,
    };

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    /// A port that listens, and the path.
    fn listen(test: &str) -> (UnixPort, PathBuf) {
        let name = format!("unix-port-{}-{test}", std::process::id());
        let path = std::env::temp_dir().join(name);
        (UnixPort::listen(&path, false, 1500).unwrap(), path)
    }

    fn join(path: &Path) -> OwnedFd {
        look_for(path).unwrap()
    }

    fn say_hello(socket: &OwnedFd) {
        send(socket, &HELLO.emit(), SendFlags::NOSIGNAL).unwrap();
    }

    /// Returns the next packet that came; `None` if there is none, 0 bytes if the connection was closed.
    fn next(socket: &OwnedFd) -> Option<Vec<u8>> {
        let mut packet = [0; 64];
        match recv(socket, &mut packet[..], RecvFlags::DONTWAIT) {
            Ok((len, _)) => Some(packet[..len].to_vec()),
            Err(Errno::AGAIN) => None,
            Err(Errno::CONNRESET) => Some(Vec::new()),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_silent_peer_does_not_keep_a_speaking_one_from_the_wire() {
        let (mut port, path) = listen("silent");
        let silent = join(&path);
        port.tend(at(0));
        assert!(!port.is_up());
        assert_eq!(next(&silent), None, "it is waited for");
        let speaking = join(&path);
        say_hello(&speaking);
        port.tend(at(1));
        assert!(port.is_up());
        assert_eq!(next(&speaking), Some(HELLO.emit().to_vec()));
        assert_eq!(next(&silent), Some(Vec::new()), "it is closed");
        assert_eq!((port.fds().0.count(), port.next_due()), (1, None));
    }

    #[test]
    fn a_peer_that_speaks_late_has_the_wire_if_no_other_one_spoke() {
        let (mut port, path) = listen("late");
        let (first, second) = (join(&path), join(&path));
        port.tend(at(0));
        assert_eq!(port.fds().0.count(), 3);
        say_hello(&second);
        port.tend(at(4000));
        assert!(port.is_up());
        assert_eq!(next(&second), Some(HELLO.emit().to_vec()));
        assert_eq!(next(&first), Some(Vec::new()));
    }

    #[test]
    fn a_speaking_peer_is_pushed_out_by_nobody() {
        let (mut port, path) = listen("speaking");
        let speaking = join(&path);
        say_hello(&speaking);
        port.tend(at(0));
        assert_eq!(next(&speaking), Some(HELLO.emit().to_vec()));
        let others: Vec<_> = (0..3 * MAX_SILENT)
            .map(|n| {
                let other = join(&path);
                if n % 2 == 0 {
                    say_hello(&other);
                }
                port.tend(at(n as u64 * 1000));
                other
            })
            .collect();
        assert!(port.is_up());
        assert_eq!(next(&speaking), None, "it is still there");
        for other in &others {
            assert_eq!(next(other), Some(Vec::new()), "closed without a hello");
        }
        assert_eq!(port.fds().0.count(), 1);
        drop(speaking);
        let next_one = join(&path);
        say_hello(&next_one);
        port.tend(at(100_000));
        assert_eq!(next(&next_one), Some(HELLO.emit().to_vec()));
    }

    #[test]
    fn silent_peers_are_bounded_and_closed_when_their_time_is_over() {
        let (mut port, path) = listen("bounded");
        let crowd: Vec<_> = (0..2 * MAX_SILENT)
            .map(|n| {
                let one = join(&path);
                port.tend(at(n as u64));
                one
            })
            .collect();
        assert_eq!(port.silent.len(), MAX_SILENT);
        for (n, one) in crowd.iter().enumerate() {
            let expected = (n < MAX_SILENT).then(Vec::new);
            assert_eq!(next(one), expected, "{n}");
        }
        let oldest = at(MAX_SILENT as u64) + HELLO_LIMIT;
        assert_eq!(port.next_due(), Some(oldest));
        port.tend(oldest);
        assert_eq!(port.silent.len(), MAX_SILENT - 1);
        port.tend(oldest + HELLO_LIMIT);
        assert_eq!((port.silent.len(), port.next_due()), (0, None));
        // A connection that speaks in the same moment as a crowd of silent ones comes is heard before it gives way.
        let speaking = join(&path);
        say_hello(&speaking);
        let crowd: Vec<_> = (0..BATCH_ENDS - 1).map(|_| join(&path)).collect();
        port.tend(at(60_000));
        assert!(port.is_up());
        assert_eq!(next(&speaking), Some(HELLO.emit().to_vec()));
        drop(crowd);
    }

    #[test]
    fn the_connecting_end_leaves_one_that_says_nothing_and_looks_again() {
        let (mut listening, path) = listen("connecting");
        let mut port = UnixPort::connect(&path, false, 1500);
        port.tend(at(0));
        assert_eq!(port.next_due(), Some(at(0) + HELLO_LIMIT));
        let Way::Listen { listener, .. } = &listening.way else {
            panic!("it listens")
        };
        let silent = accept_with(listener, FLAGS).unwrap();
        assert_eq!(
            next(&silent),
            Some(HELLO.emit().to_vec()),
            "it speaks first"
        );
        port.tend(at(0) + HELLO_LIMIT);
        assert_eq!(next(&silent), Some(Vec::new()));
        let again = port.next_due().expect("it looks again");
        port.tend(again);
        listening.tend(again);
        port.tend(again);
        assert!(port.is_up() && listening.is_up());
    }
}
