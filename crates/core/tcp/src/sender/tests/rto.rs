//! What happens when no ACK comes.

use core::time::Duration;

use super::harness::{Bench, Setup, sent};
use crate::error::TcpError;
use crate::sender::recovery::Phase;

/// Ten segments in flight without SACK (so that no probe comes first), ten more waiting.
fn ten_in_flight(change: impl FnOnce(&mut Setup)) -> Bench {
    let mut bench = Bench::with(|setup| {
        setup.sack = false;
        change(setup);
    });
    bench.write(20_000);
    assert_eq!(bench.drain(), [sent(0, 10_000, "")]);
    bench
}

#[test]
fn the_first_timeout_is_one_second_without_a_sample() {
    let mut bench = ten_in_flight(|setup| setup.handshake_rtt = None);
    assert_eq!(bench.fire_and_drain(), (1000, vec![sent(0, 1000, "")]));
}

#[test]
fn a_timeout_repeats_the_first_packet_and_shrinks_the_window_to_it() {
    let mut bench = ten_in_flight(|_| ());
    // SRTT 100 ms, variance 50 ms.
    assert_eq!(bench.fire_and_drain(), (300, vec![sent(0, 1000, "")]));
    assert_eq!(bench.cwnd(), (1000, Some(5000)));
    assert_eq!(bench.info().lost, 10);
}

#[test]
fn timeouts_double_and_reduce_the_window_once() {
    let mut bench = ten_in_flight(|_| ());
    for expected in [300, 600, 1200, 2400, 4800] {
        assert_eq!(bench.fire_and_drain(), (expected, vec![sent(0, 1000, "")]));
    }
    assert_eq!(bench.cwnd(), (1000, Some(5000)));
    assert_eq!(bench.info().retransmits, 5);
}

#[test]
fn only_a_valid_sample_ends_the_backoff() {
    let mut bench = ten_in_flight(|_| ());
    bench.fire_and_drain();
    bench.fire_and_drain();
    // Karn: this ACK may be for any of three copies.
    let _ = bench.ack(1000);
    assert_eq!(bench.info().rto, Duration::from_millis(1200));
    assert_eq!(bench.info().retransmits, 0);
    // The others were sent once.
    bench.pass(100);
    let _ = bench.ack(10_000);
    assert_eq!(
        bench.sender.flight.rtt.rto(),
        bench.sender.flight.rtt.base_rto()
    );
}

#[test]
fn timestamps_give_samples_of_retransmissions_too() {
    let mut bench = ten_in_flight(|setup| setup.timestamps = true);
    bench.fire_and_drain();
    bench.fire_and_drain();
    bench.echo_sent_at(bench.now);
    bench.pass(100);
    let _ = bench.ack(1000);
    assert!(bench.info().rto < Duration::from_millis(400));
}

#[test]
fn progress_restarts_the_timer() {
    let mut bench = ten_in_flight(|_| ());
    let start = bench.now;
    bench.pass(200);
    let _ = bench.ack(5000);
    bench.drain();
    let rto = bench.info().rto;
    let at = bench.sender.next_timer().unwrap();
    assert_eq!(at, start + Duration::from_millis(200) + rto);
    // A duplicate does not.
    bench.pass(100);
    let _ = bench.ack(5000);
    bench.drain();
    assert_eq!(bench.sender.next_timer(), Some(at));
}

#[test]
fn slow_start_repairs_the_rest() {
    let mut bench = ten_in_flight(|_| ());
    bench.fire_and_drain();
    bench.pass(100);
    let _ = bench.ack(1000);
    assert_eq!(bench.drain(), [sent(10_000, 12_000, "")]);
    // Both new segments arrive, nothing else did (RFC 5682 step 3a).
    bench.pass(100);
    let _ = bench.ack(1000);
    assert_eq!(bench.drain(), [sent(1000, 2000, "")]);
    let _ = bench.ack(1000);
    assert_eq!(bench.drain(), [sent(2000, 3000, "")]);
    // What the duplicates stood for is forgotten with the first progress (linux `tcp_reset_reno_sack`).
    assert_eq!(bench.ack_after(100, 2000), []);
    assert_eq!(bench.ack_after(0, 3000), [sent(3000, 5000, "")]);
    for una in [4000, 5000, 6000, 7000, 8000, 9000] {
        bench.pass(50);
        assert_eq!(bench.sender.recovery.phase(), Phase::Loss);
        let _ = bench.ack(una);
        bench.drain();
        bench.sender.flight.board.check();
    }
    let _ = bench.ack(12_000);
    assert_eq!(
        (bench.sender.recovery.phase(), bench.info().lost),
        (Phase::Open, 0)
    );
}

