//! One TCP segment; its payload type gives no access to bytes.

use netmem::Payload;
use wire::{Ecn, TcpOptions};

use crate::seqnum::SeqNum;

/// SYN, FIN, RST, or none of them. If a peer sets several, [`Control::from_flags`] chooses one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Control {
    /// None of them.
    #[default]
    None,
    /// SYN: takes one sequence number before the payload.
    Syn,
    /// FIN: takes one sequence number after the payload.
    Fin,
    /// RST: aborts the connection; takes no sequence number.
    Rst,
}

impl Control {
    /// Returns the control of a header's flags: RST over SYN over FIN.
    ///
    /// RST comes first in every state of RFC 9293 3.10.7. [`Segment::fin_after_syn`] has the FIN of a segment with SYN.
    #[must_use]
    pub const fn from_flags(syn: bool, fin: bool, rst: bool) -> Control {
        match (rst, syn, fin) {
            (true, _, _) => Control::Rst,
            (false, true, _) => Control::Syn,
            (false, false, true) => Control::Fin,
            (false, false, false) => Control::None,
        }
    }

    /// Returns how many sequence numbers the control itself takes.
    #[must_use]
    pub const fn len(self) -> usize {
        match self {
            Control::Syn | Control::Fin => 1,
            Control::None | Control::Rst => 0,
        }
    }

    /// Returns whether the control takes no sequence number.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// A TCP segment without addresses and ports.
///
/// It may be longer than a packet on the link: the NIC cuts outgoing segments into packets of `gso_size` bytes, and may merge
/// incoming packets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Segment<P> {
    /// Sequence number of the first byte, or of the SYN.
    pub seq: SeqNum,
    /// Acknowledgement number; `None` without the ACK flag.
    pub ack: Option<SeqNum>,
    /// SYN, FIN, RST or none of them.
    pub control: Control,
    /// A FIN follows the payload of a segment with SYN. It counts in a SYN-ACK that completes a handshake.
    pub fin_after_syn: bool,
    /// PSH: the writer has no more bytes at the moment.
    pub push: bool,
    /// ECE: on a SYN the request for ECN, else the echo of a mark (RFC 3168 6.1).
    pub ece: bool,
    /// CWR: on a SYN the request for ECN, else the answer to ECE. Of a super-segment only the first packet has it.
    pub cwr: bool,
    /// AE: with CWR and ECE AccECN's counter, in all packets of a super-segment (RFC 9768 3.1).
    pub ae: bool,
    /// ECN field of the IP header, in all packets of a super-segment.
    pub ecn: Ecn,
    /// Window field, not scaled.
    pub window: u16,
    /// Options; those that were not negotiated are ignored.
    pub options: TcpOptions,
    /// Payload.
    pub payload: P,
    /// Outgoing super-segments: payload bytes of each packet; 0 for a single packet.
    pub gso_size: u16,
    /// Incoming segments: packets that were merged into it; 0 counts as one.
    pub packets: u16,
}

impl<P> Segment<P> {
    /// Returns AE, CWR and ECE as a number: the ACE field (RFC 9768 3.1).
    #[must_use]
    pub fn ace(&self) -> u8 {
        u8::from(self.ae) << 2 | u8::from(self.cwr) << 1 | u8::from(self.ece)
    }

    /// Sets AE, CWR and ECE to the low bits of a number.
    pub fn set_ace(&mut self, ace: u8) {
        self.ae = ace & 0b100 != 0;
        self.cwr = ace & 0b010 != 0;
        self.ece = ace & 0b001 != 0;
    }
}

impl<P: Payload> Segment<P> {
    /// Returns how many sequence numbers the segment takes: payload, SYN and FIN (RFC 9293 3.4,
    /// SEG.LEN).
    #[must_use]
    pub fn seq_len(&self) -> usize {
        self.payload.len() + self.control.len()
    }

    /// Returns the sequence number behind the segment.
    #[must_use]
    pub fn end(&self) -> SeqNum {
        self.seq + self.seq_len()
    }

    /// Returns the number of packets that the payload is sent in.
    #[must_use]
    pub fn gso_segments(&self) -> usize {
        match self.gso_size {
            0 => 1,
            size => self.payload.len().div_ceil(usize::from(size)).max(1),
        }
    }

    /// Returns the RST that answers a segment without a connection; `None` if the segment is a RST
    /// (RFC 9293 3.10.7.1).
    #[must_use]
    pub fn reset_for(segment: &Segment<P>) -> Option<Segment<P>> {
        if segment.control == Control::Rst {
            return None;
        }
        let (seq, ack) = match segment.ack {
            Some(ack) => (ack, None),
            None => (SeqNum(0), Some(segment.end())),
        };
        Some(Segment {
            seq,
            ack,
            control: Control::Rst,
            ..Segment::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_payload::Bytes;

    fn segment(seq: u32, len: usize, control: Control) -> Segment<Bytes> {
        Segment {
            seq: SeqNum(seq),
            control,
            payload: Bytes::pattern(SeqNum(seq), len),
            push: true,
            ..Segment::default()
        }
    }

    #[test]
    fn a_rst_counts_before_a_syn_and_a_syn_before_a_fin() {
        let control = |syn, fin, rst| Control::from_flags(syn, fin, rst);
        for others in [(false, false), (true, false), (false, true), (true, true)] {
            assert_eq!(control(others.0, others.1, true), Control::Rst);
        }
        assert_eq!(control(true, true, false), Control::Syn);
        assert_eq!(control(true, false, false), Control::Syn);
        assert_eq!(control(false, true, false), Control::Fin);
        assert_eq!(control(false, false, false), Control::None);
    }

    #[test]
    fn a_reset_answers_with_the_numbers_the_peer_expects() {
        let mut seg = segment(5, 3, Control::Syn);
        let rst = Segment::reset_for(&seg).unwrap();
        assert_eq!(
            (rst.seq, rst.ack, rst.control),
            (SeqNum(0), Some(SeqNum(9)), Control::Rst)
        );
        seg.ack = Some(SeqNum(77));
        let rst = Segment::reset_for(&seg).unwrap();
        assert_eq!((rst.seq, rst.ack), (SeqNum(77), None));
        seg.control = Control::Rst;
        assert!(Segment::reset_for(&seg).is_none());
    }
}
