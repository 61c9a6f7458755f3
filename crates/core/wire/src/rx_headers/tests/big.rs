//! Super-packets that are longer than their length field can say (Linux: BIG TCP).

use super::*;

const V4: IpRepr = IpRepr::v4(SRC4, DST4);
const V6: IpRepr = IpRepr::v6(SRC6, DST6);

/// The headers of a TCP packet, and the length of the frame.
fn head_of(ip: IpRepr, payload_len: usize) -> (Vec<u8>, usize) {
    let frame = tcp_frame(ip, None, payload_len);
    let header_len = frame.len() - payload_len;
    (frame[..header_len].to_vec(), frame.len())
}

#[test]
fn the_end_of_the_frame_is_the_end_of_a_packet_with_length_0() {
    for (ip, header_len) in [(V4, 14 + 20 + 32), (V6, 14 + 40 + 8 + 32)] {
        let (head, len) = head_of(ip, 300_000);
        let headers = RxHeaders::parse(&head, len).unwrap();
        assert_eq!(
            (headers.header_len, headers.payload_len),
            (header_len, 300_000)
        );
        assert_eq!(headers.tcp(), Some(&tcp()));
        assert_eq!(headers.l4_offset(), Some(header_len - 32));
        // One byte at a time, it is never asked for more than there is.
        for have in 0..head.len() {
            match RxHeaders::parse(&head[..have], len) {
                Err(ParseError::NeedMore { need }) => assert!(need > have && need <= header_len),
                other => panic!("{other:?} with {have} bytes"),
            }
        }
    }
}

#[test]
fn over_ipv6_the_option_may_be_missing() {
    let (mut head, len) = head_of(V6, 300_000);
    head.drain(54..62);
    head[20] = protocol::TCP;
    let headers = RxHeaders::parse(&head, len - 8).unwrap();
    assert_eq!(
        (headers.header_len, headers.payload_len),
        (14 + 40 + 32, 300_000)
    );
}

#[test]
fn a_packet_whose_field_could_say_its_length_needs_it() {
    // 65,535 bytes is the longest packet of IPv4, and that after the header of IPv6.
    let (mut head, _) = head_of(V4, 70_000);
    assert_eq!(
        RxHeaders::parse(&head, 14 + 65_535),
        Err(ParseError::BadTotalLength)
    );
    assert!(RxHeaders::parse(&head, 14 + 65_536).is_ok());
    edit_ipv4(&mut head, |ip| ip[3] = 19);
    assert_eq!(
        RxHeaders::parse(&head, 70_066),
        Err(ParseError::BadTotalLength)
    );
    let (head, _) = head_of(V6, 70_000);
    assert!(RxHeaders::parse(&head, 14 + 40 + 65_535).is_err());
}

#[test]
fn the_option_is_checked() {
    let (head, len) = head_of(V6, 70_000);
    let parse = |at: usize, byte: u8| {
        let mut head = head.clone();
        head[at] = byte;
        RxHeaders::parse(&head, len)
    };
    assert!(parse(54, protocol::TCP).is_ok());
    for (at, byte) in [
        // Another header behind it, one more unit, another option, another length of it, a length of 0 x 65,536.
        (54, protocol::UDP),
        (54, protocol::HOP_BY_HOP),
        (54, protocol::FRAGMENT),
        (55, 1),
        (56, 0xc3),
        (57, 5),
        (59, 0),
    ] {
        assert_eq!(parse(at, byte), Err(ParseError::ExtensionHeaders), "{at}");
    }
    // Longer than the frame.
    assert_eq!(parse(58, 1), Err(ParseError::Truncated));
    // Shorter: the rest is padding.
    let mut head = head;
    head[58..62].copy_from_slice(&(65_536_u32).to_be_bytes());
    let headers = RxHeaders::parse(&head, len).unwrap();
    assert_eq!(headers.header_len + headers.payload_len, 54 + 65_536);
}

#[test]
fn only_tcp_has_such_packets() {
    for protocol in [protocol::UDP, protocol::ICMP] {
        let (mut head, len) = head_of(V4, 70_000);
        edit_ipv4(&mut head, |ip| ip[9] = protocol);
        assert!(RxHeaders::parse(&head, len).is_err());
        let (mut head, len) = head_of(V6, 70_000);
        head.drain(54..62);
        head[20] = protocol;
        assert!(RxHeaders::parse(&head, len).is_err());
    }
    let (mut head, len) = head_of(V4, 70_000);
    edit_ipv4(&mut head, |ip| ip[6] = 0x20);
    assert_eq!(
        RxHeaders::parse(&head, len),
        Err(ParseError::BadTotalLength),
        "a fragment"
    );
}
