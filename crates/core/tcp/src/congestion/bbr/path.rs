//! What BBR knows of the path: its bandwidth, its round-trip time, and how far ACKs come in bursts.

use core::time::Duration;

use wire::Instant;

/// Time for which a minimum of the round-trip time holds (draft-ietf-ccwg-bbr 2.14 MinRTTFilterLen).
const MIN_RTT_LIFE: Duration = Duration::from_secs(10);

/// Time after which the minimum is looked for by draining the queue (ProbeRTTInterval).
const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(5);

/// Rounds over which bursts of ACKs are remembered (ExtraAckedFilterLen).
const BURST_ROUNDS: u64 = 10;

/// The largest rate of the running and of the previous cycle of probing (draft 5.5.5, 5.5.6).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MaxBandwidth {
    previous: f64,
    current: f64,
}

impl MaxBandwidth {
    /// Returns the largest rate, in bytes per second; 0 before the first sample.
    pub(super) fn get(&self) -> f64 {
        self.previous.max(self.current)
    }

    /// Takes a sample. One that the application limited counts only if it is larger.
    pub(super) fn on_sample(&mut self, rate: f64, limited: bool) {
        if !limited || rate >= self.get() {
            self.current = self.current.max(rate);
        }
    }

    /// Begins a cycle.
    pub(super) fn advance(&mut self) {
        // A cycle without any sample says nothing.
        if self.current > 0.0 {
            self.previous = self.current;
            self.current = 0.0;
        }
    }
}

/// The shortest round trip of the last ten seconds (draft 5.3.4.3).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MinRtt {
    shortest: Option<(Duration, Instant)>,
    /// The shortest since it was last looked for.
    recent: Option<(Duration, Instant)>,
}

/// Whether the minimum should be looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RttAge {
    Fresh,
    Expired,
}

impl MinRtt {
    pub(super) fn get(&self) -> Option<Duration> {
        self.shortest.map(|(rtt, _)| rtt)
    }

    /// Takes the round trip of an ACK; says whether the minimum had expired before it.
    pub(super) fn on_ack(&mut self, rtt: Option<Duration>, now: Instant) -> RttAge {
        let is_older = |of: Option<(Duration, Instant)>, than: Duration| {
            of.is_some_and(|(_, since)| now.saturating_since(since) > than)
        };
        let expired = is_older(self.recent, PROBE_RTT_INTERVAL);
        if let Some(rtt) = rtt
            && (expired || self.recent.is_none_or(|(recent, _)| rtt < recent))
        {
            self.recent = Some((rtt, now));
        }
        let renew = is_older(self.shortest, MIN_RTT_LIFE);
        if let Some((recent, since)) = self.recent
            && (renew || self.get().is_none_or(|shortest| recent < shortest))
        {
            self.shortest = Some((recent, since));
        }
        match expired {
            true => RttAge::Expired,
            false => RttAge::Fresh,
        }
    }

    /// Notes that the queue was drained: what is the minimum now holds for another interval.
    pub(super) fn on_probed(&mut self, now: Instant) {
        if let Some((_, since)) = &mut self.recent {
            *since = now;
        }
    }
}

/// How much more ACKs deliver at once than the bandwidth explains (draft 5.5.9).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AckBursts {
    since: Instant,
    delivered: u64,
    /// The largest of the running and of the previous ten rounds.
    largest: [u64; 2],
    rounds_end: u64,
}

impl AckBursts {
    /// Returns the bytes that a burst delivers too early.
    pub(super) fn get(&self) -> u64 {
        self.largest[0].max(self.largest[1])
    }

    /// Starts a new interval, after idle time.
    pub(super) fn restart(&mut self, now: Instant) {
        self.since = now;
        self.delivered = 0;
    }

    /// Takes `bytes` that an ACK of `round` delivered, where the path carries `bandwidth`; none is larger than `cwnd`.
    pub(super) fn on_ack(
        &mut self,
        bytes: u64,
        bandwidth: f64,
        cwnd: u64,
        round: u64,
        now: Instant,
    ) {
        let mut expected = (bandwidth * now.saturating_since(self.since).as_secs_f64()) as u64;
        if self.delivered <= expected {
            self.restart(now);
            expected = 0;
        }
        self.delivered += bytes;
        if round >= self.rounds_end {
            self.rounds_end = round + BURST_ROUNDS;
            self.largest = [0, self.largest[0]];
        }
        let extra = self.delivered.saturating_sub(expected).min(cwnd);
        self.largest[0] = self.largest[0].max(extra);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_bandwidth_is_that_of_this_and_the_last_cycle() {
        let mut max = MaxBandwidth::default();
        max.on_sample(100.0, true);
        max.on_sample(50.0, false);
        assert_eq!(max.get(), 100.0);
        max.advance();
        max.on_sample(60.0, false);
        max.on_sample(70.0, true);
        assert_eq!(max.get(), 100.0);
        max.advance();
        assert_eq!(
            max.get(),
            60.0,
            "a limited sample below the maximum says nothing"
        );
        max.advance();
        assert_eq!(max.get(), 60.0, "nor does a cycle without samples");
    }

    #[test]
    fn the_shortest_round_trip_holds_for_ten_seconds_and_is_looked_for_after_five() {
        let mut min = MinRtt::default();
        let at = Instant::from_millis;
        assert_eq!(min.on_ack(Some(ms(20)), at(0)), RttAge::Fresh);
        assert_eq!(min.on_ack(Some(ms(30)), at(4000)), RttAge::Fresh);
        assert_eq!(min.on_ack(Some(ms(30)), at(5001)), RttAge::Expired);
        assert_eq!(min.get(), Some(ms(20)));
        assert_eq!(min.on_ack(Some(ms(31)), at(10_000)), RttAge::Fresh);
        let _ = min.on_ack(Some(ms(31)), at(10_001));
        assert_eq!(min.get(), Some(ms(30)));
        min.on_probed(at(14_000));
        assert_eq!(min.on_ack(Some(ms(31)), at(18_000)), RttAge::Fresh);
    }

    #[test]
    fn a_burst_is_what_the_bandwidth_does_not_explain() {
        let mut bursts = AckBursts::default();
        let at = Instant::from_millis;
        // 1,000 bytes per millisecond.
        let bandwidth = 1_000_000.0;
        bursts.restart(at(0));
        bursts.on_ack(5_000, bandwidth, 1 << 20, 1, at(0));
        assert_eq!(bursts.get(), 5_000);
        bursts.on_ack(5_000, bandwidth, 1 << 20, 1, at(2));
        assert_eq!(bursts.get(), 8_000);
        bursts.on_ack(1_000, bandwidth, 1 << 20, 12, at(100));
        assert_eq!(bursts.get(), 8_000);
        bursts.on_ack(1_000, bandwidth, 1 << 20, 23, at(200));
        assert_eq!(bursts.get(), 1_000);
        bursts.on_ack(9_000, bandwidth, 2_000, 24, at(201));
        assert_eq!(bursts.get(), 2_000);
    }
}
