//! The receiver's part of AccECN: counts arriving packets and bytes by codepoint, and reports them (RFC 9768 3.2).

use wire::{AccEcn, Ecn};

use super::counts::{ACE_START, CodepointBytes, OPTION_START};
use crate::segment::Segment;
use crate::seqnum::SeqNum;

/// Most marked packets without a report: the ACE field counts modulo 8, so more could be missed (RFC 9768
/// 3.2.2.5.1, linux `TCP_ACCECN_ACE_MAX_DELTA`).
const MAX_UNREPORTED: u8 = 6;

/// Counters of a complete option.
const ALL_FIELDS: u8 = 3;

/// Bytes of options in a header.
const OPTIONS_LEN: usize = 40;

/// Counters of what arrived, and which of them are reported.
#[derive(Debug, Clone, Default)]
pub(crate) struct Feedback {
    /// Marked packets.
    ce_packets: u32,
    /// Marked packets that no ACE field has reported yet.
    unreported: u8,
    /// Bytes of payload by codepoint.
    bytes: CodepointBytes,
    /// Codepoint of the last packet.
    last: Ecn,
    /// Codepoint of the peer's SYN-ACK, which the next ACK reflects instead of a counter.
    reflects: Option<Ecn>,
    /// Number of counters that the next option must have, because one of them has changed.
    fields_due: u8,
    seen: bool,
    /// Where the D-SACK began that was sent with the last option.
    dsack_beside: Option<SeqNum>,
    /// ACKs with the option are lost.
    option_fails: bool,
}

/// Returns the ACE field that reflects the codepoint of a SYN or SYN-ACK (RFC 9768 3.1.1 table 2).
pub(crate) fn reflected(syn: Ecn) -> u8 {
    match syn {
        Ecn::NotEct => 0b010,
        Ecn::Ect1 => 0b011,
        Ecn::Ect0 => 0b100,
        Ecn::Ce => 0b110,
    }
}

impl Feedback {
    /// Returns the counters after a SYN or SYN-ACK of the peer with codepoint `syn`.
    pub(crate) fn new(syn: Ecn) -> Feedback {
        Feedback {
            last: syn,
            ..Feedback::default()
        }
    }

    /// Counts the peer's SYN-ACK, also a repeated one; our ACK reflects its codepoint.
    pub(crate) fn on_syn_ack(&mut self, ecn: Ecn) {
        self.reflects = Some(ecn);
    }

    /// Counts a marked SYN-ACK.
    pub(crate) fn count_syn_ack(&mut self) {
        self.ce_packets += 1;
        self.unreported += 1;
    }

    /// Counts a segment; returns whether its ACK must be sent at once.
    pub(crate) fn on_segment(&mut self, ecn: Ecn, packets: u16, payload: usize) -> bool {
        // No segment is longer than 2^32.
        let bytes = payload as u32;
        self.seen |= ecn.is_ect();
        let (counter, field) = match ecn {
            Ecn::NotEct => (None, 0),
            Ecn::Ect1 => (Some(&mut self.bytes.ect1), 1),
            Ecn::Ce => (Some(&mut self.bytes.ce), 2),
            Ecn::Ect0 => (Some(&mut self.bytes.ect0), ALL_FIELDS),
        };
        if let Some(counter) = counter.filter(|_| bytes > 0) {
            *counter = counter.wrapping_add(bytes);
            self.fields_due = self.fields_due.max(field);
        }
        if ecn == Ecn::Ce {
            self.ce_packets = self.ce_packets.wrapping_add(packets.into());
            let unreported = packets.min(u8::MAX.into()) as u8;
            self.unreported = self.unreported.saturating_add(unreported);
        }
        let changed = self.last != ecn;
        self.last = ecn;
        bytes > 0 && (changed || self.unreported >= MAX_UNREPORTED)
    }

    /// Notes data that arrived again. If that is after a D-SACK with an option, ACKs with the option are lost.
    pub(crate) fn on_duplicate(&mut self, seq: SeqNum) {
        self.option_fails |= self.dsack_beside == Some(seq);
    }

    /// Returns the ACE field of an outgoing segment; its counter counts as reported.
    pub(crate) fn ace(&mut self, bare: bool) -> u8 {
        if let (true, Some(syn_ack)) = (bare, self.reflects.take()) {
            return reflected(syn_ack);
        }
        self.unreported = 0;
        (self.ce_packets.wrapping_add(ACE_START) & 7) as u8
    }

    /// Returns the ACE field, without counting it as reported.
    pub(crate) fn peek_ace(&self) -> u8 {
        (self.ce_packets.wrapping_add(ACE_START) & 7) as u8
    }

    /// Adds the option to an outgoing segment, with as many counters as fit beside timestamps and SACK
    /// blocks. Counters that have changed replace SACK blocks from the third on (linux `tcp_options_fit_accecn`).
    pub(crate) fn add_option<P>(&mut self, segment: &mut Segment<P>, dsack: Option<SeqNum>) {
        if self.option_fails {
            return;
        }
        let options = &mut segment.options;
        let timestamps = if options.timestamps.is_some() { 12 } else { 0 };
        let mut blocks = options.sack.len();
        let required = usize::from(self.fields_due);
        let mut fields = usize::from(ALL_FIELDS);
        loop {
            let sack = if blocks > 0 { 4 + 8 * blocks } else { 0 };
            if timestamps + sack + AccEcn::padded_len(fields) <= OPTIONS_LEN {
                break;
            }
            if fields == required && required > 0 && blocks > 2 && blocks == options.sack.len() {
                blocks -= 1;
                fields = ALL_FIELDS.into();
            } else if fields > required {
                fields -= 1;
            } else {
                return;
            }
        }
        if fields == 0 {
            return;
        }
        options.accecn = Some(self.option(fields));
        self.fields_due = 0;
        self.dsack_beside = dsack;
    }

    /// Returns the option of a SYN-ACK, with initial counters.
    pub(crate) fn first_option(&self) -> AccEcn {
        self.option(ALL_FIELDS.into())
    }

    /// Returns the option with the first `fields` counters.
    fn option(&self, fields: usize) -> AccEcn {
        let told = |bytes: u32| Some(bytes.wrapping_add(OPTION_START) & 0x00ff_ffff);
        AccEcn {
            ect1: told(self.bytes.ect1),
            ce: Some(self.bytes.ce & 0x00ff_ffff).filter(|_| fields > 1),
            ect0: told(self.bytes.ect0).filter(|_| fields > 2),
        }
    }

    pub(crate) fn seen(&self) -> bool {
        self.seen
    }

    pub(crate) fn ce_packets(&self) -> u32 {
        self.ce_packets
    }

    pub(crate) fn bytes(&self) -> CodepointBytes {
        self.bytes
    }
}
