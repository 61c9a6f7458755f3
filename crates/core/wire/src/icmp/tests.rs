use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::{
    EtherType, EthernetHeader, IpRepr, Ipv6Header, MacAddr, Network, RxHeaders, TcpHeader,
    TcpOptions, Transport, checksum, protocol,
};

const SRC4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const DST4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const SRC6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const DST6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xab12, 0x3456);
const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

fn ip6(src: Ipv6Addr, dst: Ipv6Addr, hop_limit: u8) -> Ipv6Header {
    Ipv6Header {
        src,
        dst,
        next_header: protocol::ICMPV6,
        hop_limit,
        traffic_class: 0,
        flow_label: 0,
        payload_len: 0,
    }
}

/// An ICMP error with a right checksum: type, code, the four bytes after the checksum, the packet.
fn error(head: [u8; 2], rest: [u8; 4], quoted: &[u8]) -> Vec<u8> {
    [&head[..], &[0, 0], &rest, quoted].concat()
}

fn error_v4(head: [u8; 2], rest: [u8; 4], quoted: &[u8]) -> Vec<u8> {
    let mut message = error(head, rest, quoted);
    store_checksum(&mut message, crate::Checksum::new());
    message
}

fn error_v6(head: [u8; 2], rest: [u8; 4], quoted: &[u8]) -> Vec<u8> {
    let mut message = error(head, rest, quoted);
    let len = message.len();
    store_checksum(&mut message, pseudo_header(SRC6, DST6, len));
    message
}

/// The start of a TCP packet of ours.
fn our_packet(ip: IpRepr) -> Vec<u8> {
    let tcp = TcpHeader {
        src_port: 5201,
        dst_port: 40_000,
        seq: 0xdead_beef,
        ack: 0,
        flags: crate::TcpFlags::ACK,
        window: 0,
        urgent: 0,
        options: TcpOptions::default(),
        header_len: 20,
    };
    let mut out = [0; 60];
    let at = ip.emit(protocol::TCP, 1480, &mut out);
    tcp.emit(&mut out[at..]);
    out[..at + 20].to_vec()
}

fn our_quoted(src: impl Into<IpAddr>, dst: impl Into<IpAddr>) -> Option<Quoted> {
    let (src, dst) = (src.into(), dst.into());
    let (src_port, dst_port, seq) = (5201, 40_000, 0xdead_beef);
    Some(Quoted {
        src,
        dst,
        protocol: protocol::TCP,
        src_port,
        dst_port,
        seq,
    })
}

#[test]
fn an_echo_reply_has_the_data_of_the_request() {
    let echo = Echo {
        ident: 0x1234,
        seq: 7,
        data: b"ping data",
    };
    let mut out = [0; 32];
    let len = echo.emit_v4(EchoKind::Request, &mut out);
    assert_eq!(len, echo.message_len());
    assert_eq!(out[..2], [8, 0]);
    assert_eq!(Icmp::parse_v4(&out[..len]), Ok(Icmp::EchoRequest(echo)));
    let mut reply = [0; 32];
    echo.emit_v4(EchoKind::Reply, &mut reply);
    assert_eq!(reply[..2], [0, 0]);
    assert_eq!(Icmp::parse_v4(&reply[..len]), Ok(Icmp::EchoReply(echo)));
}

#[test]
fn an_icmpv6_echo_is_bound_to_its_addresses() {
    let echo = Echo {
        ident: 1,
        seq: 2,
        data: b"odd",
    };
    let mut out = [0; 32];
    let len = echo.emit_v6(EchoKind::Request, SRC6, DST6, &mut out);
    assert_eq!(out[..2], [128, 0]);
    let ip = ip6(SRC6, DST6, 64);
    assert_eq!(
        Icmp::parse_v6(&ip, &out[..len]),
        Ok(Icmp::EchoRequest(echo))
    );
    let elsewhere = ip6(SRC6, SRC6, 64);
    assert_eq!(
        Icmp::parse_v6(&elsewhere, &out[..len]),
        Err(IcmpError::BadChecksum)
    );
    let len = echo.emit_v6(EchoKind::Reply, SRC6, DST6, &mut out);
    assert_eq!(Icmp::parse_v6(&ip, &out[..len]), Ok(Icmp::EchoReply(echo)));
}

#[test]
fn short_and_damaged_messages_are_refused() {
    let mut out = [0; 12];
    Echo {
        ident: 1,
        seq: 2,
        data: b"data",
    }
    .emit_v4(EchoKind::Request, &mut out);
    assert_eq!(Icmp::parse_v4(&out[..7]), Err(IcmpError::Truncated));
    assert_eq!(Icmp::parse_v4(&out[..11]), Err(IcmpError::BadChecksum));
    out[9] ^= 4;
    assert_eq!(Icmp::parse_v4(&out), Err(IcmpError::BadChecksum));
    assert_eq!(
        Icmp::parse_v6(&ip6(SRC6, DST6, 255), &out[..7]),
        Err(IcmpError::Truncated)
    );
}

