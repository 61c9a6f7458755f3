//! Descriptors for packets of a virtio-net header and a frame: a queue of a TAP, or a UNIX wire.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ::wire::VnetHeader;
use peer_socket::{PeerSocket, receive};
use rustix::io::Errno;

/// Length of the virtio-net header in front of every frame (TUNSETVNETHDRSZ).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VnetHeaderLen {
    /// `struct virtio_net_hdr`, the default of the TUN driver.
    #[default]
    Ten,
    /// `struct virtio_net_hdr_mrg_rxbuf`: with `num_buffers`, which is not used here.
    Twelve,
}

impl VnetHeaderLen {
    /// Returns the length in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Ten => VnetHeader::LEN,
            Self::Twelve => VnetHeader::LEN + 2,
        }
    }
}

/// A descriptor that reads and writes one packet, a virtio-net header and a frame, per system call, without copying it
/// to a buffer in between.
#[derive(Debug)]
pub struct VnetFd {
    file: VnetFile,
    header: VnetHeaderLen,
}

#[derive(Debug)]
enum VnetFile {
    /// A queue of a TAP.
    Queue(OwnedFd),
    /// A UNIX wire.
    Socket(Arc<PeerSocket>),
}

impl VnetFd {
    /// Wraps the descriptor of a queue; its packets begin with a header of that length.
    pub const fn new(fd: OwnedFd, header: VnetHeaderLen) -> Self {
        let file = VnetFile::Queue(fd);
        Self { file, header }
    }

    /// Wraps a connected socket.
    pub const fn of_socket(socket: Arc<PeerSocket>, header: VnetHeaderLen) -> Self {
        let file = VnetFile::Socket(socket);
        Self { file, header }
    }

    /// Returns the socket.
    pub(super) fn into_socket(self) -> Option<PeerSocket> {
        match self.file {
            VnetFile::Queue(_) => None,
            VnetFile::Socket(socket) => Arc::into_inner(socket),
        }
    }

    /// Returns whether descriptors may come with a packet. They would be closed by a call that reads it without taking them.
    pub(super) fn may_get_descriptors(&self) -> bool {
        match &self.file {
            VnetFile::Queue(_) => false,
            VnetFile::Socket(socket) => socket.may_have_descriptors(),
        }
    }

    /// Reads one packet, its frame into `frame`, by one readv. Returns the length of the frame and its header; `None` for
    /// a packet shorter than the header, or at the end of file of a socket. A frame that fills all of
    /// `frame` may have been longer.
    ///
    /// # Errors
    /// As readv(2).
    pub fn read(&self, frame: &mut [u8]) -> Result<Option<(usize, VnetHeader)>, Errno> {
        let mut room = [0; VnetHeaderLen::Twelve.bytes()];
        let header = &mut room[..self.header.bytes()];
        let vnet_len = header.len();
        let mut parts = [IoSliceMut::new(header), IoSliceMut::new(frame)];
        let read = match self.may_get_descriptors() {
            false => rustix::io::readv(self, &mut parts)?,
            true => receive(self, &mut parts)?.bytes,
        };
        let header = VnetHeader::parse(&room).unwrap_or_default();
        Ok(read.checked_sub(vnet_len).map(|len| (len, header)))
    }

    /// Writes one packet with a contiguous frame, by one writev.
    ///
    /// # Errors
    /// As writev(2).
    pub fn write(&self, header: VnetHeader, frame: &[u8]) -> Result<(), Errno> {
        let mut room = [0; VnetHeaderLen::Twelve.bytes()];
        header.emit(&mut room);
        let parts = [
            IoSlice::new(&room[..self.header.bytes()]),
            IoSlice::new(frame),
        ];
        rustix::io::writev(self, &parts).map(|_| ())
    }
}

impl AsFd for VnetFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.file {
            VnetFile::Queue(fd) => fd.as_fd(),
            VnetFile::Socket(socket) => socket.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use ::wire::{ChecksumState, Offload, TxChecksum};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair(len: VnetHeaderLen) -> (VnetFd, OwnedFd) {
        let (a, b) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::NONBLOCK,
            None,
        )
        .unwrap();
        (VnetFd::new(a, len), b)
    }

    #[test]
    fn a_packet_is_the_header_in_its_length_and_the_frame() {
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
        for (len, more) in [(VnetHeaderLen::Ten, 0), (VnetHeaderLen::Twelve, 2)] {
            let (ours, other) = pair(len);
            ours.write(header, b"frame").unwrap();
            let mut got = [0xee; 32];
            let read = rustix::io::read(&other, &mut got).unwrap();
            assert_eq!(
                &got[..read],
                [&expected[..], &[0, 0][..more], b"frame"].concat()
            );
            rustix::io::write(&other, &got[..read]).unwrap();
            let mut frame = [0; 8];
            assert_eq!(ours.read(&mut frame), Ok(Some((5, header))));
            assert_eq!(&frame[..5], b"frame");
            assert_eq!(ours.read(&mut frame), Err(Errno::AGAIN));
        }
    }

    #[test]
    fn a_packet_shorter_than_the_header_is_none_and_a_frame_may_be_empty() {
        for len in [VnetHeaderLen::Ten, VnetHeaderLen::Twelve] {
            let (ours, other) = pair(len);
            rustix::io::write(&other, &vec![1; len.bytes() - 1]).unwrap();
            rustix::io::write(&other, &vec![0; len.bytes()]).unwrap();
            let mut frame = [0; 8];
            assert_eq!(ours.read(&mut frame), Ok(None));
            assert_eq!(ours.read(&mut frame), Ok(Some((0, VnetHeader::default()))));
            drop(other);
            assert_eq!(ours.read(&mut frame), Ok(None), "the end of the wire");
        }
    }
}
