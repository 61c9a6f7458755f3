//! A cable between two processes: a UNIX socket of type SOCK_SEQPACKET, one frame a packet.
//!
//! Every packet is a virtio-net header of 10 bytes and a frame, as a TAP has them. The first packet in each direction
//! is a [`WireHello`], which says what the other end may send; the end that connects sends its own first.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ::wire::Instant;
use rustix::event::epoll;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};

use super::{Link, LinkCaps, Posted, Received, Sent, TapLink, TapOptions, TxFrame, VnetHeaderLen};

/// Bytes of frames under way that are asked for: a dozen super-packets. The system may give fewer.
const SOCKET_BUFFER_BYTES: usize = 1 << 20;

/// What an end of a UNIX wire tells the other one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireHello {
    /// Takes super-packets of TCP and checksums that are left open.
    pub offloads: bool,
    /// Bytes of the largest IP packet that is not a super-packet; the other end's may differ, and larger frames
    /// are lost.
    pub mtu: u16,
}

/// What came instead of a [`WireHello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other end of the wire does not begin with what a wire begins with")]
pub struct NoHello;

impl WireHello {
    /// Bytes on the wire. Shorter than any frame behind its virtio-net header.
    pub const LEN: usize = 12;

    const MAGIC: [u8; 4] = *b"DMTW";
    /// Version of all that is said here.
    const VERSION: u16 = 1;
    const OFFLOADS: u16 = 1;

    /// Returns the packet: magic, version, flags, MTU and two zero bytes, all little-endian.
    pub fn emit(self) -> [u8; Self::LEN] {
        let flags = if self.offloads { Self::OFFLOADS } else { 0 };
        let mut out = [0; Self::LEN];
        let (magic, rest) = out.split_at_mut(Self::MAGIC.len());
        magic.copy_from_slice(&Self::MAGIC);
        let words = [Self::VERSION, flags, self.mtu];
        for (out, word) in rest.chunks_exact_mut(2).zip(words) {
            out.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Reads the other end's first packet.
    ///
    /// # Errors
    /// [`NoHello`]: it is something else, or of another version.
    pub fn parse(packet: &[u8]) -> Result<Self, NoHello> {
        let packet: &[u8; Self::LEN] = packet.try_into().map_err(|_| NoHello)?;
        let [m0, m1, m2, m3, v0, v1, f0, f1, s0, s1, _, _] = *packet;
        let version = u16::from_le_bytes([v0, v1]);
        if [m0, m1, m2, m3] != Self::MAGIC || version != Self::VERSION {
            return Err(NoHello);
        }
        Ok(Self {
            offloads: u16::from_le_bytes([f0, f1]) & Self::OFFLOADS != 0,
            mtu: u16::from_le_bytes([s0, s1]),
        })
    }
}

/// Asks for room for several super-packets under way. What the system does not give costs speed only.
pub fn set_wire_buffers(socket: BorrowedFd<'_>) {
    let _ = set_socket_send_buffer_size(socket, SOCKET_BUFFER_BYTES);
    let _ = set_socket_recv_buffer_size(socket, SOCKET_BUFFER_BYTES);
}

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

    fn receive(&mut self, posted: &mut Posted<'_>, now: Instant) -> io::Result<Received> {
        if !self.up {
            return Err(io::ErrorKind::NetworkDown.into());
        }
        let received = self.inner.receive(posted, now);
        if received.is_err() {
            self.go_down();
        }
        received
    }

    fn send(&mut self, frame: &TxFrame<'_>, now: Instant) -> io::Result<Sent> {
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
            self.await_room(*sent == Sent::Busy);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_read_as_it_is_written() {
        for (offloads, mtu) in [(true, 1500), (false, 9000), (true, 65_535)] {
            let hello = WireHello { offloads, mtu };
            assert_eq!(WireHello::parse(&hello.emit()), Ok(hello));
        }
    }

    #[test]
    fn a_frame_or_another_version_is_no_hello() {
        let hello = WireHello {
            offloads: true,
            mtu: 1500,
        };
        let mut other = hello.emit();
        other[4] = 2;
        for packet in [&other[..], &hello.emit()[..11], &[0; 12], &[0; 70], &[]] {
            assert_eq!(WireHello::parse(packet), Err(NoHello));
        }
    }
}
