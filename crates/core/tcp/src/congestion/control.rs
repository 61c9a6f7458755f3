//! The congestion control of one connection: by losses and marks ([`Congestion`]: NewReno, CUBIC, DCTCP), or by the path ([`Bbr`]).

use core::time::Duration;

use wire::Instant;

use super::bbr::{self, Bbr, PathAck};
use super::delivery::DeliveryMeter;
use super::input::{Acked, FlightLimit};
use super::loss_based::{self, Congestion, LossBased};
use crate::settings::CongestionKind;

/// One of the two kinds.
#[derive(Debug, Clone)]
pub(crate) enum Control {
    ByLoss(Congestion),
    ByPath(Box<PathControl>),
}

/// What controls by the path need.
#[derive(Debug, Clone)]
pub(crate) struct PathControl {
    bbr: Bbr,
    meter: DeliveryMeter,
    /// Bytes that were found to be lost since the last ACK that was measured.
    lost: u64,
}

impl PathControl {
    /// Returns the rate to send at, in bytes per second.
    pub(crate) fn pacing_rate(&self) -> u64 {
        self.bbr.pacing_rate()
    }
}

/// State before a reduction, to return to if there was no loss.
#[derive(Debug, Clone)]
pub(crate) enum Prior {
    ByLoss(loss_based::Prior),
    ByPath(bbr::Saved),
}

/// What an ACK delivered, for a measurement of the path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delivery {
    pub(crate) acked: Acked,
    /// When the newest packet that it acknowledges left.
    pub(crate) newest: Option<Instant>,
    /// Shortest round trip so far.
    pub(crate) min_rtt: Option<Duration>,
    /// Bytes in flight after it.
    pub(crate) in_flight: u64,
}

impl Control {
    /// Returns the initial state; `seed` differs between connections.
    pub(crate) fn new(kind: CongestionKind, seed: u64) -> Control {
        match loss_based_kind(kind) {
            Some(kind) => Control::ByLoss(Congestion::new(kind)),
            None => Control::ByPath(Box::new(PathControl {
                bbr: Bbr::new(seed),
                meter: DeliveryMeter::default(),
                lost: 0,
            })),
        }
    }

    /// Starts with a window of `cwnd` bytes, on a path with this round trip.
    pub(crate) fn open(&mut self, cwnd: u64, rtt: Option<Duration>) {
        match self {
            Control::ByLoss(congestion) => congestion.set_cwnd(cwnd),
            Control::ByPath(path) => path.bbr.open(cwnd, rtt),
        }
    }

    /// Changes the kind; the window stays (linux `tcp_reinit_congestion_control`).
    pub(crate) fn change(&mut self, kind: CongestionKind, seed: u64, rtt: Option<Duration>) {
        match (&mut *self, loss_based_kind(kind)) {
            (Control::ByLoss(congestion), Some(kind)) => congestion.change(kind),
            (Control::ByPath(_), None) => {}
            _ => {
                let cwnd = self.cwnd();
                *self = Control::new(kind, seed);
                self.open(cwnd, rtt);
            }
        }
    }

    /// Returns the congestion window in bytes.
    pub(crate) fn cwnd(&self) -> u64 {
        match self {
            Control::ByLoss(congestion) => congestion.cwnd(),
            Control::ByPath(path) => path.bbr.cwnd(),
        }
    }

    /// Returns the slow start threshold in bytes; `None` before the first loss, and where there is none.
    pub(crate) fn ssthresh(&self) -> Option<u64> {
        match self {
            Control::ByLoss(congestion) => congestion.ssthresh(),
            Control::ByPath(_) => None,
        }
    }

    /// Sets the window, in loss recovery.
    pub(crate) fn set_cwnd(&mut self, cwnd: u64) {
        match self {
            Control::ByLoss(congestion) => congestion.set_cwnd(cwnd),
            Control::ByPath(path) => path.bbr.set_cwnd(cwnd),
        }
    }

    /// Notes that `flight` bytes are in flight between `span`, and what kept it from being more.
    pub(crate) fn note_flight(&mut self, flight: u64, limit: FlightLimit, span: (u64, u64)) {
        match self {
            Control::ByLoss(congestion) => congestion.note_flight(flight, limit, span),
            Control::ByPath(path) if limit == FlightLimit::Window => {
                path.bbr.on_limited_by_window();
            }
            Control::ByPath(_) => {}
        }
    }

    /// Notes that the application has nothing to send behind `in_flight` bytes.
    pub(crate) fn on_application_limited(&mut self, in_flight: u64) {
        if let Control::ByPath(path) = self
            && in_flight < path.bbr.cwnd()
        {
            path.meter.on_limited(in_flight);
        }
    }

