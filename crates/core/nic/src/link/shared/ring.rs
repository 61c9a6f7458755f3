//! A queue of packets in shared memory, for one direction of the wire: while the receiving end looks for packets by itself, a packet costs
//! no system call.
//!
//! The sender makes the file and alone writes it. The receiver maps it for reading, and says in its [notes](super::notes) how far
//! it has read. What the sender needs of its own file it keeps in private memory, so a peer can only spoil what it sends itself.
//!
//! ```text
//!    0  bytes written so far, modulo 2^32                          u32
//!  128  number of the wait for room that the sender is in, or 0    u32
//! 4096  the entries, each at a multiple of 64: length of a packet (u32), the packet. An entry may go on at the beginning.
//!       Length 0: the packet is the next one in the socket, because it is long, or has a descriptor.
//! ```
//!
//! A wake-up is a packet in the socket. It is necessary in two cases: the receiver sleeps when a packet is written, or the sender
//! waits for room when some was read. Each side first writes its own word and then reads the other's, with a fence between the
//! two, so at least one of them sees what the other has written.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use mapped::{MapAccess, Mapping};

use super::notes::{AWAKE, OwnNotes, PeerNotes, load, map, next_number, shared_file, store};

/// Bytes of the entries: hundreds of short frames, or of references. A power of two, so that positions modulo 2^32 fit.
const RING_BYTES: usize = 256 << 10;
const _: () = assert!(RING_BYTES.is_power_of_two());

/// Bytes of the longest packet in a ring.
pub(super) const RING_PACKET_MAX: usize = RING_BYTES / 8;

/// Entries begin at cache lines: two of them share none.
const LINE: usize = 64;

const WRITTEN_AT: usize = 0;
const WAIT_AT: usize = 128;
const ENTRIES_AT: usize = 4096;
const FILE_BYTES: usize = ENTRIES_AT + RING_BYTES;

const LENGTH: usize = size_of::<u32>();

/// Bytes of the entry of a packet of `len` bytes.
const fn entry_bytes(len: usize) -> usize {
    (LENGTH + len).next_multiple_of(LINE)
}

/// Returns the parts of the ring that `len` bytes at the position `at` are in: offset in the file and length.
fn parts(at: u32, len: usize) -> [(usize, usize); 2] {
    let at = at as usize % RING_BYTES;
    let first = len.min(RING_BYTES - at);
    [(ENTRIES_AT + at, first), (ENTRIES_AT, len - first)]
}

/// The end that sends.
#[derive(Debug)]
pub(super) struct RingWriter {
    memory: Mapping,
    file: OwnedFd,
    written: u32,
    /// How far the other end had read when this was last looked up.
    read: u32,
    /// Number of the last wait for room, and whether it is over.
    wait: u32,
    is_waiting: bool,
    /// The sleep of the other end that was last ended.
    ended_sleep: u32,
}

