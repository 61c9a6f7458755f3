//! Descriptors for packets of a virtio-net header and a frame: a queue of a TAP, or a UNIX wire.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ::wire::VnetHeader;
use peer_socket::{PeerSocket, receive};
use rustix::io::Errno;

/// A descriptor that reads and writes one packet, a virtio-net header and a frame, per system call, without copying it
/// to a buffer in between.
#[derive(Debug)]
pub enum VnetFd {
    /// A queue of a TAP, or a packet socket.
    Queue(OwnedFd),
    /// A connected UNIX wire.
    Socket(Arc<PeerSocket>),
}

impl VnetFd {
    /// Returns the socket.
    pub(super) fn into_socket(self) -> Option<PeerSocket> {
        match self {
            Self::Queue(_) => None,
            Self::Socket(socket) => Arc::into_inner(socket),
        }
    }

    /// Returns whether descriptors may come with a packet. They would be closed by a call that reads it without taking them.
    pub(super) fn may_get_descriptors(&self) -> bool {
        match self {
            Self::Queue(_) => false,
            Self::Socket(socket) => socket.may_have_descriptors(),
        }
    }

    /// Reads one packet, its frame into `frame`, by one readv. Returns the length of the frame and its header; `None` for
    /// a packet shorter than the header, or at the end of file of a socket. A frame that fills all of
    /// `frame` may have been longer.
    ///
    /// # Errors
    /// As readv(2).
    pub fn read(&self, frame: &mut [u8]) -> Result<Option<(usize, VnetHeader)>, Errno> {
        let mut header = [0; VnetHeader::LEN];
        let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(frame)];
        let read = match self.may_get_descriptors() {
            false => rustix::io::readv(self, &mut parts)?,
            true => receive(self, &mut parts)?.bytes,
        };
        let header = VnetHeader::parse(&header).unwrap_or_default();
        let frame_len = read.checked_sub(VnetHeader::LEN);
        Ok(frame_len.map(|len| (len, header)))
    }

    /// Writes one packet with a contiguous frame, by one writev.
    ///
    /// # Errors
    /// As writev(2).
    pub fn write(&self, header: VnetHeader, frame: &[u8]) -> Result<(), Errno> {
        let mut bytes = [0; VnetHeader::LEN];
        header.emit(&mut bytes);
        rustix::io::writev(self, &[IoSlice::new(&bytes), IoSlice::new(frame)]).map(|_| ())
    }
}

impl AsFd for VnetFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Queue(fd) => fd.as_fd(),
            Self::Socket(socket) => socket.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use ::wire::{ChecksumState, Offload, TxChecksum};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (VnetFd, OwnedFd) {
        let (a, b) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::NONBLOCK,
            None,
        )
        .unwrap();
        (VnetFd::Queue(a), b)
    }

    #[test]
    fn a_packet_is_the_header_and_the_frame() {
        let partial = ChecksumState::Partial(TxChecksum {
            start: 34,
            offset: 16,
        });
        let offload = Offload {
            checksum: partial,
            gso: None,
        };
        let header = VnetHeader::new(offload, b"frame");
        let mut expected = vec![0; VnetHeader::LEN];
        header.emit(&mut expected);
        let (ours, other) = pair();
        ours.write(header, b"frame").unwrap();
        let mut got = [0xee; 32];
        let read = rustix::io::read(&other, &mut got).unwrap();
        assert_eq!(&got[..read], [&expected[..], b"frame"].concat());
        rustix::io::write(&other, &got[..read]).unwrap();
        let mut frame = [0; 8];
        assert_eq!(ours.read(&mut frame), Ok(Some((5, header))));
        assert_eq!(&frame[..5], b"frame");
        assert_eq!(ours.read(&mut frame), Err(Errno::AGAIN));
    }

    #[test]
    fn a_packet_shorter_than_the_header_is_none_and_a_frame_may_be_empty() {
        let (ours, other) = pair();
        rustix::io::write(&other, &[1; VnetHeader::LEN - 1]).unwrap();
        rustix::io::write(&other, &[0; VnetHeader::LEN]).unwrap();
        let mut frame = [0; 8];
        assert_eq!(ours.read(&mut frame), Ok(None));
        assert_eq!(ours.read(&mut frame), Ok(Some((0, VnetHeader::default()))));
        drop(other);
        assert_eq!(ours.read(&mut frame), Ok(None), "the end of the wire");
    }
}
