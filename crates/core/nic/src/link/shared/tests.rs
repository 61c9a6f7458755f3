//! Two NICs on a wire with shared memory, and a NIC whose peer is no NIC.

use std::io::IoSliceMut;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ::wire::{
    EtherType, EthernetHeader, IpRepr, MacAddr, TcpFlags, TcpHeader, TcpOptions,
    emit_tcp_frame_headers, tcp_tx_checksum,
};
use mapped::DmaRight;
use netmem::{Dmabuf, DmabufId, FragSource, FragUse, MemoryProvider, NiovSize, PagePool};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use steer::RxQueueId;

use super::departures::send_packet;
use super::record::{FrameFields, PieceRecord, emit_frame};
use super::*;
use crate::{
    BorrowedUntil, HeadBuf, LinkCaps, Nic, NicConfig, RxPacket, TransmitError, TxPacket, UnixLink,
    WireHello,
};

pub(super) const NOW: Instant = Instant::from_millis(1);
pub(super) const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const THEIRS: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
pub(super) const HELLO: WireHello = WireHello {
    offloads: true,
    mtu: 1500,
    shares_memory: true,
    needs_offloads: false,
};
const MIB: usize = 1 << 20;

/// Addresses of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

fn sockets() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn nic_on(socket: OwnedFd, mac: MacAddr) -> Nic {
    nic_of(UnixLink::new(socket, HELLO, HELLO).unwrap(), mac)
}

fn nic_of(link: UnixLink, mac: MacAddr) -> Nic {
    let config = NicConfig {
        mac,
        ..NicConfig::default()
    };
    Nic::new(Box::new(link), config).unwrap()
}

/// Two NICs that know each other's files.
fn nics() -> (Nic, Nic) {
    let (a, b) = sockets();
    let (mut ours, mut peer) = (nic_on(a, OURS), nic_on(b, THEIRS));
    greet(&mut ours, &mut peer);
    (ours, peer)
}

fn greet(ours: &mut Nic, peer: &mut Nic) {
    for _ in 0..2 {
        assert!(ours.poll_rx(NOW).is_none());
        assert!(peer.poll_rx(NOW).is_none());
    }
}

/// As [`nics`]; the peer of the first one may read the payload that is in its send memory.
fn nics_with_send_memory() -> (Nic, Nic, PagePool) {
    let (a, b) = sockets();
    let mut link = UnixLink::new(a, HELLO, HELLO).unwrap();
    link.share_send_memory().unwrap();
    let provider = Arc::clone(crate::Link::send_memory(&link).unwrap());
    let pool = PagePool::new(provider);
    let (mut ours, mut peer) = (nic_of(link, OURS), nic_on(b, THEIRS));
    greet(&mut ours, &mut peer);
    (ours, peer, pool)
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed.wrapping_mul(97)) as u8)
        .collect()
}

fn packet(family: Family, payload: FragList) -> TxPacket {
    let ethertype = match family {
        Family::V4 => EtherType::IPV4,
        Family::V6 => EtherType::IPV6,
    };
    let (src, dst) = match family {
        Family::V4 => (
            IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
            IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
        ),
        Family::V6 => (
            IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1)),
            IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2)),
        ),
    };
    let ethernet = EthernetHeader {
        dst: THEIRS,
        src: OURS,
        vlan: None,
        ethertype,
    };
    let tcp = TcpHeader {
        src_port: 40_000,
        dst_port: 5201,
        seq: 1,
        ack: 1,
        header_len: 20,
        flags: TcpFlags::ACK,
        window: 1000,
        urgent: 0,
        options: TcpOptions::default(),
    };
    let ip = IpRepr::new(src, dst).unwrap();
    let len = payload.len();
    let head = HeadBuf::with(|out| emit_tcp_frame_headers(&ethernet, &ip, &tcp, len, out));
    let checksum = tcp_tx_checksum(head.as_slice().len(), &tcp);
    TxPacket {
        head,
        payload,
        checksum: Some(checksum),
        gso_size: if len > 1440 { 1440 } else { 0 },
    }
}

/// As [`packet`], for a host on the wire.
pub(super) fn packet_v4(payload: FragList) -> TxPacket {
    packet(Family::V4, payload)
}

