//! Interoperability with smoltcp: each parses what the other emits.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, IpAddress, IpProtocol, Ipv4Packet,
    Ipv4Repr, Ipv6Packet, NdiscNeighborFlags, NdiscRepr, RawHardwareAddress, TcpPacket, TcpRepr,
};
use wire::{
    Checksum, Echo, EchoKind, EtherType, EthernetHeader, Icmp, IpRepr, Ipv6Header, MacAddr,
    NeighborAdvertisement, NeighborSolicitation, RxHeaders, SackBlocks, TcpFlags, TcpHeader,
    TcpOptions, Timestamps, emit_arp_frame, emit_tcp_frame_headers, fill_checksum, tcp_tx_checksum,
};

const SRC4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const DST4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const SRC6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const DST6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
const MACS: (MacAddr, MacAddr) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));

fn ethernet(ethertype: EtherType) -> EthernetHeader {
    EthernetHeader {
        src: MACS.0,
        dst: MACS.1,
        ethertype,
        vlan: None,
    }
}

fn options() -> impl Strategy<Value = TcpOptions> {
    // smoltcp keeps three blocks and does not tell a scale above 14 from 14.
    (
        any::<Option<u16>>(),
        proptest::option::of(0u8..=14),
        any::<bool>(),
        any::<Option<(u32, u32)>>(),
        proptest::collection::vec(any::<(u32, u32)>(), 0..=2),
    )
        .prop_map(|(mss, window_scale, sack_permitted, timestamps, pairs)| {
            let mut sack = SackBlocks::new();
            for (left, right) in pairs {
                assert!(sack.push(left, right));
            }
            let timestamps = timestamps.map(|(value, echo)| Timestamps { value, echo });
            TcpOptions {
                mss,
                window_scale,
                sack_permitted,
                timestamps,
                sack,
                accecn: None,
                fast_open: None,
            }
        })
}

proptest! {
    #[test]
    fn smoltcp_accepts_our_tcp_frames(
        options in options(),
        (src_port, dst_port, window) in (1u16.., 1u16.., any::<u16>()),
        (seq, ack) in any::<(u32, u32)>(),
        payload in proptest::collection::vec(any::<u8>(), 0..100),
        six: bool,
    ) {
        let tcp = TcpHeader {
            src_port, dst_port, seq, ack, window, options,
            flags: TcpFlags::ACK | TcpFlags::PSH,
            urgent: 0,
            header_len: 0,
        };
        let (ip, ethertype) = match six {
            true => (IpRepr::v6(SRC6, DST6), EtherType::IPV6),
            false => (IpRepr::v4(SRC4, DST4), EtherType::IPV4),
        };
        let ethernet = ethernet(ethertype);
        let mut frame = vec![0; 128];
        let len = emit_tcp_frame_headers(&ethernet, &ip, &tcp, payload.len(), &mut frame);
        frame.truncate(len);
        let mut sum = Checksum::new();
        sum.add_bytes(&payload);
        fill_checksum(&mut frame, sum.partial(), tcp_tx_checksum(len, &tcp));
        frame.extend(&payload);

        let seen = EthernetFrame::new_checked(&frame[..]).unwrap();
        prop_assert_eq!(seen.src_addr(), EthernetAddress(MACS.0.0));
        prop_assert_eq!(seen.dst_addr(), EthernetAddress(MACS.1.0));
        let (src, dst): (IpAddress, IpAddress);
        let segment = if six {
            prop_assert_eq!(seen.ethertype(), EthernetProtocol::Ipv6);
            let packet = Ipv6Packet::new_checked(seen.payload()).unwrap();
            prop_assert_eq!((packet.next_header(), packet.hop_limit()), (IpProtocol::Tcp, 64));
            (src, dst) = (packet.src_addr().into(), packet.dst_addr().into());
            packet.payload()
        } else {
            prop_assert_eq!(seen.ethertype(), EthernetProtocol::Ipv4);
            let packet = Ipv4Packet::new_checked(seen.payload()).unwrap();
            prop_assert!(packet.verify_checksum() && packet.dont_frag());
            prop_assert_eq!((packet.next_header(), packet.hop_limit()), (IpProtocol::Tcp, 64));
            (src, dst) = (packet.src_addr().into(), packet.dst_addr().into());
            packet.payload()
        };
        let segment = TcpPacket::new_checked(segment).unwrap();
        prop_assert!(segment.verify_checksum(&src, &dst));
        let repr = TcpRepr::parse(&segment, &src, &dst, &ChecksumCapabilities::default()).unwrap();
        prop_assert_eq!((repr.src_port, repr.dst_port), (src_port, dst_port));
        prop_assert_eq!(repr.seq_number.0 as u32, seq);
        prop_assert_eq!(repr.ack_number.map(|ack| ack.0 as u32), Some(ack));
        prop_assert_eq!(repr.window_len, window);
        prop_assert_eq!(repr.payload, &payload[..]);
        prop_assert_eq!(repr.max_seg_size, options.mss);
        prop_assert_eq!(repr.window_scale, options.window_scale);
        prop_assert_eq!(repr.sack_permitted, options.sack_permitted);
        let timestamps = repr.timestamp.map(|t| Timestamps { value: t.tsval, echo: t.tsecr });
        prop_assert_eq!(timestamps, options.timestamps);
        let sack: Vec<_> = repr.sack_ranges.into_iter().flatten().collect();
        prop_assert_eq!(sack, options.sack.as_slice());
        prop_assert!(RxHeaders::parse(&frame, frame.len()).is_ok());
    }
}

