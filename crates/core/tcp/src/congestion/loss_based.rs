//! Congestion control by losses and marks: cwnd and ssthresh (RFC 5681), with NewReno, CUBIC or DCTCP.

use core::time::Duration;

use wire::Instant;

use super::cubic::Cubic;
use super::dctcp::Dctcp;
use super::hystart::{HyStart, SlowStartPace};
use super::input::{Acked, FlightLimit, Growth, MAX_CWND};
use super::newreno::NewReno;

/// The slow start threshold before the first loss.
const INFINITE: u32 = u32::MAX;

/// Smallest ssthresh after a loss, in segments (RFC 5681 equation 4).
const MIN_SSTHRESH_SEGMENTS: u64 = 2;

/// The kinds of congestion avoidance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LossBased {
    NewReno,
    Cubic,
    Dctcp,
}

/// The congestion avoidance in use.
#[derive(Debug, Clone)]
enum Avoidance {
    NewReno(NewReno),
    Cubic(Cubic),
    /// Boxed, so that the connections of others have no room for it.
    Dctcp(Box<Dctcp>),
}

/// How much of the window was used in the current round trip (linux `tcp_cwnd_validate`).
#[derive(Debug, Clone, Copy, Default)]
struct Usage {
    /// The window, and nothing else, held data back.
    limited: bool,
    /// Most bytes in flight.
    max_flight: u32,
    /// The round trip ends when this offset is acknowledged.
    round_end: u64,
}

/// State before a reduction, to return to if there was no loss.
#[derive(Debug, Clone)]
pub(crate) struct Prior {
    cwnd: u32,
    ssthresh: u32,
    avoidance: Avoidance,
}

/// cwnd and ssthresh, and the state of slow start and congestion avoidance.
#[derive(Debug, Clone)]
pub(crate) struct Congestion {
    cwnd: u32,
    /// [`INFINITE`] before the first loss.
    ssthresh: u32,
    avoidance: Avoidance,
    /// Only with CUBIC, as in Linux.
    hystart: Option<HyStart>,
    usage: Usage,
}

impl Congestion {
    /// Returns the initial state.
    pub(crate) fn new(kind: LossBased) -> Congestion {
        let (avoidance, hystart) = match kind {
            LossBased::NewReno => (Avoidance::NewReno(NewReno::default()), None),
            LossBased::Cubic => (Avoidance::Cubic(Cubic::default()), Some(HyStart::new(0))),
            LossBased::Dctcp => (Avoidance::Dctcp(Box::default()), None),
        };
        Congestion {
            cwnd: 0,
            ssthresh: INFINITE,
            avoidance,
            hystart,
            usage: Usage::default(),
        }
    }

    /// Changes the congestion avoidance; the window stays (linux `tcp_reinit_congestion_control`).
    pub(crate) fn change(&mut self, kind: LossBased) {
        if self.kind() != kind {
            let Congestion {
                avoidance, hystart, ..
            } = Congestion::new(kind);
            (self.avoidance, self.hystart) = (avoidance, hystart);
        }
    }

    fn kind(&self) -> LossBased {
        match self.avoidance {
            Avoidance::NewReno(_) => LossBased::NewReno,
            Avoidance::Cubic(_) => LossBased::Cubic,
            Avoidance::Dctcp(_) => LossBased::Dctcp,
        }
    }

    /// Returns the congestion window in bytes.
    pub(crate) fn cwnd(&self) -> u64 {
        self.cwnd.into()
    }

    /// Returns the slow start threshold in bytes, `None` before the first loss.
    pub(crate) fn ssthresh(&self) -> Option<u64> {
        (self.ssthresh != INFINITE).then_some(self.ssthresh.into())
    }

    /// Returns whether the window is below the threshold.
    pub(crate) fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Sets the window: at the start, and in loss recovery.
    pub(crate) fn set_cwnd(&mut self, cwnd: u64) {
        self.cwnd = cwnd.min(MAX_CWND) as u32;
    }

    /// Notes that `flight` bytes are in flight between `(snd_una, snd_nxt)`, and what limits them
    /// (linux `tcp_cwnd_validate`).
    pub(crate) fn note_flight(
        &mut self,
        flight: u64,
        limit: FlightLimit,
        (snd_una, snd_nxt): (u64, u64),
    ) {
        let limited = limit == FlightLimit::Window;
        let flight = u32::try_from(flight).unwrap_or(u32::MAX);
        let usage = &mut self.usage;
        let new_round = snd_una >= usage.round_end;
        if new_round || limited || (!usage.limited && flight > usage.max_flight) {
            *usage = Usage {
                limited,
                max_flight: flight,
                round_end: snd_nxt,
            };
        }
    }

    /// Returns whether the window limited the data in flight (linux `tcp_is_cwnd_limited`).
    fn is_limited(&self) -> bool {
        self.usage.limited || (self.in_slow_start() && self.cwnd / 2 < self.usage.max_flight)
    }

