//! Decisions that no test with segments and ACKs shows.

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
    timers
}

fn in_flight(rtt: &RttEstimator, outstanding: u64) -> InFlight<'_> {
    InFlight {
        rtt,
        outstanding,
        mss: 1000,
        usable: 0,
        last_sent: ms(1000),
        heard_at: Instant::ZERO,
        may_probe: false,
        user_timeout: None,
    }
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
fn a_closed_window_is_probed_and_one_that_opens_is_not() {
    let (rtt, mut timers) = (rtt(), SendTimers::default());
    let mut flight = in_flight(&rtt, 0);
    timers.arm_held_back(&flight, ms(1000));
    assert_eq!(timers.on_timer(&rtt, FIFTEEN_TRIES, ms(1300)), Expiry::Send);
    assert_eq!(
        (timers.due(), timers.attempts.probes),
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