    /// Notes `bytes` that left, with which `in_flight` bytes are in flight.
    pub(crate) fn on_sent(&mut self, bytes: u64, in_flight: u64, now: Instant) {
        if let Control::ByPath(path) = self {
            let before = in_flight.saturating_sub(bytes);
            if before == 0 && path.meter.is_limited() {
                path.bbr.on_restart(path.meter.delivered(), now);
            }
            path.meter.on_sent(bytes, before, now);
        }
    }

    /// Notes bytes that were found to be lost.
    pub(crate) fn on_lost(&mut self, bytes: u64) {
        if let Control::ByPath(path) = self {
            path.meter.on_lost(bytes);
            path.lost += bytes;
        }
    }

    /// Grows the window for an ACK that may do so.
    pub(crate) fn on_ack(&mut self, acked: &Acked) {
        if let Control::ByLoss(congestion) = self {
            congestion.on_ack(acked);
        }
    }

    /// Takes what any ACK says of the path.
    pub(crate) fn on_delivery(&mut self, delivery: &Delivery) {
        let Control::ByPath(path) = self else {
            return;
        };
        let Delivery { acked, .. } = delivery;
        let sample =
            path.meter
                .on_delivered(acked.bytes, delivery.newest, delivery.min_rtt, acked.now);
        let lost = match sample {
            Some(_) => core::mem::take(&mut path.lost),
            None => 0,
        };
        path.bbr.on_ack(&PathAck {
            sample,
            acked: acked.bytes,
            lost,
            delivered: path.meter.delivered(),
            in_flight: delivery.in_flight,
            rtt: acked.rtt,
            mss: acked.mss,
            now: acked.now,
        });
    }

    /// Takes how much of what an ACK delivered was marked.
    pub(crate) fn note_marks(&mut self, acked: &Acked, marked: u64) {
        if let Control::ByLoss(congestion) = self {
            congestion.note_marks(acked, marked);
        }
    }

    /// Returns whether a loss reduces the window although a mark has done so before, in the same window.
    pub(crate) fn answers_marks_by_less(&self) -> bool {
        match self {
            Control::ByLoss(congestion) => congestion.answers_marks_by_less(),
            Control::ByPath(_) => false,
        }
    }

    /// Answers a mark. It is not taken back.
    pub(crate) fn on_mark(&mut self, mss: u16) {
        match self {
            Control::ByLoss(congestion) => congestion.on_mark(mss),
            Control::ByPath(path) => path.bbr.save_cwnd(),
        }
    }

    /// Answers a loss; returns what [`Control::undo`] goes back to.
    pub(crate) fn on_loss(&mut self, mss: u16) -> Prior {
        match self {
            Control::ByLoss(congestion) => Prior::ByLoss(congestion.on_loss(mss)),
            Control::ByPath(path) => Prior::ByPath(path.bbr.on_losses()),
        }
    }

    /// Ends a reduction.
    pub(crate) fn end_reduction(&mut self) {
        match self {
            Control::ByLoss(congestion) => {
                let cwnd = congestion.cwnd();
                congestion.set_cwnd(congestion.ssthresh().unwrap_or(cwnd));
            }
            Control::ByPath(path) => path.bbr.on_repaired(),
        }
    }

    /// Ends the losses of a timeout: what a path was found to carry, it carries again. A window by losses has to grow again.
    pub(crate) fn end_timeout(&mut self) {
        if let Control::ByPath(path) = self {
            path.bbr.on_repaired();
        }
    }

    /// Takes a reduction back: there was no loss. What was reduced under another kind stays.
    pub(crate) fn undo(&mut self, prior: Prior) {
        match (self, prior) {
            (Control::ByLoss(congestion), Prior::ByLoss(prior)) => congestion.undo(prior),
            (Control::ByPath(path), Prior::ByPath(saved)) => path.bbr.undo(saved),
            _ => {}
        }
    }

    /// Forgets a window that a pause of `idle` has made stale (RFC 5681 4.1), down to `restart_window`. A model of the path
    /// does not become stale so.
    pub(crate) fn on_idle(
        &mut self,
        idle: Duration,
        rto: Duration,
        restart_window: u64,
        now: Instant,
    ) {
        if let Control::ByLoss(congestion) = self {
            congestion.on_idle(idle, rto, restart_window, now);
        }
    }
}

fn loss_based_kind(kind: CongestionKind) -> Option<LossBased> {
    match kind {
        CongestionKind::NewReno => Some(LossBased::NewReno),
        CongestionKind::Cubic => Some(LossBased::Cubic),
        CongestionKind::Dctcp => Some(LossBased::Dctcp),
        CongestionKind::Bbr => None,
    }
}
