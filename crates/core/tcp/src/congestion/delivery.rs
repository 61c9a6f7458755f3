//! Delivery rate of the path, measured by each ACK (draft-ietf-ccwg-bbr 4.1).
//!
//! What was known when a packet left is kept once for all packets that left at the same time: the scoreboard of loss
//! recovery stays as small as it is.

use core::time::Duration;
use std::collections::VecDeque;

use wire::Instant;

/// Most departures that are remembered; later ones share the last.
const DEPARTURES_MAX: usize = 4096;

/// What was known when packets left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Departure {
    sent_at: Instant,
    /// Bytes that had been delivered, and when the last of them was.
    delivered: u64,
    delivered_at: Instant,
    /// When the first packet of the sampling interval left.
    first_sent_at: Instant,
    /// Bytes that had been lost.
    lost: u64,
    /// Bytes in flight with these packets.
    in_flight: u64,
    /// The application gave too little to fill the path.
    limited: bool,
}

/// What one ACK tells of the path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DeliverySample {
    /// Bytes per second.
    pub(crate) rate: f64,
    /// Bytes delivered since the newest acknowledged packet left.
    pub(crate) delivered: u64,
    /// Bytes delivered before it left.
    pub(crate) prior_delivered: u64,
    /// Bytes lost since it left.
    pub(crate) lost: u64,
    /// Bytes in flight when it left, itself included.
    pub(crate) in_flight_then: u64,
    /// The rate is the application's, not the path's.
    pub(crate) limited: bool,
}

/// Counts what is delivered, and remembers what was in flight.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeliveryMeter {
    delivered: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    lost: u64,
    /// The application limits the rate until so many bytes are delivered.
    limited_until: Option<u64>,
    /// By time of sending.
    departures: VecDeque<Departure>,
}

impl DeliveryMeter {
    /// Returns how many bytes have been delivered.
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Returns whether the application, and not the path, limits the rate.
    pub(crate) fn is_limited(&self) -> bool {
        self.limited_until.is_some()
    }

    /// Notes `bytes` that leave, behind `in_flight` others.
    pub(crate) fn on_sent(&mut self, bytes: u64, in_flight: u64, now: Instant) {
        if in_flight == 0 {
            // The time without data in flight is no time of the path.
            self.first_sent_at = now;
            self.delivered_at = now;
        }
        let departure = Departure {
            sent_at: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            lost: self.lost,
            in_flight: in_flight + bytes,
            limited: self.limited_until.is_some(),
        };
        let is_full = self.departures.len() >= DEPARTURES_MAX;
        match self.departures.back_mut() {
            Some(last) if last.sent_at == now || is_full => {
                last.in_flight = departure.in_flight;
                last.limited |= departure.limited;
            }
            _ => self.departures.push_back(departure),
        }
    }

    /// Notes that the application has nothing to send behind the `in_flight` bytes.
    pub(crate) fn on_limited(&mut self, in_flight: u64) {
        self.limited_until = Some(self.delivered + in_flight);
    }

    /// Notes bytes that turned out to be lost.
    pub(crate) fn on_lost(&mut self, bytes: u64) {
        self.lost += bytes;
    }

