//! BBR, version 3 (draft-ietf-ccwg-bbr): sends as fast as the path delivers, and keeps in flight what fills it.
//!
//! Where the other controllers ask after each loss how much less to send, this one measures the path ([`path`]), and asks what
//! its losses say about the measurements ([`bounds`]): those by chance ([`chance`]) do not slow it down.
//!
//! ```text
//! Startup -> Drain -> Down -> Cruise -> Refill -> Up -> Down ...      every 2 to 3 seconds
//!                     any of them -> ProbeRtt                         every 5 seconds without a shorter round trip
//! ```

mod bounds;
mod chance;
mod path;
mod phase;
mod rounds;
#[cfg(test)]
mod tests;

use core::time::Duration;

use wire::Instant;

use self::bounds::{Bounds, Growth, Latest, bound_after_losses, is_too_much};
use self::chance::{ChanceLosses, met_no_queue};
use self::path::{AckBursts, MaxBandwidth, MinRtt, RttAge};
use self::phase::{AckPhase, Phase, ProbeRttEnd};
use self::rounds::{FullPipe, LossRound, Rounds};
use super::delivery::DeliverySample;
use super::input::MAX_CWND;

/// Part of the estimated bandwidth that is used, so that the queue does not grow by errors of the estimate
/// (PacingMarginPercent).
const PACING_MARGIN: f64 = 0.99;

/// Smallest window, in segments (MinPipeCwnd).
const MIN_SEGMENTS: u64 = 4;

/// ACKs with losses in one round trip from which on too many losses end Startup (StartupFullLossCnt).
const STARTUP_LOSS_EVENTS: u32 = 6;

/// Rounds after which Drain ends, whatever is in flight.
const DRAIN_ROUNDS: u64 = 3;

/// Time between two probes for bandwidth: this, and up to a second more.
const PROBE_WAIT: Duration = Duration::from_secs(2);
const PROBE_WAIT_RANDOM_MS: u64 = 1000;

/// Rounds after which a probe is due in any case: a Reno flow would have recovered from a loss (draft 5.3.3.5.1).
const RENO_ROUNDS_MAX: u64 = 63;

/// How long the queue is kept drained to see the shortest round trip (ProbeRTTDuration).
const PROBE_RTT_TIME: Duration = Duration::from_millis(200);

/// Round trip that the first pacing rate assumes if none was measured.
const ASSUMED_RTT: Duration = Duration::from_millis(1);

/// State to return to if losses turn out to be none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Saved {
    bounds: Bounds,
    cwnd: u64,
}

/// What an ACK brings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathAck {
    pub(crate) sample: Option<DeliverySample>,
    /// Bytes that it delivered.
    pub(crate) acked: u64,
    /// Bytes that it showed to be lost.
    pub(crate) lost: u64,
    /// Bytes delivered since the start.
    pub(crate) delivered: u64,
    /// Bytes in flight now.
    pub(crate) in_flight: u64,
    pub(crate) rtt: Option<Duration>,
    pub(crate) mss: u16,
    pub(crate) now: Instant,
}

/// The controller of one connection.
#[derive(Debug, Clone)]
pub(crate) struct Bbr {
    phase: Phase,
    ack_phase: AckPhase,
    cwnd: u64,
    initial_cwnd: u64,
    /// Window before losses or ProbeRtt.
    prior_cwnd: Option<u64>,
    /// Bytes per second.
    pacing_rate: f64,
    bandwidth: MaxBandwidth,
    min_rtt: MinRtt,
    bursts: AckBursts,
    bounds: Bounds,
    rounds: Rounds,
    losses: LossRound,
    chance: ChanceLosses,
    full: FullPipe,
    growth: Growth,
    /// Samples are about a probe, whose losses set the long-term bound.
    probes: bool,
    /// The window, and nothing else, held data back in this round.
    limited_by_window: bool,
    /// Idle since the last data.
    is_restarting: bool,
    cycle: Cycle,
    random: u64,
}

/// Time since the last probe for bandwidth.
#[derive(Debug, Clone, Copy, Default)]
struct Cycle {
    since: Instant,
    wait: Duration,
    rounds_before: u64,
}

