//! Super-packets as single frames, for what works on frames as they are on a cable.

use std::num::NonZeroU16;

use ::wire::{RxHeaders, SegmentHeaders, fill_checksum, shorten_big_headers};
use smallvec::SmallVec;

/// Cuts super-packets. Keeps the buffer of a segment to reuse its allocation.
#[derive(Debug, Default)]
pub struct FrameCutter {
    segment: Vec<u8>,
}

/// A super-packet that cannot be cut: its headers are invalid, it is not TCP, or it has no payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutError;

impl FrameCutter {
    /// Passes the segments of `frame`, with up to `size` bytes of payload and a complete checksum each, to `each`.
    ///
    /// # Errors
    /// [`CutError`]; nothing was passed then.
    pub fn cut(
        &mut self,
        frame: &[u8],
        size: NonZeroU16,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), CutError> {
        let headers = RxHeaders::parse(frame, frame.len()).map_err(|_| CutError)?;
        let (head, rest) = frame.split_at_checked(headers.header_len).ok_or(CutError)?;
        let payload = rest.get(..headers.payload_len).ok_or(CutError)?;
        if payload.is_empty() {
            return Err(CutError);
        }
        // The segments have their length in the header, so a jumbo payload option is removed.
        let mut head = SmallVec::<[u8; 128]>::from_slice(head);
        let len = shorten_big_headers(&mut head);
        head.truncate(len);
        let headers = RxHeaders {
            header_len: len,
            ..headers
        };
        let mut cut = SegmentHeaders::new(&headers).ok_or(CutError)?;
        let mut left = payload.len();
        for part in payload.chunks(size.get().into()) {
            left -= part.len();
            self.segment.clear();
            self.segment.extend_from_slice(&head);
            cut.write_next(&mut self.segment, part.len(), left);
            self.segment.extend_from_slice(part);
            fill_checksum(&mut self.segment, 0, cut.checksum());
            each(&self.segment);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use ::wire::{
        EtherType, EthernetHeader, IpRepr, Ipv4Header, MacAddr, TcpFlags, TcpHeader, TcpOptions,
        emit_tcp_frame_headers, protocol,
    };

    use super::*;

    const SIZE: NonZeroU16 = NonZeroU16::new(1448).unwrap();

    fn tcp(seq: u32) -> TcpHeader {
        TcpHeader {
            src_port: 1,
            dst_port: 2,
            seq,
            ack: 3,
            flags: TcpFlags::ACK,
            window: 100,
            urgent: 0,
            options: TcpOptions::default(),
            header_len: TcpHeader::LEN,
        }
    }

    /// A frame with complete checksum, if its length field can say its length.
    fn frame(ip: IpRepr, seq: u32, payload: &[u8]) -> Vec<u8> {
        let ethernet = EthernetHeader {
            dst: MacAddr([2, 0, 0, 0, 0, 2]),
            src: MacAddr([2, 0, 0, 0, 0, 1]),
            ethertype: match ip {
                IpRepr::V4 { .. } => EtherType::IPV4,
                IpRepr::V6 { .. } => EtherType::IPV6,
            },
            vlan: None,
        };
        let mut frame = vec![0; 128];
        let len = emit_tcp_frame_headers(&ethernet, &ip, &tcp(seq), payload.len(), &mut frame);
        frame.truncate(len);
        frame.extend_from_slice(payload);
        if let Some(what) = RxHeaders::parse(&frame, frame.len()).unwrap().tx_checksum() {
            fill_checksum(&mut frame, 0, what);
        }
        frame
    }

    /// Cuts `big`, a super-packet with this payload, and compares each segment with the packet that a sender without offload makes.
    fn expect_segments(ip: impl Fn(u16) -> IpRepr, big: &[u8], payload: &[u8]) {
        let mut parts = payload.chunks(SIZE.get().into()).enumerate();
        let cut = FrameCutter::default().cut(big, SIZE, |segment| {
            let (at, part) = parts.next().expect("a segment too many");
            let seq = 7 + u32::try_from(at * usize::from(SIZE.get())).unwrap();
            let expected = frame(ip(u16::try_from(at).unwrap()), seq, part);
            assert!(segment == expected, "segment {at} differs");
        });
        assert_eq!(cut, Ok(()));
        assert!(parts.next().is_none(), "a segment is missing");
    }

    #[test]
    fn super_packets_longer_than_their_length_field_are_cut_to_complete_packets() {
        let payload: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
        let v4 = |ident| {
            let ip = IpRepr::v4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
            match ip {
                IpRepr::V4(ip) => IpRepr::V4(Ipv4Header { ident, ..ip }),
                IpRepr::V6(_) => ip,
            }
        };
        expect_segments(v4, &frame(v4(0), 7, &payload), &payload);
        let v6 = |_| IpRepr::v6(Ipv6Addr::from_bits(1), Ipv6Addr::from_bits(2));
        let with_option = frame(v6(0), 7, &payload);
        expect_segments(v6, &with_option, &payload);
        // Linux after v6.18 has no option in such packets.
        let mut without = with_option;
        without.drain(54..62);
        without[20] = protocol::TCP;
        expect_segments(v6, &without, &payload);
    }
}
