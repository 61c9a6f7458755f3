//! Every header of a received frame, ICMP and ARP included, from bytes that a peer chose.
//!
//! Input: one byte of switches, two bytes of how much of the frame the first parse may see, the frame.

use wire::{
    ArpPacket, Icmpv4, Icmpv6, Ipv4Header, MAX_HEADER_LEN, Network, ParseError, RxHeaders,
    Transport, checksum, protocol,
};

/// Switch: the IPv4 header checksum is put right first, which chance would not do.
const MEND_CHECKSUM: u8 = 1;

/// Checks what [`RxHeaders::parse`] promises.
pub fn run(data: &[u8]) {
    let [switches, cut_high, cut_low, frame @ ..] = data else {
        return;
    };
    let mut frame = frame.to_vec();
    if switches & MEND_CHECKSUM != 0 {
        mend_ipv4_checksum(&mut frame);
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
            panic!("wants {need} of a whole frame of {}", frame.len())
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
            let _ = Icmpv4::parse(payload);
        }
        (Network::Ipv6(ip), Transport::Other(protocol::ICMPV6)) => {
            let _ = Icmpv6::parse(&ip, payload);
        }
        _ => {}
    }
}

/// The first bytes of a frame say the same as all of it, or ask for more, and never for too much.
fn check_cut(frame: &[u8], cut: usize, whole: &Result<RxHeaders, ParseError>) {
    match RxHeaders::parse(&frame[..cut], frame.len()) {
        Err(ParseError::NeedMore { need }) => {
            assert!(need > cut, "asks for {need} bytes and has {cut}");
            assert!(
                need <= frame.len() && need <= MAX_HEADER_LEN,
                "asks for {need} of {}",
                frame.len()
            );
        }
        other => assert_eq!(
            &other,
            whole,
            "{cut} bytes of {} tell another story",
            frame.len()
        ),
    }
}

fn mend_ipv4_checksum(frame: &mut [u8]) {
    const AT: usize = 14;
    let Some(first) = frame.get(AT) else { return };
    let len = usize::from(first & 0x0f) * 4;
    let Some(header) = frame.get_mut(AT..AT + len) else {
        return;
    };
    if header.len() >= Ipv4Header::LEN {
        header[10..12].fill(0);
        let sum = checksum(header).to_be_bytes();
        header[10..12].copy_from_slice(&sum);
    }
}
