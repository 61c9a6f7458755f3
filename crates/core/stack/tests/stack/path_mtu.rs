//! Path MTUs below the link's MTU: genuine and forged ICMP errors.

use std::net::{IpAddr, SocketAddr};

use crate::scenarios::common::PORT;
use devmem_uapi::MsgFlags;
use netsim::{RawPeer, RawSegment, Side};
use stack::{SendMsg, SocketId};
use wire::{Checksum, IpRepr, TcpFlags, TcpOptions, checksum, protocol};

const PEER_PORT: u16 = 4000;

/// A stack with a connection to a hand-written peer, and 5,000 bytes in flight from `seq` on.
struct UnderWay {
    peer: RawPeer,
    id: SocketId,
    ends: (SocketAddr, SocketAddr),
    seq: u32,
}

impl UnderWay {
    fn new(ipv6: bool) -> Self {
        let ip = |side: Side| if ipv6 { side.ipv6() } else { side.ipv4() };
        let ours = SocketAddr::new(ip(Side::A), PEER_PORT);
        let theirs = SocketAddr::new(ip(Side::B), PORT);
        let mut peer = RawPeer::new();
        peer.introduce();
        let listener = peer.stack.listen(theirs, 4).unwrap();
        let syn = RawSegment {
            seq: 100,
            flags: TcpFlags::SYN,
            options: TcpOptions {
                mss: Some(1400),
                ..TcpOptions::default()
            },
            ..RawSegment::default()
        };
        peer.send_tcp(ours, theirs, &syn);
        let (headers, _) = peer.receive_tcp().expect("a SYN-ACK");
        let seq = headers.tcp().unwrap().seq + 1;
        let ack = RawSegment {
            seq: 101,
            ack: seq,
            ..RawSegment::default()
        };
        peer.send_tcp(ours, theirs, &ack);
        let (id, _) = peer.stack.accept(listener).unwrap();
        peer.stack.close(listener).unwrap();
        peer.stack
            .sendmsg(id, &SendMsg::new(&[1; 5000]), MsgFlags::empty())
            .unwrap();
        peer.poll();
        peer.forget();
        Self {
            peer,
            id,
            ends: (ours, theirs),
            seq,
        }
    }

    /// Sends the error of a router: the packet with this sequence number was too big for a link with this MTU.
    fn too_big(&mut self, seq: u32, mtu: u16) {
        let (peer, stack) = self.ends;
        let mut tcp = [0; 8];
        tcp[..2].copy_from_slice(&stack.port().to_be_bytes());
        tcp[2..4].copy_from_slice(&peer.port().to_be_bytes());
        tcp[4..].copy_from_slice(&seq.to_be_bytes());
        let mut quoted = vec![0; if peer.is_ipv4() { 20 } else { 40 }];
        let mtu = mtu.to_be_bytes();
        match (peer.ip(), stack.ip()) {
            (IpAddr::V4(peer), IpAddr::V4(stack)) => {
                IpRepr::v4(stack, peer).emit(protocol::TCP, 1400, &mut quoted);
                let mut message = vec![3, 4, 0, 0, 0, 0, mtu[0], mtu[1]];
                message.extend(quoted.iter().chain(&tcp));
                let sum = checksum(&message);
                message[2..4].copy_from_slice(&sum.to_be_bytes());
                let ip = IpRepr::v4(peer, stack);
                self.peer.send_ip(&ip, protocol::ICMP, &message);
            }
            (IpAddr::V6(peer), IpAddr::V6(stack)) => {
                IpRepr::v6(stack, peer).emit(protocol::TCP, 1400, &mut quoted);
                let mut message = vec![2, 0, 0, 0, 0, 0, mtu[0], mtu[1]];
                message.extend(quoted.iter().chain(&tcp));
                let len = message.len() as u32;
                let mut sum = Checksum::pseudo_v6(peer, stack, protocol::ICMPV6, len);
                sum.add_bytes(&message);
                message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
                let ip = IpRepr::v6(peer, stack);
                self.peer.send_ip(&ip, protocol::ICMPV6, &message);
            }
            _ => unreachable!("both ends are of one family"),
        }
    }

