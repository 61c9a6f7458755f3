//! AccECN (RFC 9768): all packets are ECN-capable, and each ACK counts the marked ones.
//!
//! All of it is here. [`crate::ecn`] negotiates it with RFC 3168's in one table of flags, because the two share the flags of
//! the SYNs; a connection for which it was agreed on has an [`Accurate`], its sender [`Reports`], any other has neither and
//! pays two null pointers. `feedback.rs` counts what arrives and tells the peer, `delivered.rs` understands what the peer
//! tells.
//!
//! It is no cargo feature: [`EcnConfig::policy`] switches it, off by default, and a feature would double what CI builds and
//! let the hooks in `established` and `sender` rot in one half of it.

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

/// The ACE field before anything was marked (RFC 9768 3.2.1, linux `TCP_ACCECN_CEP_INIT_OFFSET`): a middlebox that clears
/// it is found out.
const ACE_START: u32 = 5;

/// The counters of ECT(0) and ECT(1) before any byte, for the same reason (RFC 9768 3.2.1).
const OPTION_START: u32 = 1;

/// SYNs and SYN-ACKs of AccECN that may be lost before it is taken for their fault (RFC 9768 3.1.4.1: one repetition).
pub(crate) const RETRIES: u8 = 1;

/// Writes with which codepoint the peer's SYN came into a SYN-ACK that grants AccECN.
pub(crate) fn reflect<P>(syn_ack: &mut Segment<P>, agreed: &Agreed) {
    syn_ack.set_ace(reflected(agreed.peer_syn));
}

/// Judges the ACE field of a SYN-ACK that grants AccECN; `agreed` is what it shows apart from that (RFC 9768 3.1.1 table 2,
/// 3.2.3.2).
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
    /// Notes that the peer repeated its SYN: who leaves the flags out has found that they do not get through.
    pub(crate) fn on_repeated_syn<P>(&mut self, syn: &Segment<P>) {
        if self.mode == EcnMode::Accurate {
            self.peer_syn = syn.ecn;
            self.distrusted |= syn.ace() == 0;
        }
    }

    /// Judges the segment that ends a handshake which the peer began; it tells how our SYN-ACK came (RFC 9768 3.2.2.1
    /// table 4). If it has payload, its predecessor was lost, and it counts already.
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

/// Returns the codepoint that an ACE field of the handshake reflects; flags that none is written in count as ECT.
fn came_with(ace: u8) -> Ecn {
    match ace {
        0b010 => Ecn::NotEct,
        0b110 => Ecn::Ce,
        0b100 => Ecn::Ect0,
        _ => Ecn::Ect1,
    }
}

/// What a connection with AccECN keeps beside its sender's reports.
#[derive(Debug)]
pub(crate) struct Accurate {
    feedback: Feedback,
    /// Our packets must not be marked: the handshake showed that somebody changes codepoints or flags.
    distrusted: bool,
    /// The first segment answers our SYN-ACK, and its flags are no count.
    skips_ace: bool,
}

impl Accurate {
    /// Begins to count, if that was agreed on.
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
    /// Counts the codepoint of a segment that passed the checks, whatever becomes of its payload.
    pub(crate) fn count_codepoint(&mut self, segment: &Segment<P>) {
        let Some(accurate) = &mut self.accurate else {
            return;
        };
        let (packets, len) = (segment.packets.max(1), segment.payload.len());
        if accurate.feedback.on_segment(segment.ecn, packets, len) {
            self.receiver.request_ack();
        }
    }

    /// The peer repeats its SYN-ACK: our ACK of it is said again, with what it reflects.
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

    /// Returns the ACE field of a segment, where it is a count that can be relied on.
    pub(crate) fn trusted_ace(&mut self, segment: &Segment<P>) -> Option<u8> {
        let accurate = self.accurate.as_mut()?;
        let is_count = !core::mem::take(&mut accurate.skips_ace) && !accurate.distrusted;
        is_count.then(|| segment.ace())
    }

    /// Returns whether the peer's clock moved on: then even an ACK of nothing new is newer than all before.
    pub(crate) fn has_newer_timestamp(&self, segment: &Segment<P>) -> bool {
        let recent = self.receiver.ts_recent();
        recent
            .zip(segment.options.timestamps)
            .is_some_and(|(recent, ts)| recent.is_newer(ts.value))
    }

    /// Returns the ECN field of every packet that leaves; with RFC 3168 that of new data is the sender's to choose.
    pub(crate) fn codepoint(&self) -> Ecn {
        match &self.accurate {
            Some(accurate) if !accurate.distrusted => Ecn::Ect0,
            _ => Ecn::NotEct,
        }
    }

    /// Lets super-segments leave or not. Who cuts one takes CWR for RFC 3168's and leaves it to the first packet, so that
    /// an ACE field with this bit must go packet by packet.
    pub(crate) fn choose_bundling(&mut self) {
        if let Some(accurate) = &self.accurate {
            let has_cwr = accurate.feedback.peek_ace() & 0b010 != 0;
            self.sender.set_bundling(match has_cwr {
                true => Bundling::SinglePackets,
                false => Bundling::SuperSegments,
            });
        }
    }

    /// Writes what is told of marks into a segment that leaves; `dsack` is where the D-SACK in it begins.
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
