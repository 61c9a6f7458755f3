//! Pacing: segments are spread over the round trip (linux `tcp_update_pacing_rate`, `net/sched/sch_fq.c`).

use core::time::Duration;

use wire::Instant;

/// Data is released for a millisecond at once, so that no finer timer is needed
/// (linux `sk_pacing_shift` 10).
const QUANTUM: Duration = Duration::from_millis(1);

/// How much of the time by which a poll came too late is made up for. A thread on a busy machine is woken by its timer a tick of the
/// kernel's clock too late, or two (1 to 10 ms); the congestion window still bounds what leaves at once.
const CATCH_UP: Duration = Duration::from_millis(10);

/// Segments that may always be sent together (linux `sysctl_tcp_min_tso_segs`).
const QUANTUM_SEGMENTS: u64 = 2;

/// Segments at the start of a connection that are not paced (linux `tcp_update_skb_after_send`).
const UNPACED_SEGMENTS: u64 = 10;

/// Ratio of the pacing rate to a window per round trip, in hundredths. It is above 100, so that the window can grow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gain(u32);

impl Gain {
    /// Linux `tcp_pacing_ss_ratio`.
    pub(crate) const SLOW_START: Gain = Gain(200);
    /// Linux `tcp_pacing_ca_ratio`.
    pub(crate) const AVOIDANCE: Gain = Gain(120);
}

/// Time at which the next segment may be sent; one null pointer if pacing is off.
#[derive(Debug, Clone)]
pub(crate) struct Pacer(Option<Box<PacerState>>);

#[derive(Debug, Clone, Default)]
struct PacerState {
    /// Bytes per second; 0 before the first round-trip sample: not paced.
    rate: u64,
    release: Instant,
    /// The last poll left data for the release time, and nothing else held it back.
    awaited: bool,
    /// Bytes sent since the start, up to the unpaced ones.
    sent: u64,
}

impl Pacer {
    /// Returns a pacer; without `enabled` it delays nothing.
    pub(crate) fn new(enabled: bool) -> Pacer {
        Pacer(enabled.then(Box::default))
    }

    /// Sets the rate: `gain` times cwnd per round trip.
    pub(crate) fn on_window(&mut self, cwnd: u64, srtt: Option<Duration>, gain: Gain) {
        let (Some(pace), Some(srtt)) = (&mut self.0, srtt) else {
            return;
        };
        let per_second =
            u128::from(cwnd) * u128::from(gain.0) * 1_000_000_000 / 100 / srtt.as_nanos().max(1);
        pace.rate = u64::try_from(per_second).unwrap_or(u64::MAX).max(1);
    }

    /// Begins to pace, from the first rate on.
    pub(crate) fn enable(&mut self) {
        self.0.get_or_insert_default();
    }

    /// Sets the rate, in bytes per second.
    pub(crate) fn set_rate(&mut self, rate: u64) {
        if let Some(pace) = &mut self.0 {
            pace.rate = rate.max(1);
        }
    }

    /// Returns how many bytes may be sent now: none before the release time.
    pub(crate) fn allowance(&self, mss: u16, now: Instant) -> u64 {
        let Some(pace) = self.0.as_ref().filter(|pace| pace.rate != 0) else {
            return u64::MAX;
        };
        if now < pace.release {
            return 0;
        }
        let quantum = u128::from(pace.rate) * QUANTUM.as_nanos() / 1_000_000_000;
        u64::try_from(quantum)
            .unwrap_or(u64::MAX)
            .max(QUANTUM_SEGMENTS * u64::from(mss))
    }

    /// Notes that `bytes` are sent.
    ///
    /// The first segments are not delayed. After a segment that was sent late, because there was nothing to send or no room in a
    /// window, the next delay is shorter, by half at most (linux `tcp_update_skb_after_send`). After one that waited for its release
    /// time and was polled for late, delays are shorter until the time is made up for, up to [`CATCH_UP`]: Linux' timers do not wait
    /// for a processor, ours do, and a rate that is not reached would be taken for that of the path.
    pub(crate) fn on_sent(&mut self, bytes: u64, mss: u16, now: Instant) {
        if let Some(pace) = self.0.as_mut().filter(|pace| pace.rate != 0) {
            pace.sent = pace.sent.saturating_add(bytes);
            if pace.sent < UNPACED_SEGMENTS * u64::from(mss) {
                return;
            }
            let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(pace.rate);
            let time = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
            let late = now.saturating_since(pace.release);
            let spared = match pace.awaited {
                true => late.min(CATCH_UP),
                false => late.min(time / 2),
            };
            pace.release = pace.release.max(now) + time - spared;
        }
    }

