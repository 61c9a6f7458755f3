//! How many of its connections a load uses.
//!
//! Several connections hide the latency of a server, and a server may serve them on several processors. Where one is enough, more
//! cost CPU time at both ends: what is on its way on all of them does not fit into the caches, and the NIC expects the next packet on
//! the connection of the last one. So a load from a server nearby begins with one connection. While it waits for bytes it
//! tries twice as many, and keeps those that make it faster.

use std::time::{Duration, Instant};

use crate::parallel::Progress;

/// Round trip from which on all connections are used at once: a window for each, and slow start takes many round trips.
const FAR: Duration = Duration::from_millis(1);
/// Time without the first byte after which all connections are used: the server takes long to answer. One that reads 16 requests of
/// 1 MiB before it answers the first takes 10 ms.
const FIRST_BYTE: Duration = Duration::from_millis(20);
/// Shortest interval in which a rate is measured: some hundred packets of a fast server.
const INTERVAL: Duration = Duration::from_millis(8);
/// Bytes until which an interval of a slower server lasts: several answers.
const INTERVAL_BYTES: u64 = 4 << 20;
/// Longest interval.
const LONGEST_INTERVAL: Duration = Duration::from_millis(100);
/// Divisor: a load that waits for less than an eighth of the time is limited by the receiver, not by the server.
const WAITING: u32 = 8;
/// Rate of a trial from which on its connections stay in use, in percent of the rate before: more than rates change by themselves.
const FASTER: u64 = 110;
/// Time from a trial that gained nothing until the next one.
const NEXT_TRIAL: Duration = Duration::from_secs(1);
/// Rest of a load for which no trial begins, in milliseconds. A trial that gains nothing may cost 30: for two intervals, and while it connects
/// nothing is received, which takes 17 where the server looks for holes in 1 GiB first (nbdkit).
const SHORT_REST_MS: u64 = 300;

/// The number of connections in use.
#[derive(Debug)]
pub(super) struct Active {
    used: usize,
    most: usize,
    phase: Phase,
    /// Start of the interval.
    start: Instant,
    /// Bytes of the load before the interval.
    before: u64,
    /// Time in the interval in which no connection had bytes.
    waited: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// All connections are used from now on.
    All,
    /// No byte came yet.
    Silent,
    /// The first bytes came: slow start.
    Started,
    /// Some connections are used; no trial begins before this time.
    Some(Instant),
    /// The load waited for much of the last interval, in which it had this rate.
    Waiting(u64),
    /// More connections are used than `Baseline`, and begin to send.
    More(Baseline),
    /// Their rate is measured.
    Trial(Baseline),
}

/// The connections before a trial, and their rate in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Baseline {
    used: usize,
    rate: u64,
}

impl Active {
    /// Uses `most` connections from the start: several threads serve them.
    pub(super) fn all(most: usize, now: Instant) -> Self {
        Self {
            used: most,
            most,
            phase: Phase::All,
            start: now,
            before: 0,
            waited: Duration::ZERO,
        }
    }

    /// Uses as many of `most` connections as make a load faster.
    pub(super) fn some(most: usize, now: Instant) -> Self {
        let mut active = Self::all(most, now);
        if most > 1 {
            active.used = 1;
            active.phase = Phase::Silent;
        }
        active
    }

    /// Returns the number of connections in use.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Notes a new connection, with its round trip if that is known.
    pub(super) fn on_connected(&mut self, round_trip: Option<Duration>, now: Instant) {
        match self.phase {
            Phase::Silent if round_trip.is_none_or(|it| it >= FAR) => self.phase = self.use_all(),
            // The others were not served meanwhile.
            Phase::Silent | Phase::More(_) => self.start = now,
            Phase::All | Phase::Started | Phase::Some(_) | Phase::Waiting(_) | Phase::Trial(_) => {}
        }
    }

    /// Adds time in which no connection had bytes.
    pub(super) fn on_waited(&mut self, time: Duration) {
        self.waited += time;
    }

