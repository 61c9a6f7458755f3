//! Decisions on their own: state and ACK in, decision out.

use wire::Instant;

use super::*;
use crate::congestion::Control;
use crate::options::TimestampClock;
use crate::scoreboard::delivered::Delivered;
use crate::settings::CongestionKind;

impl Recovery {
    /// Returns where the running or the last episode ends.
    pub(in crate::sender) fn point(&self) -> u64 {
        self.point
    }
}

const NOW: Instant = Instant::from_millis(1000);

/// An ACK that moves SND.UNA by `advanced` to `una`; SND.NXT is 10,000.
fn ack(una: u64, advanced: u64) -> AckEvent {
    AckEvent {
        una,
        nxt: 10_000,
        advanced,
        delivered: Delivered {
            bytes: advanced,
            ..Delivered::default()
        },
        dsack: false,
        duplicate: false,
        ece: false,
        in_time: true,
        reopened: false,
        ts_echo: None,
        clock: TimestampClock::default(),
        now: NOW,
    }
}

/// Nothing of interest is left in flight.
const LEFT: Remaining = Remaining {
    sacked: 0,
    retrans: 0,
    can_send_new: false,
};

fn start(una: u64, nxt: u64) -> EpisodeStart {
    EpisodeStart {
        una,
        nxt,
        retrans: 0,
        recover_flight: nxt - una,
    }
}

fn prior() -> Prior {
    Control::new(CongestionKind::NewReno, 0).on_loss(1000)
}

/// Recovery from a loss with 10,000 bytes in flight; the first packet was sent again.
fn repairing() -> Recovery {
    let mut recovery = Recovery::default();
    recovery.begin_repair(start(0, 10_000), Some(prior()));
    recovery.on_retransmitted(1000, NOW);
    recovery
}

/// As after a timeout with 10,000 bytes in flight; the first packet was sent again.
fn timed_out() -> Recovery {
    let mut recovery = Recovery::default();
    let verdict = recovery.on_timeout(&start(0, 10_000), 0);
    assert_eq!(verdict, TimeoutVerdict::Reduce);
    recovery.begin_timeout_episode(&start(0, 10_000), prior());
    recovery.on_retransmitted(1000, NOW);
    recovery
}

#[test]
fn losses_begin_a_repair_and_out_of_order_data_alone_does_not() {
    let mut recovery = Recovery::default();
    let mut evidence = Evidence {
        out_of_order: 1000,
        ..Evidence::default()
    };
    let reaction = recovery.on_evidence(&ack(0, 0), &evidence);
    assert_eq!(reaction, WindowReaction::Keep);
    assert_eq!(recovery.phase(), Phase::Disorder);
    evidence.lost = 1000;
    let reaction = recovery.on_evidence(&ack(0, 0), &evidence);
    assert_eq!(reaction, WindowReaction::Repair);
}

#[test]
fn progress_in_order_lets_the_window_grow() {
    let mut recovery = Recovery::default();
    let reaction = recovery.on_evidence(&ack(1000, 1000), &Evidence::default());
    assert_eq!(
        (reaction, recovery.phase()),
        (WindowReaction::Grow, Phase::Open)
    );
}

#[test]
fn a_mark_reduces_the_window_once_per_round_trip() {
    let mut recovery = Recovery::default();
    let mut marked = ack(1000, 1000);
    marked.ece = true;
    let reaction = recovery.on_evidence(&marked, &Evidence::default());
    assert_eq!(reaction, WindowReaction::AnswerMark);
    recovery.begin_cwr(start(1000, 10_000));
    assert!(matches!(
        recovery.on_ack(&marked, &LEFT),
        EpisodeVerdict::GoesOn
    ));
    let reaction = recovery.on_evidence(&marked, &Evidence::default());
    assert_eq!(reaction, WindowReaction::Reduce(CatchUp::Yes));
    assert!(matches!(
        recovery.on_ack(&ack(10_001, 9001), &LEFT),
        EpisodeVerdict::CwrOver
    ));
}

