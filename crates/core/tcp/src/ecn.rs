//! Explicit congestion notification (RFC 3168): routers mark packets instead of dropping them.
//!
//! The two SYNs negotiate it ([`asks`], [`granted`], [`answered`]). New data is sent as [`Ecn::Ect0`]. The
//! receiver echoes a mark in each ACK until the sender confirms it with CWR ([`Echo`](echo::Echo)). The sender reduces the congestion
//! window once per window of data, and sets CWR on the next new data ([`CwrAnswer`](echo::CwrAnswer), and the phase CWR of
//! `sender/recovery.rs`).
//!
//! Connections that are controlled by DCTCP (RFC 8257) negotiate in the same way, with ECN-capable SYNs (3.5): that is how two such ends know
//! each other, because other ends refuse such a SYN. Their ACKs echo a mark of what they acknowledge and nothing else.
//!
//! With AccECN (RFC 9768) all packets are ECN-capable, and each ACK counts the marked ones: [`crate::ecn::accecn`]. Details are as
//! in Linux (include/net/tcp_ecn.h, net/ipv4/tcp_input.c, tcp_output.c).

pub(crate) mod accecn;
pub(crate) mod agreed;
pub(crate) mod echo;
#[cfg(test)]
mod tests;

use wire::Ecn;

use crate::config::{EcnConfig, EcnMode};
use crate::ecn::accecn::negotiation;
use crate::segment::Segment;
use crate::settings::CongestionKind;
use agreed::Agreed;

/// Returns what connections request whose congestion control is `kind`.
fn wanted(config: &EcnConfig, kind: CongestionKind) -> EcnMode {
    match kind {
        CongestionKind::Dctcp => EcnMode::Dctcp,
        CongestionKind::NewReno | CongestionKind::Cubic | CongestionKind::Bbr => {
            config.policy.asks()
        }
    }
}

/// Returns what a SYN requests that was repeated `retries` times (RFC 3168 6.1.1, 6.1.1.1, RFC 9768 3.1.4.1).
pub(crate) fn asks(config: &EcnConfig, kind: CongestionKind, retries: u8) -> EcnMode {
    let asks = wanted(config, kind);
    let most = match asks {
        EcnMode::Accurate => negotiation::RETRIES,
        EcnMode::Classic | EcnMode::Dctcp | EcnMode::Off => 0,
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
        EcnMode::Classic | EcnMode::Dctcp => 0b011,
        EcnMode::Accurate => 0b111,
    });
    if mode == EcnMode::Dctcp {
        syn.ecn = Ecn::Ect0;
    }
}

/// Returns what is accepted of the request in a peer's SYN.
///
/// RFC 3168 forbids SYNs that are ECN-capable themselves (6.1.1); a middlebox may have changed the field, or the peer is controlled by
/// DCTCP, as a connection here is if its listener is. Any flags other than none and those of RFC 3168 request AccECN (RFC 9768 3.1.2).
pub(crate) fn granted<P>(config: &EcnConfig, kind: CongestionKind, syn: &Segment<P>) -> Agreed {
    let mode = match (config.policy.grants(), syn.ace()) {
        (_, 0b011) if kind == CongestionKind::Dctcp => EcnMode::Dctcp,
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
        EcnMode::Dctcp => {
            syn_ack.ece = true;
            syn_ack.ecn = Ecn::Ect0;
        }
        EcnMode::Accurate if retries > negotiation::RETRIES => {}
        EcnMode::Accurate => negotiation::reflect(syn_ack, agreed),
    }
}

/// Returns the result of the peer's answer to our SYN: a SYN-ACK, or, in a simultaneous open, a SYN (RFC 3168 6.1.1, RFC 9768
/// 3.1.1 table 2, 3.1.3).
///
/// A SYN-ACK with all flags comes from a host that copies flags without support for them.
pub(crate) fn answered<P>(config: &EcnConfig, kind: CongestionKind, answer: &Segment<P>) -> Agreed {
    let agreed = |mode| Agreed {
        mode,
        peer_syn: answer.ecn,
        option: answer.options.accecn,
        ..Agreed::default()
    };
    let crossed = answer.ack.is_none();
    match (wanted(config, kind), answer.ace()) {
        (EcnMode::Off, _) => Agreed::default(),
        (mode @ (EcnMode::Classic | EcnMode::Dctcp), _) if answer.ece && answer.cwr == crossed => {
            agreed(mode)
        }
        (EcnMode::Classic | EcnMode::Dctcp, _) => Agreed::default(),
        (EcnMode::Accurate, 0b000) => Agreed::default(),
        (EcnMode::Accurate, 0b011) if crossed => agreed(EcnMode::Classic),
        (EcnMode::Accurate, _) if crossed => agreed(EcnMode::Accurate),
        (EcnMode::Accurate, 0b111) => Agreed::default(),
        (EcnMode::Accurate, 0b001) => agreed(EcnMode::Classic),
        (EcnMode::Accurate, ace) => negotiation::answered(config, ace, agreed(EcnMode::Accurate)),
    }
}