#[test]
fn frto_sends_new_data_and_sees_that_nothing_was_lost() {
    let mut bench = ten_in_flight(|_| ());
    bench.fire_and_drain();
    bench.pass(10);
    // Step 2b: the ACK makes progress, so two new segments are sent first.
    let _ = bench.ack(1000);
    assert_eq!(bench.drain(), [sent(10_000, 12_000, "")]);
    // Step 3b: it makes progress again, over data that was sent once.
    bench.pass(10);
    let _ = bench.ack(2000);
    assert_eq!(bench.sender.recovery.phase(), Phase::Open);
    let (cwnd, ssthresh) = bench.cwnd();
    assert_eq!((cwnd >= 10_000, ssthresh), (true, None));
    assert_eq!(bench.info().lost, 0);
}

#[test]
fn frto_goes_back_to_retransmissions_when_they_are_needed() {
    let mut bench = ten_in_flight(|_| ());
    bench.fire_and_drain();
    bench.pass(100);
    let _ = bench.ack(1000);
    assert_eq!(bench.drain(), [sent(10_000, 12_000, "")]);
    bench.pass(100);
    // Step 3a: a duplicate, caused by the new data.
    let _ = bench.ack(1000);
    assert_eq!(bench.drain(), [sent(1000, 2000, "")]);
    assert_eq!(bench.sender.recovery.phase(), Phase::Loss);
}

#[test]
fn frto_without_new_data_repeats_the_old() {
    let mut bench = Bench::with(|setup| setup.sack = false);
    bench.write(10_000);
    bench.drain();
    bench.fire_and_drain();
    bench.pass(100);
    let _ = bench.ack(1000);
    assert_eq!(bench.drain(), [sent(1000, 3000, "")]);
}

#[test]
fn frto_is_over_once_only_new_data_arrives() {
    let mut bench = ten_in_flight(|_| ());
    bench.fire_and_drain();
    bench.pass(100);
    let _ = bench.ack(1000);
    assert_eq!(bench.drain(), [sent(10_000, 12_000, "")]);
    bench.pass(100);
    // Step 3a. An original that is acknowledged after it proves nothing.
    let _ = bench.ack(1000);
    let _ = bench.ack(2000);
    assert_eq!(bench.sender.recovery.phase(), Phase::Loss);
    assert_eq!(bench.cwnd().1, Some(5000));
}

#[test]
fn sack_frto_is_over_once_only_new_data_arrives() {
    let mut bench = Bench::with(|_| ());
    bench.write(20_000);
    bench.drain();
    // The probe is new data.
    assert_eq!(bench.fire_and_drain().1, [sent(10_000, 11_000, "p")]);
    bench.fire_and_drain();
    bench.pass(100);
    let _ = bench.ack(1000);
    assert_eq!(bench.drain()[0].start, 11_000);
    // RFC 5682 3.1 step 3a: SACK reports what was sent after the timeout, and nothing before it.
    bench.pass(100);
    let _ = bench.sacked(1000, &[(11_000, 12_000)]);
    let _ = bench.sacked(1000, &[(4000, 5000), (11_000, 12_000)]);
    assert_eq!(bench.sender.recovery.phase(), Phase::Loss);
    assert_eq!(bench.cwnd().1, Some(5000));
}

#[test]
fn frto_goes_on_after_an_ack_that_reports_nothing_new() {
    let mut bench = ten_in_flight(|_| ());
    bench.fire_and_drain();
    bench.pass(10);
    let _ = bench.ack(1000);
    assert_eq!(bench.drain(), [sent(10_000, 12_000, "")]);
    // An update of the window is no duplicate.
    bench.window -= 1000;
    let _ = bench.ack(1000);
    assert_eq!(bench.sender.recovery.phase(), Phase::Loss);
    let _ = bench.ack(2000);
    assert_eq!(bench.sender.recovery.phase(), Phase::Open);
    assert_eq!(bench.cwnd().1, None);
}

