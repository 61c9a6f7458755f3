//! A third station floods a stack with forged packets: the effect on an honest stream, in virtual time.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use netsim::{
    Door as _, PairConfig, Pattern, Progress, RawPeer, RawSegment, Side, ip_frame, tcp_frame,
};
use wire::{
    ArpOperation, ArpPacket, Echo, EchoKind, EtherType, EthernetHeader, Instant, IpRepr, MacAddr,
    NeighborAdvertisement, NeighborSolicitation, Network, RxHeaders, TcpFlags, emit_arp_frame,
    protocol,
};

use crate::scenarios::common::PORT;
use crate::scenarios::{Pair, Sink, Source};

/// Forged packets per second.
const RATE: u64 = 5_000;

/// The station that sends them.
const ATTACKER: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x66]);

/// Maximum time without a byte in an honest stream.
const LONGEST_STALL: Duration = Duration::from_millis(10);

/// Range of the forged source addresses.
#[derive(Debug, Clone, Copy)]
enum Forged {
    /// All addresses of a /24 except those of the two stacks and the broadcast address.
    V4Slash24,
    /// The same of a /16.
    V4Slash16,
    /// 65,536 of a /64.
    V6,
}

impl Forged {
    fn prefix_len(self) -> u8 {
        match self {
            Self::V4Slash16 => 16,
            Self::V4Slash24 | Self::V6 => 24,
        }
    }

    /// Returns the nth address.
    fn nth(self, n: u64) -> IpAddr {
        // With an odd step, every address is used once before any is used again.
        let n = n.wrapping_mul(7919);
        match self {
            Self::V4Slash24 => IpAddr::from([10, 77, 0, 3 + (n % 252) as u8]),
            Self::V4Slash16 => {
                let host = 3 + (n % 65_532) as u16;
                let [high, low] = host.to_be_bytes();
                IpAddr::from([10, 77, high, low])
            }
            Self::V6 => IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 1, n as u16]),
        }
    }

    /// Returns the address of a stack in the same family.
    fn of(self, side: Side) -> IpAddr {
        match self {
            Self::V4Slash24 | Self::V4Slash16 => side.ipv4(),
            Self::V6 => side.ipv6(),
        }
    }
}

/// Sets the attacker's hardware address as the source of a frame.
fn from_attacker(mut frame: Vec<u8>) -> Vec<u8> {
    frame[6..12].copy_from_slice(&ATTACKER.0);
    frame
}

/// A SYN to a port with a listener, or to one without.
fn syn(from: IpAddr, to: IpAddr, n: u64) -> Vec<u8> {
    let port = 1024 + (n % 60_000) as u16;
    let to_port = if n.is_multiple_of(2) { PORT } else { 9 };
    let segment = RawSegment {
        seq: n as u32,
        flags: TcpFlags::SYN,
        ..RawSegment::default()
    };
    from_attacker(tcp_frame(
        SocketAddr::new(from, port),
        SocketAddr::new(to, to_port),
        &segment,
    ))
}

fn syns(forged: Forged) -> impl Fn(u64) -> Vec<u8> {
    move |n| syn(forged.nth(n), forged.of(Side::B), n)
}

fn arp(op: ArpOperation, sender_ip: Ipv4Addr, dst: MacAddr) -> Vec<u8> {
    let IpAddr::V4(target_ip) = Side::B.ipv4() else {
        unreachable!()
    };
    let packet = ArpPacket {
        op,
        sender_mac: ATTACKER,
        sender_ip,
        target_mac: Side::B.mac(),
        target_ip,
    };
    let ethernet = EthernetHeader {
        dst,
        src: ATTACKER,
        ethertype: EtherType::ARP,
        vlan: None,
    };
    let mut frame = vec![0; 60];
    emit_arp_frame(&ethernet, &packet, &mut frame);
    frame
}

fn v4(n: u64) -> Ipv4Addr {
    match Forged::V4Slash16.nth(n) {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(_) => unreachable!(),
    }
}

fn v6(n: u64) -> (Ipv6Addr, Ipv6Addr) {
    match (Forged::V6.nth(n), Side::B.ipv6()) {
        (IpAddr::V6(from), IpAddr::V6(to)) => (from, to),
        _ => unreachable!(),
    }
}

/// Result of an honest stream.
#[derive(Debug)]
struct FloodReport {
    bytes: u64,
    longest_stall: Duration,
    /// Maximum numbers of known neighbours and of neighbours being resolved.
    neighbors: (usize, usize),
    forged: u64,
}

