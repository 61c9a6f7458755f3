//! Who asks, who grants, what is told and what is understood.

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
        let config = EcnConfig {
            fallback,
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
        let agreed = answered(&accurate, &syn_ack(ace, Ecn::NotEct));
        assert_eq!(
            (agreed.mode, agreed.distrusted),
            (mode, distrusted),
            "{ace:03b}"
        );
    }
    let marked = answered(&accurate, &syn_ack(0b010, Ecn::Ce));
    assert!(marked.syn_ack_marked);
}

#[test]
fn a_syn_that_asks_for_accecn_is_granted_what_we_can() {
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
            granted(&config(policy), &syn).mode,
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

mod told {
    use super::super::feedback::Feedback;
    use super::*;

    #[test]
    fn packets_and_bytes_are_counted_by_codepoint() {
        let mut feedback = Feedback::new(Ecn::NotEct);
        assert_eq!(feedback.ace(false), 5);
        assert!(
            feedback.on_segment(Ecn::Ce, 3, 3000),
            "the codepoint changed"
        );
        assert!(!feedback.on_segment(Ecn::Ce, 1, 0));
        assert_eq!(feedback.ace(true), (5 + 4) & 7);
        feedback.on_segment(Ecn::Ect1, 1, 10);
        feedback.on_segment(Ecn::Ect0, 1, 20);
        let mut segment = Segment::<()>::default();
        feedback.add_option(&mut segment, None);
        let option = AccEcn {
            ect1: Some(11),
            ce: Some(3000),
            ect0: Some(21),
        };
        assert_eq!(segment.options.accecn, Some(option));
    }

    #[test]
    fn more_marks_than_the_ace_field_can_tell_want_an_ack() {
        let mut feedback = Feedback::new(Ecn::Ce);
        for _ in 0..5 {
            assert!(!feedback.on_segment(Ecn::Ce, 1, 100));
        }
        assert!(feedback.on_segment(Ecn::Ce, 1, 100));
        feedback.ace(true);
        assert!(!feedback.on_segment(Ecn::Ce, 1, 100));
    }

    #[test]
    fn an_option_that_was_told_with_a_dsack_and_not_heard_is_given_up() {
        let mut feedback = Feedback::new(Ecn::NotEct);
        let mut told = |dsack| {
            let mut segment = Segment::<()>::default();
            feedback.on_duplicate(SeqNum(7));
            feedback.add_option(&mut segment, dsack);
            segment.options.accecn.is_some()
        };
        assert!(told(Some(SeqNum(7))));
        assert!(!told(Some(SeqNum(7))));
        assert!(!told(None));
    }
}

mod understood {
    use super::super::delivered::{Progress, Reports};
    use super::*;

    const fn progress(packets: u32) -> Progress {
        Progress {
            packets,
            bytes: packets as u64 * 1000,
            mss: 1000,
            sent: 100_000,
            exact: true,
        }
    }

    fn option(ect1: u32, ce: u32, ect0: u32) -> AccEcn {
        AccEcn {
            ect1: Some(ect1 + 1),
            ce: Some(ce),
            ect0: Some(ect0 + 1),
        }
    }

    #[test]
    fn the_ace_field_counts_on_and_wraps() {
        let mut reports = Reports::default();
        let marked = [5, 6, 7, 0, 4, 4].map(|ace| reports.on_ack(ace, None, &progress(4)));
        assert_eq!(marked, [0, 1, 1, 1, 4, 0]);
        assert_eq!(reports.ce_packets(), 7);
    }

    #[test]
    fn a_large_ack_may_hide_a_wrap_and_the_bytes_tell() {
        // Without the option a single large ACK is taken for a thinned one, a rare one for a wrap.
        assert_eq!(Reports::default().on_ack(6, None, &progress(10)), 1);
        let mut reports = Reports::default();
        reports.on_ack(5, None, &progress(1));
        assert_eq!(reports.on_ack(5, None, &progress(9)), 8);
        // With it the bytes decide.
        for (ce_bytes, marked) in [(0, 0), (16_000, 16), (9000, 8)] {
            let mut reports = Reports::default();
            reports.on_ack(5, Some(&option(0, 0, 1000)), &progress(1));
            let told = option(0, ce_bytes, 1000 + 16_000 - ce_bytes);
            let got = reports.on_ack(5, Some(&told), &progress(16));
            assert_eq!(got, marked, "{ce_bytes} bytes");
        }
    }

    #[test]
    fn an_option_that_somebody_clears_is_not_believed() {
        let mut reports = Reports::default();
        let cleared = AccEcn {
            ect1: Some(0),
            ce: Some(0),
            ect0: Some(0),
        };
        reports.on_ack(5, Some(&cleared), &progress(1));
        reports.on_ack(5, Some(&option(0, 5000, 0)), &progress(1));
        assert_eq!(reports.bytes().ce, 0);
    }

    #[test]
    fn counters_of_24_bits_wrap_and_may_come_out_of_order() {
        let mut reports = Reports::default();
        let at = |ce: u32| option(0, ce & 0x00ff_ffff, 0);
        // Less than half of the circle is forward.
        for ce in [0x0040_0000, 0x0080_0000, 0x00c0_0000, 0x0100_0000] {
            reports.on_ack(5, Some(&at(ce)), &progress(1));
        }
        assert_eq!(reports.bytes().ce, 0x0100_0000);
        reports.on_ack(5, Some(&at(0x00ff_ff00)), &progress(1));
        assert_eq!(reports.bytes().ce, 0x00ff_ff00);
    }
}