impl Bbr {
    /// Returns the state of a new connection; `seed` spreads the probes of several connections.
    pub(crate) fn new(seed: u64) -> Bbr {
        Bbr {
            phase: Phase::Startup,
            ack_phase: AckPhase::Other,
            cwnd: 0,
            initial_cwnd: 0,
            prior_cwnd: None,
            pacing_rate: 0.0,
            bandwidth: MaxBandwidth::default(),
            min_rtt: MinRtt::default(),
            bursts: AckBursts::default(),
            bounds: Bounds::default(),
            rounds: Rounds::default(),
            losses: LossRound::default(),
            chance: ChanceLosses::default(),
            full: FullPipe::default(),
            growth: Growth::default(),
            probes: false,
            limited_by_window: false,
            is_restarting: false,
            cycle: Cycle::default(),
            random: seed | 1,
        }
    }

    /// Starts with a window of `cwnd` bytes, on a path with this round trip.
    pub(crate) fn open(&mut self, cwnd: u64, rtt: Option<Duration>) {
        self.cwnd = cwnd;
        self.initial_cwnd = cwnd;
        let rtt = rtt.unwrap_or(ASSUMED_RTT).max(Duration::from_micros(1));
        self.pacing_rate = Phase::Startup.pacing_gain() * cwnd as f64 / rtt.as_secs_f64();
    }

    pub(crate) fn cwnd(&self) -> u64 {
        self.cwnd
    }

    /// Sets the window: after a timeout, when next to nothing is in flight.
    pub(crate) fn set_cwnd(&mut self, cwnd: u64) {
        self.cwnd = cwnd;
    }

    /// Returns the rate to send at, in bytes per second.
    pub(crate) fn pacing_rate(&self) -> u64 {
        // Saturates; never 0, which means that nothing is paced.
        (self.pacing_rate as u64).max(1)
    }

    /// Notes that the window holds data back.
    pub(crate) fn on_limited_by_window(&mut self) {
        self.limited_by_window = true;
    }

    /// Notes that data is sent after idle time (draft 5.4.1).
    pub(crate) fn on_restart(&mut self, delivered: u64, now: Instant) {
        self.is_restarting = true;
        self.bursts.restart(now);
        match self.phase {
            Phase::Down | Phase::Cruise | Phase::Refill | Phase::Up => self.set_pacing_rate(1.0),
            Phase::ProbeRtt { until: Some(end) } if now > end.at => {
                self.end_probe_rtt(delivered, now);
            }
            _ => {}
        }
    }

    /// Remembers the state before losses are repaired.
    pub(crate) fn on_losses(&mut self) -> Saved {
        self.save_cwnd();
        Saved {
            bounds: self.bounds,
            cwnd: self.prior_cwnd.unwrap_or(self.cwnd),
        }
    }

    /// Losses are repaired: the window is what it was.
    pub(crate) fn on_repaired(&mut self) {
        if let Some(prior) = self.prior_cwnd.take() {
            self.cwnd = self.cwnd.max(prior);
        }
    }

    /// There were no losses.
    pub(crate) fn undo(&mut self, saved: Saved) {
        let larger = |now: Option<u64>, then: Option<u64>| Some(now?.max(then?));
        let (now, then) = (self.bounds, saved.bounds);
        self.bounds = Bounds {
            bandwidth: now
                .bandwidth
                .zip(then.bandwidth)
                .map(|(now, then)| now.max(then)),
            short_term: larger(now.short_term, then.short_term),
            long_term: larger(now.long_term, then.long_term),
        };
        self.losses = LossRound::default();
        self.cwnd = self.cwnd.max(saved.cwnd);
        self.prior_cwnd = None;
    }

    /// Takes an ACK: updates the model, the phase, the rate and the window (draft 5.2.3).
    pub(crate) fn on_ack(&mut self, ack: &PathAck) {
        if let Some(sample) = &ack.sample {
            self.judge_losses(sample, ack);
            self.update_signals(sample, ack);
            self.bursts.on_ack(
                ack.acked,
                self.bandwidth(),
                self.cwnd,
                self.rounds.count,
                ack.now,
            );
            self.full.on_sample(sample, self.rounds.begins);
            self.leave_startup(sample, ack);
            self.leave_drain(ack);
            self.cycle(sample, ack);
        }
        self.probe_rtt(ack);
        if let Some(sample) = &ack.sample {
            if self.losses.ends {
                self.losses.latest = Latest::of(sample);
            }
            if self.rounds.begins {
                self.limited_by_window = false;
            }
        }
        self.set_pacing_rate(self.phase.pacing_gain());
        self.set_window(ack);
    }

