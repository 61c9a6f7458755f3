//! Decisions that no test with segments and ACKs shows.

use wire::Instant;

use super::*;
use crate::congestion::Control;
use crate::options::TimestampClock;
use crate::scoreboard::delivered::Delivered;
use crate::settings::CongestionKind;

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
        marked: 0,
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
    assert!(recovery.on_timeout(&start(0, 10_000), 0), "it reduces");
    recovery.begin_timeout_episode(&start(0, 10_000), prior());
    recovery.on_retransmitted(1000, NOW);
    recovery
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
    let reduce = WindowReaction::Reduce { is_safe: false };
    assert_eq!(repairing().on_late_losses(found), reduce);
    assert_eq!(timed_out().on_late_losses(found), WindowReaction::Keep);
    assert_eq!(
        timed_out().on_late_losses(NewLoss::Retransmission),
        WindowReaction::Repair
    );
}