    /// Returns the time of the next choice if no byte comes before; `None` if there is none.
    pub(super) fn next_choice(&self) -> Option<Instant> {
        match self.phase {
            Phase::All => None,
            Phase::Silent => Some(self.start + FIRST_BYTE),
            _ => Some(self.start + LONGEST_INTERVAL),
        }
    }

    /// Chooses the number of connections, at the end of an interval.
    pub(super) fn choose(&mut self, so_far: Progress, now: Instant) {
        let time = now.saturating_duration_since(self.start);
        // Fewer than before: a connection broke, and its piece comes again.
        let came = so_far.bytes.saturating_sub(self.before);
        let is_over = match self.phase {
            Phase::All => false,
            Phase::Silent => came > 0 || time >= FIRST_BYTE,
            _ => time >= INTERVAL && came >= INTERVAL_BYTES || time >= LONGEST_INTERVAL,
        };
        if !is_over {
            return;
        }
        let rate = per_second(came, time);
        let is_waiting = self.waited > time / WAITING;
        self.phase = match self.phase {
            Phase::Silent if came == 0 => self.use_all(),
            Phase::Silent => Phase::Started,
            Phase::Started => Phase::Some(now),
            Phase::Some(next) if is_waiting && now >= next => Phase::Waiting(rate),
            Phase::Waiting(last) if is_waiting && !is_short(so_far, rate) => {
                let (used, rate) = (self.used, rate.max(last));
                self.used = used.saturating_mul(2).min(self.most);
                Phase::More(Baseline { used, rate })
            }
            Phase::Waiting(_) => Phase::Some(now),
            Phase::More(before) => Phase::Trial(before),
            Phase::Trial(Baseline { rate: least, .. }) if rate >= least / 100 * FASTER => {
                match self.used < self.most {
                    true => Phase::Some(now),
                    false => Phase::All,
                }
            }
            Phase::Trial(Baseline { used, .. }) => {
                self.used = used;
                Phase::Some(now + NEXT_TRIAL)
            }
            phase @ (Phase::All | Phase::Some(_)) => phase,
        };
        self.start = now;
        self.before = so_far.bytes;
        self.waited = Duration::ZERO;
    }

    fn use_all(&mut self) -> Phase {
        self.used = self.most;
        Phase::All
    }
}

/// Returns whether the rest of a load is done soon.
fn is_short(so_far: Progress, rate: u64) -> bool {
    let rest = so_far.total.saturating_sub(so_far.bytes);
    rest / rate.div_ceil(1000).max(1) < SHORT_REST_MS
}

