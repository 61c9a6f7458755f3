use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::parse_error::TcpOptionsError;
use crate::{
    IpRepr, MAX_EXTENSION_HEADERS, MacAddr, TcpFlags, TcpOptions, Timestamps, checksum,
    emit_frame_headers, emit_tcp_frame_headers,
};

mod big;
mod extension_headers;

const SRC4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const DST4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const SRC6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const DST6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

fn ethernet(ethertype: EtherType) -> EthernetHeader {
    EthernetHeader {
        dst: MacAddr([2; 6]),
        src: MacAddr([4; 6]),
        ethertype,
        vlan: None,
    }
}

fn tcp() -> TcpHeader {
    let timestamps = Some(Timestamps { value: 7, echo: 9 });
    TcpHeader {
        src_port: 40_000,
        dst_port: 5201,
        seq: 0x0102_0304,
        ack: 0x0506_0708,
        flags: TcpFlags::ACK | TcpFlags::PSH,
        window: 502,
        urgent: 0,
        options: TcpOptions {
            timestamps,
            ..TcpOptions::default()
        },
        header_len: 32,
    }
}

/// A TCP frame with so many bytes of payload.
fn tcp_frame(ip: IpRepr, vlan: Option<u16>, payload_len: usize) -> Vec<u8> {
    let ethertype = match ip {
        IpRepr::V4 { .. } => EtherType::IPV4,
        IpRepr::V6 { .. } => EtherType::IPV6,
    };
    let ethernet = EthernetHeader {
        vlan,
        ..ethernet(ethertype)
    };
    let mut out = [0; 128];
    let len = emit_tcp_frame_headers(&ethernet, &ip, &tcp(), payload_len, &mut out);
    let mut frame = out[..len].to_vec();
    frame.resize(len + payload_len, 0xda);
    frame
}

fn tcp4(payload_len: usize) -> Vec<u8> {
    tcp_frame(IpRepr::v4(SRC4, DST4), None, payload_len)
}

/// An IPv6 frame whose fixed header is followed by `rest`.
fn ipv6_frame(next_header: u8, rest: &[u8]) -> Vec<u8> {
    let mut out = [0; 54];
    let ip = IpRepr::v6(SRC6, DST6);
    emit_frame_headers(
        &ethernet(EtherType::IPV6),
        &ip,
        next_header,
        rest.len(),
        &mut out,
    );
    [&out[..], rest].concat()
}

/// A TCP segment of 32 bytes of header and 100 of payload.
fn segment() -> Vec<u8> {
    tcp4(100)[34..].to_vec()
}

