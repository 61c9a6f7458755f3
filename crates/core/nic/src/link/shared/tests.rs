//! Two NICs on a wire with shared memory, and a NIC whose peer is no NIC.

mod hostile;
mod transfer;
mod waking;

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
use crate::tests::harness::pattern;
use crate::{
    BorrowedUntil, HeadBuf, LinkCaps, Nic, NicConfig, RxPacket, TxPacket, UnixLink, WireHello,
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

fn short(number: usize) -> TxPacket {
    let bytes = pattern(number, 1 + number % 1400);
    let payload = FragList::from_host_bytes(&mut host_pool(), &bytes).unwrap();
    packet(Family::V4, payload)
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
