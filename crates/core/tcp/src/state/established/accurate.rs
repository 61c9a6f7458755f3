//! AccECN in the life of a connection (RFC 9768): what arrives is counted, what leaves tells.

use netmem::Payload;
use wire::Ecn;

use super::Synchronized;
use crate::config::EcnMode;
use crate::ecn::Agreed;
use crate::ecn::delivered::Reports;
use crate::ecn::feedback::Feedback;
use crate::info::Info;
use crate::segment::Segment;
use crate::sender::Sender;
use crate::seqnum::SeqNum;

/// What a connection with AccECN keeps beside its sender's reports.
#[derive(Debug)]
pub(super) struct Accurate {
    feedback: Feedback,
    /// Our packets must not be marked: the handshake showed that somebody changes codepoints or flags.
    distrusted: bool,
    /// The first segment answers our SYN-ACK, and its flags are no count.
    skips_ace: bool,
}

impl Accurate {
    /// Begins to count, if that was agreed on.
    pub(super) fn begin<P: Payload>(
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

    pub(super) fn info(&self, info: &mut Info) {
        let bytes = self.feedback.bytes();
        info.accecn = true;
        info.ecn_seen = self.feedback.seen();
        info.ce_received = self.feedback.ce_packets().into();
        (info.received_e1_bytes, info.received_e0_bytes) = (bytes.ect1, bytes.ect0);
        info.received_ce_bytes = bytes.ce;
    }
}

impl<P: Payload> Synchronized<P> {
    /// Counts the codepoint of a segment that passed the checks, whatever becomes of its payload.
    pub(super) fn count_codepoint(&mut self, segment: &Segment<P>) {
        let Some(accurate) = &mut self.accurate else {
            return;
        };
        let (packets, len) = (segment.packets.max(1), segment.payload.len());
        if accurate.feedback.on_segment(segment.ecn, packets, len) {
            self.receiver.request_ack();
        }
    }

    /// The peer repeats its SYN-ACK: our ACK of it is said again, with what it reflects.
    pub(super) fn note_syn_ack(&mut self, segment: &Segment<P>) {
        if let Some(accurate) = self.accurate.as_mut().filter(|_| segment.ack.is_some()) {
            accurate.feedback.on_syn_ack(segment.ecn);
        }
    }

    pub(super) fn note_duplicate(&mut self, seq: SeqNum) {
        if let Some(accurate) = &mut self.accurate {
            accurate.feedback.on_duplicate(seq);
        }
    }

    /// Returns the ACE field of a segment, where it is a count that can be relied on.
    pub(super) fn trusted_ace(&mut self, segment: &Segment<P>) -> Option<u8> {
        let accurate = self.accurate.as_mut()?;
        let is_count = !core::mem::take(&mut accurate.skips_ace) && !accurate.distrusted;
        is_count.then(|| segment.ace())
    }

    /// Returns whether the peer's clock moved on: then even an ACK of nothing new is newer than all before.
    pub(super) fn has_newer_timestamp(&self, segment: &Segment<P>) -> bool {
        let recent = self.receiver.ts_recent();
        recent
            .zip(segment.options.timestamps)
            .is_some_and(|(recent, ts)| recent.is_newer(ts.value))
    }

    /// Returns the ECN field of every packet that leaves; with RFC 3168 that of new data is the sender's to choose.
    pub(super) fn codepoint(&self) -> Ecn {
        match &self.accurate {
            Some(accurate) if !accurate.distrusted => Ecn::Ect0,
            _ => Ecn::NotEct,
        }
    }

    /// Lets super-segments leave or not. Who cuts one takes CWR for RFC 3168's and leaves it to the first packet, so that
    /// an ACE field with this bit must go packet by packet.
    pub(super) fn choose_bundling(&mut self) {
        if let Some(accurate) = &self.accurate {
            let has_cwr = accurate.feedback.peek_ace() & 0b010 != 0;
            self.sender.set_single_packets(has_cwr);
        }
    }

    /// Writes what is told of marks into a segment that leaves; `dsack` is where the D-SACK in it begins.
    pub(super) fn tell_marks(&mut self, segment: &mut Segment<P>, dsack: Option<SeqNum>) {
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
