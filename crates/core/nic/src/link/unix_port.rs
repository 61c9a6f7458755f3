//! The end of a UNIX wire that outlives the other one: it listens for the other end or looks for it, one at a time, again
//! and again.

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::wire::{Instant, VnetHeader};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, SocketFlags, accept_with, sendmsg};

use super::hello::{HELLO_LIMIT, Heard, WireHello, connect_to, listen_at, set_wire_buffers};
use super::{VnetFd, VnetHeaderLen};

/// How long to wait before looking for the other end again, or letting it in that could not be let in.
const RETRY: Duration = Duration::from_millis(200);
/// Connections that are accepted, or sent away, in one go.
const BATCH_ENDS: usize = 16;
/// Connections that the kernel keeps until they are accepted: as many as are in one go.
const BACKLOG: i32 = BATCH_ENDS as i32;
/// Connections that are waited for at a time until they say hello; the oldest gives way.
const MAX_SILENT: usize = 8;
const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// What became of a frame that was handed to the end of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The other end has it.
    Done,
    /// There is no room now.
    Full,
    /// It is lost: nobody is there, or the frame was refused.
    Lost,
}

/// What a person who looks after a wire may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnixPortEvent {
    /// A connection without a hello was closed: there were too many of them.
    GaveWay,
    /// A connection waits that accept(2) cannot give us, for want of descriptors or memory.
    NotLetIn(Errno),
    /// A connection did not say hello within [`HELLO_LIMIT`], and was closed.
    NoHello,
    /// A connection began with something else than a hello, or left, and was closed.
    NotAWire,
    /// A connection was closed because the other end of the wire is there already.
    OneMore,
    /// The other end takes packets of another length; larger ones may be lost.
    OtherMtu {
        /// Bytes of its largest IP packet.
        theirs: u16,
        /// Bytes of ours.
        ours: u16,
    },
}

impl fmt::Display for UnixPortEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GaveWay => {
                f.write_str("an end of the wire that did not say hello gave way to newer ones")
            }
            Self::NotLetIn(errno) => write!(
                f,
                "the other end of the wire could not be let in: {errno}; it waits"
            ),
            Self::NoHello => f.write_str("the other end of the wire did not say hello: sent away"),
            Self::NotAWire => {
                f.write_str("the other end of the wire does not speak as one, or left: sent away")
            }
            Self::OneMore => f.write_str("one more end of the wire, sent away"),
            Self::OtherMtu { theirs, ours } => write!(
                f,
                "the other end of the wire has an MTU of {theirs}, this one {ours}: larger packets may be lost"
            ),
        }
    }
}

/// Who is told of the events of a port.
type Tell<'a> = &'a mut dyn FnMut(UnixPortEvent);

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
    /// The other end comes to us.
    Listen {
        listener: OwnedFd,
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
    socket: VnetFd,
    /// What it said first.
    hello: WireHello,
}

/// A connection that has yet to say hello.
#[derive(Debug)]
struct Silent {
    socket: OwnedFd,
    since: Instant,
}

impl UnixPort {
    /// Makes what [`listen`](Self::listen) listens with, and the file at `path`, which stays when the socket is closed.
    ///
    /// # Errors
    /// What the system said; `AddrInUse` if there is a file.
    pub fn bind(path: &Path) -> io::Result<OwnedFd> {
        listen_at(path, BACKLOG)
    }

    /// Waits for the other end with what [`bind`](Self::bind) made; `ours` says what we take.
    pub fn listen(listener: OwnedFd, ours: WireHello) -> Self {
        let way = Way::Listen {
            listener,
            deaf_until: None,
        };
        Self::new(way, ours)
    }

    /// Looks for somebody who listens at `path`, from the first [`tend`](Self::tend) on; `ours` says what we take.
    pub fn connect(path: &Path, ours: WireHello) -> Self {
        let way = Way::Connect {
            path: path.to_owned(),
            at: Instant::ZERO,
        };
        Self::new(way, ours)
    }

