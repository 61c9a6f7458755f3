//! The first packet in each direction of a UNIX wire: the hello.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use peer_socket::{
    Descriptors, ListenError, ListenOptions, PeerSocket, SocketFile, connect, receive,
};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::net::{SendFlags, SocketType, send};

/// Maximum time between connecting and the hello.
pub const HELLO_LIMIT: Duration = Duration::from_secs(5);

/// Requested size of the socket buffers: a dozen super-packets. The system may give less.
const SOCKET_BUFFER_BYTES: usize = 1 << 20;

/// The first packet of each end of a UNIX wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireHello {
    /// The sender of the hello accepts TCP super-packets and partial checksums.
    pub offloads: bool,
    /// Bytes of the largest IP packet that is not a super-packet. The two ends may differ; the end with the smaller MTU
    /// drops larger packets.
    pub mtu: u16,
    /// The sender of the hello maps memory of the other end, and lets it map its own. Payload crosses a wire between two such
    /// ends by reference, and their packets are in memory.
    pub shares_memory: bool,
    /// The sender of the hello refuses another end without offloads: it has told TCP that it carries super-packets.
    pub needs_offloads: bool,
}

/// The listening end of a UNIX wire carries super-packets, and this end does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the listening end refuses this one, which takes no super-packets because of its impairment"
)]
pub struct NeedsOffloads;

/// The first packet is not a [`WireHello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the first packet from the other end is not a hello: it may be another program, or another version"
)]
pub struct HelloError;

/// Result of [`WireHello::receive_from`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HelloOutcome {
    /// No packet has arrived yet.
    NotYet,
    /// The hello of the other end.
    Hello(WireHello),
    /// Another packet has arrived, or the connection is closed.
    Other,
}

impl WireHello {
    /// Length in bytes. Shorter than any frame with its virtio-net header.
    pub const LEN: usize = 12;

    const MAGIC: [u8; 4] = *b"DMTW";
    /// Version of the protocol of a UNIX wire.
    const VERSION: u16 = 1;
    const OFFLOADS: u16 = 1;
    const NEEDS_OFFLOADS: u16 = 4;
    /// 2 was that of ends whose packets are all in the socket.
    const SHARES_MEMORY: u16 = 8;

    /// Returns the packet: magic, version, flags, MTU and two zero bytes, all little-endian.
    pub fn emit(self) -> [u8; Self::LEN] {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let flags = flag(self.offloads, Self::OFFLOADS)
            | flag(self.shares_memory, Self::SHARES_MEMORY)
            | flag(self.needs_offloads, Self::NEEDS_OFFLOADS);
        let mut out = [0; Self::LEN];
        let (magic, rest) = out.split_at_mut(Self::MAGIC.len());
        magic.copy_from_slice(&Self::MAGIC);
        let words = [Self::VERSION, flags, self.mtu];
        for (out, word) in rest.chunks_exact_mut(2).zip(words) {
            out.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Parses the first packet of the other end.
    ///
    /// # Errors
    /// [`HelloError`]: it is not a hello, or of another version.
    pub fn parse(packet: &[u8]) -> Result<Self, HelloError> {
        let packet: &[u8; Self::LEN] = packet.try_into().map_err(|_| HelloError)?;
        let [m0, m1, m2, m3, v0, v1, f0, f1, s0, s1, _, _] = *packet;
        let version = u16::from_le_bytes([v0, v1]);
        if [m0, m1, m2, m3] != Self::MAGIC || version != Self::VERSION {
            return Err(HelloError);
        }
        let flags = u16::from_le_bytes([f0, f1]);
        Ok(Self {
            offloads: flags & Self::OFFLOADS != 0,
            shares_memory: flags & Self::SHARES_MEMORY != 0,
            needs_offloads: flags & Self::NEEDS_OFFLOADS != 0,
            mtu: u16::from_le_bytes([s0, s1]),
        })
    }

    /// Returns whether the sender of this hello refuses an end whose hello is `other`.
    pub fn refuses(self, other: Self) -> bool {
        self.needs_offloads && !other.offloads
    }

    /// Sends this hello as the first packet on a connected socket, and sets the size of its buffers.
    ///
    /// # Errors
    /// As send(2): the other end has closed the connection.
    pub(super) fn send_to(self, socket: impl AsFd) -> Result<(), Errno> {
        set_wire_buffers(socket.as_fd());
        send(socket, &self.emit(), SendFlags::NOSIGNAL).map(|_| ())
    }

    /// Reads the first packet of the other end, if it has arrived.
    pub(super) fn receive_from(socket: impl AsFd) -> HelloOutcome {
        // One byte longer than a hello, to detect longer packets.
        let mut packet = [0; Self::LEN + 1];
        match receive(socket, &mut [IoSliceMut::new(&mut packet)]) {
            Err(Errno::AGAIN) => HelloOutcome::NotYet,
            Ok(got) => {
                Self::parse(&packet[..got.bytes]).map_or(HelloOutcome::Other, HelloOutcome::Hello)
            }
            Err(_) => HelloOutcome::Other,
        }
    }
}

/// Listens at `path`, where it creates a file; up to `backlog` connections wait to be accepted.
pub(super) fn listen_at(
    path: &Path,
    backlog: i32,
) -> Result<(Arc<PeerSocket>, SocketFile), ListenError> {
    let options = ListenOptions {
        kind: SocketType::SEQPACKET,
        backlog,
        descriptors: Descriptors::Refused,
    };
    SocketFile::listen(path, options)
}

/// Connects to the end of a UNIX wire that listens at `path`, waiting for room in its queue for `limit` at most. The end that
/// connects has to send its hello, `ours`, first. The socket takes descriptors if this end shares memory.
pub(super) fn connect_to(path: &Path, ours: WireHello, limit: Duration) -> io::Result<PeerSocket> {
    let mut socket = connect(path, SocketType::SEQPACKET, limit)?;
    if ours.shares_memory {
        // The other end may send files right after its hello.
        socket.take_descriptors()?;
    }
    Ok(socket)
}

/// Requests socket buffers for several super-packets. Smaller buffers cost speed only.
pub(super) fn set_wire_buffers(socket: BorrowedFd<'_>) {
    let _ = set_socket_send_buffer_size(socket, SOCKET_BUFFER_BYTES);
    let _ = set_socket_recv_buffer_size(socket, SOCKET_BUFFER_BYTES);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emitted_hello_is_parsed_to_the_same_hello() {
        for (offloads, mtu, shares_memory, needs_offloads) in [
            (true, 1500, true, true),
            (false, 9000, false, false),
            (true, 65_535, false, true),
            (false, 1500, true, false),
        ] {
            let hello = WireHello {
                offloads,
                mtu,
                shares_memory,
                needs_offloads,
            };
            assert_eq!(WireHello::parse(&hello.emit()), Ok(hello));
        }
    }

    #[test]
    fn a_frame_or_another_version_is_refused_as_a_hello() {
        let hello = WireHello {
            offloads: true,
            mtu: 1500,
            shares_memory: true,
            needs_offloads: true,
        };
        let mut other = hello.emit();
        other[4] = 2;
        for packet in [&other[..], &hello.emit()[..11], &[0; 12], &[0; 70], &[]] {
            assert_eq!(WireHello::parse(packet), Err(HelloError));
        }
    }
}
