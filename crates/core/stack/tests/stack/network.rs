//! ARP, neighbour discovery, ICMP and addresses: one stack against hand-written frames.

mod arp;
mod icmp;
mod refused;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use devmem_uapi::MsgFlags;
use netsim::{Door as _, PairConfig, RawPeer, RawSegment, Side, ip_frame, tcp_frame};
use stack::{SendMsg, SocketId, Stack};
use wire::{
    ArpOperation, ArpPacket, Checksum, Echo, EchoKind, EtherType, EthernetHeader, IpRepr, MacAddr,
    Network, RxHeaders, TcpFlags, Transport, checksum, emit_arp_frame, protocol,
};

use crate::scenarios::Pair;
use crate::scenarios::common::PORT;

const PEER_PORT: u16 = 4000;

/// Returns the counters that moved.
fn drops(stack: &Stack) -> BTreeMap<&'static str, u64> {
    stack.drops().filter(|&(_, count)| count > 0).collect()
}

/// Returns the IPv4 address of a side.
pub fn v4(side: Side) -> Ipv4Addr {
    match side.ipv4() {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(_) => unreachable!(),
    }
}

/// Returns the IPv6 address of a side.
pub fn v6(side: Side) -> Ipv6Addr {
    match side.ipv6() {
        IpAddr::V6(ip) => ip,
        IpAddr::V4(_) => unreachable!(),
    }
}

/// A stack with an entry for its peer, and nothing to send.
fn peer() -> RawPeer {
    let mut peer = RawPeer::new();
    peer.introduce();
    peer
}

fn parse(frame: &[u8]) -> RxHeaders {
    RxHeaders::parse(frame, frame.len()).unwrap()
}

/// Sends a frame that must be dropped for `reason` and get no reply.
fn dropped(peer: &mut RawPeer, frame: &[u8], reason: &str) {
    peer.forget();
    let before = drops(&peer.stack).get(reason).copied().unwrap_or(0);
    peer.send(frame);
    assert_eq!(
        drops(&peer.stack).get(reason),
        Some(&(before + 1)),
        "{reason} in {:?}",
        drops(&peer.stack)
    );
    assert_eq!(peer.receive(), None, "{reason}");
}

/// Opens a connection from the peer; returns it with the stack's and the peer's next sequence
/// numbers.
fn open(peer: &mut RawPeer) -> (SocketId, u32, u32) {
    open_late(peer, Duration::ZERO)
}

/// As [`open`], with a last segment that arrives `late` after the stack has read its clock.
fn open_late(peer: &mut RawPeer, late: Duration) -> (SocketId, u32, u32) {
    open_between(peer, ends(), late)
}

/// As [`open_late`], between the addresses of the hand-made peer and of the stack.
fn open_between(
    peer: &mut RawPeer,
    (ours, theirs): (SocketAddr, SocketAddr),
    late: Duration,
) -> (SocketId, u32, u32) {
    let listener = peer.stack.listen(theirs, 4).unwrap();
    peer.send_tcp(
        ours,
        theirs,
        &RawSegment {
            seq: 100,
            flags: TcpFlags::SYN,
            ..RawSegment::default()
        },
    );
    let (headers, _) = peer.receive_tcp().expect("a SYN-ACK");
    let iss = headers.tcp().unwrap().seq;
    let ack = RawSegment {
        seq: 101,
        ack: iss + 1,
        ..RawSegment::default()
    };
    peer.send_late(&tcp_frame(ours, theirs, &ack), late);
    peer.poll();
    let (id, _) = peer.stack.accept(listener).unwrap();
    peer.stack.close(listener).unwrap();
    peer.forget();
    (id, iss + 1, 101)
}

/// The addresses of the hand-made peer and of the stack.
fn ends() -> (SocketAddr, SocketAddr) {
    (
        SocketAddr::new(Side::A.ipv4(), PEER_PORT),
        SocketAddr::new(Side::B.ipv4(), PORT),
    )
}