fn port() -> netmem::DmaPort {
    host_pool().dma_port(DmaRight::of_a_nic())
}

fn host_pool() -> PagePool {
    let provider = MemoryProvider::shareable(4 * MIB, NiovSize::MIN).unwrap();
    PagePool::new(Arc::new(provider))
}

fn bytes(payload: &FragList) -> Vec<u8> {
    let mut out = Vec::new();
    for frag in payload {
        let at = out.len();
        out.resize(at + frag.len(), 0);
        port().copy_out(frag, 0, &mut out[at..]);
    }
    out
}

/// Device memory with a file, or without one, bound for sending.
fn device(memory: &Dmabuf, len: usize, seed: usize) -> (FragSource, FragUse, FragList) {
    memory.copy_in(100, &pattern(seed, len)).unwrap();
    let bound = FragSource::new(memory, DmabufId(7)).unwrap();
    let send = bound.begin();
    let payload = send.frags(100, len).unwrap();
    (bound, send, payload)
}

fn receive(nic: &mut Nic) -> RxPacket {
    let packet = nic.poll_rx(NOW).expect("a packet arrives");
    assert!(packet.payload.frags().is_some());
    packet
}

fn q0(nic: &Nic) -> crate::RxQueueStats {
    nic.queue_stats(RxQueueId(0)).unwrap()
}

#[test]
fn device_memory_crosses_by_reference_or_by_a_copy_and_is_held_until_it_was_copied() {
    let memories = [
        (Dmabuf::shared_memfd(MIB), true),
        (Dmabuf::memfd(MIB), false),
        (Dmabuf::anonymous(MIB), false),
    ];
    for (memory, is_shared) in memories.map(|(memory, shared)| (memory.unwrap(), shared)) {
        for family in [Family::V4, Family::V6] {
            for len in [
                MIN_REFERENCE,
                60_000,
                65_494,
                65_496,
                65_500,
                65_536,
                500_000,
            ] {
                let (mut ours, mut peer) = nics();
                let (_bound, mut send, payload) = device(&memory, len, len);
                ours.transmit(packet(family, payload), NOW).unwrap();
                assert_eq!(send.is_over(), !is_shared, "the peer has not read it");
                let received = receive(&mut peer);
                assert_eq!(received.headers.payload_len, len, "{family:?}");
                assert_eq!(received.segments as usize, len.div_ceil(1440));
                assert_eq!(bytes(received.payload.frags().unwrap()), pattern(len, len));
                assert_eq!(q0(&peer).kept, 0, "its program waits for the memory");
                // The next polls find that it was copied.
                assert!(peer.poll_rx(NOW).is_none());
                assert!(ours.poll_rx(NOW).is_none());
                assert!(send.is_over());
                peer.recycle(received.payload.into_frags());
            }
        }
    }
}

#[test]
fn payload_beside_the_headers_of_a_frame_is_received_with_the_rest() {
    let (mut ours, mut peer, mut pool) = nics_with_send_memory();
    let sent = pattern(1, 60_000);
    let whole = FragList::from_host_bytes(&mut pool, &sent).unwrap();
    let TxPacket { head, payload, .. } = packet(Family::V4, whole);
    let mut with_payload = head.as_slice().to_vec();
    with_payload.extend_from_slice(&sent[..6]);
    let odd = TxPacket {
        head: HeadBuf::from_slice(&with_payload).unwrap(),
        payload: payload.share(6, sent.len() - 6),
        ..packet(Family::V4, payload)
    };
    ours.transmit(odd, NOW).unwrap();
    let received = receive(&mut peer);
    assert_eq!(received.headers.payload_len, sent.len());
    assert_eq!(bytes(received.payload.frags().unwrap()), sent);
}

