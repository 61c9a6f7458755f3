//! HyStart++ (RFC 9406): leaves slow start when the round-trip time grows, before a queue overflows.
//!
//! Unlike in RFC 9406 4.2, growth per ACK has no limit L: a receiver that merges packets (GRO) acknowledges dozens of
//! them at once, and slow start would be too slow with a limit (linux `tcp_slow_start` has none either).

use core::time::Duration;

/// Limits of the growth of the round-trip time that ends slow start, in microseconds (RFC 9406 4.3 MIN_RTT_THRESH,
/// MAX_RTT_THRESH).
const MIN_RTT_THRESH: u32 = 4_000;
const MAX_RTT_THRESH: u32 = 16_000;

/// No round-trip time seen.
const NO_RTT: u32 = u32::MAX;

/// Divisor: growth of round-trip time / divisor ends slow start (MIN_RTT_DIVISOR).
const MIN_RTT_DIVISOR: u32 = 8;

/// Samples that a round needs to be used (N_RTT_SAMPLE).
const N_RTT_SAMPLE: u8 = 8;

/// Divisor of the growth in conservative slow start (CSS_GROWTH_DIVISOR).
const CSS_GROWTH_DIVISOR: u64 = 4;

/// Rounds of conservative slow start before congestion avoidance (CSS_ROUNDS).
const CSS_ROUNDS: u8 = 5;

/// Reaction to an ACK in slow start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlowStartPace {
    /// Grow by this many bytes.
    Grow(u64),
    /// End slow start here.
    Leave,
}

/// Round-trip times of the current and the previous round.
#[derive(Debug, Clone)]
pub(super) struct HyStart {
    /// Smallest of the previous and of the running round, in microseconds.
    last_round_min: u32,
    this_round_min: u32,
    /// The round ends when this offset is acknowledged.
    round_end: u64,
    /// Smallest round-trip time when the conservative stage began.
    baseline: u32,
    /// Rounds in the conservative stage.
    rounds: u8,
    samples: u8,
    stage: Stage,
}

/// Slow start, or conservative slow start after the round-trip time has grown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    SlowStart,
    Conservative,
}

impl HyStart {
    /// Starts with the round that ends at `round_end`.
    pub(super) fn new(round_end: u64) -> HyStart {
        HyStart {
            last_round_min: NO_RTT,
            this_round_min: NO_RTT,
            round_end,
            baseline: NO_RTT,
            rounds: 0,
            samples: 0,
            stage: Stage::SlowStart,
        }
    }

    /// Returns the reaction to an ACK of `acked` bytes up to `snd_una` with round-trip time `rtt`.
    pub(super) fn on_ack(
        &mut self,
        acked: u64,
        rtt: Option<Duration>,
        snd_una: u64,
        snd_nxt: u64,
    ) -> SlowStartPace {
        if let Some(rtt) = rtt {
            let rtt = u32::try_from(rtt.as_micros()).unwrap_or(NO_RTT);
            self.this_round_min = self.this_round_min.min(rtt);
            self.samples = self.samples.saturating_add(1);
            self.judge_round();
        }
        if snd_una >= self.round_end && self.end_round(snd_nxt) {
            return SlowStartPace::Leave;
        }
        SlowStartPace::Grow(match self.stage {
            Stage::SlowStart => acked,
            Stage::Conservative => acked / CSS_GROWTH_DIVISOR,
        })
    }

    fn judge_round(&mut self) {
        if self.samples < N_RTT_SAMPLE {
            return;
        }
        let last = self.last_round_min;
        match self.stage {
            Stage::Conservative if self.this_round_min < self.baseline => {
                self.stage = Stage::SlowStart;
            }
            Stage::SlowStart if last != NO_RTT => {
                let threshold = (last / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH, MAX_RTT_THRESH);
                if self.this_round_min >= last.saturating_add(threshold) {
                    self.stage = Stage::Conservative;
                    self.baseline = self.this_round_min;
                    self.rounds = 0;
                }
            }
            Stage::Conservative | Stage::SlowStart => {}
        }
    }

    /// Begins the next round; returns whether conservative slow start has lasted long enough.
    fn end_round(&mut self, snd_nxt: u64) -> bool {
        self.last_round_min = self.this_round_min;
        self.this_round_min = NO_RTT;
        self.samples = 0;
        self.round_end = snd_nxt;
        if self.stage == Stage::SlowStart {
            return false;
        }
        self.rounds += 1;
        self.rounds >= CSS_ROUNDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// One round of ten ACKs for a kilobyte each, all with the same round-trip time.
    fn round(hystart: &mut HyStart, number: u64, rtt: Duration) -> SlowStartPace {
        let start = number * 10;
        let paces: Vec<SlowStartPace> = (1..=10)
            .map(|ack| hystart.on_ack(1000, Some(rtt), start + ack, start + 20))
            .collect();
        paces[9]
    }

    #[test]
    fn a_steady_path_stays_in_slow_start() {
        let mut hystart = HyStart::new(10);
        for number in 0..20 {
            assert_eq!(
                round(&mut hystart, number, ms(40)),
                SlowStartPace::Grow(1000)
            );
        }
    }

    #[test]
    fn a_growing_round_trip_slows_down_and_then_leaves() {
        let mut hystart = HyStart::new(10);
        assert_eq!(round(&mut hystart, 0, ms(40)), SlowStartPace::Grow(1000));
        // 40 / 8 = 5 ms more count.
        for number in 1..5 {
            assert_eq!(
                round(&mut hystart, number, ms(45)),
                SlowStartPace::Grow(250),
                "round {number}"
            );
        }
        assert_eq!(round(&mut hystart, 5, ms(45)), SlowStartPace::Leave);
    }

    #[test]
    fn a_passing_delay_returns_to_slow_start() {
        let mut hystart = HyStart::new(10);
        let _ = round(&mut hystart, 0, ms(40));
        assert_eq!(round(&mut hystart, 1, ms(60)), SlowStartPace::Grow(250));
        assert_eq!(round(&mut hystart, 2, ms(41)), SlowStartPace::Grow(1000));
    }

    #[test]
    fn less_than_four_milliseconds_are_noise() {
        let mut hystart = HyStart::new(10);
        let _ = round(&mut hystart, 0, ms(1));
        assert_eq!(round(&mut hystart, 1, ms(4)), SlowStartPace::Grow(1000));
        assert_eq!(round(&mut hystart, 2, ms(9)), SlowStartPace::Grow(250));
    }

    #[test]
    fn few_samples_decide_nothing() {
        let mut hystart = HyStart::new(10);
        let _ = round(&mut hystart, 0, ms(40));
        for ack in 11..18 {
            assert_eq!(
                hystart.on_ack(1000, Some(ms(100)), ack, 100),
                SlowStartPace::Grow(1000)
            );
        }
        assert_eq!(
            hystart.on_ack(1000, Some(ms(100)), 18, 100),
            SlowStartPace::Grow(250)
        );
    }
}
