//! Marks: the receiving half echoes them, the sending half confirms that it has reduced its window.

use wire::Ecn;

/// ECN state of the receiving half: marks that were seen, and whether they are echoed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Echo {
    enabled: bool,
    /// A mark was seen, and the sender has not confirmed it (linux `TCP_ECN_DEMAND_CWR`).
    demands_cwr: bool,
    seen: bool,
    ce_received: u64,
}

/// Effect of the ECN field of arriving data on its ACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Haste {
    /// None.
    No,
    /// It is the first mark since the last CWR: the ACK should not wait, because the sender will have a small window.
    Marked,
    /// Other data of the peer was ECN-capable, and this is not: it is probably a retransmission.
    Repeated,
}

impl Echo {
    pub(crate) fn new(enabled: bool) -> Echo {
        Echo {
            enabled,
            ..Echo::default()
        }
    }

    /// Returns whether ACKs carry ECE.
    pub(crate) fn is_due(self) -> bool {
        self.demands_cwr
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
        self.demands_cwr = false;
    }

    /// Takes the ECN field of new data (linux `__tcp_ecn_check_ce`).
    pub(crate) fn on_data(&mut self, ecn: Ecn) -> Haste {
        if !self.enabled {
            return Haste::No;
        }
        match ecn {
            Ecn::NotEct if self.seen => Haste::Repeated,
            Ecn::NotEct => Haste::No,
            Ecn::Ect0 | Ecn::Ect1 => {
                self.seen = true;
                Haste::No
            }
            Ecn::Ce => {
                self.seen = true;
                self.ce_received += 1;
                match core::mem::replace(&mut self.demands_cwr, true) {
                    true => Haste::No,
                    false => Haste::Marked,
                }
            }
        }
    }
}

/// ECN state of the sending half: whether new data is ECN-capable, and whether a reduction of the window is still to be
/// confirmed with CWR.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CwrAnswer {
    enabled: bool,
    /// linux `TCP_ECN_QUEUE_CWR`.
    due: bool,
}

impl CwrAnswer {
    pub(crate) fn new(enabled: bool) -> CwrAnswer {
        CwrAnswer {
            enabled,
            due: false,
        }
    }

    /// Returns whether ECN is in use.
    pub(crate) fn is_enabled(self) -> bool {
        self.enabled
    }

    /// Notes that the window was reduced, for any reason: the next new data has CWR.
    pub(crate) fn on_reduced(&mut self) {
        self.due = self.enabled;
    }

    /// Notes that the reduction was undone.
    pub(crate) fn on_undone(&mut self) {
        self.due = false;
    }

    /// Returns the ECN field of new data, and whether it has CWR, once for each reduction.
    pub(crate) fn on_new_data(&mut self) -> (Ecn, bool) {
        match self.enabled {
            true => (Ecn::Ect0, core::mem::take(&mut self.due)),
            false => (Ecn::NotEct, false),
        }
    }
}
