//! A received TCP segment on its way to its connection.

use netmem::FragList;
use steer::RxQueueId;
use tcp::{Control, Segment, SeqNum};
use wire::{Ecn, FourTuple, MacAddr, TcpFlags, TcpHeader};

/// A received TCP segment with its four-tuple and its origin.
pub(crate) struct ReceivedSegment {
    pub(crate) tuple: FourTuple,
    /// Station that sent the frame; `None`: this host, or not the address of a station.
    pub(crate) from: Option<MacAddr>,
    pub(crate) queue: RxQueueId,
    pub(crate) segment: Segment<FragList>,
    /// Its payload found no memory: the segment is here without it.
    pub(crate) is_unplaced: bool,
    /// The urgent pointer, if it is significant.
    pub(crate) urgent: Option<u16>,
}

impl ReceivedSegment {
    /// Returns a SYN without its payload; `None` of other segments.
    pub(crate) fn syn(&self) -> Option<Self> {
        (self.segment.control == Control::Syn).then(|| Self {
            segment: Segment {
                payload: FragList::default(),
                ..self.segment
            },
            ..*self
        })
    }
}

/// Returns the segment of a TCP header and its payload.
pub(crate) fn into_segment(
    tcp: &TcpHeader,
    ecn: Ecn,
    packets: u16,
    payload: FragList,
) -> Segment<FragList> {
    let TcpHeader {
        seq,
        ack,
        flags,
        window,
        options,
        src_port: _,
        dst_port: _,
        urgent: _,
        header_len: _,
    } = *tcp;
    let has = |flag| flags.contains(flag);
    Segment {
        seq: SeqNum(seq),
        ack: has(TcpFlags::ACK).then_some(SeqNum(ack)),
        control: Control::from_flags(has(TcpFlags::SYN), has(TcpFlags::FIN), has(TcpFlags::RST)),
        fin_after_syn: has(TcpFlags::SYN) && has(TcpFlags::FIN),
        push: has(TcpFlags::PSH),
        ece: has(TcpFlags::ECE),
        cwr: has(TcpFlags::CWR),
        ae: has(TcpFlags::AE),
        ecn,
        window,
        options,
        payload,
        gso_size: 0,
        packets,
    }
}
