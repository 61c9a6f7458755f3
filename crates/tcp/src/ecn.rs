//! Explicit congestion notification (RFC 3168): routers mark packets instead of dropping them.
//!
//! The two SYNs agree on it ([`asks`], [`is_granted`], [`is_accepted`]). From then on new data leaves as
//! [`Ecn::Ect0`]; the receiver echoes a mark in each ACK until it hears that the window was reduced ([`Echo`]); the
//! sender reduces it once per window and says so with the next new data ([`CwrAnswer`], and the phase CWR of
//! `sender/recovery.rs`). Details are Linux's (include/net/tcp_ecn.h, net/ipv4/tcp_input.c, tcp_output.c).

use wire::Ecn;

use crate::config::{Config, EcnPolicy};
use crate::segment::Segment;

/// Returns whether a SYN that was repeated `retries` times asks for ECN (RFC 3168 6.1.1, 6.1.1.1).
pub(crate) fn asks(config: &Config, retries: u8) -> bool {
    config.ecn == EcnPolicy::Request && (retries == 0 || !config.ecn_fallback)
}

/// Returns whether the SYN of a peer that opens actively asks for ECN, and is granted it.
///
/// A SYN that itself claims to be ECN-capable is none of RFC 3168's (6.1.1), and may be of a middlebox that mangles
/// the field.
pub(crate) fn is_granted<P>(config: &Config, syn: &Segment<P>) -> bool {
    config.ecn != EcnPolicy::Off && syn.ece && syn.cwr && !syn.ecn.is_ect()
}

/// Returns whether the peer's answer to our SYN agrees to ECN: a SYN-ACK with ECE alone, or, when both open at once,
/// a SYN that asks as ours did.
///
/// A SYN-ACK with both flags is of a host that reflects what it does not understand (RFC 3168 6.1.1).
pub(crate) fn is_accepted<P>(config: &Config, answer: &Segment<P>) -> bool {
    let crossed = answer.ack.is_none();
    config.ecn == EcnPolicy::Request && answer.ece && answer.cwr == crossed
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
pub(crate) enum Haste {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seqnum::SeqNum;

    fn config(ecn: EcnPolicy) -> Config {
        Config {
            ecn,
            ..Config::default()
        }
    }

    fn syn(ece: bool, cwr: bool, ack: Option<SeqNum>) -> Segment<()> {
        Segment {
            ece,
            cwr,
            ack,
            ..Segment::default()
        }
    }

    #[test]
    fn ecn_is_granted_to_who_asks_with_both_flags_in_an_unmarked_syn() {
        for (policy, ece, cwr, granted) in [
            (EcnPolicy::Accept, true, true, true),
            (EcnPolicy::Request, true, true, true),
            (EcnPolicy::Off, true, true, false),
            (EcnPolicy::Accept, true, false, false),
            (EcnPolicy::Accept, false, true, false),
            (EcnPolicy::Accept, false, false, false),
        ] {
            let syn = syn(ece, cwr, None);
            assert_eq!(
                is_granted(&config(policy), &syn),
                granted,
                "{policy:?} {syn:?}"
            );
        }
        let mangled = Segment {
            ecn: Ecn::Ect0,
            ..syn(true, true, None)
        };
        assert!(!is_granted(&config(EcnPolicy::Request), &mangled));
    }

    #[test]
    fn ecn_holds_if_we_asked_and_the_syn_ack_echoes() {
        let ack = Some(SeqNum(1));
        for (policy, ece, cwr, ack, accepted) in [
            (EcnPolicy::Request, true, false, ack, true),
            (EcnPolicy::Request, true, true, ack, false),
            (EcnPolicy::Request, false, false, ack, false),
            (EcnPolicy::Accept, true, false, ack, false),
            // Crossed SYNs.
            (EcnPolicy::Request, true, true, None, true),
            (EcnPolicy::Request, true, false, None, false),
        ] {
            let answer = syn(ece, cwr, ack);
            assert_eq!(
                is_accepted(&config(policy), &answer),
                accepted,
                "{policy:?} {answer:?}"
            );
        }
    }

    #[test]
    fn a_repeated_syn_no_longer_asks_unless_told_to() {
        let mut config = config(EcnPolicy::Request);
        assert!(asks(&config, 0) && !asks(&config, 1));
        config.ecn_fallback = false;
        assert!(asks(&config, 6));
        config.ecn = EcnPolicy::Accept;
        assert!(!asks(&config, 0));
    }

    #[test]
    fn a_mark_is_echoed_until_the_sender_has_heard() {
        let mut echo = Echo::new(true);
        assert_eq!(echo.on_data(Ecn::NotEct), Haste::No);
        assert_eq!(echo.on_data(Ecn::Ect0), Haste::No);
        assert!(!echo.is_due() && echo.seen());
        assert_eq!(echo.on_data(Ecn::Ce), Haste::Marked);
        assert_eq!(echo.on_data(Ecn::Ce), Haste::No);
        assert!(echo.is_due());
        assert_eq!(echo.on_data(Ecn::NotEct), Haste::Repeated);
        echo.on_cwr();
        assert!(!echo.is_due());
        assert_eq!(echo.ce_received(), 2);
    }

    #[test]
    fn nothing_is_echoed_or_answered_where_ecn_was_not_agreed_on() {
        let mut echo = Echo::default();
        assert_eq!(echo.on_data(Ecn::Ce), Haste::No);
        assert!(!echo.is_due() && !echo.seen());
        let mut answer = CwrAnswer::default();
        answer.on_reduced();
        assert_eq!(answer.on_new_data(), (Ecn::NotEct, false));
    }

    #[test]
    fn a_reduction_is_said_once_and_not_at_all_if_it_was_taken_back() {
        let mut answer = CwrAnswer::new(true);
        answer.on_reduced();
        assert_eq!(answer.on_new_data(), (Ecn::Ect0, true));
        assert_eq!(answer.on_new_data(), (Ecn::Ect0, false));
        answer.on_reduced();
        answer.on_undone();
        assert_eq!(answer.on_new_data(), (Ecn::Ect0, false));
    }
}