#[test]
fn host_memory_stays_at_the_sender_until_it_was_read_and_its_peer_may_read_less_than_all() {
    let (mut ours, mut peer, mut pool) = nics_with_send_memory();
    let sent = pattern(1, 300_000);
    let payload = FragList::from_host_bytes(&mut pool, &sent).unwrap();
    ours.transmit(packet(Family::V4, payload), NOW).unwrap();
    let mut received = receive(&mut peer).payload.into_frags();
    assert_eq!((q0(&peer).kept, q0(&peer).kept_bytes), (1, 300_000));
    assert!(!received.is_unreadable());
    let first = received.split_off_front(1000);
    assert_eq!(bytes(&first), sent[..1000]);
    drop(first);
    for nic in [&mut peer, &mut ours] {
        assert!(nic.poll_rx(NOW).is_none());
    }
    assert!(pool.stats().outstanding > 0, "the rest was not read");
    assert_eq!(bytes(&received), sent[1000..]);
    peer.recycle(received);
    for nic in [&mut peer, &mut ours] {
        assert!(nic.poll_rx(NOW).is_none());
    }
    pool.assert_all_home();
}

#[test]
fn short_payload_crosses_whole() {
    let (mut ours, mut peer) = nics();
    let mut pool = host_pool();
    for len in [0, 1, 1400, MIN_REFERENCE - 1] {
        let payload = FragList::from_host_bytes(&mut pool, &pattern(len, len)).unwrap();
        ours.transmit(packet(Family::V6, payload), NOW).unwrap();
        pool.assert_all_home();
        assert_eq!(
            bytes(receive(&mut peer).payload.frags().unwrap()),
            pattern(len, len)
        );
    }
    assert_eq!(q0(&peer).kept, 0);
}

#[test]
fn a_peer_that_reads_nothing_gets_as_many_frames_as_there_are_slots() {
    let (mut ours, mut peer) = nics();
    let memory = Dmabuf::shared_memfd(MIB).unwrap();
    let (_bound, send, payload) = device(&memory, 4096, 1);
    while ours.flush_tx(NOW) == 0 {
        let again = payload.share(0, payload.len());
        ours.transmit(packet(Family::V4, again), NOW).unwrap();
    }
    let sent = ours.tx_stats().packets;
    assert_eq!(sent, limits::SLOTS as u64);
    assert!(
        !ours.is_told_of_room(),
        "nothing tells when the peer has read"
    );
    assert!(ours.next_due().is_some());
    drop(payload);
    let mut got = 0;
    while ours.flush_tx(NOW) > 0 || got <= sent {
        let received = receive(&mut peer);
        peer.recycle(received.payload.into_frags());
        got += 1;
    }
    for nic in [&mut peer, &mut ours] {
        assert!(nic.poll_rx(NOW).is_none());
    }
    let mut send = send;
    assert!(send.is_over());
}

#[test]
fn what_a_program_does_not_read_uses_up_a_part_of_the_senders_host_memory_only() {
    let (mut ours, mut peer, mut pool) = nics_with_send_memory();
    let mut unread = Vec::new();
    for number in 0..40 {
        let payload = FragList::from_host_bytes(&mut pool, &pattern(number, MIB / 2)).unwrap();
        let mut tx = packet(Family::V4, payload.share(0, MIB / 2 - 100));
        drop(payload);
        tx.gso_size = 1440;
        ours.transmit(tx, NOW).unwrap();
        let received = peer.poll_rx(NOW).unwrap();
        assert!(ours.poll_rx(NOW).is_none());
        unread.push(received.payload);
    }
    let kept = q0(&peer).kept;
    assert_eq!(kept, 32, "16 MiB");
    // The others were copied while there was memory, and are dropped then: the sender has their memory back.
    assert!(peer.poll_rx(NOW).is_none() && ours.poll_rx(NOW).is_none());
    assert_eq!(pool.stats().outstanding as usize * 65_536, 16 * MIB);
    drop(unread);
}

