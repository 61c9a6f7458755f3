//! AccECN (RFC 9768): all packets are ECN-capable, and each ACK counts the marked ones.
//!
//! Only the negotiation is elsewhere: AccECN and RFC 3168 share the flags of the SYNs, so [`crate::ecn`] has one table for
//! both. A connection that uses AccECN has an [`Accurate`], and its sender [`Reports`]; other connections have two null
//! pointers. `feedback.rs` counts what arrives and reports it to the peer, `delivered.rs` interprets the peer's reports.
//!
//! It is no cargo feature: [`EcnConfig::policy`] switches it, off by default. A feature would double the builds of CI, and
//! the code in `established` and `sender` would be tested in only one of them.

mod delivered;
mod feedback;
#[cfg(test)]
mod tests;

use netmem::Payload;
use wire::{AccEcn, Ecn};

use crate::config::{EcnConfig, EcnMode};
use crate::ecn::Agreed;
use crate::info::Info;
use crate::segment::Segment;
use crate::sender::{Bundling, Sender};
use crate::seqnum::SeqNum;
use crate::state::established::Synchronized;
pub(crate) use delivered::{DeliveryReport, Reports};
use feedback::{Feedback, reflected};

/// Initial value of the ACE counter (RFC 9768 3.2.1, linux `TCP_ACCECN_CEP_INIT_OFFSET`): not 0, so that a middlebox that
/// clears the field is detected.
const ACE_START: u32 = 5;

/// Initial value of the counters of ECT(0) and ECT(1), for the same reason (RFC 9768 3.2.1).
const OPTION_START: u32 = 1;

/// Repetitions of SYNs and SYN-ACKs with AccECN before it is assumed to be the cause of the losses (RFC 9768 3.1.4.1: one).
pub(crate) const RETRIES: u8 = 1;

/// Writes the codepoint of the peer's SYN into a SYN-ACK that accepts AccECN.
pub(crate) fn reflect<P>(syn_ack: &mut Segment<P>, agreed: &Agreed) {
    syn_ack.set_ace(reflected(agreed.peer_syn));
}

/// Completes `agreed` with the ACE field of a SYN-ACK that accepts AccECN (RFC 9768 3.1.1 table 2, 3.2.3.2).
pub(crate) fn answered(config: &EcnConfig, ace: u8, agreed: Agreed) -> Agreed {
    let distrusted = config.fallback && ace != 0b101 && came_with(ace) != Ecn::NotEct;
    Agreed {
        distrusted,
        syn_ack_marked: agreed.peer_syn == Ecn::Ce && !distrusted,
        ..agreed
    }
}