#[test]
fn frto_whose_new_data_must_wait_repeats_the_old() {
    let mut bench = Bench::with(|setup| {
        setup.sack = false;
        setup.config.settings.cork = true;
    });
    // The last half packet is held back until the writer fills it.
    bench.write(10_500);
    assert_eq!(bench.drain(), [sent(0, 10_000, "")]);
    bench.fire_and_drain();
    bench.pass(100);
    let _ = bench.ack(1000);
    assert_eq!(bench.drain(), [sent(1000, 3000, "")]);
}

#[test]
fn sack_frto_sees_an_original_arrive() {
    let mut bench = Bench::with(|_| ());
    bench.write(10_000);
    bench.drain();
    // A probe first, then the timeout.
    bench.fire_and_drain();
    bench.fire_and_drain();
    assert_eq!(bench.sender.recovery.phase(), Phase::Loss);
    bench.pass(10);
    let _ = bench.sacked(0, &[(4000, 5000)]);
    assert_eq!(bench.sender.recovery.phase(), Phase::Disorder);
    assert_eq!(bench.cwnd(), (10_000, None));
}

#[test]
fn timestamps_show_that_the_timeout_was_spurious() {
    let mut bench = ten_in_flight(|setup| setup.timestamps = true);
    bench.echo_sent_at(bench.now);
    bench.fire_and_drain();
    bench.pass(10);
    let _ = bench.ack(1000);
    assert_eq!(bench.sender.recovery.phase(), Phase::Open);
    assert_eq!(bench.cwnd().1, None);
}

#[test]
fn with_rack_a_timeout_does_not_mark_recent_packets_lost() {
    let mut bench = Bench::with(|_| ());
    bench.write(4000);
    bench.drain();
    bench.pass(100);
    let _ = bench.ack(1000);
    // One more packet just before the timeout of the first ones.
    let at = bench.sender.next_timer().unwrap();
    bench.now = at;
    assert_eq!(bench.sender.on_timer(&bench.config.at(at)), Ok(()));
    bench.drain();
    let rto = bench.sender.next_timer().unwrap();
    bench.now = rto - Duration::from_millis(20);
    bench.write(1000);
    assert_eq!(bench.drain(), [sent(4000, 5000, "P")]);
    bench.now = bench.sender.next_timer().unwrap();
    let _ = bench.sender.on_timer(&bench.config.at(bench.now));
    let (_, lost) = (bench.drain(), bench.info().lost);
    assert_eq!(lost, 3);
}

#[test]
fn a_peer_without_answer_is_given_up_after_fifteen_tries() {
    let mut bench = ten_in_flight(|_| ());
    for _ in 0..15 {
        assert_eq!(bench.fire(), Ok(()));
        assert_eq!(bench.drain().len(), 1);
    }
    assert_eq!(bench.fire(), Err(TcpError::TimedOut));
}

#[test]
fn the_user_timeout_counts_from_the_last_progress() {
    let mut bench =
        ten_in_flight(|setup| setup.config.settings.user_timeout = Some(Duration::from_secs(7)));
    bench.pass(100);
    let _ = bench.ack(2000);
    bench.drain();
    let start = bench.now;
    loop {
        match bench.fire() {
            Err(error) => break assert_eq!(error, TcpError::TimedOut),
            _ => drop(bench.drain()),
        }
    }
    assert_eq!(bench.now.saturating_since(start), Duration::from_secs(7));
}

#[test]
fn an_early_or_a_late_call_of_the_timer_does_no_harm() {
    let mut bench = ten_in_flight(|_| ());
    bench.pass(299);
    assert_eq!(bench.sender.on_timer(&bench.config.at(bench.now)), Ok(()));
    assert!(bench.drain().is_empty());
    bench.pass(10_000);
    assert_eq!(bench.sender.on_timer(&bench.config.at(bench.now)), Ok(()));
    assert_eq!(bench.drain(), [sent(0, 1000, "")]);
    assert_eq!(bench.sender.on_timer(&bench.config.at(bench.now)), Ok(()));
    assert!(bench.drain().is_empty());
}

#[test]
fn no_timer_runs_when_everything_is_acknowledged() {
    let mut bench = ten_in_flight(|_| ());
    let _ = bench.ack(10_000);
    bench.drain();
    let _ = bench.ack(20_000);
    assert_eq!((bench.drain(), bench.sender.next_timer()), (vec![], None));
}