/// Returns a rate in bytes per second.
fn per_second(bytes: u64, time: Duration) -> u64 {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    bytes.saturating_mul(1_000_000) / micros.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const TOTAL: u64 = 1 << 40;

    /// A load in fabricated time.
    struct Load {
        active: Active,
        now: Instant,
        bytes: u64,
    }

    impl Load {
        fn of(most: usize) -> Self {
            let now = Instant::now();
            Self {
                active: Active::some(most, now),
                now,
                bytes: 0,
            }
        }

        /// A load whose first connection has the first bytes.
        fn begun(most: usize) -> Self {
            let mut load = Self::of(most);
            load.active.on_connected(Some(MS / 10), load.now);
            load.pass(MS, 1, Duration::ZERO);
            load
        }

        /// Lets `time` pass with `bytes` bytes, and `waited` of it without work.
        fn pass(&mut self, time: Duration, bytes: u64, waited: Duration) {
            self.now += time;
            self.bytes += bytes;
            self.active.on_waited(waited);
            let so_far = Progress {
                bytes: self.bytes,
                total: TOTAL,
                connections: self.active.used(),
            };
            self.active.choose(so_far, self.now);
        }

        /// Lets an interval pass at `mib_per_s`, half of it without work.
        fn wait(&mut self, mib_per_s: u64) {
            let bytes = (mib_per_s << 20) * INTERVAL.as_millis() as u64 / 1000;
            self.pass(INTERVAL, bytes, INTERVAL / 2);
        }
    }

    #[test]
    fn a_load_that_never_waits_uses_one_connection() {
        let mut load = Load::begun(16);
        for _ in 0..1000 {
            load.pass(INTERVAL, 64 << 20, INTERVAL / 10);
            assert_eq!(load.active.used(), 1);
        }
        // One interval of waiting is chance.
        load.wait(8000);
        load.pass(INTERVAL, 64 << 20, INTERVAL / 10);
        load.wait(8000);
        assert_eq!(load.active.used(), 1);
    }

    #[test]
    fn more_connections_are_kept_while_they_are_faster() {
        let mut load = Load::begun(6);
        let mut used = Vec::new();
        for _ in 0..20 {
            load.wait(1000 * load.active.used() as u64);
            used.push(load.active.used());
        }
        used.dedup();
        assert_eq!(used, [1, 2, 4, 6]);
        assert_eq!(load.active.next_choice(), None);
    }

    #[test]
    fn more_connections_that_are_not_faster_are_given_up_for_a_second() {
        let mut load = Load::begun(4);
        let mut used = Vec::new();
        let start = load.now;
        while load.now - start < NEXT_TRIAL {
            load.wait(1000 + 40 * load.active.used() as u64);
            used.push(load.active.used());
        }
        used.dedup();
        assert_eq!(used, [1, 2, 1]);
        while load.now - start < 2 * NEXT_TRIAL {
            load.wait(1000);
            used.push(load.active.used());
        }
        used.dedup();
        assert_eq!(used, [1, 2, 1, 2, 1]);
    }

    #[test]
    fn a_trial_is_measured_from_its_connection_on() {
        let mut load = Load::begun(2);
        while load.active.used() == 1 {
            load.wait(1000);
        }
        // Nothing is received while it connects.
        load.now += 17 * MS;
        load.active.on_connected(Some(MS / 10), load.now);
        load.pass(INTERVAL / 2, 8 << 20, Duration::ZERO);
        assert!(matches!(load.active.phase, Phase::More(_)));
        load.wait(1000);
        load.wait(1200);
        assert_eq!((load.active.used(), load.active.phase), (2, Phase::All));
    }

    #[test]
    fn the_short_rest_of_a_load_sees_no_trial() {
        let mut load = Load::begun(4);
        load.bytes = TOTAL - (1 << 30);
        load.wait(1000);
        for _ in 0..70 {
            load.wait(4000);
            assert_eq!(load.active.used(), 1);
        }
    }

    #[test]
    fn a_far_server_and_one_that_does_not_answer_get_all_connections() {
        for round_trip in [None, Some(FAR)] {
            let mut load = Load::of(16);
            assert_eq!(load.active.used(), 1);
            load.active.on_connected(round_trip, load.now);
            assert_eq!(load.active.used(), 16);
        }
        let mut load = Load::of(16);
        load.active.on_connected(Some(MS / 10), load.now);
        assert_eq!(load.active.next_choice(), Some(load.now + FIRST_BYTE));
        load.pass(FIRST_BYTE - MS, 0, FIRST_BYTE - MS);
        assert_eq!(load.active.used(), 1);
        load.pass(MS, 0, MS);
        assert_eq!(load.active.used(), 16);
    }

    #[test]
    fn a_slow_server_is_looked_at_after_a_tenth_of_a_second() {
        let mut load = Load::begun(4);
        for _ in 0..3 {
            assert_eq!(load.active.used(), 1);
            assert_eq!(load.active.next_choice(), Some(load.now + LONGEST_INTERVAL));
            load.pass(LONGEST_INTERVAL - MS, 1 << 20, LONGEST_INTERVAL / 2);
            load.pass(MS, 0, MS);
        }
        assert_eq!(load.active.used(), 2);
    }

    #[test]
    fn one_connection_and_those_of_several_threads_are_all_used() {
        let now = Instant::now();
        assert_eq!(Active::some(1, now).used(), 1);
        assert_eq!(Active::some(1, now).next_choice(), None);
        assert_eq!(Active::all(8, now).used(), 8);
    }
}