    /// Takes what was lost: in a probe, too much of it ends the probe (draft 5.5.10.2).
    fn judge_losses(&mut self, sample: &DeliverySample, ack: &PathAck) {
        if ack.lost == 0 {
            return;
        }
        if self.losses.events == 0 {
            self.losses.end = ack.delivered;
        }
        self.losses.events = self.losses.events.saturating_add(1);
        if self.probes && is_too_much(sample, self.chance.tolerated()) {
            self.probes = false;
            if !sample.limited {
                self.bounds.long_term = Some(bound_after_losses(sample, self.target()));
            }
            if self.phase == Phase::Up {
                self.start_down(ack);
            }
        }
    }

    /// Updates bandwidth, rounds, and the short-term bounds at the end of a round with losses (draft 5.5.10.3).
    fn update_signals(&mut self, sample: &DeliverySample, ack: &PathAck) {
        self.losses.latest.on_sample(sample);
        self.losses.ends = sample.prior_delivered >= self.losses.end;
        if self.losses.ends {
            self.losses.end = ack.delivered;
        }
        self.rounds.on_sample(sample, ack.delivered);
        let met_no_queue = met_no_queue(ack.rtt, self.min_rtt.get());
        // ACKs of the last probe may still come in while the sender cruises.
        let cruised = self.phase == Phase::Cruise && self.ack_phase == AckPhase::Other;
        if self.rounds.begins && cruised && met_no_queue {
            self.chance.on_round(sample);
        }
        if sample.rate > 0.0 {
            self.bandwidth.on_sample(sample.rate, sample.limited);
        }
        if !self.losses.ends {
            return;
        }
        let probes = matches!(self.phase, Phase::Startup | Phase::Refill | Phase::Up);
        let tolerated = self.chance.tolerated();
        let by_chance = met_no_queue && !is_too_much(sample, tolerated);
        if self.losses.events > 0 && !probes && !by_chance {
            let mut carried = self.losses.latest.with_tolerated(sample, tolerated);
            // A sender at the bound sends so much less.
            carried.rate /= PACING_MARGIN;
            self.bounds
                .on_lossy_round(self.bandwidth.get(), self.cwnd, &carried);
        }
        if self.phase != Phase::Startup {
            self.losses.events = 0;
        }
    }

    /// Ends Startup when the path is full, or loses too much (draft 5.3.1).
    fn leave_startup(&mut self, sample: &DeliverySample, ack: &PathAck) {
        if self.phase != Phase::Startup {
            return;
        }
        if self.losses.ends {
            let many = self.losses.events >= STARTUP_LOSS_EVENTS;
            // A full queue lets no more through: while the rate grows, losses are by chance.
            let grows = self.full.rounds == 0;
            if many && !grows && is_too_much(sample, self.chance.tolerated()) {
                self.full.reached = true;
                let most = self.losses.latest.delivered.max(self.bdp(1.0));
                self.bounds.long_term = Some(most);
            }
            self.losses.events = 0;
        }
        if self.full.reached {
            self.phase = Phase::Drain {
                since_round: self.rounds.count,
            };
            self.rounds.start(ack.delivered);
        }
    }

    fn leave_drain(&mut self, ack: &PathAck) {
        if let Phase::Drain { since_round } = self.phase
            && (ack.in_flight <= self.fill(1.0, ack.mss)
                || self.rounds.count > since_round + DRAIN_ROUNDS)
        {
            self.start_down(ack);
        }
    }

    /// Moves on in the cycle of probing for bandwidth (draft 5.3.3.6).
    fn cycle(&mut self, sample: &DeliverySample, ack: &PathAck) {
        if !matches!(
            self.phase,
            Phase::Down | Phase::Cruise | Phase::Refill | Phase::Up
        ) {
            return;
        }
        self.adapt_long_term(sample, ack);
        self.search_above_the_bound(sample);
        match self.phase {
            Phase::Down | Phase::Cruise if self.is_time_to_probe(ack) => self.start_refill(ack),
            Phase::Down if self.is_drained(ack) => self.phase = Phase::Cruise,
            Phase::Refill if self.rounds.begins => self.start_up(sample, ack),
            Phase::Up if self.full.now => self.start_down(ack),
            _ => {}
        }
    }