#[test]
fn a_repair_that_follows_a_mark_does_not_reduce_the_window_again() {
    let mut recovery = Recovery::default();
    assert!(recovery.repair_reduces());
    recovery.begin_cwr(start(0, 10_000));
    assert!(!recovery.repair_reduces());
    recovery.begin_repair(start(1000, 20_000), None);
    assert_eq!(
        (recovery.phase(), recovery.point()),
        (Phase::Recovery, 10_000)
    );
}

#[test]
fn a_recovery_ends_at_its_point() {
    let mut recovery = repairing();
    assert!(matches!(
        recovery.on_ack(&ack(9999, 9999), &LEFT),
        EpisodeVerdict::GoesOn
    ));
    assert!(matches!(
        recovery.on_ack(&ack(10_000, 1), &LEFT),
        EpisodeVerdict::RecoveryOver(None)
    ));
    assert_eq!(recovery.phase(), Phase::Open);
}

#[test]
fn a_dsack_of_all_that_was_repeated_takes_the_reduction_back() {
    let mut recovery = repairing();
    recovery.on_dsack((0, 1000));
    let mut dsack = ack(1000, 0);
    dsack.dsack = true;
    match recovery.on_ack(&dsack, &LEFT) {
        EpisodeVerdict::RecoveryNeedless(undone) => {
            assert!(undone.prior.is_some() && undone.inferred);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_mark_forbids_to_take_the_reduction_back() {
    let mut recovery = repairing();
    recovery.on_dsack((0, 1000));
    let mut dsack = ack(1000, 0);
    (dsack.dsack, dsack.ece) = (true, true);
    match recovery.on_ack(&dsack, &LEFT) {
        EpisodeVerdict::RecoveryNeedless(undone) => assert!(undone.prior.is_none()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_dsack_that_comes_after_the_episode_counts_for_one_round_trip() {
    for (una, counts) in [(10_000, true), (10_001, false)] {
        let mut recovery = repairing();
        let _ = recovery.on_ack(&ack(10_000, 10_000), &LEFT);
        recovery.on_dsack((0, 1000));
        let mut dsack = ack(una, 0);
        dsack.dsack = true;
        let verdict = recovery.on_ack(&dsack, &LEFT);
        let is_needless = matches!(verdict, EpisodeVerdict::EarlierNeedless(_));
        assert_eq!(is_needless, counts, "{una}");
    }
}

#[test]
fn a_partial_ack_without_sack_repairs_the_next_hole() {
    let mut recovery = repairing();
    let partial = ack(1000, 1000);
    assert!(matches!(
        recovery.on_ack(&partial, &LEFT),
        EpisodeVerdict::GoesOn
    ));
    assert!(recovery.condemns_head(&partial, 0));
    let evidence = Evidence {
        lost: 1000,
        new_loss: NewLoss::NextHole,
        ..Evidence::default()
    };
    let reaction = recovery.on_evidence(&partial, &evidence);
    assert_eq!(reaction, WindowReaction::RepairNextHole);
    assert!(!recovery.is_impatient());
    assert!(recovery.condemns_head(&partial, 0));
    assert!(recovery.is_impatient(), "from the second partial ACK on");
}

#[test]
fn three_duplicates_condemn_the_head_unless_they_answer_an_earlier_episode() {
    let mut recovery = Recovery::default();
    assert!(!recovery.condemns_head(&ack(0, 0), 2));
    assert!(recovery.condemns_head(&ack(0, 0), 3));
    let mut recovery = repairing();
    let _ = recovery.on_ack(&ack(10_000, 10_000), &LEFT);
    assert!(!recovery.condemns_head(&ack(10_000, 0), 3));
    assert!(recovery.condemns_head(&ack(10_001, 0), 3));
}

#[test]
fn an_original_that_arrives_after_a_timeout_takes_it_back() {
    let mut recovery = timed_out();
    let mut original = ack(0, 0);
    original.delivered.lowest_original = Some(5000);
    assert!(matches!(
        recovery.on_ack(&original, &LEFT),
        EpisodeVerdict::TimeoutNeedless(Undone { prior: Some(_), .. })
    ));
    assert_eq!(recovery.phase(), Phase::Open);
}

#[test]
fn frto_sends_new_data_first_if_there_is_some() {
    for can_send_new in [false, true] {
        let mut recovery = timed_out();
        let left = Remaining {
            can_send_new,
            ..LEFT
        };
        assert!(matches!(
            recovery.on_ack(&ack(1000, 1000), &left),
            EpisodeVerdict::GoesOn
        ));
        assert_eq!(recovery.prefers_new_data(), can_send_new);
    }
}

#[test]
fn the_first_timeout_reduces_and_its_repetitions_do_not() {
    let mut recovery = timed_out();
    let again = recovery.on_timeout(&start(0, 10_000), 1);
    assert_eq!(again, TimeoutVerdict::ReducedBefore);
    // Something arrived in between: another sign of congestion.
    let later = recovery.on_timeout(&start(1000, 10_000), 0);
    assert_eq!(later, TimeoutVerdict::Reduce);
    let in_repair = repairing().on_timeout(&start(1000, 10_000), 0);
    assert_eq!(in_repair, TimeoutVerdict::ReducedBefore);
}

#[test]
fn a_lost_retransmission_after_a_timeout_begins_a_repair() {
    let mut recovery = timed_out();
    let mut evidence = Evidence {
        lost: 5000,
        new_loss: NewLoss::Original,
        ..Evidence::default()
    };
    let progress = ack(1000, 1000);
    assert_eq!(
        recovery.on_evidence(&progress, &evidence),
        WindowReaction::Grow
    );
    evidence.new_loss = NewLoss::Retransmission;
    assert_eq!(
        recovery.on_evidence(&progress, &evidence),
        WindowReaction::Repair
    );
}

#[test]
fn late_losses_begin_a_repair_or_go_on_with_it() {
    let found = NewLoss::Original;
    let open = Recovery::default();
    assert_eq!(open.on_late_losses(NewLoss::None), WindowReaction::Keep);
    assert_eq!(open.on_late_losses(found), WindowReaction::Repair);
    let reduce = WindowReaction::Reduce(CatchUp::No);
    assert_eq!(repairing().on_late_losses(found), reduce);
    assert_eq!(timed_out().on_late_losses(found), WindowReaction::Keep);
    assert_eq!(
        timed_out().on_late_losses(NewLoss::Retransmission),
        WindowReaction::Repair
    );
}

#[test]
fn the_window_shrinks_in_proportion_to_delivered_packets() {
    let input = PrrInput {
        delivered: 2000,
        catch_up: CatchUp::No,
        pipe: 8000,
        ssthresh: 5000,
        mss: 1000,
    };
    assert_eq!(Recovery::default().reduced_window(&input), None);
    let mut recovery = Recovery::default();
    recovery.begin_repair(start(0, 10_000), Some(prior()));
    // Half of what is delivered may leave.
    assert_eq!(recovery.reduced_window(&input), Some(9000));
    recovery.on_sent(1000);
    assert_eq!(recovery.reduced_window(&input), Some(9000));
    // Below the threshold as much as was delivered, and a packet more if the repair is safe.
    recovery.on_sent(1000);
    let mut below = PrrInput {
        pipe: 1000,
        ..input
    };
    assert_eq!(recovery.reduced_window(&below), Some(5000));
    below.pipe = 0;
    below.delivered = 100;
    below.ssthresh = 20_000;
    assert_eq!(recovery.reduced_window(&below), Some(4100));
    below.catch_up = CatchUp::Yes;
    assert_eq!(recovery.reduced_window(&below), Some(5200));
}

#[test]
fn one_probe_is_sent_for_each_silence() {
    let probe = TailProbe {
        end: 10_000,
        retransmission: true,
    };
    let mut recovery = Recovery::default();
    assert!(recovery.may_probe(0, false));
    assert!(!recovery.may_probe(1000, true), "something is missing");
    recovery.on_probe(probe);
    assert!(!recovery.may_probe(0, true));
    let mut recovery = repairing();
    assert!(!recovery.may_probe(0, false), "the policy forbids it");
    assert!(recovery.may_probe(1000, true));
    recovery.on_probe(probe);
    assert!(!recovery.may_probe(0, true));
    let _ = recovery.on_ack(&ack(1000, 1000), &LEFT);
    assert!(recovery.may_probe(0, true), "the silence is over");
    assert!(!timed_out().may_probe(0, true));
}