#[test]
fn fragmentation_needed_has_the_mtu_and_the_packet() {
    let packet = our_packet(IpRepr::v4(SRC4, DST4));
    let message = error_v4([3, 4], [0, 0, 0x05, 0x78], &packet[..28]);
    let expected = Icmp::Undelivered {
        why: Undelivered::TooBig { mtu: Some(1400) },
        quoted: our_quoted(SRC4, DST4),
    };
    assert_eq!(Icmp::parse_v4(&message), Ok(expected));
}

#[test]
fn a_router_may_not_know_the_mtu_and_other_codes_have_none() {
    let packet = our_packet(IpRepr::v4(SRC4, DST4));
    for (code, mtu, why) in [
        (4, [0, 0], Undelivered::TooBig { mtu: None }),
        (3, [5, 0x78], Undelivered::Unreachable { code: 3 }),
    ] {
        let message = error_v4([3, code], [0, 0, mtu[0], mtu[1]], &packet);
        let quoted = our_quoted(SRC4, DST4);
        let expected = Icmp::Undelivered { why, quoted };
        assert_eq!(Icmp::parse_v4(&message), Ok(expected));
    }
}

#[test]
fn too_little_of_a_packet_is_not_quoted() {
    let packet = our_packet(IpRepr::v4(SRC4, DST4));
    for len in 0..28 {
        let message = error_v4([11, 0], [0; 4], &packet[..len]);
        let expected = Icmp::Undelivered {
            why: Undelivered::TimeExceeded,
            quoted: None,
        };
        assert_eq!(Icmp::parse_v4(&message), Ok(expected), "{len} bytes");
    }
}

#[test]
fn a_quoted_header_may_have_changed_on_the_way() {
    let mut packet = our_packet(IpRepr::v4(SRC4, DST4));
    packet[8] = 1;
    let message = error_v4([11, 0], [0; 4], &packet);
    let quoted = our_quoted(SRC4, DST4);
    assert_eq!(
        Icmp::parse_v4(&message),
        Ok(Icmp::Undelivered {
            why: Undelivered::TimeExceeded,
            quoted
        })
    );
}

#[test]
fn a_later_fragment_has_no_ports_to_quote() {
    let mut packet = our_packet(IpRepr::v4(SRC4, DST4));
    packet[7] = 1;
    let message = error_v4([11, 1], [0; 4], &packet);
    assert_eq!(
        Icmp::parse_v4(&message),
        Ok(Icmp::Undelivered {
            why: Undelivered::TimeExceeded,
            quoted: None
        })
    );
}

#[test]
fn quoted_ip_options_are_skipped() {
    let mut packet = our_packet(IpRepr::v4(SRC4, DST4));
    packet[0] = 0x46;
    packet.splice(20..20, [1, 1, 1, 0]);
    let message = error_v4([11, 0], [0; 4], &packet);
    let quoted = our_quoted(SRC4, DST4);
    assert_eq!(
        Icmp::parse_v4(&message),
        Ok(Icmp::Undelivered {
            why: Undelivered::TimeExceeded,
            quoted
        })
    );
}

#[test]
fn other_messages_have_kind_and_code() {
    let message = error_v4([13, 2], [0; 4], &[]);
    assert_eq!(
        Icmp::parse_v4(&message),
        Ok(Icmp::Other { kind: 13, code: 2 })
    );
    let message = error_v6([134, 0], [0; 4], &[]);
    let advert = Icmp::parse_v6(&ip6(SRC6, DST6, 255), &message);
    assert_eq!(advert, Ok(Icmp::Other { kind: 134, code: 0 }));
}

#[test]
fn icmpv6_errors_tell_the_packet() {
    let packet = our_packet(IpRepr::v6(SRC6, DST6));
    let quoted = our_quoted(SRC6, DST6);
    let cases = [
        ([1, 4], [0; 4], Undelivered::Unreachable { code: 4 }),
        (
            [2, 0],
            [0, 0, 5, 0],
            Undelivered::TooBig { mtu: Some(1280) },
        ),
        (
            [2, 9],
            [0xff; 4],
            Undelivered::TooBig {
                mtu: Some(u32::MAX),
            },
        ),
        ([3, 1], [0; 4], Undelivered::TimeExceeded),
    ];
    for (head, rest, why) in cases {
        let expected = Icmp::Undelivered { why, quoted };
        let message = error_v6(head, rest, &packet[..48]);
        assert_eq!(Icmp::parse_v6(&ip6(SRC6, DST6, 64), &message), Ok(expected));
    }
}