#[test]
fn the_files_of_freed_memory_are_revoked_and_further_files_are_accepted() {
    let (mut ours, mut peer) = nics();
    let mut alive = Vec::new();
    for number in 0..2 * limits::REGIONS + 10 {
        let memory = Dmabuf::shared_memfd(64 << 10).unwrap();
        let observer = memory.observer();
        let (bound, _, payload) = device(&memory, 5000, number);
        ours.transmit(packet(Family::V4, payload), NOW).unwrap();
        let received = receive(&mut peer);
        assert_eq!(
            bytes(received.payload.frags().unwrap()),
            pattern(number, 5000)
        );
        for nic in [&mut peer, &mut ours] {
            assert!(nic.poll_rx(NOW).is_none());
        }
        // Half of them stay: more than there are places for. They are copied to memory of the link then.
        match number % 2 {
            0 => alive.push((memory, bound)),
            _ => {
                drop((memory, bound));
                assert!(observer.is_freed());
            }
        }
    }
    assert_eq!(peer.drops().total(), 0);
    // Long frames, too, cross by reference to the copy.
    let last = Dmabuf::shared_memfd(MIB).unwrap();
    let (_bound, _, payload) = device(&last, 500_000, 1);
    ours.transmit(packet(Family::V4, payload), NOW).unwrap();
    assert_eq!(
        bytes(receive(&mut peer).payload.frags().unwrap()),
        pattern(1, 500_000)
    );
}

#[test]
fn what_was_sent_before_the_peer_left_is_received() {
    let (a, b) = sockets();
    let (mut ours, mut peer) = (nic_on(a, OURS), nic_on(b, THEIRS));
    let payload = FragList::from_host_bytes(&mut host_pool(), b"the last words").unwrap();
    ours.transmit(packet(Family::V4, payload), NOW).unwrap();
    // It has not told anything yet.
    drop(ours);
    assert_eq!(
        bytes(receive(&mut peer).payload.frags().unwrap()),
        b"the last words"
    );
    assert!(peer.poll_rx(NOW).is_none());
    assert!(!peer.is_up());
}

fn is_readable(nic: &Nic) -> bool {
    let fd = nic.poll_fd().unwrap();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
}

fn short(number: usize) -> TxPacket {
    let bytes = pattern(number, 1 + number % 1400);
    let payload = FragList::from_host_bytes(&mut host_pool(), &bytes).unwrap();
    packet(Family::V4, payload)
}

/// Two NICs with rings in both directions, whose threads look for packets by themselves.
fn awake_nics() -> (Nic, Nic) {
    let (mut ours, mut peer) = nics();
    greet(&mut ours, &mut peer);
    for nic in [&mut ours, &mut peer] {
        nic.end_sleep();
        assert!(nic.poll_rx(NOW).is_none());
    }
    (ours, peer)
}

#[test]
fn only_an_end_that_sleeps_is_woken_and_once() {
    let (mut ours, mut peer) = awake_nics();
    for number in 0..100 {
        ours.transmit(short(number), NOW).unwrap();
        assert!(!is_readable(&peer), "{number}");
        assert_eq!(receive(&mut peer).headers.payload_len, 1 + number);
    }
    ours.transmit(short(1), NOW).unwrap();
    assert!(!peer.prepare_sleep(), "a packet has come meanwhile");
    peer.end_sleep();
    receive(&mut peer);
    assert!(peer.prepare_sleep());
    assert!(!is_readable(&peer));
    for number in 0..3 {
        ours.transmit(short(number), NOW).unwrap();
        assert!(is_readable(&peer), "{number}");
    }
    peer.end_sleep();
    for _ in 0..3 {
        receive(&mut peer);
    }
    assert!(peer.poll_rx(NOW).is_none());
    assert!(!is_readable(&peer), "one wake-up for three packets");
}

#[test]
fn a_thread_that_takes_the_wake_up_of_another_one_leaves_it_one_for_the_next_packet() {
    let (mut ours, mut peer) = awake_nics();
    assert!(peer.prepare_sleep());
    for number in 0..100 {
        ours.transmit(short(number), NOW).unwrap();
        assert!(is_readable(&peer), "{number}");
        // As another thread would: the sleep goes on.
        receive(&mut peer);
        assert!(peer.poll_rx(NOW).is_none());
        assert!(!is_readable(&peer), "{number}");
    }
}

