//! How packets leave: by the socket at first, and in a ring from when both ends know each other's files. What does not fit into the ring
//! stays in the socket, and the ring has an entry for it, so that packets arrive in their order.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use peer_socket::PeerSocket;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::notes::{OwnNotes, PeerNotes};
use super::record::FileRecord;
use super::ring::{RING_PACKET_MAX, RingWriter};

/// Descriptors of one packet.
const PACKET_FDS: usize = 1;

/// What the last packet that did not leave found full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Full {
    /// Nothing: it left.
    #[default]
    Nothing,
    Socket,
    Ring,
}

/// The packets to the other end.
#[derive(Debug)]
pub(super) struct Departures {
    socket: Arc<PeerSocket>,
    ring: RingWriter,
    /// The other end has the notes of this end.
    has_notes: bool,
    /// The ring's file for the other end, until it is sent. `None` also if it cannot be opened for reading: there is no /proc.
    ring_file: Option<OwnedFd>,
    /// The other end has the ring: it reads the socket only when the ring says so.
    has_ring: bool,
    full: Full,
}

impl Departures {
    pub(super) fn new(socket: Arc<PeerSocket>) -> io::Result<Self> {
        let ring = RingWriter::new()?;
        Ok(Self {
            socket,
            ring_file: read_only(ring.file()).ok(),
            ring,
            has_notes: false,
            has_ring: false,
            full: Full::Nothing,
        })
    }

    /// Returns what the last packet that did not leave found full.
    pub(super) fn full(&self) -> Full {
        self.full
    }

    /// Sends the files that the other end needs before all else. Returns false if the socket is full.
    pub(super) fn announce(
        &mut self,
        notes: &OwnNotes,
        peer: Option<&PeerNotes>,
    ) -> io::Result<bool> {
        if !self.has_notes {
            if !self.send_by_socket(&FileRecord::Notes.emit(), Some(notes.file()))? {
                return Ok(false);
            }
            self.has_notes = true;
        }
        if peer.is_some()
            && let Some(file) = self.ring_file.take()
        {
            self.has_ring = self.send_by_socket(&FileRecord::Ring.emit(), Some(file.as_fd()))?;
            if !self.has_ring {
                self.ring_file = Some(file);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sends one packet, with a descriptor or without. Returns false if there is no room.
    pub(super) fn send(
        &mut self,
        packet: &[u8],
        file: Option<BorrowedFd<'_>>,
        peer: Option<&PeerNotes>,
    ) -> io::Result<bool> {
        let Some(peer) = peer.filter(|_| self.has_ring) else {
            return self.send_by_socket(packet, file);
        };
        let is_short = file.is_none() && packet.len() <= RING_PACKET_MAX;
        let entry = if is_short { packet } else { &[] };
        if !self.ring.has_room(entry.len(), peer) {
            self.full = Full::Ring;
            return Ok(false);
        }
        if !is_short && !self.send_by_socket(packet, file)? {
            return Ok(false);
        }
        self.full = Full::Nothing;
        self.ring.push(entry);
        if self.ring.has_to_wake(peer) {
            send_wake(&self.socket)?;
        }
        Ok(true)
    }

    fn send_by_socket(&mut self, packet: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<bool> {
        let is_sent = send_packet(self.socket.as_fd(), packet, file)?;
        self.full = match is_sent {
            true => Full::Nothing,
            false => Full::Socket,
        };
        Ok(is_sent)
    }
}

/// Makes the descriptor of the other end readable. A full socket is readable already.
pub(super) fn send_wake(socket: &PeerSocket) -> io::Result<()> {
    send_packet(socket.as_fd(), &FileRecord::Wake.emit(), None).map(drop)
}

/// Returns a description of `file` for an end that is to read it only: the access rights are those of its open(2).
pub(super) fn read_only(file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Sends one packet. Returns false if the socket is full.
pub(super) fn send_packet(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    file: Option<BorrowedFd<'_>>,
) -> io::Result<bool> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Some(file) = &file
        && !control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(file)))
    {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags) {
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN | Errno::NOBUFS) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
}