    fn new(way: Way, ours: WireHello) -> Self {
        Self {
            ours,
            way,
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

    /// Accepts connections or makes one, and listens for the hello of each; `tell` is told what is out of the ordinary.
    pub fn tend(&mut self, now: Instant, tell: Tell<'_>) {
        match &mut self.way {
            Way::Listen { .. } => self.accept(now, tell),
            Way::Connect { path, at }
                if self.peer.is_none() && self.silent.is_empty() && *at <= now =>
            {
                *at = now + RETRY;
                // Nobody there yet: the link stays down until somebody is.
                let made = connect_to(path, SocketFlags::NONBLOCK).ok();
                let greeted = made.filter(|socket| self.ours.say(socket).is_ok());
                self.silent
                    .extend(greeted.map(|socket| Silent { socket, since: now }));
            }
            Way::Connect { .. } => {}
        }
        self.hear(now, tell);
    }

    /// Accepts connections: all of them wait for their hello until one has said it, then all others are closed.
    fn accept(&mut self, now: Instant, tell: Tell<'_>) {
        // The rest of a crowd waits for the next round.
        for _ in 0..BATCH_ENDS {
            let Some(socket) = self.accept_one(now, tell) else {
                return;
            };
            set_wire_buffers(socket.as_fd());
            if self.has_peer() {
                tell(UnixPortEvent::OneMore);
                continue;
            }
            self.silent.push(Silent { socket, since: now });
            if self.silent.len() > MAX_SILENT {
                // One of them may have spoken meanwhile.
                self.hear(now, tell);
            }
            if self.silent.len() > MAX_SILENT {
                tell(UnixPortEvent::GaveWay);
                self.silent.remove(0);
            }
        }
    }

    fn accept_one(&mut self, now: Instant, tell: Tell<'_>) -> Option<OwnedFd> {
        let Way::Listen {
            listener,
            deaf_until,
        } = &mut self.way
        else {
            return None;
        };
        if deaf_until.is_some_and(|until| until > now) {
            return None;
        }
        let accepted = accept_with(&*listener, FLAGS);
        if let Err(error) = accepted
            && is_shut_out(listener.as_fd(), error)
        {
            if deaf_until.replace(now + RETRY).is_none() {
                tell(UnixPortEvent::NotLetIn(error));
            }
        } else {
            *deaf_until = None;
        }
        accepted.ok()
    }

    /// Tells whether the other end is there, and has not left.
    fn has_peer(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| !peer.is_gone())
    }

    /// Reads hellos; the first one makes its connection the other end of the wire.
    fn hear(&mut self, now: Instant, tell: Tell<'_>) {
        for silent in std::mem::take(&mut self.silent) {
            if self.has_peer() {
                tell(UnixPortEvent::OneMore);
                continue;
            }
            match WireHello::hear(&silent.socket) {
                Heard::Nothing if now < silent.since + HELLO_LIMIT => self.silent.push(silent),
                Heard::Nothing => tell(UnixPortEvent::NoHello),
                Heard::Hello(hello) => self.join(silent.socket, hello, tell),
                Heard::Other => tell(UnixPortEvent::NotAWire),
            }
        }
        if !self.silent.is_empty() && self.has_peer() {
            for _ in self.silent.drain(..) {
                tell(UnixPortEvent::OneMore);
            }
        }
    }

    /// Makes a connection that has said hello the other end of the wire.
    fn join(&mut self, socket: OwnedFd, hello: WireHello, tell: Tell<'_>) {
        // The end that connected has our hello to come; the end that we connected to has it.
        let is_greeted = match self.way {
            Way::Listen { .. } => self.ours.say(&socket).is_ok(),
            Way::Connect { .. } => true,
        };
        if !is_greeted {
            return;
        }
        if hello.mtu != self.ours.mtu {
            tell(UnixPortEvent::OtherMtu {
                theirs: hello.mtu,
                ours: self.ours.mtu,
            });
        }
        let socket = VnetFd::new(socket, VnetHeaderLen::Ten);
        self.peer = Some(Peer { socket, hello });
    }

    /// Reads one frame into `frame`; see [`VnetFd::read`]. `None`: there is none, or nobody.
    pub fn read(&mut self, frame: &mut [u8]) -> Option<(usize, VnetHeader)> {
        let peer = self.peer.as_ref()?;
        match peer.socket.read(frame) {
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
    pub fn write(&mut self, header: VnetHeader, frame: &[u8]) -> Written {
        let Some(peer) = self.peer.as_ref() else {
            return Written::Lost;
        };
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let written = peer.socket.write_with(header, frame, |parts| {
            sendmsg(
                &peer.socket,
                parts,
                &mut SendAncillaryBuffer::default(),
                flags,
            )
        });
        match written {
            Ok(()) => Written::Done,
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
        polled(self.socket.as_fd(), PollFlags::empty()).contains(PollFlags::HUP)
    }
}

/// Tells whether accept(2) on a listener failed with `error` although somebody waits there: for want of descriptors or
/// memory. Without them the system fails before it looks whether anybody does.
fn is_shut_out(listener: BorrowedFd<'_>, error: Errno) -> bool {
    !matches!(error, Errno::AGAIN | Errno::INTR | Errno::CONNABORTED)
        && !polled(listener, PollFlags::IN).is_empty()
}

/// Returns what poll(2) says of a descriptor now; nothing if it fails.
fn polled(fd: BorrowedFd<'_>, wanted: PollFlags) -> PollFlags {
    let mut fds = [PollFd::from_borrowed_fd(fd, wanted)];
    match poll(&mut fds, Some(&Timespec::default())) {
        Ok(_) => fds[0].revents(),
        Err(_) => PollFlags::empty(),
    }
}
