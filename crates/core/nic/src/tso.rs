//! Cutting of super-packets, into segments if the link does not do it, or into shorter super-packets.

use netmem::{FragList, Payload};
use wire::{EthernetHeader, RxHeaders, SegmentHeaders, shorten_big_headers};

use crate::link::MAX_PACKET_LEN;
use crate::packet::{HeadBuf, TxPacket};

/// A super-packet that is being cut. Its payload is cut by moving frags, without copying bytes.
#[derive(Debug)]
pub(crate) struct Segmenter {
    head: HeadBuf,
    rest: FragList,
    /// Maximum number of payload bytes of a piece.
    piece: usize,
    /// Payload bytes of each segment of a longer piece.
    gso_size: u16,
    headers: SegmentHeaders,
}

impl Segmenter {
    /// Prepares to cut `packet` into its segments; `None` if it is not a TCP packet with a checksum to complete.
    pub(crate) fn into_segments(packet: TxPacket) -> Option<Self> {
        let piece = usize::from(packet.gso_size);
        Self::new(packet, |_| piece)
    }

    /// Prepares to cut `packet` into super-packets with their length in the IP header; `None` as above.
    pub(crate) fn into_shorter(packet: TxPacket) -> Option<Self> {
        let gso_size = usize::from(packet.gso_size).max(1);
        Self::new(packet, |head_len| {
            let most = MAX_PACKET_LEN - (head_len - EthernetHeader::LEN);
            most - most % gso_size
        })
    }

    fn new(packet: TxPacket, piece: impl FnOnce(usize) -> usize) -> Option<Self> {
        let frame_len = packet.frame_len();
        let TxPacket {
            mut head,
            payload,
            checksum,
            gso_size,
        } = packet;
        // The pieces have their length in the header, so the jumbo payload option is removed.
        let len = shorten_big_headers(head.as_mut_slice());
        head.truncate(len);
        let headers = RxHeaders::parse(head.as_slice(), frame_len).ok()?;
        if headers.tcp().is_none() || checksum.is_none() || headers.header_len != len {
            return None;
        }
        Some(Self {
            head,
            rest: payload,
            piece: piece(len).max(1),
            gso_size,
            headers: SegmentHeaders::new(&headers)?,
        })
    }

    /// Returns the next piece, with a checksum to complete; `None` after the last.
    pub(crate) fn next(&mut self) -> Option<TxPacket> {
        if self.rest.is_empty() {
            return None;
        }
        let payload = self.rest.split_off_front(self.piece);
        let mut head = self.head;
        self.headers
            .write_next(head.as_mut_slice(), payload.len(), self.rest.len());
        let is_super = payload.len() > usize::from(self.gso_size);
        Some(TxPacket {
            head,
            payload,
            checksum: Some(self.headers.checksum()),
            gso_size: if is_super { self.gso_size } else { 0 },
        })
    }
}