#[test]
fn smoltcp_accepts_our_arp_request() {
    let request = wire::ArpPacket::request(MACS.0, SRC4, DST4);
    let mut frame = [0; 42];
    emit_arp_frame(&ethernet(EtherType::ARP), &request, &mut frame);
    let seen = EthernetFrame::new_checked(&frame[..]).unwrap();
    assert_eq!(seen.ethertype(), EthernetProtocol::Arp);
    let repr = ArpRepr::parse(&ArpPacket::new_checked(seen.payload()).unwrap()).unwrap();
    let expected = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr: EthernetAddress(MACS.0.0),
        source_protocol_addr: SRC4,
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: DST4,
    };
    assert_eq!(repr, expected);
}

#[test]
fn smoltcp_accepts_our_echo_replies() {
    let echo = Echo {
        ident: 0x1234,
        seq: 0x5678,
        data: b"some data",
    };
    let mut out = [0; 17];
    echo.emit_v4(EchoKind::Reply, &mut out);
    let packet = Icmpv4Packet::new_checked(&out[..]).unwrap();
    assert!(packet.verify_checksum());
    let repr = Icmpv4Repr::parse(&packet, &ChecksumCapabilities::default()).unwrap();
    let expected = Icmpv4Repr::EchoReply {
        ident: 0x1234,
        seq_no: 0x5678,
        data: b"some data",
    };
    assert_eq!(repr, expected);

    echo.emit_v6(EchoKind::Reply, SRC6, DST6, &mut out);
    let packet = Icmpv6Packet::new_checked(&out[..]).unwrap();
    let repr = Icmpv6Repr::parse(&SRC6, &DST6, &packet, &ChecksumCapabilities::default()).unwrap();
    let expected = Icmpv6Repr::EchoReply {
        ident: 0x1234,
        seq_no: 0x5678,
        data: b"some data",
    };
    assert_eq!(repr, expected);
}

fn ndisc(frame: &[u8]) -> NdiscRepr<'_> {
    let seen = EthernetFrame::new_checked(frame).unwrap();
    let packet = Ipv6Packet::new_checked(seen.payload()).unwrap();
    assert_eq!(packet.hop_limit(), 255);
    let message = &frame[54..];
    let packet = Icmpv6Packet::new_checked(message).unwrap();
    match Icmpv6Repr::parse(&SRC6, &DST6, &packet, &ChecksumCapabilities::default()) {
        Ok(Icmpv6Repr::Ndisc(repr)) => repr,
        other => panic!("{other:?}"),
    }
}

#[test]
fn smoltcp_accepts_our_neighbor_discovery() {
    let mut frame = [0; 86];
    NeighborSolicitation {
        target: DST6,
        source_mac: Some(MACS.0),
    }
    .emit_frame(MACS.0, MACS.1, SRC6, DST6, &mut frame);
    let lladdr = Some(RawHardwareAddress::from_bytes(&MACS.0.0));
    let expected = NdiscRepr::NeighborSolicit {
        target_addr: DST6,
        lladdr,
    };
    assert_eq!(ndisc(&frame), expected);

    NeighborAdvertisement {
        target: SRC6,
        target_mac: Some(MACS.0),
        router: false,
        solicited: true,
        overrides: true,
    }
    .emit_frame(MACS.0, MACS.1, SRC6, DST6, &mut frame);
    let flags = NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE;
    let expected = NdiscRepr::NeighborAdvert {
        flags,
        target_addr: SRC6,
        lladdr,
    };
    assert_eq!(ndisc(&frame), expected);
}

#[test]
fn we_accept_smoltcps_neighbor_advertisement() {
    let repr = Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert {
        flags: NdiscNeighborFlags::ROUTER,
        target_addr: SRC6,
        lladdr: Some(RawHardwareAddress::from_bytes(&MACS.0.0)),
    });
    let mut message = vec![0; repr.buffer_len()];
    let mut packet = Icmpv6Packet::new_unchecked(&mut message[..]);
    repr.emit(&SRC6, &DST6, &mut packet, &ChecksumCapabilities::default());
    let ip = Ipv6Header {
        src: SRC6,
        dst: DST6,
        next_header: 58,
        hop_limit: 255,
        traffic_class: 0,
        flow_label: 0,
        payload_len: message.len() as u16,
    };
    let expected = NeighborAdvertisement {
        target: SRC6,
        target_mac: Some(MACS.0),
        router: true,
        solicited: false,
        overrides: false,
    };
    assert_eq!(
        Icmp::parse_v6(&ip, &message),
        Ok(Icmp::NeighborAdvertisement(expected))
    );
}

#[test]
fn we_accept_smoltcps_port_unreachable() {
    let header = Ipv4Repr {
        src_addr: SRC4,
        dst_addr: DST4,
        next_header: IpProtocol::Tcp,
        payload_len: 1480,
        hop_limit: 1,
    };
    let repr = Icmpv4Repr::DstUnreachable {
        reason: smoltcp::wire::Icmpv4DstUnreachable::PortUnreachable,
        header,
        data: &[0x14, 0x51, 0x9c, 0x40, 0xde, 0xad, 0xbe, 0xef],
    };
    let mut message = vec![0; repr.buffer_len()];
    let mut packet = Icmpv4Packet::new_unchecked(&mut message[..]);
    repr.emit(&mut packet, &ChecksumCapabilities::default());
    let quoted = wire::Quoted {
        src: SRC4.into(),
        dst: DST4.into(),
        protocol: 6,
        src_port: 5201,
        dst_port: 40_000,
        seq: 0xdead_beef,
    };
    let expected = wire::Icmp::Undelivered {
        why: wire::Undelivered::Unreachable { code: 3 },
        quoted: Some(quoted),
    };
    assert_eq!(wire::Icmp::parse_v4(&message), Ok(expected));
}
