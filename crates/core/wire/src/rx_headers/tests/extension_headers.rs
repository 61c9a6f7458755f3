use super::*;

const PAD: [u8; 8] = [0, 0, 1, 4, 0, 0, 0, 0];

/// An extension header of padding, followed by `next`.
fn padding(next: u8) -> [u8; 8] {
    [next, 0, 1, 4, 0, 0, 0, 0]
}

fn with(next_header: u8, headers: &[&[u8]]) -> Vec<u8> {
    ipv6_frame(next_header, &[&headers.concat(), &segment()[..]].concat())
}

fn refused(frame: &[u8]) {
    assert_eq!(parse(frame), Err(ParseError::ExtensionHeaders));
}

#[test]
fn a_chain_before_tcp_is_skipped() {
    let chain: [&[u8]; 4] = [
        &padding(protocol::DESTINATION_OPTIONS),
        &padding(protocol::ROUTING),
        &[protocol::DESTINATION_OPTIONS, 0, 4, 0, 0, 0, 0, 0],
        &padding(protocol::TCP),
    ];
    let headers = parse(&with(protocol::HOP_BY_HOP, &chain)).unwrap();
    assert_eq!(headers.tcp(), Some(&tcp()));
    assert_eq!(
        (headers.header_len, headers.payload_len),
        (54 + 32 + 32, 100)
    );
    assert_eq!(headers.l4_checksum_offset(), Some(54 + 32 + 16));
}

#[test]
fn as_many_headers_as_the_bound_are_skipped_and_not_one_more() {
    let mut chain = [padding(protocol::DESTINATION_OPTIONS); MAX_EXTENSION_HEADERS];
    chain[MAX_EXTENSION_HEADERS - 1][0] = protocol::TCP;
    let frame = with(protocol::DESTINATION_OPTIONS, &[chain.as_flattened()]);
    assert!(parse(&frame).unwrap().tcp().is_some());
    let more = padding(protocol::DESTINATION_OPTIONS);
    refused(&with(
        protocol::DESTINATION_OPTIONS,
        &[&more, chain.as_flattened()],
    ));
}

#[test]
fn as_many_bytes_as_the_bound_are_skipped_and_not_one_more() {
    for (units, ok) in [(31, true), (32, false), (255, false)] {
        let mut header = vec![0; (units + 1) * 8];
        header[..2].copy_from_slice(&[protocol::TCP, units as u8]);
        let headers = parse(&with(protocol::DESTINATION_OPTIONS, &[&header]));
        assert_eq!(headers.is_ok(), ok, "{headers:?}");
        let need = MAX_HEADER_LEN - EthernetHeader::TAGGED_LEN + EthernetHeader::LEN - 60 + 32;
        assert!(headers.is_err() || headers.unwrap().header_len == need);
    }
}

#[test]
fn hop_by_hop_options_come_first_or_not_at_all() {
    let late: [&[u8]; 2] = [&padding(protocol::HOP_BY_HOP), &padding(protocol::TCP)];
    refused(&with(protocol::DESTINATION_OPTIONS, &late));
}

#[test]
fn options_that_must_not_be_skipped_are_refused() {
    for (kind, ok) in [
        (0x05, true),
        (0x1e, true),
        (0x40, false),
        (0x80, false),
        (0xc2, false),
    ] {
        let header = [protocol::TCP, 0, kind, 4, 0, 1, 0, 0];
        assert_eq!(
            parse(&with(protocol::HOP_BY_HOP, &[&header])).is_ok(),
            ok,
            "{kind:#x}"
        );
    }
}

#[test]
fn a_jumbogram_is_refused() {
    let jumbo = [protocol::TCP, 0, 0xc2, 4, 0, 1, 0, 0];
    let mut frame = with(protocol::HOP_BY_HOP, &[&jumbo]);
    refused(&frame);
    frame[18..20].fill(0);
    assert_eq!(
        parse(&frame),
        Err(ParseError::Truncated),
        "a payload length of 0"
    );
}

#[test]
fn options_past_the_end_of_their_header_are_refused() {
    refused(&with(
        protocol::HOP_BY_HOP,
        &[&[protocol::TCP, 0, 1, 5, 0, 0, 0, 0]],
    ));
    refused(&with(
        protocol::HOP_BY_HOP,
        &[&[protocol::TCP, 0, 1, 3, 0, 0, 0, 1]],
    ));
}

#[test]
fn pad1_needs_no_length() {
    let pads = [protocol::TCP, 0, 0, 0, 0, 0, 0, 0];
    assert!(
        parse(&with(protocol::HOP_BY_HOP, &[&pads]))
            .unwrap()
            .tcp()
            .is_some()
    );
}

#[test]
fn a_packet_that_should_be_routed_on_is_refused() {
    refused(&with(
        protocol::ROUTING,
        &[&[protocol::TCP, 0, 4, 1, 0, 0, 0, 0]],
    ));
}

#[test]
fn a_fragment_is_reported_behind_its_header() {
    for (offset, flags) in [(0, 1), (0, 8), (1, 0), (0xff, 0xf9)] {
        let header = [protocol::TCP, 0, offset, flags, 1, 2, 3, 4];
        let frame = with(
            protocol::HOP_BY_HOP,
            &[&padding(protocol::FRAGMENT), &header],
        );
        let headers = parse(&frame).unwrap();
        assert_eq!(headers.transport, Transport::Fragment);
        assert_eq!((headers.header_len, headers.payload_len), (54 + 16, 132));
    }
}

#[test]
fn an_atomic_fragment_is_a_whole_packet() {
    let header = [protocol::TCP, 0xff, 0, 0x06, 1, 2, 3, 4];
    assert_eq!(
        parse(&with(protocol::FRAGMENT, &[&header])).unwrap().tcp(),
        Some(&tcp())
    );
}

#[test]
fn no_next_header_is_the_end() {
    let headers = parse(&with(protocol::NO_NEXT_HEADER, &[])).unwrap();
    assert_eq!(headers.transport, Transport::None);
    assert_eq!((headers.header_len, headers.payload_len), (54, 132));
}

#[test]
fn an_unknown_extension_header_is_the_protocol() {
    for next in [50, 51, protocol::ICMPV6, 135, 255] {
        assert_eq!(
            parse(&with(next, &[])).unwrap().transport,
            Transport::Other(next)
        );
    }
}

#[test]
fn a_chain_that_the_packet_cuts_is_truncated() {
    for len in 0..8 {
        let frame = ipv6_frame(protocol::DESTINATION_OPTIONS, &PAD[..len]);
        // Padding of the frame must not help the packet out.
        let padded = [&frame[..], &[0; 64]].concat();
        assert_eq!(parse(&padded), Err(ParseError::Truncated), "{len} bytes");
    }
}
