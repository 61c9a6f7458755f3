//! Cutting a super-packet into segments when the link does not.

use netmem::{FragList, Payload};
use wire::{EthernetHeader, Ipv4Header, RxHeaders, SegmentHeaders, TxChecksum};

use crate::link::MAX_PACKET_LEN;
use crate::packet::{HeadBuf, TxPacket};

/// A super-packet that is being cut: payload by moving handles, never bytes.
#[derive(Debug)]
pub(crate) struct Segmenter {
    head: HeadBuf,
    rest: FragList,
    gso_size: usize,
    checksum: TxChecksum,
    headers: SegmentHeaders,
}

impl Segmenter {
    /// Prepares to cut `packet`; `None` if its headers are not those of a TCP packet with a checksum
    /// to finish.
    pub(crate) fn new(packet: TxPacket) -> Option<Self> {
        let headers = headers_of(&packet)?;
        let TxPacket {
            head,
            payload,
            checksum,
            gso_size,
        } = packet;
        Some(Self {
            head,
            rest: payload,
            gso_size: usize::from(gso_size).max(1),
            checksum: checksum?,
            headers,
        })
    }

    /// Returns the next segment, its checksum still to be finished; `None` after the last.
    pub(crate) fn next(&mut self) -> Option<TxPacket> {
        if self.rest.is_empty() {
            return None;
        }
        let payload = self.rest.split_off_front(self.gso_size);
        let mut head = self.head;
        self.headers
            .write_next(head.as_mut_slice(), payload.len(), self.rest.len());
        Some(TxPacket {
            head,
            payload,
            checksum: Some(self.checksum),
            gso_size: 0,
        })
    }
}

fn headers_of(packet: &TxPacket) -> Option<SegmentHeaders> {
    let mut head = packet.head;
    if packet.frame_len() > EthernetHeader::LEN + MAX_PACKET_LEN {
        // Its length field says nothing, and any length will do: each segment gets its own.
        let ip = head.as_mut_slice().get_mut(EthernetHeader::LEN..)?;
        Ipv4Header::set_total_len(ip, u16::MAX);
    }
    let headers = RxHeaders::parse(head.as_slice(), packet.frame_len()).ok()?;
    headers.tcp()?;
    let whole_head = headers.header_len == packet.head.as_slice().len();
    SegmentHeaders::new(&headers).filter(|_| whole_head)
}
