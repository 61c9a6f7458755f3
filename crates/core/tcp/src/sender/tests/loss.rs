//! How losses are found and repaired while ACKs come in.

use core::time::Duration;

use super::harness::{Bench, Setup, sent};
use crate::rack::ReorderingWindow;
use crate::sender::recovery::Phase;

/// Ten segments in flight at cwnd 10, ten more waiting, 100 ms later.
fn ten_in_flight(change: impl FnOnce(&mut super::harness::Setup)) -> Bench {
    let mut bench = Bench::with(change);
    bench.write(20_000);
    assert_eq!(bench.drain(), [sent(0, 10_000, "")]);
    bench.pass(100);
    bench
}

#[test]
fn three_packets_behind_a_hole_make_it_lost() {
    let mut bench = ten_in_flight(|_| ());
    // Limited transmit (RFC 3042): as much new data is sent as arrived out of order.
    let _ = bench.sacked(0, &[(1000, 2000)]);
    assert_eq!(bench.drain(), [sent(10_000, 11_000, "")]);
    let _ = bench.sacked(0, &[(1000, 3000)]);
    assert_eq!(bench.drain(), [sent(11_000, 12_000, "")]);
    assert_eq!(bench.sender.recovery.phase(), Phase::Disorder);
    let _ = bench.sacked(0, &[(1000, 4000)]);
    assert_eq!(bench.drain()[0], sent(0, 1000, ""));
    assert_eq!(bench.sender.recovery.phase(), Phase::Recovery);
    assert_eq!(bench.info().lost, 1);
}

#[test]
fn fewer_packets_need_the_reordering_time_to_pass() {
    let mut bench = ten_in_flight(|_| ());
    let _ = bench.sacked(0, &[(1000, 2000)]);
    bench.drain();
    // A quarter of the round-trip time past the round trip (RFC 8985 6.2 step 4).
    let (waited, repeated) = bench.fire_and_drain();
    assert_eq!((waited, repeated[0].clone()), (25, sent(0, 1000, "")));
}

#[test]
fn packets_that_arrive_late_are_no_losses() {
    let mut bench = ten_in_flight(|_| ());
    let _ = bench.sacked(0, &[(1000, 2000)]);
    bench.drain();
    bench.pass(10);
    let _ = bench.ack(2000);
    assert!(bench.sender.flight.rack.reordering_seen());
    assert_eq!(
        (bench.sender.recovery.phase(), bench.info().reord_seen),
        (Phase::Open, 1)
    );
    // From now on, three duplicates are no proof.
    bench.pass(90);
    let _ = bench.sacked(2000, &[(3000, 7000)]);
    assert!(!bench.drain().contains(&sent(2000, 3000, "")));
    assert_eq!(bench.fire(), Ok(()));
    assert!(bench.drain().contains(&sent(2000, 3000, "")));
}

#[test]
fn a_dsack_widens_the_reordering_window() {
    let mut bench = ten_in_flight(|_| ());
    let window = |bench: &Bench| {
        bench
            .sender
            .flight
            .rack
            .reordering_window(&bench.sender.flight.rtt, ReorderingWindow::Open)
    };
    assert_eq!(window(&bench), Duration::from_millis(25));
    let _ = bench.sacked(1000, &[(0, 1000)]);
    assert_eq!(window(&bench), Duration::from_millis(50));
    // Once per round trip.
    let _ = bench.sacked(1000, &[(0, 1000)]);
    assert_eq!(window(&bench), Duration::from_millis(50));
    for _ in 0..10 {
        bench.write(10_000);
        bench.drain();
        bench.pass(100);
        let una = bench.sender.acked_offset();
        let _ = bench.sacked(bench.sender.sent_offset(), &[(una, una + 1000)]);
    }
    assert_eq!(
        window(&bench),
        bench.sender.flight.rtt.srtt().unwrap(),
        "at most a round trip"
    );
}

#[test]
fn a_lost_retransmission_is_found_by_its_time() {
    let mut bench = ten_in_flight(|_| ());
    let _ = bench.sacked(0, &[(1000, 5000)]);
    assert_eq!(bench.drain()[0], sent(0, 1000, ""));
    bench.pass(50);
    let _ = bench.sacked(0, &[(1000, 8000)]);
    let new = bench.drain();
    assert!(new.iter().all(|segment| segment.start >= 10_000), "{new:?}");
    // What was sent after the retransmission arrives: a round trip has passed for it too.
    bench.pass(100);
    let _ = bench.sacked(0, &[(10_000, 11_000), (1000, 8000)]);
    assert_eq!(bench.drain()[0], sent(0, 1000, ""));
    assert_eq!(
        bench.info().total_retrans,
        4,
        "and the two packets 8000..10000"
    );
}

