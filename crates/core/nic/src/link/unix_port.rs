//! A lasting end of a UNIX wire: it listens or connects, and when its peer has left, it accepts or connects to the next
//! one. It has one peer at a time.

#[cfg(test)]
mod tests;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::wire::{Instant, VnetHeader};
use peer_socket::{ListenError, PeerSocket, SocketFile};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::hello::{
    HELLO_LIMIT, HelloOutcome, NeedsOffloads, WireHello, connect_to, listen_at, set_wire_buffers,
};
use super::vnet_fd::VnetFd;

/// Time between two attempts to connect, and after a failed accept(2).
const RETRY: Duration = Duration::from_millis(200);
/// Maximum number of connections that are accepted in one call.
const BATCH_ENDS: usize = 16;
/// Connections that the kernel queues until they are accepted: as many as one call accepts.
pub(super) const BACKLOG: i32 = BATCH_ENDS as i32;
/// Maximum number of connections without a hello; the oldest is closed first.
const MAX_SILENT: usize = 8;

/// Result of writing a frame to one end of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The frame is written.
    Done,
    /// There is no room now.
    Full,
    /// The frame is lost: there is no peer, or the frame was refused.
    Lost,
}

/// An event of a port that users are notified of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnixPortEvent {
    /// A connection without a hello was closed because there were too many of them.
    TooManySilent,
    /// A connection waits because accept(2) failed, for lack of descriptors or memory.
    AcceptFailed(Errno),
    /// A connection was closed because it sent no hello within [`HELLO_LIMIT`].
    NoHello,
    /// A connection was closed because its first packet was not a hello, or the other side closed it.
    BadHello,
    /// A connection was closed because the wire has a peer already.
    SecondPeer,
    /// The end that listens refuses this one, which allows no super-packets. Another attempt follows, and is not notified if it is
    /// refused, too.
    Refused,
    /// The peer has another MTU; larger packets may be lost.
    OtherMtu {
        /// MTU of the peer.
        theirs: u16,
        /// Our MTU.
        ours: u16,
    },
}

impl fmt::Display for UnixPortEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManySilent => f.write_str(
                "closed a connection to the wire that sent no hello: too many such connections",
            ),
            Self::AcceptFailed(errno) => write!(
                f,
                "the other end of the wire cannot be accepted: {errno}; it waits"
            ),
            Self::NoHello => f.write_str("closed a connection to the wire: it sent no hello"),
            Self::BadHello => f.write_str(
                "closed a connection to the wire: its first packet is not a hello, or it was closed",
            ),
            Self::SecondPeer => {
                f.write_str("closed a connection to the wire: the other end is connected already")
            }
            Self::Refused => write!(
                f,
                "{NeedsOffloads}; let this end listen and the other one connect, or impair both"
            ),
            Self::OtherMtu { theirs, ours } => write!(
                f,
                "the other end of the wire has an MTU of {theirs}, this one {ours}: larger packets may be lost"
            ),
        }
    }
}

/// Called for each event of a port.
type Notify<'a> = &'a mut dyn FnMut(UnixPortEvent);

/// One end of a UNIX wire.
///
/// The end that connects sends its hello first. Before that, a connection is not the peer, and does not prevent another
/// one from becoming it.
#[derive(Debug)]
pub struct UnixPort {
    ours: WireHello,
    mode: ConnectMode,
    peer: Option<Peer>,
    /// Connections without a hello, oldest first; at most [`MAX_SILENT`].
    silent: Vec<Silent>,
}

/// How the port gets its peer.
#[derive(Debug)]
enum ConnectMode {
    /// It accepts connections.
    Listen {
        listener: Arc<PeerSocket>,
        /// Set after accept(2) has failed for lack of descriptors or memory: the time of the next attempt. The listener
        /// stays readable, so polling it would return at once.
        accept_after: Option<Instant>,
    },
    /// It connects to `path`, at the time `at`.
    Connect {
        path: PathBuf,
        at: Instant,
        /// The last attempt was refused, which was notified.
        is_refused: bool,
    },
}