/// Streams from A to B for half a second while frames of `flood` arrive at [`RATE`].
fn stream(forged: Forged, flood: Option<&dyn Fn(u64) -> Vec<u8>>) -> FloodReport {
    let duration = Duration::from_millis(500);
    let mut pair = Pair::new(&PairConfig {
        impairment: Some("rate=100mbit,delay=100us".parse().unwrap()),
        prefix_len: forged.prefix_len(),
        ..PairConfig::default()
    });
    let local = SocketAddr::new(forged.of(Side::B), PORT);
    let listener = pair.b.listen(local, 16).unwrap();
    let (receiver, sender) = pair.connect_to(Side::B, listener, local);
    let pattern = Pattern::new(1);
    let mut source = Source::new(sender, pattern, u64::MAX, 9000);
    let mut sink = Sink::new(receiver, pattern);
    let start = pair.now();
    let mut outcome = FloodReport {
        bytes: 0,
        longest_stall: Duration::ZERO,
        neighbors: (0, 0),
        forged: 0,
    };
    let mut last = start;
    pair.run(|pair| {
        let passed = pair.now().saturating_since(start);
        if let Some(flood) = flood {
            let due = passed.as_micros() as u64 * RATE / 1_000_000;
            for n in outcome.forged..due {
                pair.inject(Side::B, flood(n));
            }
            outcome.forged = due;
        }
        let _ = source.run(&mut pair.a).and(sink.run(&mut pair.b));
        let bytes = sink.report().bytes();
        if bytes > outcome.bytes {
            (outcome.bytes, last) = (bytes, pair.now());
        }
        let stall = pair.now().saturating_since(last);
        outcome.longest_stall = outcome.longest_stall.max(stall);
        let stats = pair.b.stats();
        let (known, asked) = outcome.neighbors;
        outcome.neighbors = (known.max(stats.neighbors), asked.max(stats.neighbors_asked));
        match passed < duration {
            true => Progress::Waiting,
            false => Progress::Done,
        }
    })
    .unwrap();
    drop(sink);
    pair.a.abort(sender).unwrap();
    pair.b.abort(receiver).unwrap();
    pair.b.close(listener).unwrap();
    pair.run_for(Duration::from_secs(4));
    assert_eq!(pair.b.stats().neighbors_asked, 0, "unanswered requests end");
    pair.finish();
    outcome
}

/// Asserts that a flood costs an honest stream at most a tenth of its rate and never stops it.
fn disturbs_nobody(forged: Forged, flood: impl Fn(u64) -> Vec<u8>) -> FloodReport {
    let quiet = stream(forged, None);
    let flooded = stream(forged, Some(&flood));
    assert!(flooded.forged >= 2_400, "{flooded:?}");
    assert!(
        flooded.bytes * 10 >= quiet.bytes * 9,
        "{flooded:?} of {quiet:?}"
    );
    assert!(flooded.longest_stall <= LONGEST_STALL, "{flooded:?}");
    let (known, asked) = flooded.neighbors;
    assert!(
        known <= stack::MAX_NEIGHBORS && asked <= stack::MAX_ANSWERS_HELD + stack::MAX_HELD,
        "{flooded:?}"
    );
    flooded
}

#[test]
fn forged_syns_from_a_slash_24_do_not_disturb_a_stream() {
    disturbs_nobody(Forged::V4Slash24, syns(Forged::V4Slash24));
}

#[test]
fn forged_syns_from_a_slash_16_do_not_disturb_a_stream() {
    let outcome = disturbs_nobody(Forged::V4Slash16, syns(Forged::V4Slash16));
    assert_eq!(outcome.neighbors.0, 1, "nothing was learnt from them");
}

#[test]
fn forged_syns_over_ipv6_do_not_disturb_a_stream() {
    disturbs_nobody(Forged::V6, syns(Forged::V6));
}

#[test]
fn forged_syns_from_addresses_that_no_host_has_make_no_questions() {
    let sources: [Ipv4Addr; 5] = [
        Ipv4Addr::BROADCAST,
        Ipv4Addr::new(10, 77, 255, 255),
        Ipv4Addr::new(10, 77, 0, 2),
        Ipv4Addr::new(224, 0, 0, 1),
        Ipv4Addr::UNSPECIFIED,
    ];
    let flood = |n: u64| syn(sources[n as usize % 5].into(), Side::B.ipv4(), n);
    let outcome = disturbs_nobody(Forged::V4Slash16, flood);
    assert_eq!(outcome.neighbors, (1, 0));
}