#[test]
fn a_reported_part_of_a_super_segment_is_not_sent_again() {
    let mut bench = ten_in_flight(|_| ());
    let _ = bench.sacked(0, &[(6000, 8000), (3000, 5000)]);
    let repeated: Vec<_> = bench.drain();
    assert_eq!(repeated[0], sent(0, 3000, ""));
    let info = bench.info();
    assert_eq!(
        (info.sacked, info.lost),
        (4, 4),
        "three at the front and 5000..6000"
    );
}

#[test]
fn the_window_is_reduced_in_proportion_to_arriving_packets() {
    let mut bench = Bench::with(|setup| setup.config.shared_mut().initial_cwnd = 20);
    bench.write(100_000);
    bench.drain();
    bench.pass(100);
    let mut out = Vec::new();
    for end in 2..=20u64 {
        let _ = bench.sacked(0, &[(1000, end * 1000)]);
        out.push(bench.drain().iter().map(|s| s.end - s.start).sum::<i64>());
    }
    // Limited transmit twice, the retransmission at once, then every other ACK lets out a segment until half of the
    // window is in flight (RFC 9937).
    assert_eq!(out[..3], [1000, 1000, 1000]);
    assert!(out[3..].iter().all(|bytes| *bytes <= 1000), "{out:?}");
    let total: i64 = out[2..].iter().sum();
    assert_eq!(
        total, 8000,
        "half of the 17 segments that arrived, whole segments only: {out:?}"
    );
    let _ = bench.ack(22_000);
    assert_eq!(bench.cwnd(), (10_000, Some(10_000)));
    assert_eq!(bench.sender.recovery.phase(), Phase::Open);
}

#[test]
fn a_recovery_is_answered_once() {
    let mut bench = ten_in_flight(|_| ());
    let _ = bench.sacked(0, &[(1000, 4000)]);
    bench.drain();
    assert_eq!(bench.cwnd().1, Some(5000));
    // Another hole of the same flight.
    let _ = bench.sacked(1000, &[(5000, 9000)]);
    assert_eq!(
        (bench.cwnd().1, bench.sender.recovery.phase()),
        (Some(5000), Phase::Recovery)
    );
}

#[test]
fn a_lost_tail_is_probed_and_repaired() {
    let mut bench = Bench::with(|_| ());
    bench.write(3000);
    bench.drain();
    // Twice the round-trip time and 2 ms (RFC 8985 7.2).
    assert_eq!(bench.fire_and_drain(), (202, vec![sent(2000, 3000, "Pp")]));
    bench.pass(100);
    let _ = bench.sacked(0, &[(2000, 3000)]);
    assert_eq!(bench.drain(), [sent(0, 1000, "")]);
    assert_eq!(bench.ack_after(100, 1000), [sent(1000, 2000, "")]);
}

#[test]
fn a_probe_of_one_packet_waits_for_a_delayed_ack() {
    let mut bench = Bench::with(|setup| setup.handshake_rtt = Some(Duration::from_millis(10)));
    bench.write(500);
    bench.drain();
    // The retransmission timeout is 210 ms, the probe timeout would be 220 ms.
    assert_eq!(bench.fire_and_drain(), (210, vec![sent(0, 500, "Pp")]));
    assert_eq!(bench.fire_and_drain(), (210, vec![sent(0, 500, "P")]));
}

#[test]
fn a_probe_takes_new_data_where_there_is_some() {
    let mut bench = ten_in_flight(|_| ());
    let (_, probe) = bench.fire_and_drain();
    assert_eq!(
        probe,
        [sent(10_000, 11_000, "p")],
        "beyond the congestion window"
    );
    let _ = bench.ack(11_000);
    assert_eq!(bench.cwnd().1, None, "no loss");
}

/// Ten segments in flight; the first is known to be lost, and was sent again.
fn in_recovery(change: impl FnOnce(&mut Setup)) -> Bench {
    let mut bench = ten_in_flight(change);
    bench.pass(100);
    let _ = bench.sacked(0, &[(1000, 4000)]);
    assert_eq!(bench.drain()[0], sent(0, 1000, ""));
    assert_eq!(bench.sender.recovery.phase(), Phase::Recovery);
    bench
}