/// The other end of the wire.
#[derive(Debug)]
struct Peer {
    socket: VnetFd,
    hello: WireHello,
}

/// A connection without a hello.
#[derive(Debug)]
struct Silent {
    socket: PeerSocket,
    since: Instant,
}

impl UnixPort {
    /// Returns a port that waits for its peer at `path` and sends it the hello `ours`, and the file of its socket, which is
    /// removed with it. Replaces a file whose listener is gone.
    ///
    /// # Errors
    /// As [`SocketFile::listen`].
    pub fn listen_at(path: &Path, ours: WireHello) -> Result<(Self, SocketFile), ListenError> {
        let (listener, file) = listen_at(path, BACKLOG)?;
        Ok((Self::listen(listener, ours), file))
    }

    /// Returns a port that waits for its peer on a listening socket and sends it the hello `ours`.
    pub(super) fn listen(listener: Arc<PeerSocket>, ours: WireHello) -> Self {
        let mode = ConnectMode::Listen {
            listener,
            accept_after: None,
        };
        Self::new(mode, ours)
    }

    /// Returns a port that connects to `path`, from the first [`serve`](Self::serve) on, and sends the hello `ours`.
    pub fn connect(path: &Path, ours: WireHello) -> Self {
        let mode = ConnectMode::Connect {
            path: path.to_owned(),
            at: Instant::ZERO,
            is_refused: false,
        };
        Self::new(mode, ours)
    }

    fn new(mode: ConnectMode, ours: WireHello) -> Self {
        Self {
            ours,
            mode,
            peer: None,
            silent: Vec::new(),
        }
    }

    /// Returns whether there is a peer: a connection that has sent its hello.
    pub fn is_up(&self) -> bool {
        self.hello().is_some()
    }

    /// Returns whether both ends allow super-packets and partial checksums.
    pub fn offloads(&self) -> bool {
        self.super_packet_mtu().is_some()
    }

    /// Returns the bytes of the longest IP packet that the segments of a super-packet may be: the MTU of the peer. `None` unless both
    /// ends allow super-packets.
    pub fn super_packet_mtu(&self) -> Option<u16> {
        let theirs = self.hello().filter(|theirs| theirs.offloads)?;
        self.ours.offloads.then_some(theirs.mtu)
    }

    /// Returns whether there are connections whose hello has not arrived.
    pub fn is_greeting(&self) -> bool {
        !self.silent.is_empty()
    }

    fn hello(&self) -> Option<WireHello> {
        self.peer.as_ref().map(|peer| peer.hello)
    }

    /// Returns the descriptors to poll for reading: the listener and the connections without a hello, and the peer.
    pub fn fds(&self) -> (impl Iterator<Item = BorrowedFd<'_>>, Option<BorrowedFd<'_>>) {
        let listener = match &self.mode {
            ConnectMode::Listen {
                listener,
                accept_after: None,
                ..
            } => Some(listener.as_fd()),
            ConnectMode::Listen { .. } | ConnectMode::Connect { .. } => None,
        };
        let silent = self.silent.iter().map(|silent| silent.socket.as_fd());
        let peer = self.peer.as_ref().map(|peer| peer.socket.as_fd());
        (listener.into_iter().chain(silent), peer)
    }

    /// Returns when [`serve`](Self::serve) has to be called even if nothing is readable.
    pub fn next_due(&self) -> Option<Instant> {
        let mode = match self.mode {
            ConnectMode::Connect { at, .. } if self.peer.is_none() && self.silent.is_empty() => {
                Some(at)
            }
            ConnectMode::Connect { .. } => None,
            ConnectMode::Listen { accept_after, .. } => accept_after,
        };
        let silent = self.silent.first().map(|silent| silent.since + HELLO_LIMIT);
        mode.into_iter().chain(silent).min()
    }

