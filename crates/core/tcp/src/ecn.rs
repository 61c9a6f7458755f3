//! Explicit congestion notification (RFC 3168): routers mark packets instead of dropping them.
//!
//! The two SYNs negotiate it ([`asks`], [`granted`], [`answered`]). New data is sent as [`Ecn::Ect0`]. The
//! receiver echoes a mark in each ACK until the sender confirms it with CWR ([`Echo`]). The sender reduces the congestion
//! window once per window of data, and sets CWR on the next new data ([`CwrAnswer`], and the phase CWR of
//! `sender/recovery.rs`).
//!
//! With AccECN (RFC 9768) all packets are ECN-capable, and each ACK counts the marked ones: [`crate::accecn`]. Details are as
//! in Linux (include/net/tcp_ecn.h, net/ipv4/tcp_input.c, tcp_output.c).

#[cfg(test)]
mod tests;

use wire::{AccEcn, Ecn};

use crate::accecn;
use crate::config::{EcnConfig, EcnMode};
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

/// Returns what a SYN requests that was repeated `retries` times (RFC 3168 6.1.1, 6.1.1.1, RFC 9768 3.1.4.1).
pub(crate) fn asks(config: &EcnConfig, retries: u8) -> EcnMode {
    let asks = config.policy.asks();
    let most = match asks {
        EcnMode::Accurate => accecn::RETRIES,
        EcnMode::Classic | EcnMode::Off => 0,
    };
    if retries > most && config.fallback {
        return EcnMode::Off;
    }
    asks
}

/// Writes the request `mode` into the flags of a SYN.
pub(crate) fn ask<P>(syn: &mut Segment<P>, mode: EcnMode) {
    syn.set_ace(match mode {
        EcnMode::Off => 0b000,
        EcnMode::Classic => 0b011,
        EcnMode::Accurate => 0b111,
    });
}

/// Returns what is accepted of the request in a peer's SYN.
///
/// RFC 3168 forbids SYNs that are ECN-capable themselves (6.1.1); a middlebox may have changed the field. Any flags
/// other than none and those of RFC 3168 request AccECN (RFC 9768 3.1.2).
pub(crate) fn granted<P>(config: &EcnConfig, syn: &Segment<P>) -> Agreed {
    let mode = match (config.policy.grants(), syn.ace()) {
        (EcnMode::Off, _) | (_, 0b000) => EcnMode::Off,
        (EcnMode::Accurate, ace) if ace != 0b011 => EcnMode::Accurate,
        _ if syn.ece && syn.cwr && (!syn.ecn.is_ect() || syn.ae) => EcnMode::Classic,
        _ => EcnMode::Off,
    };
    Agreed {
        mode,
        peer_syn: syn.ecn,
        ..Agreed::default()
    }
}

/// Writes what was accepted into the flags of a SYN-ACK, after `retries` timeouts.
pub(crate) fn grant<P>(syn_ack: &mut Segment<P>, agreed: &Agreed, retries: u8) {
    match agreed.mode {
        EcnMode::Off => {}
        EcnMode::Classic => syn_ack.ece = true,
        EcnMode::Accurate if retries > accecn::RETRIES => {}
        EcnMode::Accurate => accecn::reflect(syn_ack, agreed),
    }
}

/// Returns the result of the peer's answer to our SYN: a SYN-ACK, or, in a simultaneous open, a SYN (RFC 3168 6.1.1, RFC 9768
/// 3.1.1 table 2, 3.1.3).
///
/// A SYN-ACK with all flags comes from a host that copies flags without support for them.
pub(crate) fn answered<P>(config: &EcnConfig, answer: &Segment<P>) -> Agreed {
    let agreed = |mode| Agreed {
        mode,
        peer_syn: answer.ecn,
        option: answer.options.accecn,
        ..Agreed::default()
    };
    let crossed = answer.ack.is_none();
    match (config.policy.asks(), answer.ace()) {
        (EcnMode::Off, _) => Agreed::default(),
        (EcnMode::Classic, _) if answer.ece && answer.cwr == crossed => agreed(EcnMode::Classic),
        (EcnMode::Classic, _) => Agreed::default(),
        (EcnMode::Accurate, 0b000) => Agreed::default(),
        (EcnMode::Accurate, 0b011) if crossed => agreed(EcnMode::Classic),
        (EcnMode::Accurate, _) if crossed => agreed(EcnMode::Accurate),
        (EcnMode::Accurate, 0b111) => Agreed::default(),
        (EcnMode::Accurate, 0b001) => agreed(EcnMode::Classic),
        (EcnMode::Accurate, ace) => accecn::answered(config, ace, agreed(EcnMode::Accurate)),
    }
}

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