    /// Raises the long-term bound by what was in flight without too many losses.
    fn adapt_long_term(&mut self, sample: &DeliverySample, ack: &PathAck) {
        if self.rounds.begins {
            match self.ack_phase {
                // What was lost before left before the probe.
                AckPhase::Starting => {
                    self.ack_phase = AckPhase::Feedback;
                    self.probes = true;
                }
                AckPhase::Stopping => {
                    self.ack_phase = AckPhase::Other;
                    self.probes = false;
                    if !sample.limited {
                        self.bandwidth.advance();
                    }
                }
                AckPhase::Feedback | AckPhase::Other => {}
            }
        }
        let Some(bound) = self.bounds.long_term else {
            return;
        };
        if is_too_much(sample, self.chance.tolerated()) {
            return;
        }
        let mut bound = bound.max(sample.in_flight_then);
        if self.phase == Phase::Up && self.limited_by_window && self.cwnd >= bound {
            let mss = ack.mss.into();
            bound += self
                .growth
                .on_ack(ack.acked, self.rounds.begins, self.cwnd, mss);
        }
        self.bounds.long_term = Some(bound);
    }

    fn is_time_to_probe(&self, ack: &PathAck) -> bool {
        let waited = ack.now.saturating_since(self.cycle.since) > self.cycle.wait;
        let segments = self.target() / u64::from(ack.mss.max(1));
        let rounds = self.rounds.count.saturating_sub(self.cycle.rounds_before);
        waited || rounds >= segments.min(RENO_ROUNDS_MAX)
    }

    fn is_drained(&self, ack: &PathAck) -> bool {
        let least = MIN_SEGMENTS * u64::from(ack.mss);
        let room = self.bounds.with_headroom(ack.mss.into(), least);
        room.is_none_or(|room| ack.in_flight <= room) && ack.in_flight <= self.fill(1.0, ack.mss)
    }

    /// Goes on with a probe that the bound held back, and not the path.
    fn search_above_the_bound(&mut self, sample: &DeliverySample) {
        let bound = self.bounds.long_term;
        let is_bound = self.limited_by_window && bound.is_some_and(|bound| self.cwnd >= bound);
        if self.phase == Phase::Up && is_bound {
            self.full.search_above(sample.rate);
        }
    }

    fn start_down(&mut self, ack: &PathAck) {
        self.losses.events = 0;
        self.losses.latest = Latest::default();
        let spread = self.next_random();
        self.cycle = Cycle {
            since: ack.now,
            wait: PROBE_WAIT + Duration::from_millis(spread % PROBE_WAIT_RANDOM_MS),
            // One round more or less, as the time.
            rounds_before: self.rounds.count.saturating_sub(spread & 1),
        };
        self.phase = Phase::Down;
        self.ack_phase = AckPhase::Stopping;
        self.rounds.start(ack.delivered);
    }

    fn start_refill(&mut self, ack: &PathAck) {
        self.bounds.forget_short_term();
        self.phase = Phase::Refill;
        self.ack_phase = AckPhase::Other;
        self.rounds.start(ack.delivered);
    }

    fn start_up(&mut self, sample: &DeliverySample, ack: &PathAck) {
        self.phase = Phase::Up;
        self.ack_phase = AckPhase::Starting;
        self.growth = Growth::begin(self.cwnd, ack.mss.into());
        self.full.search_above(sample.rate);
        self.rounds.start(ack.delivered);
    }

    /// Looks for the shortest round trip when it is old (draft 5.3.4.3).
    fn probe_rtt(&mut self, ack: &PathAck) {
        let age = self.min_rtt.on_ack(ack.rtt, ack.now);
        let probing = matches!(self.phase, Phase::ProbeRtt { .. });
        if !probing && age == RttAge::Expired && !self.is_restarting {
            self.save_cwnd();
            self.phase = Phase::ProbeRtt { until: None };
            self.ack_phase = AckPhase::Other;
            self.probes = false;
            self.rounds.start(ack.delivered);
        }
        match self.phase {
            Phase::ProbeRtt { until: None } if ack.in_flight <= self.drained_window(ack.mss) => {
                let until = Some(ProbeRttEnd {
                    at: ack.now + PROBE_RTT_TIME,
                    round_done: false,
                });
                self.phase = Phase::ProbeRtt { until };
                self.rounds.start(ack.delivered);
            }
            Phase::ProbeRtt { until: Some(end) } => {
                let round_done = end.round_done || (ack.sample.is_some() && self.rounds.begins);
                let until = Some(ProbeRttEnd { round_done, ..end });
                self.phase = Phase::ProbeRtt { until };
                if round_done && ack.now > end.at {
                    self.end_probe_rtt(ack.delivered, ack.now);
                }
            }
            _ => {}
        }
        if ack.acked > 0 {
            self.is_restarting = false;
        }
    }

