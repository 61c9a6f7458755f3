//! Sockets against hand-written frames.

use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use devmem_uapi::MsgFlags;
use netsim::{RawPeer, RawSegment, Side};
use stack::{SendMsg, SocketOption};
use tcp::StateKind;
use wire::TcpFlags;

use crate::scenarios::common::PORT;

fn local(side: Side) -> SocketAddr {
    SocketAddr::new(side.ipv4(), PORT)
}

#[test]
fn a_neighbour_that_does_not_speak_tcp_times_out() {
    let mut peer = RawPeer::new();
    let now = peer.now();
    let id = peer
        .stack
        .connect(SocketAddr::new(Side::A.ipv4(), 1), now)
        .unwrap();
    let mut syns = 0;
    for _ in 0..135 {
        peer.run_for(Duration::from_secs(1));
        syns += peer
            .answer_arp()
            .iter()
            .filter(|frame| frame.tcp().is_some())
            .count();
    }
    assert_eq!(
        (syns, peer.stack.take_error(id)),
        (11, Ok(Some(tcp::TcpError::TimedOut)))
    );
}

#[test]
fn a_flood_of_syns_is_answered_by_cookies_and_a_real_peer_gets_through() {
    let mut peer = RawPeer::new();
    peer.introduce();
    let theirs = local(Side::B);
    let listener = peer.stack.listen(theirs, 4).unwrap();
    let syn = |port: u16| RawSegment {
        seq: u32::from(port),
        flags: TcpFlags::SYN,
        ..RawSegment::default()
    };
    let from = |port| SocketAddr::new(Side::A.ipv4(), port);
    for port in 1000..3000 {
        peer.send_tcp(from(port), theirs, &syn(port));
    }
    // Every SYN is answered, and state is kept only for the first few.
    let answers: Vec<_> = std::iter::from_fn(|| peer.receive_tcp()).collect();
    assert_eq!(answers.len(), 2000);
    assert_eq!(
        (peer.stack.stats().sockets, peer.stack.stats().connections),
        (1, 0)
    );
    // A peer without state completes the handshake by its cookie.
    let (headers, _) = &answers[1500];
    let syn_ack = headers.tcp().unwrap();
    let port = syn_ack.dst_port;
    let seq = u32::from(port) + 1;
    let ack = RawSegment {
        seq,
        ack: syn_ack.seq + 1,
        ..RawSegment::default()
    };
    peer.send_tcp(from(port), theirs, &ack);
    let (id, remote) = peer.stack.accept(listener).unwrap();
    assert_eq!(remote, from(port));
    // A guessed cookie is refused.
    let guess = RawSegment {
        seq,
        ack: syn_ack.seq + 2,
        ..RawSegment::default()
    };
    peer.forget();
    peer.send_tcp(from(port + 1), theirs, &guess);
    let (headers, _) = peer.receive_tcp().unwrap();
    assert!(headers.tcp().unwrap().flags.contains(TcpFlags::RST));
    peer.stack.abort(id).unwrap();
}

/// Opens a connection from a hand-written peer with the initial sequence number `iss`; returns the socket and the ISN
/// of the stack.
fn open_by_hand(
    peer: &mut RawPeer,
    ours: SocketAddr,
    theirs: SocketAddr,
    listener: stack::SocketId,
    iss: u32,
) -> (stack::SocketId, u32) {
    let syn = RawSegment {
        seq: iss,
        flags: TcpFlags::SYN,
        ..RawSegment::default()
    };
    peer.send_tcp(ours, theirs, &syn);
    let (headers, _) = peer.receive_tcp().expect("a SYN-ACK");
    let syn_ack = *headers.tcp().unwrap();
    assert!(
        syn_ack.flags.contains(TcpFlags::SYN | TcpFlags::ACK),
        "{syn_ack:?}"
    );
    let ack = RawSegment {
        seq: iss + 1,
        ack: syn_ack.seq + 1,
        ..RawSegment::default()
    };
    peer.send_tcp(ours, theirs, &ack);
    let (id, remote) = peer.stack.accept(listener).unwrap();
    assert_eq!(remote, ours);
    (id, syn_ack.seq)
}

/// Answers the FIN of the stack, which has the ISN `iss` and has sent no data, with a FIN: the stack enters TIME-WAIT.
fn finish_by_hand(peer: &mut RawPeer, ours: SocketAddr, theirs: SocketAddr, seq: u32, iss: u32) {
    let fin = RawSegment {
        seq,
        ack: iss + 2,
        flags: TcpFlags::FIN | TcpFlags::ACK,
        ..RawSegment::default()
    };
    peer.send_tcp(ours, theirs, &fin);
    peer.forget();
}