    /// Returns when the next bytes may leave, if that is not now. Called when no more may leave; `waits`: there are some.
    pub(crate) fn await_release(&mut self, waits: bool, now: Instant) -> Option<Instant> {
        let pace = self.0.as_mut()?;
        pace.awaited = waits && pace.release > now;
        pace.awaited.then_some(pace.release)
    }

    /// Returns the rate in bytes per second; 0 without pacing.
    pub(crate) fn rate(&self) -> u64 {
        self.0.as_ref().map_or(0, |pace| pace.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u16 = 1000;

    fn ms(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn pacer(gain: Gain) -> Pacer {
        let mut pacer = Pacer::new(true);
        pacer.on_window(1_000_000, Some(Duration::from_millis(100)), gain);
        pacer
    }

    #[test]
    fn the_rate_is_twice_the_window_in_slow_start_and_a_fifth_more_after_it() {
        assert_eq!(pacer(Gain::SLOW_START).rate(), 20_000_000);
        assert_eq!(pacer(Gain::AVOIDANCE).rate(), 12_000_000);
    }

    #[test]
    fn a_millisecond_of_data_leaves_at_once_and_the_next_waits_for_it() {
        let mut pacer = pacer(Gain::SLOW_START);
        assert_eq!(pacer.allowance(MSS, ms(5)), 20_000);
        pacer.on_sent(20_000, MSS, ms(5));
        assert_eq!(pacer.allowance(MSS, ms(5)), 0);
        // Late by five milliseconds: half of the wait is spared.
        let release = Some(Instant::from_nanos(5_500_000));
        assert_eq!(pacer.await_release(true, ms(5)), release);
        assert_eq!(pacer.await_release(false, ms(5)), None);
        assert_eq!(pacer.allowance(MSS, ms(6)), 20_000);
        assert_eq!(pacer.await_release(true, ms(6)), None);
    }

    /// Sends what may leave at `now`; returns how much that was.
    fn send_all(pacer: &mut Pacer, now: Instant) -> u64 {
        let mut sent = 0;
        loop {
            match pacer.allowance(MSS, now) {
                0 => return sent,
                some => pacer.on_sent(some, MSS, now),
            }
            sent += 20_000;
        }
    }

    #[test]
    fn what_is_released_late_leaves_together_up_to_ten_milliseconds_of_it() {
        let mut pacer = pacer(Gain::SLOW_START);
        assert_eq!(send_all(&mut pacer, ms(9)), 20_000);
        let release = pacer.await_release(true, ms(9)).unwrap();
        for (late, millis) in [(0, 1), (4, 5), (10, 11), (50, 11)] {
            let mut pacer = pacer.clone();
            let now = release + Duration::from_millis(late);
            assert_eq!(send_all(&mut pacer, now), millis * 20_000, "{late} ms late");
        }
        // Nothing was left to send, or there was no room: the time is lost.
        assert_eq!(pacer.await_release(false, ms(9)), None);
        let sent = send_all(&mut pacer, release + Duration::from_millis(8));
        assert_eq!(sent, 20_000);
    }

    #[test]
    fn two_segments_may_always_leave_together() {
        let mut pacer = Pacer::new(true);
        pacer.on_window(2000, Some(Duration::from_secs(1)), Gain::AVOIDANCE);
        assert_eq!(pacer.allowance(MSS, ms(0)), 2000);
    }

    #[test]
    fn nothing_is_held_back_without_pacing_or_without_a_sample() {
        let mut off = Pacer::new(false);
        off.on_window(1000, Some(Duration::from_secs(1)), Gain::SLOW_START);
        off.on_sent(1_000_000, MSS, ms(1));
        assert_eq!(
            (
                off.allowance(MSS, ms(1)),
                off.await_release(true, ms(1)),
                off.rate()
            ),
            (u64::MAX, None, 0)
        );
        let mut unknown = Pacer::new(true);
        unknown.on_sent(1_000_000, MSS, ms(1));
        assert_eq!(unknown.allowance(MSS, ms(1)), u64::MAX);
    }
}