#[test]
fn a_full_ring_is_waited_for_and_loses_nothing() {
    let (mut ours, mut peer) = awake_nics();
    let mut sent = 0;
    while ours.flush_tx(NOW) == 0 {
        ours.transmit(short(sent), NOW).unwrap();
        sent += 1;
    }
    assert!(ours.is_told_of_room());
    assert!(ours.prepare_sleep() && !is_readable(&ours));
    for number in 0..sent {
        let received = receive(&mut peer);
        let payload = received.payload.into_frags();
        assert_eq!(bytes(&payload), pattern(number, 1 + number % 1400));
        peer.recycle(payload);
        if is_readable(&ours) {
            ours.end_sleep();
            assert!(ours.poll_rx(NOW).is_none());
            assert_eq!(ours.flush_tx(NOW), 0);
            assert!(ours.prepare_sleep());
        }
    }
    assert!(peer.poll_rx(NOW).is_none());
    assert!(!ours.is_told_of_room());
}

#[test]
fn what_is_in_the_ring_of_a_peer_that_has_left_is_received() {
    let (mut ours, mut peer) = awake_nics();
    for number in 0..10 {
        ours.transmit(short(number), NOW).unwrap();
    }
    drop(ours);
    for _ in 0..10 {
        receive(&mut peer);
    }
    // The thread looks by itself, and finds out after a while.
    let mut looks = 0;
    while peer.is_up() {
        assert!(peer.poll_rx(NOW).is_none());
        looks += 1;
        assert!(looks < 1000, "it never looks at the socket");
    }
}

#[test]
fn a_ring_that_no_wire_has_ends_it() {
    let short = file(4096, SealFlags::SHRINK);
    let ring = || file(1 << 20, SealFlags::SHRINK);
    let cases: [(&str, Option<OwnedFd>, u32); 4] = [
        ("no file", None, 0),
        ("too short", Some(short), 0),
        ("as much as never fits", Some(ring()), 1 << 30),
        (
            "an entry that says that the socket has a packet",
            Some(ring()),
            64,
        ),
    ];
    for (what, file, written) in cases {
        let mut raw = Raw::new();
        if let Some(file) = &file {
            rustix::io::pwrite(file, &written.to_ne_bytes(), 0).unwrap();
        }
        raw.send(&FileRecord::Ring.emit(), file.as_ref());
        raw.expect_down(what);
    }
    let mut raw = Raw::new();
    for _ in 0..2 {
        raw.send(&FileRecord::Ring.emit(), Some(&ring()));
    }
    // The second one is in the socket without an entry in the first.
    assert!(raw.nic.poll_rx(NOW).is_none() && raw.nic.is_up());
    raw.send(&FileRecord::Ring.emit(), Some(&ring()));
    raw.send(&FileRecord::Ring.emit(), Some(&ring()));
    raw.expect_down("packets that the ring has no entries for");
}

/// Receives one packet and the file that came with it.
pub(super) fn receive_packet(
    socket: impl AsFd,
    packet: &mut [u8],
) -> Result<(usize, Option<OwnedFd>), Errno> {
    let got = peer_socket::receive(socket, &mut [IoSliceMut::new(packet)])?;
    Ok((got.bytes, got.fds.into_vec().pop()))
}

/// A NIC whose peer is this test.
struct Raw {
    nic: Nic,
    peer: OwnedFd,
}

impl Raw {
    fn new() -> Self {
        let (a, peer) = sockets();
        Self {
            nic: nic_on(a, THEIRS),
            peer,
        }
    }

    fn send(&self, packet: &[u8], file: Option<&OwnedFd>) {
        let sent = send_packet(self.peer.as_fd(), packet, file.map(AsFd::as_fd));
        assert!(sent.unwrap());
    }

    fn send_frame(&self, pieces: &[PieceRecord], slot: u16, head: &[u8]) {
        let fields = FrameFields {
            header: VnetHeader::default(),
            slot,
            number: 1,
            until: BorrowedUntil::Copied,
        };
        let mut out = Vec::new();
        emit_frame(&mut out, fields, pieces, head);
        self.send(&out, None);
    }

    /// Polls, and checks that one frame was dropped for its references.
    fn expect_bad(&mut self, what: &str) {
        let before = self.nic.drops().get(DropReason::RxBadReference);
        assert!(self.nic.poll_rx(NOW).is_none(), "{what}");
        let after = self.nic.drops().get(DropReason::RxBadReference);
        assert_eq!((after - before, self.nic.is_up()), (1, true), "{what}");
    }