#[test]
fn forged_arp_questions_do_not_disturb_a_stream() {
    let outcome = disturbs_nobody(Forged::V4Slash16, |n| {
        arp(ArpOperation::REQUEST, v4(n), MacAddr::BROADCAST)
    });
    assert!(outcome.neighbors.0 > 900, "{outcome:?}");
}

#[test]
fn forged_arp_replies_make_no_entries() {
    let outcome = disturbs_nobody(Forged::V4Slash16, |n| {
        arp(ArpOperation::REPLY, v4(n), Side::B.mac())
    });
    assert_eq!(outcome.neighbors, (1, 0));
}

#[test]
fn forged_neighbour_solicitations_do_not_disturb_a_stream() {
    let outcome = disturbs_nobody(Forged::V6, |n| {
        let (from, target) = v6(n);
        let asked = NeighborSolicitation {
            target,
            source_mac: Some(ATTACKER),
        };
        let mut frame = vec![0; 128];
        let len = asked.emit_frame(ATTACKER, Side::B.mac(), from, target, &mut frame);
        frame.truncate(len);
        frame
    });
    assert!(outcome.neighbors.0 > 900, "{outcome:?}");
}

#[test]
fn forged_advertisements_and_router_solicitations_make_no_entries() {
    let outcome = disturbs_nobody(Forged::V6, |n| {
        let (from, to) = v6(n);
        let told = NeighborAdvertisement {
            target: from,
            target_mac: Some(ATTACKER),
            router: false,
            solicited: true,
            overrides: true,
        };
        let mut frame = vec![0; 128];
        let len = told.emit_frame(ATTACKER, Side::B.mac(), from, to, &mut frame);
        frame.truncate(len);
        if n.is_multiple_of(2) {
            // Type 133, a router solicitation, with a valid checksum.
            frame[54] = 133;
            let sum = u16::from_be_bytes([frame[56], frame[57]]);
            let (sum, carry) = sum.overflowing_add((136 - 133) << 8);
            let sum = sum + u16::from(carry);
            frame[56..58].copy_from_slice(&sum.to_be_bytes());
        }
        frame
    });
    assert_eq!(outcome.neighbors, (1, 0));
}

#[test]
fn forged_pings_and_datagrams_do_not_disturb_a_stream() {
    let echo = Echo {
        ident: 7,
        seq: 9,
        data: b"x",
    };
    let mut ping = vec![0; echo.message_len()];
    echo.emit_v4(EchoKind::Request, &mut ping);
    let IpAddr::V4(to) = Side::B.ipv4() else {
        unreachable!()
    };
    disturbs_nobody(Forged::V4Slash16, |n| {
        let ip = IpRepr::v4(v4(n), to);
        from_attacker(match n.is_multiple_of(4) {
            false => ip_frame(&ip, protocol::ICMP, &ping),
            true => ip_frame(&ip, protocol::UDP, &[0, 1, 0, 2, 0, 8, 0, 0]),
        })
    });
}

/// Opens a connection from A, an unknown neighbour, during a flood; returns how long that took.
fn newcomer(forged: Forged, opener: Side) -> Duration {
    let mut pair = Pair::new(&PairConfig {
        impairment: Some("delay=100us".parse().unwrap()),
        prefix_len: forged.prefix_len(),
        ..PairConfig::default()
    });
    let b = SocketAddr::new(forged.of(Side::B), PORT);
    let server = SocketAddr::new(forged.of(opener.other()), PORT);
    let flooded = pair.b.listen(b, 16).unwrap();
    let listener = match opener {
        Side::A => flooded,
        Side::B => pair.a.listen(server, 16).unwrap(),
    };
    let (start, mut sent) = (pair.now(), 0);
    let mut opened: Option<(Instant, _)> = None;
    let mut took = None;
    pair.run(|pair| {
        let passed = pair.now().saturating_since(start);
        let due = passed.as_micros() as u64 * RATE / 1_000_000;
        for n in sent..due {
            // Every tenth frame has the address of the new peer.
            let from = match n % 10 {
                0 => forged.of(Side::A),
                _ => forged.nth(n),
            };
            pair.inject(Side::B, syn(from, forged.of(Side::B), n));
        }
        sent = due;
        if opened.is_none() && passed > Duration::from_millis(100) {
            let now = pair.now();
            let socket = pair.side(opener).connect(server, now).unwrap();
            opened = Some((now, socket));
        }
        let accepted = pair.side(opener.other()).accept(listener);
        if let (Some((at, socket)), Ok((accepted, _))) = (opened, accepted) {
            took = Some(pair.now().saturating_since(at));
            pair.side(opener).abort(socket).unwrap();
            pair.side(opener.other()).abort(accepted).unwrap();
            return Progress::Done;
        }
        assert!(passed < Duration::from_secs(5), "{opened:?}");
        Progress::Worked
    })
    .unwrap();
    pair.b.close(flooded).unwrap();
    if opener == Side::B {
        pair.a.close(listener).unwrap();
    }
    pair.run_for(Duration::from_secs(4));
    pair.finish();
    took.unwrap()
}

