//! UNIX wire: a link between two processes over a UNIX socket of type SOCK_SEQPACKET, one frame per packet.
//!
//! Every packet is a virtio-net header of 10 bytes and a frame, as on a TAP. The first packet in each direction
//! is a [`WireHello`], which tells what the peer may send; the end that connects sends its hello first.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use ::wire::Instant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;
use rustix::net::SocketFlags;

use super::hello::{HELLO_LIMIT, HelloOutcome, NoHello, WireHello, connect_to, set_wire_buffers};
use super::socket_events::SocketEvents;
use super::{
    Link, LinkCaps, LinkReceived, LinkSent, Posted, TapLink, TapOptions, TxFrame, VnetHeaderLen,
};

/// One end of a UNIX wire.
///
/// When the peer has closed its end, the link is down and stays down. Sending on it raises no SIGPIPE, whatever the
/// program does about this signal: Linux raises it for stream sockets only (linux net/unix/af_unix.c).
#[derive(Debug)]
pub struct UnixLink {
    inner: TapLink,
    /// Not readable after the peer has left, unlike the socket.
    ready: SocketEvents,
    /// The socket again, to change its registration in `ready`.
    socket: OwnedFd,
    up: bool,
}

impl UnixLink {
    /// Connects to the end that listens at `path`, sends the hello `ours` and waits for the answer, at most for
    /// [`HELLO_LIMIT`].
    ///
    /// # Errors
    /// The connection fails; `TimedOut` without an answer; [`NoHello`] if the answer is not a hello; and as
    /// [`new`](Self::new).
    pub fn join(path: &Path, ours: WireHello) -> io::Result<Self> {
        let socket = connect_to(path, SocketFlags::empty())?;
        ours.send_to(&socket)?;
        let limit = Timespec::try_from(HELLO_LIMIT).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(&socket, PollFlags::IN)];
        if poll(&mut fds, Some(&limit))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let HelloOutcome::Hello(theirs) = WireHello::receive_from(&socket) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, NoHello));
        };
        ioctl_fionbio(&socket, true)?;
        Self::new(socket, ours, theirs)
    }

    /// Returns a link over a connected, non-blocking SOCK_SEQPACKET socket on which the hellos were exchanged: `ours` was
    /// sent, `theirs` received. The link carries super-packets if both allow them.
    ///
    /// # Errors
    /// The system has no descriptor left for the epoll instance.
    pub fn new(socket: OwnedFd, ours: WireHello, theirs: WireHello) -> io::Result<Self> {
        let ready = SocketEvents::of(&socket)?;
        set_wire_buffers(socket.as_fd());
        let options = TapOptions {
            vnet_header: VnetHeaderLen::Ten,
            offloads: ours.offloads && theirs.offloads,
            mtu: ours.mtu,
            big_tcp: false,
        };
        let again = socket.try_clone()?;
        Ok(Self {
            inner: TapLink::new(vec![again], options)?,
            ready,
            socket,
            up: true,
        })
    }

    fn go_down(&mut self) {
        if std::mem::take(&mut self.up) {
            self.ready.remove(&self.socket);
        }
    }
}

impl Link for UnixLink {
    fn caps(&self) -> LinkCaps {
        let caps = self.inner.caps();
        LinkCaps {
            name: "unix",
            tx_checksum: caps.tso,
            ..caps
        }
    }

    fn receive(&mut self, posted: &mut Posted<'_>, now: Instant) -> io::Result<LinkReceived> {
        if !self.up {
            return Err(io::ErrorKind::NetworkDown.into());
        }
        let received = self.inner.receive(posted, now);
        if received.is_err() {
            self.go_down();
        }
        received
    }

    fn send(&mut self, frame: &TxFrame<'_>, now: Instant) -> io::Result<LinkSent> {
        if !self.up {
            return Err(io::ErrorKind::NetworkDown.into());
        }
        let sent = self.inner.send(frame, now);
        if let Err(error) = &sent
            && matches!(
                error.kind(),
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
            )
        {
            self.go_down();
        }
        if let Ok(sent) = &sent {
            self.ready.on_sent(&self.socket, *sent);
        }
        sent
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ready.as_fd())
    }

    fn tells_of_room(&self) -> bool {
        self.ready.awaits_room()
    }

    fn is_up(&self) -> bool {
        self.up
    }
}
