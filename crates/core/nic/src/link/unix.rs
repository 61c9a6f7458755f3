//! A cable between two processes: a UNIX socket of type SOCK_SEQPACKET, one frame a packet.
//!
//! Every packet is a virtio-net header of 10 bytes and a frame, as a TAP has them. The first packet in each direction
//! is a [`WireHello`], which says what the other end may send; the end that connects sends its own first.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use ::wire::Instant;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::ioctl_fionbio;
use rustix::net::SocketFlags;

use super::hello::{HELLO_LIMIT, Heard, NoHello, WireHello, connect_to, set_wire_buffers};
use super::{
    Link, LinkCaps, LinkReceived, LinkSent, Posted, TapLink, TapOptions, TxFrame, VnetHeaderLen,
};

/// One end of a UNIX wire.
///
/// When the other end is gone the link is down for good. Writing to it then raises SIGPIPE, which Rust programs
/// ignore from their start.
#[derive(Debug)]
pub struct UnixLink {
    inner: TapLink,
    /// Readable when a frame may be there, or there is room again that was waited for; silent once the other end is
    /// gone: the socket itself would not be.
    ready: OwnedFd,
    /// The socket again, to change what `ready` says of it.
    socket: OwnedFd,
    /// The socket was full when it was last written to, and `ready` will say when it is not.
    awaits_room: bool,
    up: bool,
}

impl UnixLink {
    /// Joins the wire whose other end listens at `path`, says what we take and waits for the answer, for
    /// [`HELLO_LIMIT`] at most.
    ///
    /// # Errors
    /// Nobody listens there, `TimedOut` or [`NoHello`] instead of an answer, or as [`new`](Self::new).
    pub fn join(path: &Path, ours: WireHello) -> io::Result<Self> {
        let socket = connect_to(path, SocketFlags::empty())?;
        ours.say(&socket)?;
        let limit = Timespec::try_from(HELLO_LIMIT).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(&socket, PollFlags::IN)];
        if poll(&mut fds, Some(&limit))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let Heard::Hello(theirs) = WireHello::hear(&socket) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, NoHello));
        };
        ioctl_fionbio(&socket, true)?;
        Self::new(socket, ours, theirs)
    }

    /// Makes a link of a connected, non-blocking SOCK_SEQPACKET socket on which the hellos were exchanged: `ours`
    /// said what we take, `theirs` what we may send. Both must take super-packets for this link to exchange any.
    ///
    /// # Errors
    /// The system has no epoll or no descriptor to give.
    pub fn new(socket: OwnedFd, ours: WireHello, theirs: WireHello) -> io::Result<Self> {
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&ready, &socket, data, epoll::EventFlags::IN)?;
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
            awaits_room: false,
            up: true,
        })
    }

    /// Has `ready` say when there is room, too, or only when there are frames: else it would never be silent.
    fn await_room(&mut self, wanted: bool) {
        if self.awaits_room == wanted {
            return;
        }
        let flags = match wanted {
            true => epoll::EventFlags::IN | epoll::EventFlags::OUT,
            false => epoll::EventFlags::IN,
        };
        let data = epoll::EventData::new_u64(0);
        // A system that refuses leaves things as they are: a wait that nobody ends is not begun.
        if epoll::modify(&self.ready, &self.socket, data, flags).is_ok() {
            self.awaits_room = wanted;
        }
    }

    fn go_down(&mut self) {
        if std::mem::take(&mut self.up) {
            // It is in there: `new` put it in, and this is done once.
            let _ = epoll::delete(&self.ready, &self.socket);
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
            self.await_room(*sent == LinkSent::Busy);
        }
        sent
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ready.as_fd())
    }

    fn tells_of_room(&self) -> bool {
        self.awaits_room
    }

    fn next_due(&self) -> Option<Instant> {
        None
    }

    fn is_up(&self) -> bool {
        self.up
    }
}
