//! The first packets of a UNIX wire: what each end takes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    listen, recv, send, socket_with,
};

/// How long an end of a UNIX wire may take to say hello.
pub const HELLO_LIMIT: Duration = Duration::from_secs(5);

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

/// What came of waiting for a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Nothing came yet.
    Nothing,
    /// The other end's hello.
    Hello(WireHello),
    /// Something else came, or the other end has left.
    Other,
}

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

    /// Sends this hello as the first packet of a connected socket, which gets room for several super-packets.
    ///
    /// # Errors
    /// What send(2) said: the other end is gone already.
    pub(super) fn say(self, socket: impl AsFd) -> Result<(), Errno> {
        set_wire_buffers(socket.as_fd());
        send(socket, &self.emit(), SendFlags::NOSIGNAL).map(|_| ())
    }

    /// Reads the other end's first packet, if it is there.
    pub(super) fn hear(socket: impl AsFd) -> Heard {
        // Longer than a hello, so that a longer packet is seen to be none.
        let mut packet = [0; Self::LEN + 1];
        match recv(socket, &mut packet[..], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => Heard::Nothing,
            Ok((len, _)) if let Ok(hello) = Self::parse(&packet[..len]) => Heard::Hello(hello),
            _ => Heard::Other,
        }
    }
}

/// Makes a socket for one end of a UNIX wire.
fn wire_socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Has a non-blocking socket listen for ends of a UNIX wire at `path`, a file that this makes; `backlog` of them wait to
/// be accepted.
pub(super) fn listen_at(path: &Path, backlog: i32) -> io::Result<OwnedFd> {
    let socket = wire_socket(SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, backlog)?;
    Ok(socket)
}

/// Connects to the end of a UNIX wire that listens at `path`; the end that connects has to say hello first. With
/// `NONBLOCK` in `flags` it does not wait for room among the connections that wait to be accepted.
pub(super) fn connect_to(path: &Path, flags: SocketFlags) -> Result<OwnedFd, Errno> {
    let socket = wire_socket(flags | SocketFlags::CLOEXEC)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Asks for room for several super-packets under way. What the system does not give costs speed only.
pub(super) fn set_wire_buffers(socket: BorrowedFd<'_>) {
    let _ = set_socket_send_buffer_size(socket, SOCKET_BUFFER_BYTES);
    let _ = set_socket_recv_buffer_size(socket, SOCKET_BUFFER_BYTES);
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