    /// Accepts connections, or connects, and reads their hellos.
    pub fn serve(&mut self, now: Instant, notify: Notify<'_>) {
        match &mut self.mode {
            ConnectMode::Listen { .. } => self.accept(now, notify),
            ConnectMode::Connect { path, at, .. }
                if self.peer.is_none() && self.silent.is_empty() && *at <= now =>
            {
                *at = now + RETRY;
                // If the connection fails, the wire stays down until the next attempt.
                let made = connect_to(path, self.ours, Duration::ZERO).ok();
                let greeted = made.filter(|socket| self.ours.send_to(socket).is_ok());
                self.silent
                    .extend(greeted.map(|socket| Silent { socket, since: now }));
            }
            ConnectMode::Connect { .. } => {}
        }
        self.read_hellos(now, notify);
    }

    /// Accepts connections. The first to send a hello becomes the peer; all others are closed then.
    fn accept(&mut self, now: Instant, notify: Notify<'_>) {
        // More connections than this wait for the next call.
        for _ in 0..BATCH_ENDS {
            let Some(socket) = self.accept_one(now, notify) else {
                return;
            };
            set_wire_buffers(socket.as_fd());
            if self.has_peer() {
                notify(UnixPortEvent::SecondPeer);
                continue;
            }
            self.silent.push(Silent { socket, since: now });
            if self.silent.len() > MAX_SILENT {
                // A hello may have arrived meanwhile.
                self.read_hellos(now, notify);
            }
            if self.silent.len() > MAX_SILENT {
                notify(UnixPortEvent::TooManySilent);
                self.silent.remove(0);
            }
        }
    }

    fn accept_one(&mut self, now: Instant, notify: Notify<'_>) -> Option<PeerSocket> {
        let ConnectMode::Listen {
            listener,
            accept_after,
        } = &mut self.mode
        else {
            return None;
        };
        if accept_after.is_some_and(|until| until > now) {
            return None;
        }
        let accepted = listener.accept(SocketFlags::NONBLOCK);
        if let Err(error) = accepted
            && has_to_wait(listener.as_fd(), error)
        {
            if accept_after.replace(now + RETRY).is_none() {
                notify(UnixPortEvent::AcceptFailed(error));
            }
        } else {
            *accept_after = None;
        }
        accepted.ok()
    }

