//! Explicit congestion notification: what connections request and accept.

/// Which kind of explicit congestion notification connections request and accept: RFC 3168, or AccECN (RFC 9768), which
/// reports every marked packet. The numbers are those of linux's sysctl `tcp_ecn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EcnPolicy {
    /// Never (0).
    Off,
    /// Requests and accepts RFC 3168 (1).
    Request,
    /// Accepts RFC 3168 (2); the default, as in Linux.
    #[default]
    Accept,
    /// Requests AccECN, accepts both (3).
    Accurate,
    /// Requests RFC 3168, accepts both (4).
    RequestAcceptAccurate,
    /// Accepts both (5).
    AcceptAccurate,
}

/// The kind of ECN that the two sides of a connection agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EcnMode {
    /// None.
    #[default]
    Off,
    /// RFC 3168: marks are echoed once per window.
    Classic,
    /// AccECN, RFC 9768: every marked packet is reported.
    Accurate,
    /// RFC 8257 (DCTCP), negotiated as RFC 3168: an ACK echoes a mark if and only if the packets that it acknowledges have one, and
    /// all packets are ECN-capable.
    Dctcp,
}

impl EcnPolicy {
    /// Returns the policy for a value of linux's sysctl `tcp_ecn`; `None` for values without a meaning.
    #[must_use]
    pub const fn from_sysctl(value: u8) -> Option<EcnPolicy> {
        match value {
            0 => Some(EcnPolicy::Off),
            1 => Some(EcnPolicy::Request),
            2 => Some(EcnPolicy::Accept),
            3 => Some(EcnPolicy::Accurate),
            4 => Some(EcnPolicy::RequestAcceptAccurate),
            5 => Some(EcnPolicy::AcceptAccurate),
            _ => None,
        }
    }

    /// Returns what our SYNs request.
    #[must_use]
    pub const fn asks(self) -> EcnMode {
        match self {
            EcnPolicy::Off | EcnPolicy::Accept | EcnPolicy::AcceptAccurate => EcnMode::Off,
            EcnPolicy::Request | EcnPolicy::RequestAcceptAccurate => EcnMode::Classic,
            EcnPolicy::Accurate => EcnMode::Accurate,
        }
    }

    /// Returns the most that is accepted from a peer.
    #[must_use]
    pub const fn grants(self) -> EcnMode {
        match self {
            EcnPolicy::Off => EcnMode::Off,
            EcnPolicy::Request | EcnPolicy::Accept => EcnMode::Classic,
            EcnPolicy::Accurate | EcnPolicy::RequestAcceptAccurate | EcnPolicy::AcceptAccurate => {
                EcnMode::Accurate
            }
        }
    }
}

/// Settings of explicit congestion notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EcnConfig {
    /// What is requested and accepted (RFC 3168, RFC 9768).
    pub policy: EcnPolicy,
    /// Repeats an unanswered SYN without the request for ECN: some middleboxes drop SYNs that request it (RFC 3168 6.1.1.1;
    /// linux `tcp_ecn_fallback` = 1, Linux's default).
    ///
    /// With AccECN, the second repetition is the first without the request; and ECN is not used on a path that changes
    /// codepoints of the handshake (RFC 9768 3.2.3.2).
    pub fallback: bool,
    /// Sends AccECN's option, which counts bytes, in addition to its flags, which count packets (linux `tcp_ecn_option`: 0,
    /// or 2, the default).
    pub accecn_option: bool,
}

impl Default for EcnConfig {
    fn default() -> EcnConfig {
        EcnConfig {
            policy: EcnPolicy::Accept,
            fallback: true,
            accecn_option: true,
        }
    }
}
