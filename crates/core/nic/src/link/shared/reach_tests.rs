//! What the peer of a wire can read of this process: it maps every file that it gets.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use ::wire::MacAddr;
use netmem::{Dmabuf, DmabufId, FragList, FragSource, MemoryProvider, NiovSize, PagePool};
use rustix::fs::fstat;

use super::arrivals::PACKET_BYTES;
use super::departures::send_packet;
use super::record::{FileRecord, Packet};
use super::ring::{Popped, RingReader};
use super::tests::{HELLO, NOW, OURS, packet_v4, receive_packet};
use super::*;
use crate::link::hello::{HELLO_LIMIT, connect_to};
use crate::{Nic, NicConfig, UnixListenLink};

const LEN: usize = 100_000;

/// A peer that is no NIC.
struct Spy {
    socket: Option<PeerSocket>,
    /// Of each file that it got.
    files: Vec<OwnedFd>,
    notes: OwnNotes,
    ring: Option<RingReader>,
    frames: usize,
}

impl Spy {
    /// Connects, and is ready for frames by reference.
    fn join(path: &Path, nic: &mut Nic) -> Self {
        let socket = connect_to(path, HELLO, HELLO_LIMIT).unwrap();
        HELLO.send_to(&socket).unwrap();
        for _ in 0..3 {
            assert!(nic.poll_rx(NOW).is_none());
        }
        assert!(nic.is_up(), "the peer is accepted");
        let mut hello = [0; 100];
        receive_packet(&socket, &mut hello).unwrap();
        let mut spy = Self {
            socket: Some(socket),
            files: Vec::new(),
            notes: OwnNotes::new().unwrap(),
            ring: None,
            frames: 0,
        };
        let socket = spy.socket.as_ref().unwrap().as_fd();
        let sent = send_packet(socket, &FileRecord::Notes.emit(), Some(spy.notes.file()));
        assert!(sent.unwrap());
        // It takes the notes, and sends its ring.
        for _ in 0..2 {
            assert!(nic.poll_rx(NOW).is_none());
        }
        spy.read();
        spy
    }

    fn read(&mut self) {
        let mut bytes = vec![0; PACKET_BYTES];
        let Some(socket) = &self.socket else {
            return;
        };
        while let Ok((len, file)) = receive_packet(socket, &mut bytes) {
            match (Packet::parse(&bytes[..len]), file) {
                (Packet::File(FileRecord::Memory { .. }), Some(file)) => self.files.push(file),
                (Packet::File(FileRecord::Ring), Some(file)) => {
                    self.ring = RingReader::map(&file);
                    self.files.push(file);
                }
                _ => {}
            }
        }
        let ring = self.ring.as_mut().expect("the ring was sent");
        loop {
            match ring.pop(&mut bytes, &self.notes) {
                Popped::Packet(len) => {
                    let packet = Packet::parse(&bytes[..len]);
                    self.frames += usize::from(matches!(packet, Packet::Frame(_)));
                }
                Popped::InSocket => {}
                Popped::Nothing | Popped::Bad => return,
            }
        }
    }

    /// Returns how many times `word` is in all that the peer can read, at even places.
    fn count(&mut self, word: [u8; 8]) -> usize {
        self.read();
        let count = |file: &OwnedFd| {
            let mut bytes = vec![0; fstat(file).unwrap().st_size as usize];
            let read = rustix::io::pread(file, &mut bytes[..], 0).unwrap();
            let words = bytes[..read].as_chunks::<8>().0;
            words.iter().filter(|found| **found == word).count()
        };
        self.files.iter().map(count).sum()
    }
}

fn listening(path: &Path) -> UnixListenLink {
    UnixListenLink::at(path, HELLO).unwrap()
}

fn nic_on(link: UnixListenLink) -> Nic {
    let config = NicConfig {
        mac: MacAddr(OURS.0),
        ..NicConfig::default()
    };
    Nic::new(Box::new(link), config).unwrap()
}

/// Host memory that has a file, but is not memory of the wire.
fn host_pool() -> PagePool {
    let provider = MemoryProvider::shareable(4 << 20, NiovSize::DEFAULT).unwrap();
    PagePool::new(Arc::new(provider))
}

fn text(word: [u8; 8]) -> Vec<u8> {
    word.repeat(LEN / word.len())
}

fn send_host(nic: &mut Nic, pool: &mut PagePool, word: [u8; 8]) {
    let payload = FragList::from_host_bytes(pool, &text(word)).unwrap();
    nic.transmit(packet_v4(payload), NOW).unwrap();
}