    fn expect_down(&mut self, what: &str) {
        assert!(self.nic.poll_rx(NOW).is_none());
        assert!(!self.nic.is_up(), "{what}");
    }
}

fn file(size: u64, seals: SealFlags) -> OwnedFd {
    let file = memfd_create("wire-test", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, size).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

fn memory(region: u32, size: u64) -> [u8; 16] {
    FileRecord::Memory { region, size }.emit()
}

fn piece(region: u32, offset: u64, len: u32) -> PieceRecord {
    PieceRecord {
        region,
        len,
        offset,
    }
}

#[test]
fn frames_that_name_memory_which_does_not_exist_are_dropped_and_counted() {
    let mut raw = Raw::new();
    raw.send(&memory(3, 8192), Some(&file(8192, SealFlags::SHRINK)));
    let head = packet(Family::V4, FragList::new()).head;
    let head = head.as_slice();
    let bad: &[(&str, PieceRecord)] = &[
        ("unknown region", piece(2, 0, 100)),
        ("no such region", piece(u32::MAX, 0, 100)),
        ("past the end", piece(3, 8000, 193)),
        ("beyond the end", piece(3, 8193, 1)),
        ("an offset that overflows", piece(3, u64::MAX, 2)),
        ("as long as no frame", piece(3, 0, u32::MAX)),
        ("empty", piece(3, 0, 0)),
    ];
    for (what, piece) in bad {
        raw.send_frame(&[*piece], 0, head);
        raw.expect_bad(what);
    }
    raw.send_frame(&[piece(3, 0, 100), piece(4, 0, 100)], 0, head);
    raw.expect_bad("a known and an unknown region");
    raw.send_frame(&[piece(3, 0, 100)], limits::SLOTS as u16, head);
    raw.expect_bad("a slot that does not exist");
    let long = vec![piece(3, 0, 8192); 70];
    raw.send_frame(&long, 0, head);
    raw.expect_bad("longer than a super-packet");
    raw.send(&[0xc0; 40], None);
    raw.expect_bad("a kind that does not exist");
    // As long as none that an IP header can say, and not said in the headers.
    raw.send_frame(&long[..10], 0, head);
    assert!(raw.nic.poll_rx(NOW).is_none());
    assert_eq!(raw.nic.drops().get(DropReason::RxOversize), 1);
    // The headers end in the payload: nothing is read there.
    raw.send_frame(&[piece(3, 0, 100)], 0, &head[..40]);
    assert!(raw.nic.poll_rx(NOW).is_none());
    assert_eq!(raw.nic.drops().get(DropReason::RxTruncated), 1);
    assert!(raw.nic.is_up());
}

#[test]
fn a_peer_has_at_most_as_many_frames_in_use_as_there_are_slots() {
    let mut raw = Raw::new();
    raw.send(&memory(0, 8192), Some(&file(8192, SealFlags::SHRINK)));
    let payload = FragList::from_host_bytes(&mut host_pool(), &[0; 9]).unwrap();
    let tx = packet(Family::V4, payload);
    let mut kept = Vec::new();
    for _ in 0..=limits::SLOTS {
        let checksum = tx.checksum.into();
        let offload = ::wire::Offload {
            checksum,
            gso: None,
        };
        let fields = FrameFields {
            header: VnetHeader::new(offload, tx.head.as_slice()),
            slot: 0,
            number: 1,
            until: BorrowedUntil::Read,
        };
        let mut out = Vec::new();
        emit_frame(&mut out, fields, &[piece(0, 0, 9)], tx.head.as_slice());
        raw.send(&out, None);
        kept.extend(raw.nic.poll_rx(NOW).map(|packet| packet.payload));
    }
    assert_eq!(kept.len(), limits::SLOTS);
    assert_eq!(raw.nic.drops().get(DropReason::RxBadReference), 1);
}

#[test]
fn a_file_that_may_get_shorter_or_is_no_memory_ends_the_wire() {
    let long = 1 << 30;
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    let cases: [(&str, u64, Option<OwnedFd>); 6] = [
        ("not sealed", 4096, Some(file(4096, SealFlags::GROW))),
        ("too short", 8192, Some(file(4096, SealFlags::SHRINK))),
        ("an odd size", 100, Some(file(4096, SealFlags::SHRINK))),
        ("no bytes", 0, Some(file(4096, SealFlags::SHRINK))),
        ("a pipe", 4096, Some(pipe)),
        ("no file", 4096, None),
    ];
    for (what, size, file) in cases {
        let mut raw = Raw::new();
        raw.send(&memory(0, size), file.as_ref());
        raw.expect_down(what);
    }
    let mut raw = Raw::new();
    let good = file(long, SealFlags::SHRINK);
    for region in 0..limits::REGIONS as u32 {
        raw.send(&memory(region, long), Some(&good));
    }
    for _ in 0..limits::REGIONS.div_ceil(RX_FILES) {
        assert!(raw.nic.poll_rx(NOW).is_none());
    }
    assert!(raw.nic.is_up());
    raw.send(&memory(limits::REGIONS as u32, long), Some(&good));
    raw.expect_down("more files than there are places");
    let mut raw = Raw::new();
    raw.send(&memory(0, long), Some(&good));
    raw.send(&memory(0, long), Some(&good));
    raw.expect_down("a region that exists");
    let mut raw = Raw::new();
    raw.send(&FileRecord::Revoked { region: 0 }.emit(), None);
    raw.expect_down("a region that does not exist");
    let mut raw = Raw::new();
    let releases = FileRecord::Notes.emit();
    raw.send(&releases, Some(&file(4096, SealFlags::SHRINK)));
    raw.send(&releases, Some(&file(4096, SealFlags::SHRINK)));
    raw.expect_down("a second file for what was let go of");
}

#[test]
fn records_of_files_take_turns_with_all_else() {
    const PAIRS: usize = 40;
    let mut raw = Raw::new();
    let good = file(1 << 30, SealFlags::SHRINK);
    for _ in 0..PAIRS {
        raw.send(&memory(0, 1 << 30), Some(&good));
        raw.send(&FileRecord::Revoked { region: 0 }.emit(), None);
    }
    // A frame behind them: dropped, and counted.
    raw.send(&[0xc0; 40], None);
    let is_counted = |nic: &Nic| nic.drops().get(DropReason::RxBadReference) == 1;
    let mut turns = 0;
    while !is_counted(&raw.nic) {
        assert!(raw.nic.poll_rx(NOW).is_none());
        turns += 1;
        assert!(turns < 1000, "the frame is received in the end");
    }
    // A receive and the next one, after which it goes on.
    assert_eq!(turns, (2 * PAIRS).div_ceil(RX_FILES) + 1);
    assert!(raw.nic.is_up());
}

#[test]
fn a_revoked_region_is_not_named_any_more_but_its_frags_stay_valid() {
    let mut raw = Raw::new();
    let file = file(8192, SealFlags::SHRINK);
    rustix::io::pwrite(&file, &pattern(5, 8192), 0).unwrap();
    raw.send(&memory(0, 8192), Some(&file));
    let payload = FragList::from_host_bytes(&mut host_pool(), &[0; 5000]).unwrap();
    let tx = packet(Family::V4, payload);
    let fields = FrameFields {
        header: VnetHeader::new(
            ::wire::Offload {
                checksum: tx.checksum.into(),
                gso: None,
            },
            tx.head.as_slice(),
        ),
        slot: 9,
        number: 77,
        until: BorrowedUntil::Read,
    };
    let mut out = Vec::new();
    emit_frame(&mut out, fields, &[piece(0, 64, 5000)], tx.head.as_slice());
    raw.send(&out, None);
    let received = receive(&mut raw.nic);
    raw.send(&FileRecord::Revoked { region: 0 }.emit(), None);
    raw.send(&out, None);
    raw.expect_bad("revoked");
    assert_eq!(
        bytes(received.payload.frags().unwrap()),
        pattern(5, 8192)[64..5064]
    );
    // The sender may change it at any time: other bytes arrive, and nothing worse.
    rustix::io::pwrite(&file, &[9; 8192], 0).unwrap();
    assert_eq!(bytes(received.payload.frags().unwrap()), [9; 5000]);
    drop(received);
    assert!(raw.nic.poll_rx(NOW).is_none());
    let releases = loop {
        let mut packet = [0; 100];
        let (len, file) = receive_packet(&raw.peer, &mut packet).unwrap();
        if packet[..len] == FileRecord::Notes.emit() {
            break file.unwrap();
        }
    };
    let mut number = [0; 4];
    rustix::io::pread(&releases, &mut number, 4 * 9).unwrap();
    assert_eq!(
        u32::from_ne_bytes(number),
        77,
        "the sender has its memory back"
    );
}

#[test]
fn a_peer_that_leaves_gives_all_memory_back() {
    let (mut ours, peer) = nics();
    let memory = Dmabuf::shared_memfd(MIB).unwrap();
    let (_bound, mut send, payload) = device(&memory, 60_000, 1);
    ours.transmit(packet(Family::V4, payload), NOW).unwrap();
    assert!(!send.is_over());
    drop(peer);
    assert!(ours.poll_rx(NOW).is_none());
    assert!(!ours.is_up());
    assert!(send.is_over());
    let (_bound, _send, payload) = device(&memory, 60_000, 2);
    let refused = ours.transmit(packet(Family::V4, payload), NOW);
    assert_eq!(refused, Err(TransmitError::LinkDown));
}

#[test]
fn the_other_end_gets_files_that_it_can_only_read() {
    let (a, peer) = sockets();
    let mut ours = nic_on(a, OURS);
    let mut packet_bytes = [0; 100];
    assert!(ours.poll_rx(NOW).is_none());
    let (_, releases) = receive_packet(&peer, &mut packet_bytes).unwrap();
    let raw = Raw { nic: ours, peer };
    raw.send(&FileRecord::Notes.emit(), releases.as_ref());
    let mut ours = raw.nic;
    assert!(ours.poll_rx(NOW).is_none());
    let memory = Dmabuf::shared_memfd(MIB).unwrap();
    let (_bound, _send, payload) = device(&memory, 60_000, 1);
    ours.transmit(packet(Family::V4, payload), NOW).unwrap();
    let size = MIB as u64;
    for record in [FileRecord::Ring, FileRecord::Memory { region: 0, size }] {
        let (len, file) = receive_packet(&raw.peer, &mut packet_bytes).unwrap();
        assert_eq!(packet_bytes[..len], record.emit());
        let refused = rustix::io::pwrite(file.unwrap(), b"x", 0);
        assert_eq!(refused, Err(Errno::BADF));
    }
}

#[test]
fn only_ends_that_both_share_memory_do() {
    for (ours, theirs) in [(true, false), (false, true), (true, true)] {
        let (a, _b) = sockets();
        let [ours, theirs] = [ours, theirs].map(|shares_memory| WireHello {
            shares_memory,
            ..HELLO
        });
        let caps = UnixLink::new(a, ours, theirs).unwrap();
        let LinkCaps {
            borrows,
            max_super_packet,
            ..
        } = crate::Link::caps(&caps);
        let both = ours.shares_memory && theirs.shares_memory;
        assert_eq!(borrows, both);
        assert_eq!(max_super_packet > MAX_FRAME_LEN, both);
    }
}

#[test]
fn pieces_longer_than_any_frame_make_no_frags() {
    const REGION_BYTES: u64 = 16 << 20;
    let mut incoming = Incoming::new();
    let file = file(REGION_BYTES, SealFlags::SHRINK);
    incoming.map(0, &file, REGION_BYTES, &port()).unwrap();
    let fields = FrameFields {
        header: VnetHeader::default(),
        slot: 0,
        number: 1,
        until: BorrowedUntil::Copied,
    };
    let pieces = vec![piece(0, 0, REGION_BYTES as u32); record::MAX_PIECES];
    let mut packet = Vec::new();
    emit_frame(&mut packet, fields, &pieces, &[0; 54]);
    let Packet::Frame(record) = Packet::parse(&packet) else {
        panic!("a frame by reference");
    };
    let mut list = FragList::new();
    assert!(incoming.borrow(&record, &mut list).is_none());
    assert!(list.is_empty(), "{} bytes were borrowed", list.len());
}
