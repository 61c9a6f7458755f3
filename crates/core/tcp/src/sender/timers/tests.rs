//! Decisions on their own: what is in flight in, what is to be done out.

use super::*;
use crate::config::TimerConfig;

/// A round trip of 100 ms: a timeout of 300 ms.
fn rtt() -> RttEstimator {
    let mut rtt = RttEstimator::new(&TimerConfig::default());
    rtt.on_sample(Duration::from_millis(100));
    rtt
}

fn ms(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

const FIFTEEN_TRIES: GiveUpAfter = GiveUpAfter {
    tries: 15,
    user_timeout: None,
};

/// Timers of a connection that sent at 1,000 ms.
fn sent_at_one_second() -> SendTimers {
    let mut timers = SendTimers::default();
    timers.on_first_sent(ms(1000));
    timers.note_sent(ms(1000));
    timers
}

fn in_flight(rtt: &RttEstimator, outstanding: u64) -> InFlight<'_> {
    InFlight {
        rtt,
        outstanding,
        mss: 1000,
        usable: 0,
        may_probe: false,
        user_timeout: None,
    }
}

#[test]
fn data_in_flight_times_out() {
    let (rtt, mut timers) = (rtt(), sent_at_one_second());
    timers.schedule(&in_flight(&rtt, 5000), ms(1000));
    assert_eq!(timers.next(), Some(ms(1300)));
    assert_eq!(
        timers.on_timer(&rtt, FIFTEEN_TRIES, ms(1299)),
        Expiry::NotYet
    );
    let expiry = timers.on_timer(&rtt, FIFTEEN_TRIES, ms(1300));
    assert_eq!(expiry, Expiry::RetransmissionTimeout);
    assert_eq!(timers.next(), None);
}

#[test]
fn a_probe_comes_before_the_timeout_where_it_is_allowed() {
    let (rtt, mut timers) = (rtt(), sent_at_one_second());
    let mut flight = in_flight(&rtt, 5000);
    flight.may_probe = true;
    timers.schedule(&flight, ms(1000));
    let probe_at = timers.next().unwrap();
    assert!(probe_at < ms(1300));
    assert_eq!(timers.on_timer(&rtt, FIFTEEN_TRIES, probe_at), Expiry::Send);
    assert_eq!(timers.due(), Some(DueSend::TailProbe));
    let timeout = probe_at + Duration::from_millis(300);
    assert_eq!(timers.next(), Some(timeout), "it counts from the probe");
    // What was asked for is still to be sent.
    timers.schedule(&flight, probe_at);
    assert_eq!(timers.next(), Some(timeout));
}

#[test]
fn no_probe_follows_a_timeout() {
    let (rtt, mut timers) = (rtt(), sent_at_one_second());
    timers.on_timeout(ms(1300));
    let mut flight = in_flight(&rtt, 5000);
    flight.may_probe = true;
    timers.schedule(&flight, ms(1300));
    assert_eq!((timers.next(), timers.backoff()), (Some(ms(1600)), 1));
}

#[test]
fn the_reordering_timer_comes_first() {
    let (rtt, mut timers) = (rtt(), sent_at_one_second());
    timers.set_reorder(Some(ms(1025)));
    timers.schedule(&in_flight(&rtt, 5000), ms(1000));
    assert_eq!(
        timers.on_timer(&rtt, FIFTEEN_TRIES, ms(1025)),
        Expiry::Reorder
    );
}

#[test]
fn a_closed_window_is_probed_and_one_that_opens_is_not() {
    let (rtt, mut timers) = (rtt(), SendTimers::default());
    let mut flight = in_flight(&rtt, 0);
    timers.arm_held_back(&flight, ms(1000));
    assert_eq!(timers.on_timer(&rtt, FIFTEEN_TRIES, ms(1300)), Expiry::Send);
    assert_eq!(
        (timers.due(), timers.probes()),
        (Some(DueSend::WindowProbe), 1)
    );
    timers.arm_held_back(&flight, ms(1300));
    assert_eq!((timers.next(), timers.backoff()), (Some(ms(1900)), 1));
    flight.usable = 1000;
    timers.schedule(&flight, ms(1400));
    assert_eq!(timers.next(), None);
    flight.usable = 0;
    timers.arm_held_back(&flight, ms(1400));
    assert_eq!(timers.next(), Some(ms(1700)), "the intervals begin anew");
}

#[test]
fn a_small_segment_is_held_back_for_a_timeout() {
    let (rtt, mut timers) = (rtt(), SendTimers::default());
    let mut flight = in_flight(&rtt, 0);
    flight.usable = 1000;
    timers.arm_held_back(&flight, ms(1000));
    assert_eq!(timers.on_timer(&rtt, FIFTEEN_TRIES, ms(1300)), Expiry::Send);
    assert_eq!(timers.due(), Some(DueSend::Small));
}

#[test]
fn a_silent_peer_is_given_up_after_so_many_tries() {
    let (rtt, mut timers) = (rtt(), sent_at_one_second());
    let flight = in_flight(&rtt, 5000);
    let three_tries = GiveUpAfter {
        tries: 3,
        ..FIFTEEN_TRIES
    };
    for tries in 0..4 {
        timers.schedule(&flight, ms(1000));
        let at = timers.next().unwrap();
        let expected = match tries {
            3 => Expiry::GiveUp,
            _ => Expiry::RetransmissionTimeout,
        };
        assert_eq!(timers.on_timer(&rtt, three_tries, at), expected);
        timers.on_timeout(at);
    }
}

#[test]
fn a_user_timeout_replaces_the_count_of_tries() {
    let limit = Some(Duration::from_millis(700));
    let (rtt, mut timers) = (rtt(), sent_at_one_second());
    let mut flight = in_flight(&rtt, 5000);
    flight.user_timeout = limit;
    let give_up = GiveUpAfter {
        tries: 1,
        user_timeout: limit,
    };
    for expected in [1300, 1600, 1700] {
        timers.schedule(&flight, ms(1000));
        assert_eq!(timers.next(), Some(ms(expected)));
        let expiry = timers.on_timer(&rtt, give_up, ms(expected));
        assert_eq!(expiry == Expiry::GiveUp, expected == 1700);
        timers.on_timeout(ms(expected));
    }
}

#[test]
fn pacing_wakes_the_sender_without_a_timer() {
    let (rtt, mut timers) = (rtt(), SendTimers::default());
    timers.set_paced_until(Some(ms(1005)));
    assert_eq!(timers.next(), Some(ms(1005)));
    assert_eq!(
        timers.on_timer(&rtt, FIFTEEN_TRIES, ms(1004)),
        Expiry::NotYet
    );
    assert_eq!(timers.on_timer(&rtt, FIFTEEN_TRIES, ms(1005)), Expiry::Send);
    assert_eq!((timers.next(), timers.due()), (None, None));
}