#[test]
fn a_recovery_without_acks_is_probed_before_the_timeout() {
    let mut bench = in_recovery(|_| ());
    let end = bench.sender.sent_offset();
    let timeout = 2 * bench.sender.flight.rtt.srtt().unwrap() + Duration::from_millis(2);
    // The retransmission filled the hole, and the only ACK for it was lost.
    let (after, probe) = bench.fire_and_drain();
    assert_eq!(u128::from(after), timeout.as_millis());
    let end = end as i64;
    assert_eq!(probe, [sent(end, end + 1000, "p")]);
    bench.pass(100);
    let _ = bench.ack(end as u64 + 1000);
    assert_eq!(bench.sender.recovery.phase(), Phase::Open);
    let info = bench.info();
    assert_eq!(
        (info.total_rto, info.tail_probes, info.total_retrans),
        (0, 1, 1)
    );
}

#[test]
fn a_probe_in_recovery_finds_a_repair_that_was_lost() {
    let mut bench = in_recovery(|_| ());
    let end = bench.sender.sent_offset();
    bench.fire_and_drain();
    bench.pass(100);
    // All but the hole has arrived, the probe as well: the retransmission, which was sent before the probe, is lost.
    let _ = bench.sacked(0, &[(1000, end + 1000)]);
    assert_eq!(bench.drain()[0], sent(0, 1000, ""));
    assert_eq!(bench.info().total_rto, 0);
}

#[test]
fn a_silence_in_recovery_is_probed_once() {
    let mut bench = in_recovery(|_| ());
    let (_, probe) = bench.fire_and_drain();
    assert_eq!(probe.len(), 1);
    let rto = bench.info().rto.as_millis() as u64;
    // The probe restarted the retransmission timer (RFC 8985 7.3), which is next.
    let (after, _) = bench.fire_and_drain();
    assert_eq!((after, bench.info().total_rto), (rto, 1));
}

#[test]
fn without_probes_in_recovery_a_silence_ends_with_the_timeout() {
    let mut bench =
        in_recovery(|setup| setup.config.shared_mut().tuning.probes_in_recovery = false);
    let rto = bench.info().rto.as_millis() as u64;
    let (after, _) = bench.fire_and_drain();
    let info = bench.info();
    assert_eq!((after, info.total_rto, info.tail_probes), (rto, 1, 0));
}

#[test]
fn a_probe_in_recovery_repeats_where_there_is_nothing_new() {
    let mut bench = in_recovery(|setup| setup.window = 10_000);
    let (_, probe) = bench.fire_and_drain();
    assert_eq!(probe, [sent(0, 1000, "p")]);
}

#[test]
fn a_loss_repaired_by_the_probe_is_answered() {
    let mut bench = ten_in_flight(|setup| setup.window = 10_000);
    bench.fire_and_drain();
    let _ = bench.ack(10_000);
    assert_eq!(
        bench.cwnd().1,
        None,
        "not yet: both copies may have arrived"
    );
    bench.drain();
    bench.pass(100);
    let _ = bench.ack(11_000);
    assert_eq!(
        bench.cwnd().1,
        Some(10_000),
        "half of the window at that time"
    );
}

#[test]
fn a_probe_that_arrives_twice_is_no_loss() {
    let mut bench = ten_in_flight(|setup| setup.window = 10_000);
    bench.fire_and_drain();
    let _ = bench.ack(10_000);
    let _ = bench.sacked(10_000, &[(9000, 10_000)]);
    bench.drain();
    bench.pass(100);
    let _ = bench.ack(11_000);
    assert_eq!((bench.cwnd().1, bench.info().dsack_dups), (None, 1));
}

#[test]
fn without_sack_three_duplicates_repair_the_first_packet() {
    let mut bench = ten_in_flight(|setup| setup.sack = false);
    for new in [10_000, 11_000] {
        let _ = bench.ack(0);
        assert_eq!(bench.drain(), [sent(new, new + 1000, "")]);
    }
    let _ = bench.ack(0);
    assert_eq!(bench.drain(), [sent(0, 1000, "")]);
    assert_eq!(bench.cwnd().1, Some(5000));
    for _ in 0..4 {
        let _ = bench.ack(0);
    }
    bench.drain();
    // A partial ACK shows the next hole (RFC 6582 3.2 step 3).
    bench.pass(100);
    let _ = bench.ack(4000);
    assert_eq!(bench.drain()[0], sent(4000, 5000, ""));
    // A full one ends it.
    let end = bench.sender.recovery.point;
    let _ = bench.ack(end);
    assert_eq!(bench.cwnd().0, 5000);
    assert_eq!(bench.sender.recovery.phase(), Phase::Open);
}

