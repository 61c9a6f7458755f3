//! HyStart++ (RFC 9406): leaves slow start when the round-trip time grows, before a queue overflows.
//!
//! Unlike RFC 9406 4.2, growth per ACK has no limit L: a receiver that merges packets (GRO) acknowledges dozens of
//! them at once, and would otherwise be starved (linux `tcp_slow_start` has none either).

use core::time::Duration;

/// Bounds of the growth of the round-trip time that counts (RFC 9406 4.3 MIN_RTT_THRESH, MAX_RTT_THRESH).
const MIN_RTT_THRESH: Duration = Duration::from_millis(4);
const MAX_RTT_THRESH: Duration = Duration::from_millis(16);

/// The part of the round-trip time that counts (MIN_RTT_DIVISOR).
const MIN_RTT_DIVISOR: u32 = 8;

/// Samples that a round needs before it is believed (N_RTT_SAMPLE).
const N_RTT_SAMPLE: u8 = 8;

/// How much slower than slow start the conservative one grows (CSS_GROWTH_DIVISOR).
const CSS_GROWTH_DIVISOR: u64 = 4;

/// Rounds of conservative slow start before congestion avoidance (CSS_ROUNDS).
const CSS_ROUNDS: u8 = 5;

/// What to do with the bytes of an ACK in slow start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// Grow by this many bytes.
    Grow(u64),
    /// End slow start here.
    Leave,
}

/// Round-trip times of this round and the last.
#[derive(Debug, Clone)]
pub(super) struct HyStart {
    /// Smallest of the previous and of the running round; `Duration::MAX` for none.
    last_round_min: Duration,
    this_round_min: Duration,
    /// The round ends when this offset is acknowledged.
    round_end: u64,
    samples: u8,
    css: Option<Conservative>,
}

/// Conservative slow start: is the growth of the round-trip time there to stay?
#[derive(Debug, Clone, Copy)]
struct Conservative {
    baseline: Duration,
    rounds: u8,
}

impl HyStart {
    /// Starts with the round that ends at `round_end`.
    pub(super) fn new(round_end: u64) -> HyStart {
        HyStart {
            last_round_min: Duration::MAX,
            this_round_min: Duration::MAX,
            round_end,
            samples: 0,
            css: None,
        }
    }

    /// Judges an ACK of `acked` bytes up to `snd_una` that took `rtt`.
    pub(super) fn on_ack(
        &mut self,
        acked: u64,
        rtt: Option<Duration>,
        snd_una: u64,
        snd_nxt: u64,
    ) -> Pace {
        if let Some(rtt) = rtt {
            self.this_round_min = self.this_round_min.min(rtt);
            self.samples = self.samples.saturating_add(1);
            self.judge_round();
        }
        if snd_una >= self.round_end && self.end_round(snd_nxt) {
            return Pace::Leave;
        }
        Pace::Grow(match self.css {
            Some(_) => acked / CSS_GROWTH_DIVISOR,
            None => acked,
        })
    }

    fn judge_round(&mut self) {
        if self.samples < N_RTT_SAMPLE {
            return;
        }
        match self.css {
            Some(css) if self.this_round_min < css.baseline => self.css = None,
            Some(_) => {}
            None if self.last_round_min == Duration::MAX => {}
            None => {
                let threshold =
                    (self.last_round_min / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH, MAX_RTT_THRESH);
                if self.this_round_min >= self.last_round_min.saturating_add(threshold) {
                    self.css = Some(Conservative {
                        baseline: self.this_round_min,
                        rounds: 0,
                    });
                }
            }
        }
    }

    /// Begins the next round; returns whether conservative slow start has lasted long enough.
    fn end_round(&mut self, snd_nxt: u64) -> bool {
        self.last_round_min = self.this_round_min;
        self.this_round_min = Duration::MAX;
        self.samples = 0;
        self.round_end = snd_nxt;
        let Some(css) = &mut self.css else {
            return false;
        };
        css.rounds += 1;
        css.rounds >= CSS_ROUNDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// One round of ten ACKs for a kilobyte each, all with the same round-trip time.
    fn round(hystart: &mut HyStart, number: u64, rtt: Duration) -> Pace {
        let start = number * 10;
        let paces: Vec<Pace> = (1..=10)
            .map(|ack| hystart.on_ack(1000, Some(rtt), start + ack, start + 20))
            .collect();
        paces[9]
    }

    #[test]
    fn a_steady_path_stays_in_slow_start() {
        let mut hystart = HyStart::new(10);
        for number in 0..20 {
            assert_eq!(round(&mut hystart, number, ms(40)), Pace::Grow(1000));
        }
    }

    #[test]
    fn a_growing_round_trip_slows_down_and_then_leaves() {
        let mut hystart = HyStart::new(10);
        assert_eq!(round(&mut hystart, 0, ms(40)), Pace::Grow(1000));
        // 40 / 8 = 5 ms more count.
        for number in 1..5 {
            assert_eq!(
                round(&mut hystart, number, ms(45)),
                Pace::Grow(250),
                "round {number}"
            );
        }
        assert_eq!(round(&mut hystart, 5, ms(45)), Pace::Leave);
    }

    #[test]
    fn a_passing_delay_returns_to_slow_start() {
        let mut hystart = HyStart::new(10);
        let _ = round(&mut hystart, 0, ms(40));
        assert_eq!(round(&mut hystart, 1, ms(60)), Pace::Grow(250));
        assert_eq!(round(&mut hystart, 2, ms(41)), Pace::Grow(1000));
    }

    #[test]
    fn less_than_four_milliseconds_are_noise() {
        let mut hystart = HyStart::new(10);
        let _ = round(&mut hystart, 0, ms(1));
        assert_eq!(round(&mut hystart, 1, ms(4)), Pace::Grow(1000));
        assert_eq!(round(&mut hystart, 2, ms(9)), Pace::Grow(250));
    }

    #[test]
    fn few_samples_decide_nothing() {
        let mut hystart = HyStart::new(10);
        let _ = round(&mut hystart, 0, ms(40));
        for ack in 11..18 {
            assert_eq!(
                hystart.on_ack(1000, Some(ms(100)), ack, 100),
                Pace::Grow(1000)
            );
        }
        assert_eq!(
            hystart.on_ack(1000, Some(ms(100)), 18, 100),
            Pace::Grow(250)
        );
    }
}