    fn mss(&self) -> u16 {
        self.peer.stack.info(self.id).unwrap().unwrap().snd_mss
    }
}

#[test]
fn a_router_is_believed_about_a_packet_that_is_under_way_and_not_otherwise() {
    for (ipv6, headers) in [(false, 40), (true, 60)] {
        let mut flow = UnderWay::new(ipv6);
        assert_eq!(flow.mss(), 1400);
        let seq = flow.seq;
        // An attacker that cannot see the packets does not know their sequence numbers (RFC 5927 7).
        for forged in [seq.wrapping_sub(1), seq + 5001, seq ^ 1 << 31] {
            flow.too_big(forged, 1290);
            assert_eq!(flow.mss(), 1400, "{forged} is not under way");
        }
        let mut other = UnderWay::new(ipv6);
        let port = other.ends.0.port() + 1;
        other.ends.0.set_port(port);
        other.too_big(other.seq, 1290);
        assert_eq!(other.mss(), 1400, "another connection's packet");
        other.peer.stack.abort(other.id).unwrap();

        flow.too_big(seq, 1300);
        assert_eq!(flow.mss(), 1300 - headers);
        // The bytes are sent again at once, in smaller segments.
        let (packet, payload) = flow.peer.receive_tcp().unwrap();
        assert_eq!(packet.tcp().unwrap().seq, seq);
        assert!(
            payload.len() <= usize::from(1300 - headers),
            "{}",
            payload.len()
        );
        flow.too_big(seq, 1400);
        assert_eq!(flow.mss(), 1300 - headers, "the network never says larger");
        flow.peer.stack.abort(flow.id).unwrap();
    }
}

#[test]
fn a_router_that_names_an_absurd_size_does_little_harm() {
    let mut v4 = UnderWay::new(false);
    // An error without an MTU is older than RFC 1191 or an attack: linux `net.ipv4.route.min_pmtu`.
    v4.too_big(v4.seq, 0);
    assert_eq!(v4.mss(), 552 - 40);
    v4.peer.stack.abort(v4.id).unwrap();
    let mut v6 = UnderWay::new(true);
    // The minimum MTU of IPv6 is 1,280 bytes (RFC 8200 5).
    v6.too_big(v6.seq, 1279);
    assert_eq!(v6.mss(), 1400);
    v6.too_big(v6.seq, 1280);
    assert_eq!(v6.mss(), 1220);
    v6.peer.stack.abort(v6.id).unwrap();
}

#[test]
fn below_the_smallest_packets_of_ipv4_routers_fragment_also_those_of_later_connections() {
    for (mtu, fragments) in [
        (551, true),
        (120, true),
        (68, true),
        (0, true),
        (552, false),
        (576, false),
    ] {
        let mut flow = UnderWay::new(false);
        flow.too_big(flow.seq, mtu);
        let (again, _) = flow.peer.receive_tcp().expect("sent again");
        assert_eq!(may_fragment(&again), fragments, "{mtu}");
        flow.peer.stack.abort(flow.id).unwrap();
        flow.peer.forget();
        // The next connection to that peer.
        let id = flow
            .peer
            .stack
            .connect(flow.ends.0, flow.peer.now())
            .unwrap();
        flow.peer.poll();
        let (syn, _) = flow.peer.receive_tcp().expect("a SYN");
        assert_eq!(may_fragment(&syn), fragments, "{mtu}");
        flow.peer.stack.abort(id).unwrap();
    }
}

fn may_fragment(headers: &wire::RxHeaders) -> bool {
    let wire::Network::Ipv4(ip) = &headers.network else {
        panic!("not over IPv4");
    };
    !ip.dont_fragment
}