#[test]
fn a_syn_for_a_connection_in_time_wait_opens_a_new_one() {
    let mut peer = RawPeer::new();
    peer.introduce();
    let (ours, theirs) = (SocketAddr::new(Side::A.ipv4(), 4000), local(Side::B));
    let listener = peer.stack.listen(theirs, 4).unwrap();
    let (id, iss) = open_by_hand(&mut peer, ours, theirs, listener, 1000);
    // B closes first and enters TIME-WAIT.
    peer.stack.close(id).unwrap();
    peer.poll();
    finish_by_hand(&mut peer, ours, theirs, 1001, iss);
    assert_eq!(
        (peer.stack.stats().connections, peer.stack.stats().orphans),
        (1, 0)
    );
    let (again, new_iss) = open_by_hand(&mut peer, ours, theirs, listener, 50_000);
    assert!(
        new_iss.wrapping_sub(iss) < 1 << 31,
        "the ISN goes on from the old connection's"
    );
    assert_eq!(peer.stack.stats().connections, 1);
    peer.stack.abort(again).unwrap();
}

#[test]
fn a_socket_whose_name_went_to_a_new_connection_is_closed_without_taking_it_back() {
    let mut peer = RawPeer::new();
    peer.introduce();
    let (ours, theirs) = (SocketAddr::new(Side::A.ipv4(), 4000), local(Side::B));
    let listener = peer.stack.listen(theirs, 4).unwrap();
    let (old, iss) = open_by_hand(&mut peer, ours, theirs, listener, 1000);
    // B shuts down first, and its program keeps the socket.
    peer.stack.shutdown(old, Shutdown::Both).unwrap();
    peer.poll();
    finish_by_hand(&mut peer, ours, theirs, 1001, iss);
    assert_eq!(
        peer.stack.info(old).unwrap().unwrap().state,
        StateKind::TimeWait
    );
    let (new, new_iss) = open_by_hand(&mut peer, ours, theirs, listener, 50_000);
    peer.stack.close(old).unwrap();
    // The old connection's TIME-WAIT is over.
    peer.run_for(Duration::from_secs(61));
    peer.forget();
    let data = RawSegment {
        seq: 50_001,
        ack: new_iss + 1,
        payload: b"still here",
        ..RawSegment::default()
    };
    peer.send_tcp(ours, theirs, &data);
    // After a minute, B first sends an ARP request.
    let frames = peer.answer_arp();
    let answer = frames.iter().find_map(|headers| headers.tcp());
    assert_eq!(answer.expect("an ACK").flags, TcpFlags::ACK);
    assert_eq!(peer.stack.info(new).unwrap().unwrap().readable, 10);
    assert_eq!(
        (peer.stack.stats().connections, peer.stack.stats().orphans),
        (1, 0)
    );
    peer.stack.abort(new).unwrap();
}

#[test]
fn a_link_with_the_largest_mtu_takes_connections() {
    let mut peer = RawPeer::with(|nic, _| nic.mtu = u16::MAX);
    peer.introduce();
    let (ours, theirs) = (SocketAddr::new(Side::A.ipv4(), 4000), local(Side::B));
    let listener = peer.stack.listen(theirs, 4).unwrap();
    let (id, _) = open_by_hand(&mut peer, ours, theirs, listener, 1000);
    peer.stack.abort(id).unwrap();
}

#[test]
fn queued_packets_wait_for_the_notification_of_a_link_that_reports_room() {
    let mut peer = RawPeer::new();
    peer.introduce();
    let (ours, theirs) = (SocketAddr::new(Side::A.ipv4(), 4000), local(Side::B));
    let listener = peer.stack.listen(theirs, 4).unwrap();
    let (id, _) = open_by_hand(&mut peer, ours, theirs, listener, 1000);
    peer.fill_link(true);
    // More packets than fit into the NIC's queue, so that some stay in the send queue.
    let rings = nic::Rings {
        tx_packets: 2,
        ..peer.stack.nic().rings()
    };
    peer.stack.nic_mut().set_rings(rings).unwrap();
    let nodelay = SocketOption::NoDelay(true);
    peer.stack.set_option(id, nodelay).unwrap();
    let mut sent = 0;
    for _ in 0..5 {
        let piece = SendMsg::new(&[7; 500]);
        sent += peer.stack.sendmsg(id, &piece, MsgFlags::EOR).unwrap();
    }
    let now = peer.now();
    peer.stack.poll(now);
    assert!(peer.stack.nic().is_told_of_room());
    assert!(!peer.stack.wants_flush());
    let next = peer.stack.next_deadline().expect("a retransmission timer");
    assert!(next > now + Duration::from_millis(100), "{next:?}");
    peer.fill_link(false);
    peer.poll();
    let mut got = 0;
    while let Some((_, payload)) = peer.receive_tcp() {
        got += payload.len();
    }
    assert_eq!(got, sent, "it all leaves as soon as the link takes it");
    peer.stack.abort(id).unwrap();
}