/// Returns the option of a SYN-ACK, which shows whether options get through.
pub(crate) fn first_option(agreed: &Agreed) -> AccEcn {
    Feedback::new(agreed.peer_syn).first_option()
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
fn came_with(ace: u8) -> Ecn {
    match ace {
        0b010 => Ecn::NotEct,
        0b110 => Ecn::Ce,
        0b100 => Ecn::Ect0,
        _ => Ecn::Ect1,
    }
}

/// AccECN state of a connection, beside its sender's reports.
#[derive(Debug)]
pub(crate) struct Accurate {
    feedback: Feedback,
    /// Our packets are not sent as ECN-capable: the path changes codepoints or flags.
    distrusted: bool,
    /// The next segment answers our SYN-ACK, and its ACE field is no counter.
    skips_ace: bool,
}

impl Accurate {
    /// Begins to count, if AccECN was negotiated.
    pub(crate) fn begin<P: Payload>(
        agreed: &Agreed,
        opened_by_peer: bool,
        sender: &mut Sender<P>,
    ) -> Option<Box<Accurate>> {
        if agreed.mode != EcnMode::Accurate {
            return None;
        }
        let mut feedback = Feedback::new(agreed.peer_syn);
        let mut reports = Reports::default();
        reports.on_first_option(agreed.option.as_ref());
        if opened_by_peer {
            if agreed.syn_ack_marked {
                reports.count_syn_ack();
            }
        } else {
            feedback.on_syn_ack(agreed.peer_syn);
            if agreed.syn_ack_marked {
                feedback.count_syn_ack();
            }
        }
        sender.set_reports(reports);
        Some(Box::new(Accurate {
            feedback,
            distrusted: agreed.distrusted,
            skips_ace: opened_by_peer,
        }))
    }

    pub(crate) fn info(&self, info: &mut Info) {
        let bytes = self.feedback.bytes();
        info.accecn = true;
        info.ecn_seen = self.feedback.seen();
        info.ce_received = self.feedback.ce_packets().into();
        (info.received_e1_bytes, info.received_e0_bytes) = (bytes.ect1, bytes.ect0);
        info.received_ce_bytes = bytes.ce;
    }
}

impl<P: Payload> Synchronized<P> {
    /// Counts the codepoint of a segment that passed the checks, even if its payload is dropped.
    pub(crate) fn count_codepoint(&mut self, segment: &Segment<P>) {
        let Some(accurate) = &mut self.accurate else {
            return;
        };
        let (packets, len) = (segment.packets.max(1), segment.payload.len());
        if accurate.feedback.on_segment(segment.ecn, packets, len) {
            self.receiver.request_ack();
        }
    }

    /// Notes that the peer repeats its SYN-ACK: our next ACK reflects its codepoint.
    pub(crate) fn note_syn_ack(&mut self, segment: &Segment<P>) {
        if let Some(accurate) = self.accurate.as_mut().filter(|_| segment.ack.is_some()) {
            accurate.feedback.on_syn_ack(segment.ecn);
        }
    }

    pub(crate) fn note_duplicate(&mut self, seq: SeqNum) {
        if let Some(accurate) = &mut self.accurate {
            accurate.feedback.on_duplicate(seq);
        }
    }

    /// Returns the ACE field of a segment, if it is a reliable counter.
    pub(crate) fn trusted_ace(&mut self, segment: &Segment<P>) -> Option<u8> {
        let accurate = self.accurate.as_mut()?;
        let is_count = !core::mem::take(&mut accurate.skips_ace) && !accurate.distrusted;
        is_count.then(|| segment.ace())
    }

    /// Returns whether the segment has a newer timestamp than all before: then it is the newest ACK even without progress.
    pub(crate) fn has_newer_timestamp(&self, segment: &Segment<P>) -> bool {
        let recent = self.receiver.ts_recent();
        recent
            .zip(segment.options.timestamps)
            .is_some_and(|(recent, ts)| recent.is_newer(ts.value))
    }

    /// Returns the ECN field of outgoing packets; with RFC 3168, the sender chooses that of new data.
    pub(crate) fn codepoint(&self) -> Ecn {
        match &self.accurate {
            Some(accurate) if !accurate.distrusted => Ecn::Ect0,
            _ => Ecn::NotEct,
        }
    }

    /// Allows super-segments or not. A NIC that cuts one removes CWR from all packets but the first, as RFC 3168 needs it, so
    /// data with this bit in the ACE field is sent packet by packet.
    pub(crate) fn choose_bundling(&mut self) {
        if let Some(accurate) = &self.accurate {
            let has_cwr = accurate.feedback.peek_ace() & 0b010 != 0;
            self.sender.set_bundling(match has_cwr {
                true => Bundling::SinglePackets,
                false => Bundling::SuperSegments,
            });
        }
    }

    /// Writes the reports of marks into an outgoing segment; `dsack` is where its D-SACK begins.
    pub(crate) fn tell_marks(&mut self, segment: &mut Segment<P>, dsack: Option<SeqNum>) {
        let (ecn, option) = (self.codepoint(), self.negotiated.accecn_option);
        let sends_option = option && self.sender.sees_accecn_option();
        let Some(accurate) = &mut self.accurate else {
            return;
        };
        let bare = segment.payload.is_empty() && segment.control.is_empty();
        let ace = accurate.feedback.ace(bare);
        segment.set_ace(ace);
        segment.ecn = ecn;
        if sends_option {
            accurate.feedback.add_option(segment, dsack);
        }
    }
}
