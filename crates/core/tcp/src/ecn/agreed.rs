//! What the two SYNs agreed on.

use wire::{AccEcn, Ecn};

use crate::config::EcnMode;
use crate::segment::Segment;

/// Result of the negotiation, and what the SYNs showed about the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Agreed {
    pub(crate) mode: EcnMode,
    /// Codepoint of the peer's SYN or SYN-ACK.
    pub(crate) peer_syn: Ecn,
    /// The path changes codepoints or flags: our packets are not sent as ECN-capable.
    pub(crate) distrusted: bool,
    /// The SYN-ACK, ours or the peer's, was marked on the path, and counts.
    pub(crate) syn_ack_marked: bool,
    /// AccECN's option of the handshake.
    pub(crate) option: Option<AccEcn>,
}

impl Agreed {
    /// Notes that the peer repeated its SYN: without the flags, the peer assumes that they do not get through.
    pub(crate) fn on_repeated_syn<P>(&mut self, syn: &Segment<P>) {
        if self.mode == EcnMode::Accurate {
            self.peer_syn = syn.ecn;
            self.distrusted |= syn.ace() == 0;
        }
    }

    /// Takes the segment that ends a passive open: it reflects the codepoint of our SYN-ACK (RFC 9768 3.2.2.1
    /// table 4). If it has payload, the first ACK was lost, and its ACE field is a counter already.
    pub(crate) fn after_third_ack<P: netmem::Payload>(
        mut self,
        ack: &Segment<P>,
        validates: bool,
    ) -> Agreed {
        if self.mode != EcnMode::Accurate {
            return self;
        }
        self.option = ack.options.accecn;
        match ack.ace() {
            0b000 => self.distrusted = true,
            0b001 | 0b101 | 0b111 => {}
            ace if ack.seq_len() == 0 => {
                let ours = came_with(ace);
                self.distrusted |= validates && ours != Ecn::NotEct;
                self.syn_ack_marked = ours == Ecn::Ce && !self.distrusted;
            }
            _ => {}
        }
        self
    }
}

/// Returns the codepoint that an ACE field of the handshake reflects; undefined values count as ECT.
pub(crate) fn came_with(ace: u8) -> Ecn {
    match ace {
        0b010 => Ecn::NotEct,
        0b110 => Ecn::Ce,
        0b100 => Ecn::Ect0,
        _ => Ecn::Ect1,
    }
}
