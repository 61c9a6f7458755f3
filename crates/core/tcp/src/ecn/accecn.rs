//! AccECN (RFC 9768): all packets are ECN-capable, and each ACK counts the marked ones.
//!
//! AccECN and RFC 3168 share the flags of the SYNs, so [`crate::ecn`] has one table for both; [`negotiation`] has the rest of the
//! handshake. A connection that uses AccECN has an [`Accurate`], and its sender [`Reports`]; other connections have two null
//! pointers. `feedback.rs` counts what arrives and reports it to the peer, `delivered.rs` interprets the peer's reports, and
//! `state/established/marks.rs` passes both to the segments.
//!
//! It is no cargo feature: [`EcnConfig::policy`](crate::config::EcnConfig::policy) switches it, off by default. A feature would double the builds of CI, and
//! the code in `established` and `sender` would be tested in only one of them.

mod counts;
mod delivered;
mod feedback;
pub(crate) mod negotiation;
#[cfg(test)]
mod tests;

use crate::config::EcnMode;
use crate::ecn::agreed::Agreed;
use crate::info::Info;
pub(crate) use delivered::{DeliveryReport, Reports};
use feedback::Feedback;

/// AccECN state of a connection, beside its sender's reports.
#[derive(Debug)]
pub(crate) struct Accurate {
    pub(crate) feedback: Feedback,
    /// Our packets are not sent as ECN-capable: the path changes codepoints or flags.
    pub(crate) distrusted: bool,
    /// The next segment answers our SYN-ACK, and its ACE field is no counter.
    pub(crate) skips_ace: bool,
}

impl Accurate {
    /// Begins to count, if AccECN was negotiated; the reports are the sender's.
    pub(crate) fn begin(agreed: &Agreed, opened_by_peer: bool) -> Option<(Box<Accurate>, Reports)> {
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
        let accurate = Accurate {
            feedback,
            distrusted: agreed.distrusted,
            skips_ace: opened_by_peer,
        };
        Some((Box::new(accurate), reports))
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