    fn end_probe_rtt(&mut self, delivered: u64, now: Instant) {
        self.min_rtt.on_probed(now);
        self.on_repaired();
        self.bounds.forget_short_term();
        self.rounds.start(delivered);
        self.phase = match self.full.reached {
            true => {
                self.cycle.since = now;
                self.cycle.rounds_before = self.rounds.count;
                Phase::Cruise
            }
            false => Phase::Startup,
        };
    }

    /// Returns the bandwidth that may be used, in bytes per second.
    fn bandwidth(&self) -> f64 {
        let max = self.bandwidth.get();
        self.bounds.bandwidth.map_or(max, |bound| max.min(bound))
    }

    /// Returns `gain` times what the path holds at its full bandwidth.
    fn bdp(&self, gain: f64) -> u64 {
        match self.min_rtt.get() {
            Some(rtt) => (gain * self.bandwidth.get() * rtt.as_secs_f64()) as u64,
            None => self.initial_cwnd,
        }
    }

    /// Returns what should be in flight.
    fn target(&self) -> u64 {
        self.bdp(1.0).min(self.cwnd)
    }

    /// Returns `gain` times what fills the path, at least what offloads and delayed ACKs need.
    fn fill(&self, gain: f64, mss: u16) -> u64 {
        let mss = u64::from(mss);
        // A burst of pacing at each end, and what the peer's delayed ACK holds.
        let quantum = (self.pacing_rate / 1000.0) as u64;
        let offload = 3 * quantum.clamp(2 * mss, 64 << 10);
        let most = self.bdp(gain).max(offload).max(MIN_SEGMENTS * mss);
        match self.phase {
            Phase::Up => most + 2 * mss,
            _ => most,
        }
    }

    fn drained_window(&self, mss: u16) -> u64 {
        let gain = Phase::ProbeRtt { until: None }.cwnd_gain();
        let path = self.min_rtt.get().map_or(self.initial_cwnd as f64, |rtt| {
            gain * self.bandwidth() * rtt.as_secs_f64()
        });
        (path as u64).max(MIN_SEGMENTS * u64::from(mss))
    }

    /// Sets the pacing rate; before the path was full it only grows (draft 5.6.2).
    fn set_pacing_rate(&mut self, gain: f64) {
        let rate = gain * self.bandwidth() * PACING_MARGIN;
        if rate > 0.0 && (self.full.reached || rate > self.pacing_rate) {
            self.pacing_rate = rate;
        }
    }

    /// Sets the window (draft 5.6.4).
    fn set_window(&mut self, ack: &PathAck) {
        let most = self.fill(self.phase.cwnd_gain(), ack.mss) + self.bursts.get();
        let grown = self.cwnd + ack.acked;
        if self.full.reached {
            self.cwnd = grown.min(most);
        } else if self.cwnd < most || ack.delivered < self.initial_cwnd {
            self.cwnd = grown;
        }
        let least = MIN_SEGMENTS * u64::from(ack.mss);
        let long_term = match self.phase {
            Phase::Cruise | Phase::ProbeRtt { .. } => {
                self.bounds.with_headroom(ack.mss.into(), least)
            }
            Phase::Startup | Phase::Drain { .. } => None,
            Phase::Down | Phase::Refill | Phase::Up => self.bounds.long_term,
        };
        let drained =
            matches!(self.phase, Phase::ProbeRtt { .. }).then(|| self.drained_window(ack.mss));
        let bounds = [long_term, self.bounds.short_term, drained];
        let cap = bounds.into_iter().flatten().min().unwrap_or(u64::MAX);
        self.cwnd = self.cwnd.min(cap).clamp(least, MAX_CWND);
    }

    /// Remembers the window before it is reduced.
    pub(crate) fn save_cwnd(&mut self) {
        self.prior_cwnd = Some(
            self.prior_cwnd
                .map_or(self.cwnd, |prior| prior.max(self.cwnd)),
        );
    }

    /// Returns the next number of a xorshift generator: probes of several connections should not coincide.
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 1
    }
}
