//! Explicit congestion notification (RFC 3168): routers mark packets instead of dropping them.
//!
//! The two SYNs agree on it ([`asks`], [`granted`], [`answered`]). From then on new data leaves as [`Ecn::Ect0`]; the
//! receiver echoes a mark in each ACK until it hears that the window was reduced ([`Echo`]); the sender reduces it once per
//! window and says so with the next new data ([`CwrAnswer`], and the phase CWR of `sender/recovery.rs`).
//!
//! With AccECN (RFC 9768) all packets are ECN-capable, and each ACK counts the marked ones: [`crate::accecn`]. Details are Linux's (include/net/tcp_ecn.h, net/ipv4/tcp_input.c, tcp_output.c).

#[cfg(test)]
mod tests;

use wire::{AccEcn, Ecn};

use crate::accecn;
use crate::config::{EcnConfig, EcnMode};
use crate::segment::Segment;

/// What the SYNs settled, and what they showed of the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Agreed {
    pub(crate) mode: EcnMode,
    /// With which codepoint the peer's SYN or SYN-ACK came.
    pub(crate) peer_syn: Ecn,
    /// Something on the way changes codepoints or flags: none of our packets may be marked.
    pub(crate) distrusted: bool,
    /// The SYN-ACK, whoever sent it, was marked on its way, and counts.
    pub(crate) syn_ack_marked: bool,
    /// The option that came with the handshake.
    pub(crate) option: Option<AccEcn>,
}

/// Returns what a SYN that was repeated `retries` times asks for (RFC 3168 6.1.1, 6.1.1.1, RFC 9768 3.1.4.1).
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

/// Writes what a SYN asks for into its flags.
pub(crate) fn ask<P>(syn: &mut Segment<P>, mode: EcnMode) {
    syn.set_ace(match mode {
        EcnMode::Off => 0b000,
        EcnMode::Classic => 0b011,
        EcnMode::Accurate => 0b111,
    });
}

/// Judges the SYN of a peer that opens actively.
///
/// A SYN that itself claims to be ECN-capable is none of RFC 3168's (6.1.1), and may be of a middlebox that mangles the
/// field. Any flags but none and RFC 3168's ask for AccECN (RFC 9768 3.1.2).
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

/// Writes what is granted into a SYN-ACK that was repeated after `retries` timeouts.
pub(crate) fn grant<P>(syn_ack: &mut Segment<P>, agreed: &Agreed, retries: u8) {
    match agreed.mode {
        EcnMode::Off => {}
        EcnMode::Classic => syn_ack.ece = true,
        EcnMode::Accurate if retries > accecn::RETRIES => {}
        EcnMode::Accurate => accecn::reflect(syn_ack, agreed),
    }
}

/// Judges the peer's answer to our SYN: a SYN-ACK, or, when both open at once, a SYN (RFC 3168 6.1.1, RFC 9768 3.1.1
/// table 2, 3.1.3).
///
/// A SYN-ACK with all flags is of a host that reflects what it does not understand.
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

/// The receiver's part: what it saw, and whether it tells.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Echo {
    enabled: bool,
    /// A mark was seen, and the sender has not said that it heard (linux `TCP_ECN_DEMAND_CWR`).
    demands_cwr: bool,
    seen: bool,
    ce_received: u64,
}

/// What the ECN field of arriving data means for its ACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Haste {
    /// Nothing.
    No,
    /// It is the first mark that is to be echoed: a sender with a small window waits for each ACK.
    Marked,
    /// The peer's data is marked ECN-capable, and this is not: it is probably sent again.
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

    /// Returns whether data of the peer came with an ECN codepoint.
    pub(crate) fn seen(self) -> bool {
        self.seen
    }

    /// Returns how many segments with data came marked.
    pub(crate) fn ce_received(self) -> u64 {
        self.ce_received
    }

    /// The peer says with data that it has reduced its window.
    pub(crate) fn on_cwr(&mut self) {
        self.demands_cwr = false;
    }

    /// Takes in the ECN field of data that is new (linux `__tcp_ecn_check_ce`).
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

/// The sender's part: whether it marks its data ECN-capable, and whether it has yet to say that it reduced its window.
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

    /// The window was reduced, for whatever reason: the next new data says so.
    pub(crate) fn on_reduced(&mut self) {
        self.due = self.enabled;
    }

    /// The reduction was taken back.
    pub(crate) fn on_undone(&mut self) {
        self.due = false;
    }

    /// Returns the ECN field of new data, and whether it carries CWR, which is said once.
    pub(crate) fn on_new_data(&mut self) -> (Ecn, bool) {
        match self.enabled {
            true => (Ecn::Ect0, core::mem::take(&mut self.due)),
            false => (Ecn::NotEct, false),
        }
    }
}
