//! How packets arrive: by the socket at first, and in the ring from when the other end has sent it.
//!
//! With a ring, the socket has the few packets that do not fit into it, wake-ups, and the end of the wire. It is read when an entry
//! of the ring says so, after a sleep on its descriptor, and once in a while.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use ::wire::VnetHeader;
use peer_socket::{PeerFds, PeerSocket, ReceivedPacket, receive};
use rustix::io::Errno;

use super::super::MAX_FRAME_LEN;
use super::departures::send_wake;
use super::notes::{AWAKE, OwnNotes, next_number};
use super::record::{FileRecord, MAX_RECORD, Packet};
use super::ring::{Popped, RingReader};

/// Bytes of the longest packet: an inline frame with its virtio-net header. One more, to detect longer ones.
pub(super) const PACKET_BYTES: usize = VnetHeader::LEN + MAX_FRAME_LEN + 1;

/// Looks at an empty ring after which the socket is looked at: the other end may have left.
const LOOKS_PER_SOCKET_POLL: u32 = 64;

/// Packets of the socket that are read before their entries in the ring: the sender may be between the two.
const EARLY_MAX: usize = 2;

/// Wake-ups in front of a packet that the ring says is in the socket; an honest peer has sent one or two.
const WAKES_MAX: usize = 64;

/// The packets from the other end.
#[derive(Debug)]
pub(super) struct Arrivals {
    socket: Arc<PeerSocket>,
    ring: Option<RingReader>,
    /// The packet that is being received.
    packet: Box<[u8]>,
    /// Packets that the ring has no entry for yet.
    early: VecDeque<(Vec<u8>, PeerFds)>,
    sleep: Sleep,
    looks: u32,
    /// The other end has left.
    has_ended: bool,
}

/// Whether the other end has to wake this one.
#[derive(Clone, Copy, Debug)]
struct Sleep {
    /// Number of the last one.
    number: u32,
    /// A thread sleeps on the descriptor, or may do so without a word.
    goes_on: bool,
}

/// What one read of the socket has found.
enum FromSocket {
    Nothing,
    Wake,
    Packet(usize, PeerFds),
    End,
}

impl Arrivals {
    pub(super) fn new(socket: Arc<PeerSocket>, notes: &OwnNotes) -> Self {
        const { assert!(MAX_RECORD <= PACKET_BYTES) };
        let sleep = Sleep {
            number: next_number(AWAKE),
            goes_on: true,
        };
        notes.note_sleep(sleep.number);
        Self {
            socket,
            ring: None,
            packet: vec![0; PACKET_BYTES].into_boxed_slice(),
            early: VecDeque::new(),
            sleep,
            looks: 0,
            has_ended: false,
        }
    }

    /// Takes the ring of the other end. `None`: it is not acceptable, or the second one.
    pub(super) fn open_ring(&mut self, file: &OwnedFd) -> Option<()> {
        if self.ring.is_some() {
            return None;
        }
        self.ring = Some(RingReader::map(file)?);
        Some(())
    }

    /// Returns the bytes of the packet that was received last, which were so many.
    pub(super) fn packet(&self, len: usize) -> &[u8] {
        self.packet.get(..len).unwrap_or_default()
    }

