//! Negotiation of ECN, echoes of marks, and CWR.

use wire::Ecn;

use super::echo::{AckUrgency, CwrAnswer, EarlierAck, Echo};
use super::*;
use crate::config::EcnPolicy;
use crate::seqnum::SeqNum;

fn config(policy: EcnPolicy) -> EcnConfig {
    EcnConfig {
        policy,
        ..EcnConfig::default()
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
fn ecn_is_accepted_for_an_unmarked_syn_with_both_flags() {
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
            super::granted(&config(policy), CongestionKind::Cubic, &syn).mode == EcnMode::Classic,
            granted,
            "{policy:?} {syn:?}"
        );
    }
    let mangled = Segment {
        ecn: Ecn::Ect0,
        ..syn(true, true, None)
    };
    assert_eq!(
        granted(&config(EcnPolicy::Request), CongestionKind::Cubic, &mangled).mode,
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
            answered(&config(policy), CongestionKind::Cubic, &answer).mode == EcnMode::Classic,
            accepted,
            "{policy:?} {answer:?}"
        );
    }
}

#[test]
fn a_repeated_syn_does_not_request_ecn_unless_configured() {
    let asked = |policy, fallback: bool| {
        let config = EcnConfig {
            fallback,
            ..config(policy)
        };
        [0, 1, 2].map(|retries| asks(&config, CongestionKind::Cubic, retries))
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
fn a_mark_is_echoed_until_cwr() {
    let mut echo = Echo::new(EcnMode::Classic);
    assert_eq!(echo.on_data(Ecn::NotEct), AckUrgency::No);
    assert_eq!(echo.on_data(Ecn::Ect0), AckUrgency::No);
    assert!(!echo.is_due() && echo.seen());
    assert_eq!(echo.on_data(Ecn::Ce), AckUrgency::Marked);
    assert_eq!(echo.on_data(Ecn::Ce), AckUrgency::No);
    assert!(echo.is_due());
    assert_eq!(echo.on_data(Ecn::NotEct), AckUrgency::Repeated);
    echo.on_cwr();
    assert!(!echo.is_due());
    assert_eq!(echo.ce_received(), 2);
}

#[test]
fn dctcp_echoes_what_each_ack_is_about_whatever_cwr_says() {
    let mut echo = Echo::new(EcnMode::Dctcp);
    for (ecn, haste, ece) in [
        (Ecn::Ect0, AckUrgency::No, false),
        (Ecn::Ce, AckUrgency::Marked, true),
        (Ecn::Ce, AckUrgency::No, true),
        (Ecn::Ect0, AckUrgency::Marked, false),
        (Ecn::NotEct, AckUrgency::No, false),
    ] {
        assert_eq!((echo.on_data(ecn), echo.is_due()), (haste, ece), "{ecn:?}");
        echo.on_cwr();
        assert_eq!(echo.is_due(), ece);
    }
    assert_eq!((echo.seen(), echo.ce_received()), (true, 2));
    let at = SeqNum(100);
    echo.before_data(Ecn::Ect0, at);
    assert_eq!(echo.take_earlier(), None, "no change");
    echo.before_data(Ecn::Ce, at);
    assert_eq!(echo.on_data(Ecn::Ce), AckUrgency::Marked);
    let earlier = EarlierAck {
        ack: at,
        ece: false,
    };
    assert_eq!(echo.take_earlier(), Some(earlier));
    assert_eq!(echo.take_earlier(), None);
}

#[test]
fn dctcp_asks_and_accepts_whatever_the_policy_says_and_other_ends_refuse_it() {
    let dctcp = CongestionKind::Dctcp;
    for policy in [EcnPolicy::Off, EcnPolicy::Accept, EcnPolicy::Accurate] {
        let config = config(policy);
        let mut asked = syn(false, false, None);
        ask(&mut asked, asks(&config, dctcp, 0));
        assert_eq!((asked.ace(), asked.ecn), (0b011, Ecn::Ect0));
        let agreed = granted(&config, dctcp, &asked);
        assert_eq!(agreed.mode, EcnMode::Dctcp);
        let refused = granted(&config, CongestionKind::Cubic, &asked);
        assert_eq!(refused.mode, EcnMode::Off);
        let mut answer = syn(false, false, Some(SeqNum(1)));
        grant(&mut answer, &agreed, 0);
        assert_eq!((answer.ace(), answer.ecn), (0b001, Ecn::Ect0));
        assert_eq!(answered(&config, dctcp, &answer).mode, EcnMode::Dctcp);
        answer.ece = false;
        assert_eq!(answered(&config, dctcp, &answer).mode, EcnMode::Off);
        // A peer by RFC 3168 is accepted, too.
        let plain = syn(true, true, None);
        assert_eq!(granted(&config, dctcp, &plain).mode, EcnMode::Dctcp);
    }
    assert_eq!(asks(&config(EcnPolicy::Off), dctcp, 1), EcnMode::Off);
}

#[test]
fn nothing_is_echoed_or_answered_where_ecn_was_not_agreed_on() {
    let mut echo = Echo::default();
    assert_eq!(echo.on_data(Ecn::Ce), AckUrgency::No);
    assert!(!echo.is_due() && !echo.seen());
    let mut answer = CwrAnswer::default();
    answer.on_reduced();
    assert_eq!(answer.on_new_data(), (Ecn::NotEct, false));
}

#[test]
fn a_reduction_is_said_once_and_not_at_all_if_it_was_taken_back() {
    let mut answer = CwrAnswer::new(EcnMode::Classic);
    answer.on_reduced();
    assert_eq!(answer.on_new_data(), (Ecn::Ect0, true));
    assert_eq!(answer.on_new_data(), (Ecn::Ect0, false));
    answer.on_reduced();
    answer.on_undone();
    assert_eq!(answer.on_new_data(), (Ecn::Ect0, false));
}

fn syn_ack(ace: u8, ecn: Ecn) -> Segment<()> {
    let mut segment = Segment {
        ack: Some(SeqNum(1)),
        ecn,
        ..Segment::default()
    };
    segment.set_ace(ace);
    segment
}

#[test]
fn the_answers_of_rfc_9768_table_2_are_understood() {
    let accurate = config(EcnPolicy::Accurate);
    for (ace, mode, distrusted) in [
        (0b000, EcnMode::Off, false),
        (0b001, EcnMode::Classic, false),
        (0b010, EcnMode::Accurate, false),
        (0b011, EcnMode::Accurate, true),
        (0b100, EcnMode::Accurate, true),
        (0b101, EcnMode::Accurate, false),
        (0b110, EcnMode::Accurate, true),
        (0b111, EcnMode::Off, false),
    ] {
        let agreed = answered(&accurate, CongestionKind::Cubic, &syn_ack(ace, Ecn::NotEct));
        assert_eq!(
            (agreed.mode, agreed.distrusted),
            (mode, distrusted),
            "{ace:03b}"
        );
    }
    let marked = answered(&accurate, CongestionKind::Cubic, &syn_ack(0b010, Ecn::Ce));
    assert!(marked.syn_ack_marked);
}

#[test]
fn a_request_for_accecn_is_answered_with_the_supported_mode() {
    for (policy, ace, mode) in [
        (EcnPolicy::Accurate, 0b111, EcnMode::Accurate),
        (EcnPolicy::AcceptAccurate, 0b111, EcnMode::Accurate),
        (EcnPolicy::AcceptAccurate, 0b100, EcnMode::Accurate),
        (EcnPolicy::AcceptAccurate, 0b011, EcnMode::Classic),
        (EcnPolicy::Accept, 0b111, EcnMode::Classic),
        (EcnPolicy::Accept, 0b100, EcnMode::Off),
        (EcnPolicy::Off, 0b111, EcnMode::Off),
    ] {
        let mut syn = syn(false, false, None);
        syn.set_ace(ace);
        assert_eq!(
            granted(&config(policy), CongestionKind::Cubic, &syn).mode,
            mode,
            "{policy:?} {ace:03b}"
        );
    }
}

#[test]
fn a_syn_ack_reflects_the_codepoint_until_it_was_lost_twice() {
    for (ecn, ace) in [
        (Ecn::NotEct, 0b010),
        (Ecn::Ect1, 0b011),
        (Ecn::Ect0, 0b100),
        (Ecn::Ce, 0b110),
    ] {
        let agreed = Agreed {
            mode: EcnMode::Accurate,
            peer_syn: ecn,
            ..Agreed::default()
        };
        let told = [0, 1, 2].map(|retries| {
            let mut syn_ack = Segment::<()>::default();
            grant(&mut syn_ack, &agreed, retries);
            syn_ack.ace()
        });
        assert_eq!(told, [ace, ace, 0]);
    }
}
