//! UNIX wire: a link between two processes over a UNIX socket of type SOCK_SEQPACKET, one frame per packet.
//!
//! Every packet is a virtio-net header of 10 bytes and a frame, as on a TAP. The first packet in each direction
//! is a [`WireHello`], which tells what the peer may send; the end that connects sends its hello first.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ::wire::Instant;
use netmem::MemoryProvider;
use peer_socket::PeerSocket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::definition::{Link, LinkCaps, LinkState, MAX_FRAME_LEN, MAX_PACKET_LEN};
use super::frames::{LinkReceived, LinkSent, Posted, TxFrame};
use super::hello::{
    HELLO_LIMIT, HelloError, HelloOutcome, NeedsOffloads, WireHello, connect_to, set_wire_buffers,
};
use super::shared::{SharedWire, shared_caps};
use super::socket_events::SocketEvents;
use super::tap::{TapLink, TapOptions};

/// How long a refused connection is tried again: the file of a listener exists from bind(2) on, and connections are refused until
/// listen(2).
const REFUSED_LIMIT: Duration = Duration::from_millis(100);

/// Time between two such tries.
const REFUSED_PAUSE: Duration = Duration::from_millis(1);

/// Memory for send queues that the other end reads: enough for 32 connections that fill theirs. What does not fit is copied.
/// Pages are allocated when they are first used.
const SEND_MEMORY_BYTES: usize = 64 << 20;

/// One end of a UNIX wire.
///
/// When the peer has closed its end, the link is gone ([`LinkState::Gone`]), after what the peer has sent before. Sending on it raises no SIGPIPE, whatever the
/// program does about this signal: Linux raises it for stream sockets only (linux net/unix/af_unix.c).
#[derive(Debug)]
pub struct UnixLink {
    inner: Inner,
    /// Not readable after the peer has left, unlike the socket.
    ready: SocketEvents,
    /// The socket again, to change its registration in `ready`.
    socket: Arc<PeerSocket>,
    /// The peer takes frames.
    sends: bool,
    /// There may be frames of the peer.
    receives: bool,
}

/// How frames cross the wire.
#[derive(Debug)]
enum Inner {
    /// In the socket, as on a TAP.
    Frames(TapLink),
    /// Their payload by reference: both ends share memory.
    Shared(Box<SharedWire>),
}

impl UnixLink {
    /// Connects to the end that listens at `path`, sends the hello `ours` and waits for the answer, at most for
    /// [`HELLO_LIMIT`] each.
    ///
    /// # Errors
    /// The connection fails; `TimedOut` without an answer; [`HelloError`] if the answer is not a hello; [`NeedsOffloads`] if the
    /// listening end refuses this one; and as [`new`](Self::new).
    pub fn join(path: &Path, ours: WireHello) -> io::Result<Self> {
        let socket = connect_to_listener(path, ours)?;
        ours.send_to(&socket)?;
        let limit = Timespec::try_from(HELLO_LIMIT).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(&socket, PollFlags::IN)];
        if poll(&mut fds, Some(&limit))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let HelloOutcome::Hello(theirs) = WireHello::receive_from(&socket) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, HelloError));
        };
        if theirs.refuses(ours) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, NeedsOffloads));
        }
        Self::new(socket, ours, theirs)
    }

    /// Returns a link over a connected, non-blocking SOCK_SEQPACKET socket on which the hellos were exchanged: `ours` was
    /// sent, `theirs` received. The link carries super-packets, or payload by reference, if both allow them.
    ///
    /// # Errors
    /// The system has no descriptor left for the epoll instance, or no memory for what the ends share.
    pub fn new(
        socket: impl Into<PeerSocket>,
        ours: WireHello,
        theirs: WireHello,
    ) -> io::Result<Self> {
        let socket = Arc::new(socket.into());
        let ready = SocketEvents::of(&socket)?;
        set_wire_buffers(socket.as_fd());
        let again = Arc::clone(&socket);
        let offloads = ours.offloads && theirs.offloads;
        let inner = match offloads && ours.shares_memory && theirs.shares_memory {
            true => Inner::Shared(Box::new(SharedWire::new(again, ours)?)),
            false => {
                let options = TapOptions {
                    offloads,
                    mtu: ours.mtu,
                    ..TapOptions::default()
                };
                Inner::Frames(TapLink::of_socket(again, options))
            }
        };
        Ok(Self {
            inner,
            ready,
            socket,
            sends: true,
            receives: true,
        })
    }

    /// Lets the other end read the send queues of this NIC where they are, in memory of this link: what the program has sent needs
    /// one copy less. The other end can also read what TCP has not sent yet, and what connections of the NIC to itself send. It can
    /// read none of what was sent before, to another peer. Has no effect where payload does not cross by reference.
    ///
    /// # Errors
    /// There is no memory.
    pub fn share_send_memory(&mut self) -> io::Result<()> {
        match &mut self.inner {
            Inner::Frames(_) => Ok(()),
            Inner::Shared(wire) => wire.share_send_memory(SEND_MEMORY_BYTES),
        }
    }

    fn carrier(&self) -> &dyn Link {
        match &self.inner {
            Inner::Frames(link) => link,
            Inner::Shared(wire) => &**wire,
        }
    }

    fn carrier_mut(&mut self) -> &mut dyn Link {
        match &mut self.inner {
            Inner::Frames(link) => link,
            Inner::Shared(wire) => &mut **wire,
        }
    }

    /// Without a dynamic call: a thread that spins asks all the time.
    fn receive_once(&mut self, posted: &mut Posted<'_>, now: Instant) -> io::Result<LinkReceived> {
        match &mut self.inner {
            Inner::Frames(link) => link.receive(posted, now),
            Inner::Shared(wire) => wire.receive(posted, now),
        }
    }

    fn go_down(&mut self) {
        self.sends = false;
        if std::mem::take(&mut self.receives) {
            self.ready.remove(&self.socket);
            if let Inner::Shared(wire) = &mut self.inner {
                wire.end();
            }
        }
    }
}