impl RingWriter {
    pub(super) fn new() -> io::Result<Self> {
        let file = shared_file("devmem-tcp-ring", FILE_BYTES)?;
        let memory = map(file.as_fd(), FILE_BYTES, MapAccess::ReadWrite)?;
        Ok(Self {
            memory,
            file,
            written: 0,
            read: 0,
            wait: 0,
            is_waiting: false,
            ended_sleep: AWAKE,
        })
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns whether there is room for a packet of `len` bytes, at most [`RING_PACKET_MAX`]. If not, the other end sends a wake-up
    /// when it has read.
    pub(super) fn has_room(&mut self, len: usize, peer: &PeerNotes) -> bool {
        let needed = entry_bytes(len);
        if self.free() < needed {
            self.note_read(peer.read());
        }
        if self.free() < needed && !self.is_waiting {
            self.is_waiting = true;
            self.wait = next_number(self.wait);
            store(&self.memory, WAIT_AT, self.wait);
            fence(Ordering::SeqCst);
            self.note_read(peer.read());
        }
        let has_room = self.free() >= needed;
        self.is_waiting &= !has_room;
        has_room
    }

    fn free(&self) -> usize {
        RING_BYTES - self.written.wrapping_sub(self.read) as usize
    }

    /// Takes how far the other end says to have read, if that can be.
    fn note_read(&mut self, read: u32) {
        if self.written.wrapping_sub(read) as usize <= RING_BYTES {
            self.read = read;
            // Its reads come before all writes to what is free now.
            fence(Ordering::Acquire);
        }
    }

    /// Writes a packet for which there is room; an empty one stands for the next packet in the socket.
    pub(super) fn push(&mut self, packet: &[u8]) {
        // At most RING_PACKET_MAX.
        let [(at, _), _] = parts(self.written, LENGTH);
        store(&self.memory, at, packet.len() as u32);
        let [(at, first), (rest_at, _)] =
            parts(self.written.wrapping_add(LENGTH as u32), packet.len());
        let (first, rest) = packet.split_at(first);
        for (at, bytes) in [(at, first), (rest_at, rest)] {
            let written = self.memory.copy_in(at, bytes);
            debug_assert!(written.is_ok(), "{written:?}");
        }
        // At most the ring.
        self.written = self.written.wrapping_add(entry_bytes(packet.len()) as u32);
        fence(Ordering::Release);
        store(&self.memory, WRITTEN_AT, self.written);
    }

    /// Returns whether the other end sleeps and has to be woken for what was pushed: once for each sleep.
    pub(super) fn has_to_wake(&mut self, peer: &PeerNotes) -> bool {
        fence(Ordering::SeqCst);
        let sleep = peer.sleep();
        sleep != AWAKE && std::mem::replace(&mut self.ended_sleep, sleep) != sleep
    }
}

/// What [`RingReader::pop`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Popped {
    Nothing,
    /// A packet of so many bytes.
    Packet(usize),
    /// The next packet of the socket.
    InSocket,
    /// What no such wire writes.
    Bad,
}

/// The end that receives.
#[derive(Debug)]
pub(super) struct RingReader {
    memory: Mapping,
    read: u32,
    /// Bytes read since [`has_to_tell_room`](Self::has_to_tell_room) last looked.
    unlooked: usize,
    /// The last wait for room of the other end that was ended.
    ended_wait: u32,
}

impl RingReader {
    /// Maps the file that the other end has sent. `None`: it is not acceptable.
    pub(super) fn map(file: &OwnedFd) -> Option<Self> {
        Some(Self {
            memory: map(file.as_fd(), FILE_BYTES, MapAccess::Read).ok()?,
            read: 0,
            unlooked: 0,
            ended_wait: 0,
        })
    }

    /// Returns whether there is nothing to read.
    pub(super) fn is_empty(&self) -> bool {
        load(&self.memory, WRITTEN_AT) == self.read
    }

    /// Copies the next packet to the front of `out`, and tells the other end that it was read.
    pub(super) fn pop(&mut self, out: &mut [u8], notes: &OwnNotes) -> Popped {
        let written = load(&self.memory, WRITTEN_AT);
        let available = written.wrapping_sub(self.read) as usize;
        if available == 0 {
            return Popped::Nothing;
        }
        fence(Ordering::Acquire);
        let [(at, _), _] = parts(self.read, LENGTH);
        let len = load(&self.memory, at) as usize;
        if available > RING_BYTES || len > RING_PACKET_MAX || entry_bytes(len) > available {
            return Popped::Bad;
        }
        let Some(out) = out.get_mut(..len) else {
            return Popped::Bad;
        };
        let [(at, first), (rest_at, _)] = parts(self.read.wrapping_add(LENGTH as u32), len);
        let (first, rest) = out.split_at_mut(first);
        for (at, bytes) in [(at, first), (rest_at, rest)] {
            let read = self.memory.copy_out(at, bytes);
            debug_assert!(read.is_ok(), "{read:?}");
        }
        self.read = self.read.wrapping_add(entry_bytes(len) as u32);
        self.unlooked += entry_bytes(len);
        // All reads come before the store that permits the other end to write there.
        fence(Ordering::Release);
        notes.note_read(self.read);
        match len {
            0 => Popped::InSocket,
            len => Popped::Packet(len),
        }
    }

    /// Returns whether so much was read that [`has_to_tell_room`](Self::has_to_tell_room) is to look before the ring is empty.
    pub(super) fn is_look_due(&self) -> bool {
        self.unlooked >= RING_BYTES / 4
    }