#[test]
fn a_new_peer_connects_during_a_flood_of_syns() {
    for forged in [Forged::V4Slash24, Forged::V4Slash16, Forged::V6] {
        let took = newcomer(forged, Side::A);
        assert!(took < Duration::from_millis(10), "{forged:?}: {took:?}");
    }
}

#[test]
fn we_connect_to_a_new_peer_during_a_flood_of_syns() {
    for forged in [Forged::V4Slash24, Forged::V4Slash16, Forged::V6] {
        let took = newcomer(forged, Side::B);
        assert!(took < Duration::from_millis(10), "{forged:?}: {took:?}");
    }
}

/// A peer that knows the stack's hardware address and is unknown to the stack: it sends no requests, and replies only
/// to the stack's request.
#[expect(
    clippy::too_many_lines,
    reason = "one scenario, read from top to bottom"
)]
#[test]
fn a_peer_that_does_not_ask_first_is_answered_during_a_flood_of_syns() {
    let mut peer = RawPeer::new();
    peer.poll();
    peer.forget();
    let (ours, theirs) = (
        SocketAddr::new(Side::A.ipv4(), 4000),
        SocketAddr::new(Side::B.ipv4(), PORT),
    );
    let listener = peer.stack.listen(theirs, 4).unwrap();
    let (mut unicasts, mut broadcasts) = (0, 0);
    let (mut asked, mut answered) = (None, None);
    for n in 0..2 * RATE {
        let from = match n % 10 {
            0 => Side::A.ipv4(),
            _ => Forged::V4Slash24.nth(n),
        };
        peer.send(&syn(from, Side::B.ipv4(), n));
        if n == RATE {
            let segment = RawSegment {
                seq: 100,
                flags: TcpFlags::SYN,
                ..RawSegment::default()
            };
            peer.send_tcp(ours, theirs, &segment);
            asked = Some(peer.now());
        }
        while let Some(frame) = peer.receive() {
            let headers = RxHeaders::parse(&frame, frame.len()).unwrap();
            let dst = headers.ethernet.dst;
            if headers.network == Network::Arp {
                match dst {
                    MacAddr::BROADCAST => broadcasts += 1,
                    _ => unicasts += 1,
                }
                let arp = ArpPacket::parse(&frame[headers.header_len..]).unwrap();
                // The peer exists from its SYN on, and receives broadcasts and frames to its address.
                let is_heard = dst == MacAddr::BROADCAST || dst == Side::A.mac();
                let is_ours = IpAddr::V4(arp.target_ip) == Side::A.ipv4();
                if asked.is_some() && is_heard && is_ours {
                    let reply = arp.reply(Side::A.mac());
                    let ethernet = EthernetHeader {
                        dst: Side::B.mac(),
                        src: Side::A.mac(),
                        ethertype: EtherType::ARP,
                        vlan: None,
                    };
                    let mut frame = vec![0; 60];
                    emit_arp_frame(&ethernet, &reply, &mut frame);
                    peer.send(&frame);
                }
            }
            if headers.tcp().is_some_and(|tcp| tcp.dst_port == 4000) {
                answered = answered.or(Some((peer.now(), dst)));
            }
        }
        peer.run_for(Duration::from_micros(1_000_000 / RATE));
    }
    let (at, dst) = answered.expect("a SYN-ACK");
    let took = at.saturating_since(asked.unwrap());
    assert!(took < Duration::from_millis(1), "{took:?}");
    assert_eq!(dst, Side::A.mac());
    // A burst of the limit, and then the limit per second.
    let ms = 1000 + peer.now().as_millis();
    assert!(
        broadcasts <= stack::ANSWER_BROADCASTS_PER_SECOND * ms / 1000 + 1,
        "{broadcasts} questions to everybody in {ms} ms"
    );
    assert!(unicasts <= 2 * RATE, "{unicasts} for {} SYNs", 2 * RATE);
    peer.stack.close(listener).unwrap();
}