/// Returns the capabilities of a link with the hello `ours`, if the other end allows as much.
pub(super) fn caps_of(ours: WireHello) -> LinkCaps {
    match ours.offloads && ours.shares_memory {
        true => shared_caps(ours),
        false => LinkCaps {
            max_super_packet: MAX_PACKET_LEN,
            max_rx_packet: MAX_PACKET_LEN,
            borrows: false,
            tso: ours.offloads,
            tx_checksum: ours.offloads,
            ..shared_caps(ours)
        },
    }
}

/// Connects to `path`, also if its listener is just being made.
fn connect_to_listener(path: &Path, ours: WireHello) -> io::Result<PeerSocket> {
    let start = std::time::Instant::now();
    loop {
        match connect_to(path, ours, HELLO_LIMIT) {
            Err(error)
                if error.kind() == io::ErrorKind::ConnectionRefused
                    && start.elapsed() < REFUSED_LIMIT =>
            {
                std::thread::sleep(REFUSED_PAUSE);
            }
            done => return done,
        }
    }
}

impl Link for UnixLink {
    fn caps(&self) -> LinkCaps {
        let caps = self.carrier().caps();
        LinkCaps {
            name: "unix",
            tx_checksum: caps.tso,
            ..caps
        }
    }

    fn receive(&mut self, posted: &mut Posted<'_>, now: Instant) -> io::Result<LinkReceived> {
        if !self.receives {
            return Err(io::ErrorKind::NetworkDown.into());
        }
        let mut received = self.receive_once(posted, now);
        if matches!(&received, Err(error) if error.kind() == io::ErrorKind::ConnectionReset) {
            // A peer that leaves with frames unread: reported once, before the frames that it has sent (linux
            // net/unix/af_unix.c `unix_release_sock`).
            received = self.receive_once(posted, now);
        }
        if received.is_err() {
            self.go_down();
        }
        received
    }

    fn send(&mut self, frame: &TxFrame<'_>, now: Instant) -> io::Result<LinkSent> {
        if !self.sends {
            return Err(io::ErrorKind::NetworkDown.into());
        }
        let sent = match &mut self.inner {
            // From a listening end, which allows more than this peer.
            Inner::Frames(_) if frame.frame_len() > MAX_FRAME_LEN => return Ok(LinkSent::TooLong),
            Inner::Frames(link) => link.send(frame, now),
            Inner::Shared(wire) => wire.send(frame, now),
        };
        if let Err(error) = &sent
            && matches!(
                error.kind(),
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
            )
        {
            // What the peer has sent before it left is still received.
            self.sends = false;
        }
        if let Ok(sent) = &sent {
            // The socket becomes writable for one of the reasons to be busy only.
            let of_socket = match &self.inner {
                Inner::Shared(wire) if !wire.is_socket_full() => LinkSent::Done,
                Inner::Frames(_) | Inner::Shared(_) => *sent,
            };
            self.ready.on_sent(&self.socket, of_socket);
        }
        sent
    }

    fn next_due(&self) -> Option<Instant> {
        self.carrier().next_due().filter(|_| self.receives)
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ready.as_fd())
    }

    fn tells_of_room(&self) -> bool {
        self.carrier().tells_of_room() || self.ready.awaits_room()
    }

    fn prepare_sleep(&mut self) -> bool {
        !self.receives || self.carrier_mut().prepare_sleep()
    }

    fn end_sleep(&mut self) {
        self.carrier_mut().end_sleep();
    }

    fn send_memory(&self) -> Option<&Arc<MemoryProvider>> {
        self.carrier().send_memory()
    }

    fn is_near(&self) -> bool {
        true
    }

    /// Returns [`LinkState::Gone`] when the peer has left, and all that it had sent is received: its end of the socket cannot be opened again.
    fn state(&self) -> LinkState {
        match (self.sends, self.receives) {
            (true, _) => LinkState::Up,
            (false, true) => LinkState::Down,
            (false, false) => LinkState::Gone,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, accept, bind, listen, socket};

    use super::*;

    const HELLO: WireHello = WireHello {
        offloads: true,
        mtu: 1500,
        shares_memory: false,
        needs_offloads: false,
    };

    #[test]
    fn a_listener_that_is_just_being_made_is_joined() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wire");
        let listener = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        let link = thread::scope(|scope| {
            let joining = scope.spawn(|| UnixLink::join(&path, HELLO));
            // Meanwhile, connections are refused.
            thread::sleep(10 * REFUSED_PAUSE);
            listen(&listener, 1).unwrap();
            let limit = Timespec::try_from(HELLO_LIMIT).unwrap();
            let mut fds = [PollFd::new(&listener, PollFlags::IN)];
            assert_eq!(poll(&mut fds, Some(&limit)), Ok(1), "nobody connects");
            let peer = accept(&listener).unwrap();
            HELLO.send_to(&peer).unwrap();
            joining.join().unwrap()
        });
        assert_eq!(link.unwrap().state(), LinkState::Up);
    }

    #[test]
    fn a_file_without_a_listener_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wire");
        let stale = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        bind(&stale, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        let refused = UnixLink::join(&path, HELLO).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