/// Changes bytes of the IPv4 header and makes its checksum right again.
fn edit_ipv4(frame: &mut [u8], edit: impl FnOnce(&mut [u8])) {
    edit(&mut frame[14..]);
    let len = usize::from(frame[14] & 0xf) * 4;
    let header = &mut frame[14..14 + len.max(20)];
    header[10..12].fill(0);
    let sum = checksum(header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

fn parse(frame: &[u8]) -> Result<RxHeaders, ParseError> {
    RxHeaders::parse(frame, frame.len())
}

#[test]
fn a_plain_tcp_frame_is_taken_apart() {
    let headers = parse(&tcp4(1448)).unwrap();
    assert_eq!(headers.ethernet, ethernet(EtherType::IPV4));
    let Network::Ipv4(ip) = headers.network else {
        panic!("{headers:?}")
    };
    assert_eq!((ip.src, ip.dst, ip.ttl), (SRC4, DST4, 64));
    assert_eq!((ip.header_len, ip.total_len), (20, 20 + 32 + 1448));
    assert_eq!(headers.tcp(), Some(&tcp()));
    assert_eq!((headers.header_len, headers.payload_len), (66, 1448));
    assert_eq!(
        (headers.l4_offset(), headers.l4_checksum_offset()),
        (Some(34), Some(50))
    );
    let tuple = FourTuple {
        src_ip: SRC4.into(),
        dst_ip: DST4.into(),
        src_port: 40_000,
        dst_port: 5201,
    };
    assert_eq!(headers.four_tuple(), Some(tuple));
    assert_eq!(tuple.reversed().reversed(), tuple);
    assert_eq!(
        (tuple.reversed().src_ip, tuple.reversed().dst_port),
        (DST4.into(), 40_000)
    );
}

#[test]
fn a_tagged_ipv6_frame_is_taken_apart() {
    let headers = parse(&tcp_frame(IpRepr::v6(SRC6, DST6), Some(7), 10)).unwrap();
    assert_eq!(headers.ethernet.vlan, Some(7));
    assert_eq!(
        (headers.src_ip(), headers.dst_ip()),
        (Some(SRC6.into()), Some(DST6.into()))
    );
    assert_eq!(headers.tcp(), Some(&tcp()));
    assert_eq!(
        (headers.header_len, headers.payload_len),
        (18 + 40 + 32, 10)
    );
    assert_eq!(headers.l4_checksum_offset(), Some(18 + 40 + 16));
}

#[test]
fn the_payload_need_not_be_in_the_head() {
    let frame = tcp4(60_000);
    assert_eq!(RxHeaders::parse(&frame[..66], frame.len()), parse(&frame));
}

#[test]
fn a_truncated_head_reports_the_missing_bytes() {
    let frames = [
        tcp4(0),
        tcp4(1),
        tcp_frame(IpRepr::v4(SRC4, DST4), Some(1), 1),
        tcp_frame(IpRepr::v6(SRC6, DST6), None, 1),
        ipv6_frame(
            protocol::DESTINATION_OPTIONS,
            &[&[6, 0, 1, 4, 0, 0, 0, 0], &segment()[..]].concat(),
        ),
    ];
    for frame in frames {
        let whole = parse(&frame).unwrap();
        let mut have = 0;
        for _ in 0..10 {
            match RxHeaders::parse(&frame[..have], frame.len()) {
                Ok(headers) => {
                    assert_eq!((headers, have), (whole, whole.header_len));
                    break;
                }
                Err(ParseError::NeedMore { need }) => {
                    assert!(need > have && need <= whole.header_len);
                    have = need;
                }
                Err(error) => panic!("{error} with {have} bytes"),
            }
        }
        assert_eq!(have, whole.header_len);
    }
}

#[test]
fn bytes_in_the_head_past_the_frame_do_not_count() {
    let frame = tcp4(0);
    assert_eq!(RxHeaders::parse(&frame, 40), Err(ParseError::Truncated));
    assert_eq!(RxHeaders::parse(&frame, 0), Err(ParseError::Truncated));
}

#[test]
fn every_truncated_frame_is_refused() {
    for frame in [tcp4(5), tcp_frame(IpRepr::v6(SRC6, DST6), Some(3), 5)] {
        for len in 0..frame.len() {
            assert_eq!(
                parse(&frame[..len]),
                Err(ParseError::Truncated),
                "{len} bytes"
            );
        }
    }
}

#[test]
fn ethernet_padding_is_not_payload() {
    for frame in [tcp4(3), tcp_frame(IpRepr::v6(SRC6, DST6), None, 3)] {
        let padded = [&frame[..], &[0; 40]].concat();
        assert_eq!(parse(&padded).unwrap().payload_len, 3);
        assert_eq!(parse(&padded), parse(&frame));
    }
}

#[test]
fn ipv4_options_belong_to_the_header() {
    let mut frame = tcp4(9);
    let options = [7, 7, 4, 10, 0, 0, 1, 0, 148, 4, 0, 0];
    frame.splice(34..34, options);
    edit_ipv4(&mut frame, |ip| {
        ip[0] = 0x48;
        ip[3] += 12;
    });
    let headers = parse(&frame).unwrap();
    let Network::Ipv4(ip) = headers.network else {
        panic!("{headers:?}")
    };
    assert_eq!(ip.header_len, 32);
    assert_eq!(headers.tcp(), Some(&tcp()));
    assert_eq!((headers.header_len, headers.payload_len), (78, 9));
    assert_eq!(headers.l4_checksum_offset(), Some(14 + 32 + 16));
    frame[40] ^= 1;
    assert_eq!(
        parse(&frame),
        Err(ParseError::BadIpChecksum),
        "options are part of the sum"
    );
}

#[test]
fn an_ipv4_header_below_five_words_is_refused() {
    for ihl in 0..5 {
        let mut frame = tcp4(9);
        edit_ipv4(&mut frame, |ip| ip[0] = 0x40 | ihl);
        assert_eq!(parse(&frame), Err(ParseError::BadHeaderLength), "IHL {ihl}");
    }
}

#[test]
fn an_ipv4_header_past_the_end_of_the_packet_is_refused() {
    let mut frame = tcp4(0);
    frame.truncate(14 + 24);
    edit_ipv4(&mut frame, |ip| {
        ip[2..4].copy_from_slice(&24u16.to_be_bytes());
    });
    frame[14] = 0x4f;
    assert_eq!(parse(&frame), Err(ParseError::Truncated));
}

#[test]
fn a_total_length_below_the_header_is_refused() {
    for total in [0, 1, 19] {
        let mut frame = tcp4(9);
        edit_ipv4(&mut frame, |ip| {
            ip[2..4].copy_from_slice(&u16::to_be_bytes(total))
        });
        assert_eq!(
            parse(&frame),
            Err(ParseError::BadTotalLength),
            "{total} bytes"
        );
    }
}

#[test]
fn a_total_length_past_the_frame_is_refused() {
    for excess in [1, 1000] {
        let mut frame = tcp4(9);
        let total = (20 + 32 + 9 + excess) as u16;
        edit_ipv4(&mut frame, |ip| {
            ip[2..4].copy_from_slice(&total.to_be_bytes())
        });
        assert_eq!(parse(&frame), Err(ParseError::Truncated));
    }
}

#[test]
fn a_wrong_ip_version_is_refused() {
    let mut frame = tcp4(9);
    edit_ipv4(&mut frame, |ip| ip[0] = 0x65);
    assert_eq!(parse(&frame), Err(ParseError::BadVersion));
    let mut frame = tcp_frame(IpRepr::v6(SRC6, DST6), None, 9);
    frame[14] = 0x45;
    assert_eq!(parse(&frame), Err(ParseError::BadVersion));
}

#[test]
fn a_wrong_ipv4_checksum_is_refused() {
    let mut frame = tcp4(9);
    frame[24] ^= 0x10;
    assert_eq!(parse(&frame), Err(ParseError::BadIpChecksum));
}

#[test]
fn fragments_are_reported_and_their_ports_are_not_read() {
    for (flags, offset) in [(0x20, 0), (0x00, 1), (0x20, 7), (0x1f, 0xff)] {
        let mut frame = tcp4(9);
        edit_ipv4(&mut frame, |ip| ip[6..8].copy_from_slice(&[flags, offset]));
        let headers = parse(&frame).unwrap();
        assert_eq!(headers.transport, Transport::Fragment);
        assert_eq!((headers.header_len, headers.payload_len), (34, 32 + 9));
        assert_eq!((headers.ports(), headers.four_tuple()), (None, None));
        assert_eq!(
            (headers.l4_offset(), headers.l4_checksum_offset()),
            (None, None)
        );
        assert_eq!(headers.src_ip(), Some(SRC4.into()));
    }
}

#[test]
fn a_fragment_may_be_shorter_than_a_tcp_header() {
    let mut frame = tcp4(0);
    frame.truncate(14 + 20 + 8);
    edit_ipv4(&mut frame, |ip| {
        ip[2..4].copy_from_slice(&28u16.to_be_bytes());
        ip[6] = 0x20;
    });
    assert_eq!(
        parse(&frame).map(|headers| headers.transport),
        Ok(Transport::Fragment)
    );
}

#[test]
fn the_reserved_ipv4_flag_makes_no_fragment() {
    let mut frame = tcp4(9);
    edit_ipv4(&mut frame, |ip| ip[6] |= 0x80);
    assert!(parse(&frame).unwrap().tcp().is_some());
}

#[test]
fn other_protocols_are_named_and_left_alone() {
    let mut frame = tcp4(9);
    edit_ipv4(&mut frame, |ip| ip[9] = protocol::ICMP);
    let headers = parse(&frame).unwrap();
    assert_eq!(headers.transport, Transport::Other(protocol::ICMP));
    assert_eq!((headers.header_len, headers.payload_len), (34, 32 + 9));
    // 59 means "nothing" in IPv6 only.
    edit_ipv4(&mut frame, |ip| ip[9] = protocol::NO_NEXT_HEADER);
    assert_eq!(parse(&frame).unwrap().transport, Transport::Other(59));
}

#[test]
fn arp_and_unknown_frames_are_payload_as_a_whole() {
    let mut frame = vec![0; 60];
    ethernet(EtherType::ARP).emit(&mut frame);
    let headers = parse(&frame).unwrap();
    assert_eq!(
        (headers.network, headers.transport),
        (Network::Arp, Transport::None)
    );
    assert_eq!((headers.header_len, headers.payload_len), (14, 46));
    assert_eq!((headers.src_ip(), headers.dst_ip()), (None, None));
    // LLDP, a length instead of a type, a second tag.
    for ethertype in [0x88cc, 0x0026, 0x88a8] {
        ethernet(EtherType(ethertype)).emit(&mut frame);
        assert_eq!(parse(&frame).unwrap().network, Network::Other);
    }
    EthernetHeader {
        vlan: Some(1),
        ..ethernet(EtherType::VLAN)
    }
    .emit(&mut frame);
    assert_eq!(parse(&frame).unwrap().network, Network::Other, "two tags");
}

#[test]
fn a_data_offset_below_five_is_refused() {
    for offset in 0..5 {
        let mut frame = tcp4(9);
        frame[34 + 12] = offset << 4;
        assert_eq!(
            parse(&frame),
            Err(ParseError::BadTcpOffset),
            "offset {offset}"
        );
    }
}

#[test]
fn a_data_offset_past_the_packet_is_refused_even_if_the_frame_is_longer() {
    let mut frame = tcp4(7);
    frame[34 + 12] = 10 << 4;
    frame.extend([0; 100]);
    assert_eq!(parse(&frame), Err(ParseError::BadTcpOffset));
}

#[test]
fn a_tcp_header_that_the_packet_cuts_is_truncated() {
    let mut frame = tcp4(0);
    edit_ipv4(&mut frame, |ip| {
        ip[2..4].copy_from_slice(&39u16.to_be_bytes())
    });
    assert_eq!(parse(&frame), Err(ParseError::Truncated));
}

#[test]
fn malformed_tcp_options_are_refused_with_their_reason() {
    let mut frame = tcp4(9);
    frame[34 + 22] = 99;
    frame[34 + 23] = 0;
    let reason = TcpOptionsError::BadLength { kind: 99, len: 0 };
    assert_eq!(parse(&frame), Err(ParseError::BadTcpOptions(reason)));
}

#[test]
fn reserved_tcp_bits_are_ignored() {
    let mut frame = tcp4(9);
    frame[34 + 12] |= 0xf;
    frame[34 + 13] = 0xff;
    assert_eq!(parse(&frame).unwrap().tcp().unwrap().flags, TcpFlags::all());
}

#[test]
fn a_jumbo_frame_is_just_longer() {
    assert_eq!(parse(&tcp4(8948)).unwrap().payload_len, 8948);
}

#[test]
fn a_super_packet_of_the_largest_size_is_accepted() {
    let payload = 65_535 - 52;
    assert_eq!(parse(&tcp4(payload)).unwrap().payload_len, payload);
    let frame = tcp_frame(IpRepr::v6(SRC6, DST6), None, 65_535 - 32);
    assert_eq!(parse(&frame).unwrap().payload_len, 65_535 - 32);
}

mod udp {
    use super::*;

    fn frame(length: u16, payload: &[u8]) -> Vec<u8> {
        let mut out = [0; 42];
        let ip = IpRepr::v4(SRC4, DST4);
        let len = 8 + payload.len();
        let at = emit_frame_headers(
            &ethernet(EtherType::IPV4),
            &ip,
            protocol::UDP,
            len,
            &mut out,
        );
        UdpHeader {
            src_port: 53,
            dst_port: 54,
            length,
            checksum: 0,
        }
        .emit(&mut out[at..]);
        [&out[..], payload].concat()
    }

    #[test]
    fn a_datagram_has_ports_and_payload() {
        let headers = parse(&frame(13, &[1, 2, 3, 4, 5])).unwrap();
        assert_eq!(headers.ports(), Some((53, 54)));
        assert_eq!((headers.header_len, headers.payload_len), (42, 5));
        assert_eq!(
            (headers.l4_offset(), headers.l4_checksum_offset()),
            (Some(34), Some(40))
        );
        assert_eq!(headers.tcp(), None);
    }

    #[test]
    fn bytes_after_the_udp_length_are_not_payload() {
        assert_eq!(parse(&frame(10, &[1, 2, 3, 4, 5])).unwrap().payload_len, 2);
    }

    #[test]
    fn a_udp_length_outside_the_packet_is_refused() {
        for length in [0, 7, 14, 0xffff] {
            assert_eq!(
                parse(&frame(length, &[0; 5])),
                Err(ParseError::BadUdpLength)
            );
        }
    }
}

fn arbitrary_frame() -> impl Strategy<Value = Vec<u8>> {
    let valid = prop_oneof![
        Just(tcp4(40)),
        Just(tcp_frame(IpRepr::v4(SRC4, DST4), Some(9), 40)),
        Just(tcp_frame(IpRepr::v6(SRC6, DST6), None, 40)),
        Just(ipv6_frame(
            protocol::HOP_BY_HOP,
            &[
                &[
                    protocol::FRAGMENT,
                    0,
                    1,
                    4,
                    0,
                    0,
                    0,
                    0,
                    6,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    1
                ],
                &segment()[..]
            ]
            .concat()
        )),
    ];
    let edits = proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..6);
    (valid, edits, any::<bool>(), 0usize..40).prop_map(|(mut frame, edits, mend, cut)| {
        for (at, value) in edits {
            let at = at.index(frame.len());
            frame[at] = value;
        }
        if mend && frame[12..14] == [8, 0] {
            edit_ipv4(&mut frame, |_| {});
        }
        frame.truncate(frame.len() - cut);
        frame
    })
}

proptest! {
    #[test]
    fn a_damaged_frame_is_parsed_within_its_bounds_or_refused(
        frame in arbitrary_frame(),
        head in any::<proptest::sample::Index>(),
    ) {
        let whole = parse(&frame);
        if let Ok(headers) = whole {
            prop_assert!(headers.header_len <= MAX_HEADER_LEN);
            prop_assert!(headers.header_len + headers.payload_len <= frame.len());
            if let Some(offset) = headers.l4_checksum_offset() {
                prop_assert!(offset + 2 <= headers.header_len);
            }
        }
        let head = head.index(frame.len() + 1);
        match RxHeaders::parse(&frame[..head], frame.len()) {
            Err(ParseError::NeedMore { need }) => {
                prop_assert!(need > head && need <= frame.len() && need <= MAX_HEADER_LEN);
            }
            // A head says the same as the whole, or asks for more.
            other => prop_assert_eq!(other, whole),
        }
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        len in 0usize..70_000,
    ) {
        if let Ok(headers) = RxHeaders::parse(&bytes, len) {
            prop_assert!(headers.header_len + headers.payload_len <= len);
        }
    }
}