    /// Returns whether the other end waits for room and has to be told that there is some: once for each wait.
    pub(super) fn has_to_tell_room(&mut self) -> bool {
        self.unlooked = 0;
        fence(Ordering::SeqCst);
        let wait = load(&self.memory, WAIT_AT);
        std::mem::replace(&mut self.ended_wait, wait) != wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::harness::pattern;

    struct Ends {
        writer: RingWriter,
        reader: RingReader,
        /// Of the reader, and as the writer sees them.
        notes: OwnNotes,
        seen: PeerNotes,
        out: Vec<u8>,
    }

    fn ends() -> Ends {
        let writer = RingWriter::new().unwrap();
        let reader = RingReader::map(&writer.file).unwrap();
        let notes = OwnNotes::new().unwrap();
        let seen = PeerNotes::map(&notes.file().try_clone_to_owned().unwrap()).unwrap();
        Ends {
            writer,
            reader,
            notes,
            seen,
            out: vec![0; RING_PACKET_MAX],
        }
    }

    impl Ends {
        fn push(&mut self, packet: &[u8]) -> bool {
            let has_room = self.writer.has_room(packet.len(), &self.seen);
            if has_room {
                self.writer.push(packet);
            }
            has_room
        }

        fn pop(&mut self) -> Popped {
            self.reader.pop(&mut self.out, &self.notes)
        }
    }

    fn packet(number: usize) -> Vec<u8> {
        pattern(number, 1 + number * 977 % RING_PACKET_MAX)
    }

    #[test]
    fn packets_of_all_lengths_arrive_in_order_many_times_around() {
        let mut ends = ends();
        let (mut pushed, mut popped) = (0, 0);
        while popped < 2000 {
            while pushed < 2000 && ends.push(&packet(pushed)) {
                pushed += 1;
            }
            let expected = packet(popped);
            assert_eq!(ends.pop(), Popped::Packet(expected.len()));
            assert_eq!(ends.out[..expected.len()], expected, "{popped}");
            popped += 1;
        }
        assert_eq!(ends.pop(), Popped::Nothing);
        assert!(ends.reader.is_empty());
        assert!(ends.push(&[]));
        assert_eq!(ends.pop(), Popped::InSocket);
    }

    #[test]
    fn a_writer_without_room_is_told_once_that_there_is_some() {
        let mut ends = ends();
        while ends.push(&[1; 1000]) {}
        assert!(!ends.push(&[1; 1000]));
        assert!(ends.reader.has_to_tell_room());
        assert!(!ends.reader.has_to_tell_room(), "told");
        assert_eq!(ends.pop(), Popped::Packet(1000));
        assert!(ends.push(&[2; 1000]));
        assert!(!ends.push(&[2; 1000]));
        assert!(ends.reader.has_to_tell_room(), "another wait");
    }

    #[test]
    fn a_reader_that_sleeps_is_woken_once_from_each_sleep() {
        let mut ends = ends();
        let has_to_wake = |ends: &mut Ends| ends.writer.has_to_wake(&ends.seen);
        assert!(!has_to_wake(&mut ends));
        ends.notes.note_sleep(1);
        assert!(has_to_wake(&mut ends));
        assert!(!has_to_wake(&mut ends));
        ends.notes.note_sleep(AWAKE);
        assert!(!has_to_wake(&mut ends));
        ends.notes.note_sleep(2);
        assert!(has_to_wake(&mut ends));
    }

    #[test]
    fn what_no_writer_writes_is_bad_and_reads_nothing_else() {
        for (written, len) in [
            (64, 61),
            (64, u32::MAX),
            (64, RING_PACKET_MAX as u32 + 1),
            (1, 0),
            (RING_BYTES as u32 + 64, 1),
            (u32::MAX, 1),
        ] {
            let mut ends = ends();
            store(&ends.writer.memory, ENTRIES_AT, len);
            store(&ends.writer.memory, WRITTEN_AT, written);
            assert_eq!(ends.pop(), Popped::Bad, "{written} {len}");
        }
    }

    #[test]
    fn a_reader_cannot_say_that_it_has_read_more_than_was_written() {
        let mut ends = ends();
        while ends.push(&[1; 1000]) {}
        for lie in [ends.writer.written.wrapping_add(64), u32::MAX] {
            ends.notes.note_read(lie);
            assert!(!ends.push(&[2; 1000]), "{lie}");
        }
        ends.notes.note_read(ends.writer.written);
        assert!(ends.push(&[2; 1000]));
    }
}