#[test]
fn quoted_extension_headers_are_skipped_and_fragments_are_not_quoted() {
    let packet = our_packet(IpRepr::v6(SRC6, DST6));
    for (fragment, quoted) in [(0, our_quoted(SRC6, DST6)), (1, None)] {
        let mut packet = packet.clone();
        packet[6] = protocol::FRAGMENT;
        packet.splice(40..40, [protocol::TCP, 0, 0, fragment, 0, 0, 0, 1]);
        let message = error_v6([1, 0], [0; 4], &packet);
        let expected = Icmp::Undelivered {
            why: Undelivered::Unreachable { code: 0 },
            quoted,
        };
        assert_eq!(Icmp::parse_v6(&ip6(SRC6, DST6, 64), &message), Ok(expected));
    }
}

#[test]
fn the_solicited_node_group_is_made_of_the_last_three_bytes() {
    assert_eq!(solicited_node(DST6).to_string(), "ff02::1:ff12:3456");
}

mod neighbors {
    use super::*;

    const SOLICITATION: NeighborSolicitation = NeighborSolicitation {
        target: DST6,
        source_mac: Some(MAC),
    };
    const ADVERTISEMENT: NeighborAdvertisement = NeighborAdvertisement {
        target: DST6,
        target_mac: Some(MAC),
        router: false,
        solicited: true,
        overrides: true,
    };
    const BAD: Result<Icmp<'static>, IcmpError> = Err(IcmpError::BadNeighborDiscovery);

    /// Returns the message of the frame that `emit` writes.
    fn message(emit: impl FnOnce(&mut [u8]) -> usize) -> Vec<u8> {
        let mut frame = [0; 86];
        let len = emit(&mut frame);
        let at = RxHeaders::parse(&frame[..len], len).unwrap().header_len;
        frame[at..len].to_vec()
    }

    fn solicitation(src: Ipv6Addr, dst: Ipv6Addr, what: NeighborSolicitation) -> Vec<u8> {
        message(|out| what.emit_frame(MAC, MAC, src, dst, out))
    }

    fn advertisement(dst: Ipv6Addr, what: NeighborAdvertisement) -> Vec<u8> {
        message(|out| what.emit_frame(MAC, MAC, SRC6, dst, out))
    }

    /// Changes a message to `DST6` and makes its checksum right again.
    fn edited(mut message: Vec<u8>, edit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        edit(&mut message);
        message[2..4].fill(0);
        let len = message.len();
        store_checksum(&mut message, pseudo_header(SRC6, DST6, len));
        message
    }

    #[test]
    fn a_solicitation_survives_the_round_trip() {
        for source_mac in [Some(MAC), None] {
            let sent = NeighborSolicitation {
                source_mac,
                ..SOLICITATION
            };
            let message = solicitation(SRC6, DST6, sent);
            let parsed = Icmp::parse_v6(&ip6(SRC6, DST6, 255), &message);
            assert_eq!(parsed, Ok(Icmp::NeighborSolicitation(sent)));
        }
    }

    #[test]
    fn an_advertisement_survives_the_round_trip() {
        for flags in 0..8 {
            let sent = NeighborAdvertisement {
                router: flags & 1 != 0,
                solicited: flags & 2 != 0,
                overrides: flags & 4 != 0,
                target_mac: (flags != 3).then_some(MAC),
                ..ADVERTISEMENT
            };
            let message = advertisement(DST6, sent);
            let parsed = Icmp::parse_v6(&ip6(SRC6, DST6, 255), &message);
            assert_eq!(parsed, Ok(Icmp::NeighborAdvertisement(sent)));
        }
    }

    #[test]
    fn a_message_that_came_through_a_router_is_refused() {
        let message = solicitation(SRC6, DST6, SOLICITATION);
        assert_eq!(Icmp::parse_v6(&ip6(SRC6, DST6, 254), &message), BAD);
    }

    #[test]
    fn a_code_or_a_multicast_target_is_refused() {
        let message = solicitation(SRC6, DST6, SOLICITATION);
        let ip = ip6(SRC6, DST6, 255);
        assert_eq!(
            Icmp::parse_v6(&ip, &edited(message.clone(), |m| m[1] = 1)),
            BAD
        );
        assert_eq!(Icmp::parse_v6(&ip, &edited(message, |m| m[8] = 0xff)), BAD);
    }

