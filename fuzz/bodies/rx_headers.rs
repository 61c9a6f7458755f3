//! All headers of a received frame, including ICMP and ARP, from any bytes.
//!
//! Input: one byte of flags, two bytes with the length of the frame that the first parse gets, the frame.

use wire::{ArpPacket, Icmp, MAX_HEADER_LEN, Network, ParseError, RxHeaders, Transport, protocol};

use super::ipv4_checksum;

/// Flag: the IPv4 header checksum is corrected first, because random bytes seldom have the right one.
const MEND_CHECKSUM: u8 = 1;

/// Checks the guarantees of [`RxHeaders::parse`].
pub fn run(data: &[u8]) {
    let [switches, cut_high, cut_low, frame @ ..] = data else {
        return;
    };
    let mut frame = frame.to_vec();
    if switches & MEND_CHECKSUM != 0 {
        ipv4_checksum::mend(&mut frame);
    }
    let cut = usize::from(u16::from_be_bytes([*cut_high, *cut_low])).min(frame.len());
    let whole = RxHeaders::parse(&frame, frame.len());
    check_whole(&frame, &whole);
    check_cut(&frame, cut, &whole);
}

fn check_whole(frame: &[u8], whole: &Result<RxHeaders, ParseError>) {
    let headers = match whole {
        Ok(headers) => headers,
        Err(ParseError::NeedMore { need }) => {
            panic!("requests {need} bytes of a whole frame of {}", frame.len())
        }
        Err(_) => return,
    };
    let end = headers.header_len + headers.payload_len;
    assert!(
        end <= frame.len(),
        "{end} bytes accounted for in a frame of {}",
        frame.len()
    );
    assert!(
        headers.header_len <= MAX_HEADER_LEN,
        "{} bytes of headers",
        headers.header_len
    );
    assert_eq!(headers.four_tuple().is_some(), headers.ports().is_some());
    if let Some(at) = headers.l4_checksum_offset() {
        assert!(
            at + 2 <= headers.header_len,
            "checksum field at {at} of {}",
            headers.header_len
        );
    }
    let payload = &frame[headers.header_len..end];
    match (headers.network, headers.transport) {
        (Network::Arp, _) => {
            let _ = ArpPacket::parse(payload);
        }
        (Network::Ipv4(_), Transport::Other(protocol::ICMP)) => {
            let _ = Icmp::parse_v4(payload);
        }
        (Network::Ipv6(ip), Transport::Other(protocol::ICMPV6)) => {
            let _ = Icmp::parse_v6(&ip, payload);
        }
        _ => {}
    }
}

/// Checks that the first bytes of a frame parse to the same headers as the whole frame, or to a request for more bytes, but
/// not for more than the frame has.
fn check_cut(frame: &[u8], cut: usize, whole: &Result<RxHeaders, ParseError>) {
    match RxHeaders::parse(&frame[..cut], frame.len()) {
        Err(ParseError::NeedMore { need }) => {
            assert!(need > cut, "requests {need} bytes, but has {cut}");
            assert!(
                need <= frame.len() && need <= MAX_HEADER_LEN,
                "requests {need} bytes of {}",
                frame.len()
            );
        }
        other => assert_eq!(
            &other,
            whole,
            "{cut} bytes of {} parse to other headers",
            frame.len()
        ),
    }
}
