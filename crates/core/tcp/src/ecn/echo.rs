//! Marks: the receiving half echoes them, the sending half confirms that it has reduced its window.

use wire::Ecn;

use crate::config::EcnMode;
use crate::seqnum::SeqNum;

/// ECN state of the receiving half: marks that were seen, and whether they are echoed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Echo {
    mode: EcnMode,
    /// RFC 3168: a mark was seen, and the sender has not confirmed it (linux `TCP_ECN_DEMAND_CWR`). DCTCP: the newest data was
    /// marked (DCTCP.CE).
    echoes: bool,
    /// DCTCP: an ACK of the data before the newest, up to `earlier`, has to leave before the next one. (A number beside a flag, because
    /// every connection has this.)
    has_earlier: bool,
    earlier: SeqNum,
    seen: bool,
    ce_received: u64,
}

/// The ACK of data whose marks differ from those of the data behind it (RFC 8257 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EarlierAck {
    pub(crate) ack: SeqNum,
    pub(crate) ece: bool,
}

/// Effect of the ECN field of arriving data on its ACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckUrgency {
    /// None.
    No,
    /// It is the first mark since the last CWR: the ACK should not wait, because the sender will have a small window. DCTCP: marks
    /// begin or end with it.
    Marked,
    /// Other data of the peer was ECN-capable, and this is not: it is probably a retransmission.
    Repeated,
}

impl Echo {
    pub(crate) fn new(mode: EcnMode) -> Echo {
        Echo {
            mode,
            ..Echo::default()
        }
    }

    /// Returns whether ACKs carry ECE.
    pub(crate) fn is_due(self) -> bool {
        self.echoes
    }

    /// Takes the ACK that has to leave before the next one.
    pub(crate) fn take_earlier(&mut self) -> Option<EarlierAck> {
        core::mem::take(&mut self.has_earlier).then_some(EarlierAck {
            ack: self.earlier,
            // What came behind it differs.
            ece: !self.echoes,
        })
    }

    /// Returns whether any data of the peer had an ECN codepoint.
    pub(crate) fn seen(self) -> bool {
        self.seen
    }

    /// Returns how many segments with data were marked.
    pub(crate) fn ce_received(self) -> u64 {
        self.ce_received
    }

    /// Notes CWR on data: the peer has reduced its window.
    pub(crate) fn on_cwr(&mut self) {
        if self.mode == EcnMode::Classic {
            self.echoes = false;
        }
    }

    /// Notes that data with `ecn` comes behind data up to `rcv_nxt` that is not acknowledged: with DCTCP, one ACK cannot tell the marks
    /// of both. Only the last such ACK is kept until it leaves, which is when the data has been taken.
    pub(crate) fn before_data(&mut self, ecn: Ecn, rcv_nxt: SeqNum) {
        if self.mode == EcnMode::Dctcp && self.echoes != (ecn == Ecn::Ce) {
            self.has_earlier = true;
            self.earlier = rcv_nxt;
        }
    }

    /// Takes the ECN field of new data (linux `__tcp_ecn_check_ce`, net/ipv4/tcp_dctcp.h `dctcp_ece_ack_update`).
    pub(crate) fn on_data(&mut self, ecn: Ecn) -> AckUrgency {
        match self.mode {
            EcnMode::Off | EcnMode::Accurate => AckUrgency::No,
            EcnMode::Classic => self.on_data_until_cwr(ecn),
            EcnMode::Dctcp => {
                let is_marked = ecn == Ecn::Ce;
                self.seen |= ecn != Ecn::NotEct;
                self.ce_received += u64::from(is_marked);
                match core::mem::replace(&mut self.echoes, is_marked) == is_marked {
                    true => AckUrgency::No,
                    false => AckUrgency::Marked,
                }
            }
        }
    }

    fn on_data_until_cwr(&mut self, ecn: Ecn) -> AckUrgency {
        match ecn {
            Ecn::NotEct if self.seen => AckUrgency::Repeated,
            Ecn::NotEct => AckUrgency::No,
            Ecn::Ect0 | Ecn::Ect1 => {
                self.seen = true;
                AckUrgency::No
            }
            Ecn::Ce => {
                self.seen = true;
                self.ce_received += 1;
                match core::mem::replace(&mut self.echoes, true) {
                    true => AckUrgency::No,
                    false => AckUrgency::Marked,
                }
            }
        }
    }
}

/// ECN state of the sending half: which data is ECN-capable, and whether a reduction of the window is still to be confirmed with CWR.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CwrAnswer {
    mode: EcnMode,
    /// linux `TCP_ECN_QUEUE_CWR`.
    due: bool,
}

impl CwrAnswer {
    pub(crate) fn new(mode: EcnMode) -> CwrAnswer {
        CwrAnswer { mode, due: false }
    }

    /// Returns whether the peer echoes marks by ECE.
    pub(crate) fn is_enabled(self) -> bool {
        matches!(self.mode, EcnMode::Classic | EcnMode::Dctcp)
    }

    /// Returns the ECN field of all that is not new data: retransmissions, probes, FINs (RFC 3168 6.1.4 to 6.1.6, RFC 8257 3.5).
    pub(crate) fn codepoint(self) -> Ecn {
        match self.mode {
            EcnMode::Dctcp => Ecn::Ect0,
            EcnMode::Off | EcnMode::Classic | EcnMode::Accurate => Ecn::NotEct,
        }
    }

    /// Notes that the window was reduced, for any reason: the next new data has CWR.
    pub(crate) fn on_reduced(&mut self) {
        self.due = self.is_enabled();
    }

    /// Notes that the reduction was undone.
    pub(crate) fn on_undone(&mut self) {
        self.due = false;
    }

    /// Returns the ECN field of new data, and whether it has CWR, once for each reduction.
    pub(crate) fn on_new_data(&mut self) -> (Ecn, bool) {
        match self.is_enabled() {
            true => (Ecn::Ect0, core::mem::take(&mut self.due)),
            false => (Ecn::NotEct, false),
        }
    }
}