    #[test]
    fn a_message_without_a_whole_target_is_truncated() {
        let message = edited(solicitation(SRC6, DST6, SOLICITATION), |m| m.truncate(23));
        assert_eq!(
            Icmp::parse_v6(&ip6(SRC6, DST6, 255), &message),
            Err(IcmpError::Truncated)
        );
    }

    #[test]
    fn options_of_length_zero_or_past_the_end_are_refused() {
        let message = solicitation(SRC6, DST6, SOLICITATION);
        let ip = ip6(SRC6, DST6, 255);
        assert_eq!(
            Icmp::parse_v6(&ip, &edited(message.clone(), |m| m[25] = 0)),
            BAD
        );
        assert_eq!(
            Icmp::parse_v6(&ip, &edited(message.clone(), |m| m[25] = 2)),
            BAD
        );
        assert_eq!(Icmp::parse_v6(&ip, &edited(message, |m| m.push(1))), BAD);
    }

    #[test]
    fn other_options_are_skipped() {
        let message = edited(solicitation(SRC6, DST6, SOLICITATION), |m| {
            m.splice(24..24, [14, 1, 0, 0, 0, 0, 0, 0]);
        });
        let parsed = Icmp::parse_v6(&ip6(SRC6, DST6, 255), &message);
        assert_eq!(parsed, Ok(Icmp::NeighborSolicitation(SOLICITATION)));
    }

    #[test]
    fn a_duplicate_address_probe_names_no_source_and_goes_to_the_group() {
        let probe = NeighborSolicitation {
            source_mac: None,
            ..SOLICITATION
        };
        let (any, group) = (Ipv6Addr::UNSPECIFIED, solicited_node(DST6));
        let parsed =
            |what, dst| match Icmp::parse_v6(&ip6(any, dst, 255), &solicitation(any, dst, what)) {
                Ok(Icmp::NeighborSolicitation(parsed)) => Ok(parsed),
                Err(error) => Err(error),
                other => panic!("{other:?}"),
            };
        assert_eq!(parsed(probe, group), Ok(probe));
        assert_eq!(parsed(probe, DST6), Err(IcmpError::BadNeighborDiscovery));
        assert_eq!(
            parsed(SOLICITATION, group),
            Err(IcmpError::BadNeighborDiscovery)
        );
    }

    #[test]
    fn a_solicited_advertisement_to_a_group_is_refused() {
        let all_nodes = "ff02::1".parse().unwrap();
        let message = advertisement(all_nodes, ADVERTISEMENT);
        assert_eq!(Icmp::parse_v6(&ip6(SRC6, all_nodes, 255), &message), BAD);
    }

    #[test]
    fn whole_frames_have_hop_limit_255_and_a_right_checksum() {
        let (mut asked, mut told) = ([0; 86], [0; 86]);
        let to = MacAddr([4; 6]);
        assert_eq!(SOLICITATION.emit_frame(MAC, to, SRC6, DST6, &mut asked), 86);
        assert_eq!(ADVERTISEMENT.emit_frame(MAC, to, SRC6, DST6, &mut told), 86);
        for frame in [asked, told] {
            let headers = RxHeaders::parse(&frame, 86).unwrap();
            let ethernet = EthernetHeader {
                src: MAC,
                dst: MacAddr([4; 6]),
                ethertype: EtherType::IPV6,
                vlan: None,
            };
            assert_eq!(headers.ethernet, ethernet);
            assert_eq!(headers.transport, Transport::Other(protocol::ICMPV6));
            let Network::Ipv6(ip) = headers.network else {
                panic!("{headers:?}")
            };
            assert_eq!((ip.src, ip.dst, ip.hop_limit), (SRC6, DST6, 255));
            assert!(matches!(
                Icmp::parse_v6(&ip, &frame[headers.header_len..]),
                Ok(Icmp::NeighborSolicitation(_) | Icmp::NeighborAdvertisement(_))
            ));
        }
    }
}

proptest! {
    #[test]
    fn any_message_is_parsed_or_refused(
        mut message in proptest::collection::vec(any::<u8>(), 0..128),
        kind in prop_oneof![0u8..16, 128u8..140],
        hop_limit in prop_oneof![Just(255u8), any::<u8>()],
    ) {
        if message.len() >= 4 {
            message[..4].copy_from_slice(&[kind, 0, 0, 0]);
            let sum = checksum(&message);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            prop_assert!(message.len() < 8 || Icmp::parse_v4(&message).is_ok());
            message[2..4].fill(0);
            let len = message.len();
            store_checksum(&mut message, pseudo_header(SRC6, DST6, len));
        }
        let parsed = Icmp::parse_v6(&ip6(SRC6, DST6, hop_limit), &message);
        prop_assert_ne!(parsed, Err(IcmpError::BadChecksum));
    }
}