    /// Takes `bytes` that an ACK delivered, the newest of which left at `newest`; returns what that tells.
    ///
    /// An interval shorter than `min_rtt` cannot be right: several ACKs were compressed into one moment, or the newest packet
    /// was taken for another (draft 4.1.2.3).
    pub(crate) fn on_delivered(
        &mut self,
        bytes: u64,
        newest: Option<Instant>,
        min_rtt: Option<Duration>,
        now: Instant,
    ) -> Option<DeliverySample> {
        if bytes == 0 {
            return None;
        }
        self.delivered += bytes;
        self.delivered_at = now;
        if self.limited_until.is_some_and(|end| self.delivered > end) {
            self.limited_until = None;
        }
        let newest = newest?;
        // The last one that is not newer: a retransmission counts as sent a little later than it was.
        while self
            .departures
            .get(1)
            .is_some_and(|next| next.sent_at <= newest)
        {
            self.departures.pop_front();
        }
        let then = *self.departures.front()?;
        if then.sent_at > newest {
            // An older packet, overtaken by those of an earlier sample.
            return None;
        }
        self.first_sent_at = newest;
        let sending = newest.saturating_since(then.first_sent_at);
        let acking = now.saturating_since(then.delivered_at);
        let interval = sending.max(acking);
        if interval.is_zero() || min_rtt.is_some_and(|min_rtt| interval < min_rtt) {
            return None;
        }
        let delivered = self.delivered.saturating_sub(then.delivered);
        Some(DeliverySample {
            rate: delivered as f64 / interval.as_secs_f64(),
            delivered,
            prior_delivered: then.delivered,
            lost: self.lost.saturating_sub(then.lost),
            in_flight_then: then.in_flight,
            limited: then.limited,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    const RTT: Duration = Duration::from_millis(10);

    #[test]
    fn the_rate_is_what_the_path_delivers_in_a_round_trip() {
        let mut meter = DeliveryMeter::default();
        // A packet of 1000 bytes each millisecond, acknowledged after ten.
        let mut last = None;
        for at in 0..40 {
            if at >= 10 {
                last = meter.on_delivered(1000, Some(ms(at - 10)), Some(RTT), ms(at));
            }
            meter.on_sent(1000, 1000 * at.min(10), ms(at));
        }
        let sample = last.expect("a packet of the steady state");
        assert_eq!(sample.rate, 1_000_000.0);
        assert_eq!((sample.delivered, sample.in_flight_then), (10_000, 11_000));
        assert!(!sample.limited);
    }

    #[test]
    fn a_burst_of_acks_is_not_taken_for_a_faster_path() {
        let mut meter = DeliveryMeter::default();
        for at in 0..10 {
            meter.on_sent(1000, 1000 * at, ms(at));
        }
        // All ACKs come at once: the packets left over nine milliseconds.
        let sample = meter.on_delivered(10_000, Some(ms(9)), Some(RTT), ms(20));
        assert_eq!(sample.map(|sample| sample.rate), Some(500_000.0));
    }

    #[test]
    fn what_the_application_withholds_marks_the_samples_that_it_spoils() {
        let mut meter = DeliveryMeter::default();
        meter.on_sent(1000, 0, ms(0));
        meter.on_limited(1000);
        let first = meter.on_delivered(1000, Some(ms(0)), None, ms(10)).unwrap();
        assert!(!first.limited, "it left before");
        meter.on_sent(1000, 0, ms(20));
        let second = meter.on_delivered(1000, Some(ms(20)), None, ms(30));
        assert!(second.unwrap().limited);
        meter.on_sent(1000, 0, ms(40));
        let third = meter.on_delivered(1000, Some(ms(40)), None, ms(50));
        assert!(!third.unwrap().limited, "{third:?}");
    }

    #[test]
    fn idle_time_does_not_count_and_older_packets_say_nothing() {
        let mut meter = DeliveryMeter::default();
        meter.on_sent(1000, 0, ms(0));
        let _ = meter.on_delivered(1000, Some(ms(0)), None, ms(10));
        meter.on_sent(1000, 0, ms(5000));
        meter.on_sent(1000, 1000, ms(5001));
        let sample = meter.on_delivered(1000, Some(ms(5001)), None, ms(5010));
        assert_eq!(sample.map(|sample| sample.rate), Some(100_000.0));
        let overtaken = meter.on_delivered(1000, Some(ms(5000)), None, ms(5011));
        assert_eq!(overtaken, None);
        assert_eq!(meter.delivered(), 3000);
    }

    #[test]
    fn losses_count_from_the_departure_on() {
        let mut meter = DeliveryMeter::default();
        meter.on_lost(500);
        meter.on_sent(1000, 0, ms(0));
        meter.on_lost(300);
        let sample = meter.on_delivered(700, Some(ms(0)), None, ms(10));
        assert_eq!(sample.map(|sample| sample.lost), Some(300));
    }

    #[test]
    fn memory_is_bounded_without_any_ack() {
        let mut meter = DeliveryMeter::default();
        for at in 0..3 * DEPARTURES_MAX as u64 {
            meter.on_sent(1000, 1000 * at, Instant::from_nanos(at));
        }
        assert_eq!(meter.departures.len(), DEPARTURES_MAX);
    }
}