    /// Grows the window for an ACK, unless the application did not use it (RFC 9438 5.8, RFC 7661 1).
    pub(crate) fn on_ack(&mut self, acked: &Acked) {
        if !self.is_limited() {
            if let Avoidance::Cubic(cubic) = &mut self.avoidance {
                cubic.on_application_limited(acked.now);
            }
            return;
        }
        let mut left = acked.bytes;
        if self.in_slow_start() {
            left = self.slow_start(acked);
        }
        if left == 0 {
            return;
        }
        let growth = Growth {
            acked: left,
            mss: acked.mss,
            srtt: acked.srtt,
            now: acked.now,
        };
        let grown = match &mut self.avoidance {
            Avoidance::NewReno(reno) => reno.on_ack(self.cwnd.into(), &growth),
            Avoidance::Cubic(cubic) => cubic.on_ack(self.cwnd.into(), &growth),
            Avoidance::Dctcp(dctcp) => dctcp.on_ack(self.cwnd.into(), &growth),
        };
        self.set_cwnd(u64::from(self.cwnd) + grown);
    }

    /// Grows the window by the acknowledged bytes, up to ssthresh; returns the bytes left for congestion avoidance.
    fn slow_start(&mut self, acked: &Acked) -> u64 {
        let pace = match &mut self.hystart {
            // HyStart++ is for the first slow start only (RFC 9406 4.3).
            Some(hystart) if self.ssthresh == INFINITE => {
                hystart.on_ack(acked.bytes, acked.rtt, acked.snd_una, acked.snd_nxt)
            }
            _ => SlowStartPace::Grow(acked.bytes),
        };
        match pace {
            SlowStartPace::Grow(bytes) => {
                let grown = bytes.min((self.ssthresh - self.cwnd).into());
                self.set_cwnd(u64::from(self.cwnd) + grown);
                bytes - grown
            }
            SlowStartPace::Leave => {
                self.ssthresh = self.cwnd;
                0
            }
        }
    }

    /// Takes how much of what an ACK delivered was marked.
    pub(crate) fn note_marks(&mut self, acked: &Acked, marked: u64) {
        if let Avoidance::Dctcp(dctcp) = &mut self.avoidance {
            dctcp.note_marks(acked, marked);
        }
    }

    /// Returns whether a mark reduces the window by less than a loss, so that a loss in the same window counts in addition.
    pub(crate) fn answers_marks_by_less(&self) -> bool {
        self.kind() == LossBased::Dctcp
    }

    /// Reacts to a loss: sets ssthresh, and returns the state for [`Congestion::undo`].
    ///
    /// PRR or the timeout sets the window.
    pub(crate) fn on_loss(&mut self, mss: u16) -> Prior {
        let prior = Prior {
            cwnd: self.cwnd,
            ssthresh: self.ssthresh,
            avoidance: self.avoidance.clone(),
        };
        let reduced = match &mut self.avoidance {
            Avoidance::NewReno(reno) => reno.on_loss(self.cwnd.into()),
            Avoidance::Cubic(cubic) => cubic.on_loss(self.cwnd.into(), mss),
            Avoidance::Dctcp(dctcp) => dctcp.on_loss(self.cwnd.into()),
        };
        self.set_ssthresh(reduced, mss);
        prior
    }

    /// Reacts to a mark: as to a loss, except with DCTCP.
    pub(crate) fn on_mark(&mut self, mss: u16) {
        match &mut self.avoidance {
            Avoidance::Dctcp(dctcp) => {
                let reduced = dctcp.on_mark(self.cwnd.into());
                self.set_ssthresh(reduced, mss);
            }
            Avoidance::NewReno(_) | Avoidance::Cubic(_) => drop(self.on_loss(mss)),
        }
    }

    fn set_ssthresh(&mut self, reduced: u64, mss: u16) {
        self.ssthresh = reduced
            .max(MIN_SSTHRESH_SEGMENTS * u64::from(mss))
            .min(MAX_CWND) as u32;
    }

    /// Returns to the state before [`Congestion::on_loss`]: there was no loss (RFC 9438 4.9).
    pub(crate) fn undo(&mut self, prior: Prior) {
        self.cwnd = self.cwnd.max(prior.cwnd);
        self.ssthresh = prior.ssthresh;
        match (&self.avoidance, prior.avoidance) {
            (Avoidance::NewReno(_), before @ Avoidance::NewReno(_))
            | (Avoidance::Cubic(_), before @ Avoidance::Cubic(_)) => self.avoidance = before,
            // The share of marked bytes is what it is; or the program has changed the congestion avoidance since.
            (Avoidance::NewReno(_) | Avoidance::Cubic(_) | Avoidance::Dctcp(_), _) => {}
        }
    }

    /// Reduces the window after `idle` without sending: halves it for each timeout in that time, down to the restart
    /// window (RFC 5681 4.1, linux `tcp_cwnd_restart`).
    pub(crate) fn on_idle(
        &mut self,
        idle: Duration,
        rto: Duration,
        restart_window: u64,
        now: Instant,
    ) {
        let floor = restart_window.min(self.cwnd.into()) as u32;
        // An infinite threshold stays so.
        self.ssthresh = self.ssthresh.max(self.cwnd / 4 * 3);
        let mut left = idle;
        while left > rto && self.cwnd > floor {
            left -= rto;
            self.cwnd /= 2;
        }
        self.cwnd = self.cwnd.max(floor);
        if let Avoidance::Cubic(cubic) = &mut self.avoidance {
            cubic.on_application_limited(now - idle);
        }
        self.usage = Usage::default();
    }
}