/// Sends all of the memory but its second half.
fn send_device(nic: &mut Nic, memory: &Dmabuf, word: [u8; 8], unsent: [u8; 8]) {
    memory.copy_in(0, &text(word)).unwrap();
    memory.copy_in(memory.size() / 2, &text(unsent)).unwrap();
    let bound = FragSource::new(memory, DmabufId(7)).unwrap();
    let payload = bound.begin().frags(0, LEN).unwrap();
    nic.transmit(packet_v4(payload), NOW).unwrap();
}

#[test]
fn the_second_peer_finds_nothing_of_the_first_and_nobody_what_was_not_sent() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wire");
    let mut nic = nic_on(listening(&path));
    let mut pool = host_pool();
    let memory = Dmabuf::memfd(1 << 20).unwrap();

    let mut first = Spy::join(&path, &mut nic);
    send_host(&mut nic, &mut pool, *b"HOST-ONE");
    send_device(&mut nic, &memory, *b"SENT-ONE", *b"UNSENT-1");
    assert!(first.count(*b"HOST-ONE") > 1000, "it gets what is sent");
    assert!(first.count(*b"SENT-ONE") > 1000);
    assert_eq!((first.frames, first.count(*b"UNSENT-1")), (2, 0));
    // It keeps what it has mapped.
    first.socket = None;
    assert!(nic.poll_rx(NOW).is_none());

    let mut second = Spy::join(&path, &mut nic);
    send_host(&mut nic, &mut pool, *b"HOST-TWO");
    send_device(&mut nic, &memory, *b"SENT-TWO", *b"UNSENT-2");
    assert!(second.count(*b"HOST-TWO") > 1000 && second.count(*b"SENT-TWO") > 1000);
    for word in [b"HOST-ONE", b"SENT-ONE", b"UNSENT-1", b"UNSENT-2"] {
        assert_eq!(second.count(*word), 0, "the second peer reads {word:?}");
    }
    for word in [b"HOST-TWO", b"SENT-TWO", b"UNSENT-2"] {
        assert_eq!(first.count(*word), 0, "the first peer reads {word:?}");
    }
}

#[test]
fn send_memory_is_of_one_peer_and_what_waits_in_it_is_copied_for_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wire");
    let mut link = listening(&path);
    link.share_send_memory();
    let mut nic = nic_on(link);
    assert!(nic.link().send_memory().is_none(), "there is no peer");

    let mut first = Spy::join(&path, &mut nic);
    let provider = Arc::clone(nic.link().send_memory().unwrap());
    let mut pool = PagePool::new(provider);
    let waiting = FragList::from_host_bytes(&mut pool, &text(*b"UNSENT-1")).unwrap();
    let again = FragList::from_host_bytes(&mut pool, &text(*b"SENT-TWO")).unwrap();
    send_host(&mut nic, &mut pool, *b"HOST-ONE");
    assert!(first.count(*b"HOST-ONE") > 1000);
    assert!(first.count(*b"UNSENT-1") > 1000, "as its program was told");
    first.socket = None;
    assert!(nic.poll_rx(NOW).is_none());

    let mut second = Spy::join(&path, &mut nic);
    let other = Arc::clone(nic.link().send_memory().unwrap());
    let mut its_pool = PagePool::new(other);
    send_host(&mut nic, &mut its_pool, *b"HOST-TWO");
    // As a retransmission of what was queued while the first peer was there.
    nic.transmit(packet_v4(again), NOW).unwrap();
    assert!(second.count(*b"HOST-TWO") > 1000 && second.count(*b"SENT-TWO") > 1000);
    for word in [b"HOST-ONE", b"UNSENT-1"] {
        assert_eq!(second.count(*word), 0, "the second peer reads {word:?}");
    }
    assert_eq!(first.count(*b"HOST-TWO"), 0);
    drop(waiting);
}

#[test]
fn memory_that_is_marked_as_shared_is_read_where_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wire");
    let mut nic = nic_on(listening(&path));
    let mut spy = Spy::join(&path, &mut nic);
    let memory = Dmabuf::shared_memfd(1 << 20).unwrap();
    send_device(&mut nic, &memory, *b"SENT-ONE", *b"UNSENT-1");
    assert!(spy.count(*b"SENT-ONE") > 1000);
    assert!(spy.count(*b"UNSENT-1") > 1000, "as its program was told");
    for file in &spy.files {
        let mode = fstat(file).unwrap().st_mode & 0o777;
        assert_eq!(mode, 0o600, "no other user opens it again for writing");
    }
}