#[test]
fn without_sack_old_duplicates_begin_no_second_recovery() {
    let mut bench = ten_in_flight(|setup| setup.sack = false);
    for _ in 0..3 {
        let _ = bench.ack(0);
        bench.drain();
    }
    let end = bench.sender.recovery.point;
    let _ = bench.ack(end);
    bench.drain();
    for _ in 0..5 {
        let _ = bench.ack(end);
        let more = bench.drain();
        assert!(
            more.iter().all(|segment| segment.start >= end as i64),
            "{more:?}"
        );
    }
    assert_eq!(bench.cwnd().1, Some(5000));
}

#[test]
fn without_sack_many_holes_end_in_a_timeout_and_not_in_a_round_trip_each() {
    // RFC 6582 3.2: only the first partial ACK restarts the timer.
    let mut bench = ten_in_flight(|setup| setup.sack = false);
    for _ in 0..3 {
        let _ = bench.ack(0);
        bench.drain();
    }
    bench.pass(100);
    let _ = bench.ack(1000);
    bench.drain();
    let timer = bench.sender.next_timer();
    assert!(timer > Some(bench.now));
    for una in [2000, 3000] {
        bench.pass(50);
        let _ = bench.ack(una);
        assert!(!bench.drain().is_empty());
        assert_eq!(bench.sender.recovery.phase(), Phase::Recovery);
        assert_eq!(bench.sender.next_timer(), timer);
    }
    bench.fire_and_drain();
    assert_eq!(bench.sender.recovery.phase(), Phase::Loss);
}

#[test]
fn lost_packets_are_sent_before_new_data_that_would_fit_earlier() {
    let mut bench = Bench::with(|setup| {
        setup.config.settings.nodelay = true;
        setup.config.shared_mut().initial_cwnd = 5;
    });
    bench.write(5000);
    for _ in 0..10 {
        bench.sender.queue.push_boundary();
        bench.write(500);
    }
    bench.drain();
    bench.pass(100);
    for end in [4000, 5000] {
        let _ = bench.sacked(0, &[(3000, end)]);
        assert_eq!(bench.drain().len(), 2, "limited transmit");
    }
    bench.pass(1);
    let _ = bench.sacked(0, &[(3000, 5500)]);
    assert_eq!(bench.drain(), [sent(0, 1000, "")]);
    // Each report allows 500 bytes: not enough for the next lost packet.
    for end in [6000, 6500] {
        let _ = bench.sacked(0, &[(3000, end)]);
        assert_eq!(bench.drain(), []);
    }
    let _ = bench.sacked(0, &[(3000, 7000)]);
    assert_eq!(bench.drain(), [sent(1000, 2000, "")]);
}

#[test]
fn segments_with_data_or_another_window_are_no_duplicates() {
    let mut bench = ten_in_flight(|setup| setup.sack = false);
    for window in [50_000, 60_000, 70_000, 80_000] {
        bench.window = window;
        let _ = bench.ack(0);
    }
    assert_eq!(bench.drain(), []);
    assert_eq!(bench.sender.recovery.phase(), Phase::Open);
}

#[test]
fn dsacks_of_all_retransmissions_undo_the_reduction() {
    let mut bench = ten_in_flight(|_| ());
    let _ = bench.sacked(0, &[(1000, 4000)]);
    assert_eq!(bench.drain(), [sent(0, 1000, ""), sent(10_000, 11_000, "")]);
    assert_eq!(bench.cwnd().1, Some(5000));
    bench.pass(10);
    let _ = bench.ack(10_000);
    bench.drain();
    let _ = bench.sacked(10_000, &[(0, 1000)]);
    assert_eq!(bench.cwnd(), (10_000, None));
}

#[test]
fn a_dsack_of_what_came_before_the_recovery_undoes_nothing() {
    let mut bench = ten_in_flight(|_| ());
    let _ = bench.ack(2000);
    bench.drain();
    let _ = bench.sacked(2000, &[(3000, 6000)]);
    assert_eq!(bench.drain()[0], sent(2000, 3000, ""));
    let before = bench.cwnd().1;
    // The network has copied a packet that was acknowledged before: as many bytes as were sent again.
    let _ = bench.sacked(2000, &[(1000, 2000), (3000, 6000)]);
    assert_eq!(bench.sender.recovery.phase(), Phase::Recovery);
    let _ = bench.sacked(2000, &[(0, 1000), (3000, 6000)]);
    assert_eq!(bench.sender.recovery.phase(), Phase::Recovery);
    assert_eq!(bench.cwnd().1, before);
    // The same of what was sent again.
    let _ = bench.sacked(3000, &[(2000, 3000), (3000, 6000)]);
    assert_eq!(bench.cwnd().1, None);
}

