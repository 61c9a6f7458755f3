//! Marks of AccECN in the segments of a connection that uses it.

use netmem::Payload;
use wire::Ecn;

use super::Synchronized;
use crate::config::EcnMode;
use crate::segment::Segment;
use crate::sender::Bundling;
use crate::seqnum::SeqNum;

impl<P: Payload> Synchronized<P> {
    /// Counts the codepoint of a segment that passed the checks, even if its payload is dropped.
    pub(crate) fn count_codepoint(&mut self, segment: &Segment<P>) {
        let Some(accurate) = &mut self.accurate else {
            return;
        };
        let (packets, len) = (segment.packets.max(1), segment.payload.len());
        if accurate.feedback.on_segment(segment.ecn, packets, len) {
            self.receiver.ack.request();
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

    /// Returns the ECN field of outgoing packets; without AccECN, the sender chooses that of data.
    pub(crate) fn codepoint(&self) -> Ecn {
        match &self.accurate {
            Some(accurate) if !accurate.distrusted => Ecn::Ect0,
            None if self.negotiated.ecn == EcnMode::Dctcp => Ecn::Ect0,
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