    /// Receives one packet: returns its length and what came with it.
    ///
    /// # Errors
    /// As recvmsg(2). `ENETDOWN` when the other end has left, and for a ring that no such wire has.
    pub(super) fn next(&mut self, notes: &OwnNotes) -> io::Result<Option<(usize, PeerFds)>> {
        for _ in 0..WAKES_MAX {
            let Some(ring) = &mut self.ring else {
                return match self.read_socket()? {
                    FromSocket::Nothing | FromSocket::Wake => Ok(None),
                    FromSocket::Packet(len, fds) => Ok(Some((len, fds))),
                    FromSocket::End => Err(Errno::NETDOWN.into()),
                };
            };
            let popped = ring.pop(&mut self.packet, notes);
            if (popped == Popped::Nothing || ring.is_look_due()) && ring.has_to_tell_room() {
                // If the other end has left, this end finds out below.
                let _ = send_wake(&self.socket);
            }
            match popped {
                Popped::Packet(len) => return Ok(Some((len, PeerFds::default()))),
                Popped::InSocket => return self.packet_of_socket(notes).map(Some),
                Popped::Bad => return Err(Errno::NETDOWN.into()),
                Popped::Nothing if self.has_ended => return Err(Errno::NETDOWN.into()),
                Popped::Nothing if self.is_socket_due() && self.look_at_socket(notes)? => {}
                Popped::Nothing => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Returns whether to read the socket although the ring has no entry for it.
    fn is_socket_due(&mut self) -> bool {
        self.looks = self.looks.saturating_add(1);
        let is_due = self.sleep.goes_on || self.looks >= LOOKS_PER_SOCKET_POLL;
        if is_due {
            self.looks = 0;
        }
        is_due
    }

    /// Reads the socket once. Returns whether to look at the ring again.
    fn look_at_socket(&mut self, notes: &OwnNotes) -> io::Result<bool> {
        match self.read_socket()? {
            FromSocket::Nothing => return Ok(false),
            FromSocket::Wake => self.on_wake(notes),
            FromSocket::End => self.has_ended = true,
            FromSocket::Packet(len, fds) => {
                if self.early.len() >= EARLY_MAX {
                    return Err(Errno::NETDOWN.into());
                }
                let packet = self.packet(len).to_vec();
                self.early.push_back((packet, fds));
            }
        }
        Ok(true)
    }

    /// Returns the packet that an entry of the ring stands for.
    fn packet_of_socket(&mut self, notes: &OwnNotes) -> io::Result<(usize, PeerFds)> {
        if let Some((packet, fds)) = self.early.pop_front() {
            let len = packet.len();
            if let Some(place) = self.packet.get_mut(..len) {
                place.copy_from_slice(&packet);
            }
            return Ok((len, fds));
        }
        for _ in 0..WAKES_MAX {
            match self.read_socket()? {
                FromSocket::Packet(len, fds) => return Ok((len, fds)),
                FromSocket::Wake => self.on_wake(notes),
                FromSocket::Nothing | FromSocket::End => break,
            }
        }
        Err(Errno::NETDOWN.into())
    }

    fn read_socket(&mut self) -> io::Result<FromSocket> {
        let mut read = || receive(&self.socket, &mut [IoSliceMut::new(&mut self.packet)]);
        let received = match read() {
            // A peer that leaves with packets unread: reported once, before the packets that it has sent (linux net/unix/af_unix.c
            // `unix_release_sock`).
            Err(Errno::CONNRESET) => read(),
            received => received,
        };
        let ReceivedPacket { bytes, fds, .. } = match received {
            Ok(received) => received,
            Err(Errno::AGAIN) => return Ok(FromSocket::Nothing),
            Err(error) => return Err(error.into()),
        };
        Ok(match Packet::parse(self.packet(bytes)) {
            _ if bytes == 0 => FromSocket::End,
            Packet::File(FileRecord::Wake) => FromSocket::Wake,
            _ => FromSocket::Packet(bytes, fds),
        })
    }

    /// A thread is going to sleep on the descriptor of the socket. Returns false if there is something to receive.
    pub(super) fn prepare_sleep(&mut self, notes: &OwnNotes) -> bool {
        self.sleep.goes_on = true;
        self.begin_sleep(notes);
        self.ring.as_ref().is_none_or(RingReader::is_empty)
    }

    /// The thread is awake: the next look includes the socket, which has what woke it.
    pub(super) fn end_sleep(&mut self, notes: &OwnNotes) {
        self.sleep.goes_on = false;
        notes.note_sleep(AWAKE);
        self.looks = LOOKS_PER_SOCKET_POLL;
    }

    /// A wake-up was read, maybe not by the thread that sleeps: the next packet has to wake that one again.
    fn on_wake(&mut self, notes: &OwnNotes) {
        if self.sleep.goes_on {
            self.begin_sleep(notes);
        }
    }

    /// Tells the other end, before the ring is looked at.
    fn begin_sleep(&mut self, notes: &OwnNotes) {
        self.sleep.number = next_number(self.sleep.number);
        notes.note_sleep(self.sleep.number);
        fence(Ordering::SeqCst);
    }
}