    /// Returns whether there is a peer that has not closed its end.
    fn has_peer(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| !peer.is_gone())
    }

    /// Reads hellos; the first connection with one becomes the peer.
    fn read_hellos(&mut self, now: Instant, notify: Notify<'_>) {
        for silent in std::mem::take(&mut self.silent) {
            if self.has_peer() {
                notify(UnixPortEvent::SecondPeer);
                continue;
            }
            match WireHello::receive_from(&silent.socket) {
                HelloOutcome::NotYet if now < silent.since + HELLO_LIMIT => {
                    self.silent.push(silent)
                }
                HelloOutcome::NotYet => notify(UnixPortEvent::NoHello),
                HelloOutcome::Hello(hello) if self.is_refused_by(hello, now, notify) => {}
                HelloOutcome::Hello(hello) => self.join(silent.socket, hello, notify),
                HelloOutcome::Other => notify(UnixPortEvent::BadHello),
            }
        }
        if !self.silent.is_empty() && self.has_peer() {
            for _ in self.silent.drain(..) {
                notify(UnixPortEvent::SecondPeer);
            }
        }
    }

    /// Returns whether the end that listens, with this hello, refuses this one. The next attempt is later than after a failed one.
    fn is_refused_by(&mut self, hello: WireHello, now: Instant, notify: Notify<'_>) -> bool {
        let refuses = hello.refuses(self.ours);
        if let ConnectMode::Connect { at, is_refused, .. } = &mut self.mode {
            if refuses {
                *at = now + HELLO_LIMIT;
            }
            if refuses && !*is_refused {
                notify(UnixPortEvent::Refused);
            }
            *is_refused = refuses;
        }
        refuses
    }

    /// Makes a connection the peer.
    fn join(&mut self, mut socket: PeerSocket, hello: WireHello, notify: Notify<'_>) {
        if self.ours.shares_memory && hello.shares_memory && socket.take_descriptors().is_err() {
            return;
        }
        // As the listening end, answer the hello; as the connecting end, our hello was sent before.
        let is_greeted = match self.mode {
            ConnectMode::Listen { .. } => self.ours.send_to(&socket).is_ok(),
            ConnectMode::Connect { .. } => true,
        };
        if !is_greeted {
            return;
        }
        if hello.mtu != self.ours.mtu {
            notify(UnixPortEvent::OtherMtu {
                theirs: hello.mtu,
                ours: self.ours.mtu,
            });
        }
        self.peer = Some(Peer {
            socket: VnetFd::Socket(Arc::new(socket)),
            hello,
        });
    }

    /// Takes the socket of the peer, on which the hellos were exchanged, and its hello, for a link of a NIC. The port has no
    /// peer then: call [`serve`](Self::serve) again when that link has gone down, and meanwhile
    /// [`refuse_others`](Self::refuse_others).
    pub fn take_peer(&mut self) -> Option<(PeerSocket, WireHello)> {
        let Peer { socket, hello } = self.peer.take()?;
        Some((socket.into_socket()?, hello))
    }

    /// Closes connections that wait while the peer was taken.
    pub fn refuse_others(&mut self, now: Instant, notify: Notify<'_>) {
        for _ in 0..BATCH_ENDS {
            if self.accept_one(now, notify).is_none() {
                return;
            }
            notify(UnixPortEvent::SecondPeer);
        }
    }

    /// Reads one frame into `frame`; see [`VnetFd::read`]. `None`: there is no frame, or no peer.
    pub fn read(&mut self, frame: &mut [u8]) -> Option<(usize, VnetHeader)> {
        let peer = self.peer.as_ref()?;
        let read = match peer.socket.read(frame) {
            // A peer that has left with frames unread: reported once, before the frames that it has sent.
            Err(Errno::CONNRESET) => peer.socket.read(frame),
            read => read,
        };
        match read {
            Ok(Some(packet)) => Some(packet),
            Err(Errno::AGAIN | Errno::INTR) => None,
            // End of file, or a packet shorter than its header: the connection is of no more use.
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
        match peer.socket.write(header, frame) {
            Ok(()) => Written::Done,
            Err(Errno::AGAIN | Errno::NOBUFS) => Written::Full,
            // A peer that has left is forgotten when what it has sent was read.
            Err(_) => Written::Lost,
        }
    }
}

impl Peer {
    /// Returns whether the peer has closed its end; there may still be frames to read.
    fn is_gone(&self) -> bool {
        polled(self.socket.as_fd(), PollFlags::empty()).contains(PollFlags::HUP)
    }
}

/// Returns whether accept(2) failed with `error`, for lack of descriptors or memory, while a connection waits. Without
/// descriptors accept(2) fails even if no connection waits.
fn has_to_wait(listener: BorrowedFd<'_>, error: Errno) -> bool {
    !matches!(error, Errno::AGAIN | Errno::INTR | Errno::CONNABORTED)
        && !polled(listener, PollFlags::IN).is_empty()
}

/// Returns the current events of a descriptor by poll(2); none if it fails.
fn polled(fd: BorrowedFd<'_>, wanted: PollFlags) -> PollFlags {
    let mut fds = [PollFd::from_borrowed_fd(fd, wanted)];
    match poll(&mut fds, Some(&Timespec::default())) {
        Ok(_) => fds[0].revents(),
        Err(_) => PollFlags::empty(),
    }
}
