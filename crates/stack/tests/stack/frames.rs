//! Frames written by hand, and what sockets make of them.

use std::net::SocketAddr;
use std::time::Duration;

use netsim::{RawPeer, RawSegment, Side};
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
    for _ in 0..131 {
        peer.run_for(Duration::from_secs(1));
        syns += peer
            .answer_arp()
            .iter()
            .filter(|frame| frame.tcp().is_some())
            .count();
    }
    assert_eq!(
        (syns, peer.stack.take_error(id)),
        (7, Ok(Some(tcp::TcpError::TimedOut)))
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
    // Every one is answered, and only the first few are remembered.
    let answers: Vec<_> = std::iter::from_fn(|| peer.receive_tcp()).collect();
    assert_eq!(answers.len(), 2000);
    assert_eq!(
        (peer.stack.stats().sockets, peer.stack.stats().connections),
        (1, 0)
    );
    // One of those not remembered proves that it is there.
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
    // A guess does not.
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

#[test]
fn a_syn_for_a_connection_in_time_wait_opens_a_new_one() {
    let mut peer = RawPeer::new();
    peer.introduce();
    let (ours, theirs) = (SocketAddr::new(Side::A.ipv4(), 4000), local(Side::B));
    let listener = peer.stack.listen(theirs, 4).unwrap();
    let open = |peer: &mut RawPeer, iss: u32| {
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
    };
    let (id, iss) = open(&mut peer, 1000);
    // B closes first and ends in TIME-WAIT.
    peer.stack.close(id).unwrap();
    peer.poll();
    let fin = RawSegment {
        seq: 1001,
        ack: iss + 2,
        flags: TcpFlags::FIN | TcpFlags::ACK,
        ..RawSegment::default()
    };
    peer.send_tcp(ours, theirs, &fin);
    assert_eq!(
        (peer.stack.stats().connections, peer.stack.stats().orphans),
        (1, 0)
    );
    peer.forget();
    let (again, new_iss) = open(&mut peer, 50_000);
    assert!(
        new_iss.wrapping_sub(iss) < 1 << 31,
        "the ISN goes on from the old connection's"
    );
    assert_eq!(peer.stack.stats().connections, 1);
    peer.stack.abort(again).unwrap();
}
