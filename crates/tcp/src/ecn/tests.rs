//! Who asks, who grants, what is told and what is understood.

use super::*;
use crate::config::EcnPolicy;
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
            super::granted(&config(policy), &syn).mode == EcnMode::Classic,
            granted,
            "{policy:?} {syn:?}"
        );
    }
    let mangled = Segment {
        ecn: Ecn::Ect0,
        ..syn(true, true, None)
    };
    assert_eq!(
        granted(&config(EcnPolicy::Request), &mangled).mode,
        EcnMode::Off
    );
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
            answered(&config(policy), &answer).mode == EcnMode::Classic,
            accepted,
            "{policy:?} {answer:?}"
        );
    }
}

#[test]
fn a_repeated_syn_no_longer_asks_unless_told_to() {
    let asked = |policy, fallback: bool| {
        let config = Config {
            ecn_fallback: fallback,
            ..config(policy)
        };
        [0, 1, 2].map(|retries| asks(&config, retries))
    };
    use EcnMode::{Accurate, Classic, Off};
    assert_eq!(asked(EcnPolicy::Accept, true), [Off, Off, Off]);
    assert_eq!(asked(EcnPolicy::Request, true), [Classic, Off, Off]);
    assert_eq!(asked(EcnPolicy::Request, false), [Classic; 3]);
    assert_eq!(asked(EcnPolicy::Accurate, true), [Accurate, Accurate, Off]);
    assert_eq!(
        asked(EcnPolicy::RequestAcceptAccurate, true),
        [Classic, Off, Off]
    );
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