#[test]
fn a_dsack_a_window_later_undoes_nothing() {
    let mut bench = ten_in_flight(|_| ());
    let _ = bench.sacked(0, &[(1000, 4000)]);
    bench.drain();
    for end in [10_000, 15_000, 16_000] {
        bench.pass(100);
        let _ = bench.ack(end);
        bench.drain();
    }
    let _ = bench.sacked(16_000, &[(0, 1000)]);
    assert_eq!(bench.cwnd().1, Some(5000));
}

#[test]
fn timestamps_show_that_the_hole_closed_by_itself() {
    let mut bench = ten_in_flight(|setup| setup.timestamps = true);
    bench.echo_sent_at(bench.now - Duration::from_millis(100));
    let _ = bench.sacked(0, &[(1000, 4000)]);
    assert_eq!(bench.drain(), [sent(0, 1000, ""), sent(10_000, 11_000, "")]);
    bench.pass(5);
    // The original arrives: its timestamp is older than the retransmission.
    let _ = bench.ack(10_000);
    // As before the reduction, and more by the seven segments that this ACK delivers.
    assert_eq!(bench.cwnd(), (17_000, None));
}

#[test]
fn nonsense_in_sack_blocks_is_ignored() {
    let mut bench = ten_in_flight(|_| ());
    let _ = bench.ack(5000);
    bench.drain();
    let before = bench.info();
    for blocks in [
        [(7000, 6000), (9000, 9000)],
        [(6000, 90_000), (90_000, 95_000)],
        [(6000, 6000), (u64::MAX / 2, 7000)],
        [(6001, 6999), (8500, 9400)],
    ] {
        let _ = bench.sacked(5000, &blocks);
        assert_eq!(bench.info(), before, "{blocks:?}");
    }
    bench.sender.flight.board.check();
}

#[test]
fn data_that_a_peer_reported_by_sack_and_then_dropped_is_sent_again() {
    let mut bench = ten_in_flight(|_| ());
    let _ = bench.sacked(0, &[(1000, 10_000)]);
    bench.drain();
    bench.pass(100);
    // The hole is filled, but the rest is gone (reneging, RFC 2018 8).
    let _ = bench.ack(1000);
    bench.drain();
    while bench.info().total_rto == 0 {
        bench.fire_and_drain();
    }
    let mut repeated = Vec::new();
    while bench.sender.acked_offset() < 10_000 {
        bench.pass(100);
        let _ = bench.ack(bench.sender.acked_offset() + 1000);
        repeated.extend(bench.drain());
    }
    assert!(
        repeated.iter().any(|segment| segment.end == 10_000),
        "{repeated:?}"
    );
}

#[test]
fn a_smaller_mtu_segments_data_in_flight_again() {
    let mut bench = ten_in_flight(|_| ());
    let cwnd = bench.cwnd();
    bench.sender.on_mtu(600, &bench.config.at(bench.now));
    assert_eq!(bench.sender.mss(), 600);
    assert_eq!(
        bench.drain(),
        [sent(0, 9600, ""), sent(9600, 10_000, "")],
        "as many bytes as were in flight, in packets of 600"
    );
    assert_eq!(bench.cwnd(), cwnd, "and the window stays");
}

#[test]
fn a_larger_mtu_only_matters_for_new_data() {
    let mut bench = ten_in_flight(|_| ());
    bench.sender.on_mtu(1400, &bench.config.at(bench.now));
    assert_eq!(bench.drain(), []);
    let _ = bench.ack(10_000);
    assert_eq!(bench.drain()[0], sent(10_000, 20_000, "P"));
}

#[test]
fn packets_that_fit_are_left_alone_when_the_mtu_shrinks() {
    let mut bench = Bench::with(|setup| setup.config.settings.nodelay = true);
    for _ in 0..3 {
        bench.write(500);
        bench.drain();
        bench.pass(1);
    }
    bench.sender.on_mtu(600, &bench.config.at(bench.now));
    assert_eq!(bench.drain(), []);
}
