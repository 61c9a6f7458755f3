//! Explicit congestion notification: what is asked for and granted.

/// Whether routers may mark packets of a connection instead of dropping them: explicit congestion notification
/// (RFC 3168), told back packet by packet where both sides can (AccECN, RFC 9768). The numbers are those of linux's sysctl
/// `tcp_ecn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EcnPolicy {
    /// Never (0).
    Off,
    /// Asks for it, and grants it to who asks (1).
    Request,
    /// Grants it to who asks (2), the default, as in Linux.
    #[default]
    Accept,
    /// Asks for AccECN, and grants either to who asks (3).
    Accurate,
    /// Asks for RFC 3168's, and grants either to who asks (4).
    RequestAcceptAccurate,
    /// Grants either to who asks (5).
    AcceptAccurate,
}

/// What two sides agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EcnMode {
    /// No packet may be marked.
    #[default]
    Off,
    /// RFC 3168: one echo per window.
    Classic,
    /// AccECN, RFC 9768: every marked packet is told.
    Accurate,
}

impl EcnPolicy {
    /// Returns what a value of linux's sysctl `tcp_ecn` means; `None` for those that mean nothing here.
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

    /// Returns what a SYN of ours asks for.
    #[must_use]
    pub const fn asks(self) -> EcnMode {
        match self {
            EcnPolicy::Off | EcnPolicy::Accept | EcnPolicy::AcceptAccurate => EcnMode::Off,
            EcnPolicy::Request | EcnPolicy::RequestAcceptAccurate => EcnMode::Classic,
            EcnPolicy::Accurate => EcnMode::Accurate,
        }
    }

    /// Returns the most that a peer is granted.
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

/// Explicit congestion notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EcnConfig {
    /// What is asked for, and what is granted (RFC 3168, RFC 9768).
    pub policy: EcnPolicy,
    /// Repeats a SYN that asked for ECN and was not answered without asking: there are middleboxes that drop such
    /// SYNs (RFC 3168 6.1.1.1; linux `tcp_ecn_fallback` = 1, Linux's default).
    ///
    /// With AccECN also distrusts a path that changes codepoints of the handshake (RFC 9768 3.2.3.2), and the second
    /// repetition is the first that does not ask.
    pub fallback: bool,
    /// Sends AccECN's option, which counts bytes, beside its flags, which count packets (linux `tcp_ecn_option`: 0, or 2,
    /// the default).
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
