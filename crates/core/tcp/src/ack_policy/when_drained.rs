//! The default rules: ACKs leave when the link is empty, or with an answer.

use core::time::Duration;

use wire::Instant;

use super::decision::{AckFacts, AckTime};
use super::interactive::{Interactive, Request};
use crate::config::{ACK_BYTES_MAX, AckConfig};
use crate::ecn::echo::AckUrgency;

/// In this time after an ACK of at least [`BULK_BYTES`], an empty link alone makes no ACK due: the next poll decides. A receiver that
/// is about as fast as the sender empties the link after almost every packet, so that it would acknowledge every second one; in
/// this time a fast sender sends about as much as one ACK may cover. The ACK leaves after it if there is no other poll.
const DRAINED_INTERVAL: Duration = Duration::from_micros(100);

/// An ACK of so many bytes, half a super-packet, belongs to a bulk transfer. Senders with a small congestion window wait for ACKs of
/// less.
const BULK_BYTES: usize = 32 << 10;

/// Sends ACKs when the link is empty: more waiting would gain nothing, and bulk transfers, which keep the link busy, need
/// few ACKs. A request that the program usually answers at once is acknowledged with the answer ([`Interactive`]).
#[derive(Debug)]
pub(super) struct WhenDrained {
    /// Number of segments left that are acknowledged one by one.
    quick: u8,
    delay: Duration,
    bytes: Option<u32>,
    last_arrival: Instant,
    /// Time of the last ACK, if it covered at least [`BULK_BYTES`].
    bulk_ack: Option<Instant>,
    interactive: Interactive,
}

impl WhenDrained {
    pub(super) fn new(config: &AckConfig) -> WhenDrained {
        let AckConfig {
            delay,
            quick,
            bytes,
            invalid_interval: _,
        } = *config;
        WhenDrained {
            quick,
            delay,
            bytes,
            last_arrival: Instant::ZERO,
            bulk_ack: None,
            interactive: Interactive::new(delay),
        }
    }

    /// Returns after how many bytes an ACK is due. With a quarter of the window, the sender can go on while the ACK travels;
    /// RFC 9293 3.8.6.3 asks for an ACK for every second segment.
    fn threshold(&self, facts: AckFacts) -> usize {
        let bulk = self.bytes.unwrap_or(ACK_BYTES_MAX.min(facts.window / 4));
        (bulk as usize).max(2 * usize::from(facts.rcv_mss))
    }
}

impl WhenDrained {
    /// The peer's SYN-ACK has opened the connection, and a write waits for that: its data can carry the ACK.
    pub(super) fn on_awaited_open(&mut self, _: AckFacts, _: Instant) -> AckTime {
        AckTime::Now
    }

    /// Payload arrived in order.
    pub(super) fn on_data(&mut self, facts: AckFacts, now: Instant) -> AckTime {
        self.last_arrival = now;
        self.interactive.on_data(request(facts), now);
        let quick = self.quick > 0 && !facts.push;
        if quick {
            self.quick -= 1;
        }
        match facts.unacked >= self.threshold(facts) {
            _ if quick => AckTime::Now,
            true => AckTime::AfterBurst,
            false => AckTime::Within(self.delay),
        }
    }

    /// The peer's FIN arrived in order.
    pub(super) fn on_fin(&mut self, now: Instant) -> AckTime {
        self.interactive.on_fin(now);
        AckTime::Within(self.delay)
    }

    /// A segment arrived that is acknowledged at once.
    pub(super) fn on_notable(&mut self, _: AckFacts) {
        self.interactive.stop();
    }

    /// The ECN field of arriving data calls for a fast ACK.
    pub(super) fn on_mark(&mut self, haste: AckUrgency) -> AckTime {
        match haste {
            AckUrgency::Marked => AckTime::Now,
            AckUrgency::No | AckUrgency::Repeated => AckTime::Unchanged,
        }
    }

    /// Returns whether a pending ACK is sent when the link is empty, or soon after.
    pub(super) fn waits_for_link(&self) -> bool {
        !self.interactive.awaits_answer()
    }

    /// The stack has emptied the link.
    pub(super) fn on_drained(&mut self) -> AckTime {
        if self.interactive.on_drained() {
            return AckTime::Unchanged;
        }
        let next = self.bulk_ack.map(|at| at + DRAINED_INTERVAL);
        match next.filter(|next| self.last_arrival < *next) {
            Some(next) => AckTime::By(next),
            None => AckTime::Now,
        }
    }

    /// The user has read everything.
    pub(super) fn on_read(&mut self, _: AckFacts) -> AckTime {
        AckTime::Unchanged
    }

    /// Data was sent.
    pub(super) fn on_data_sent(&mut self, now: Instant) {
        self.interactive.on_data_sent(now);
    }

    /// An ACK was sent, alone or with data.
    pub(super) fn on_ack_sent(&mut self, is_delayed: bool, facts: AckFacts, now: Instant) {
        self.interactive.on_ack_sent(is_delayed, now);
        self.bulk_ack = (facts.unacked >= BULK_BYTES).then_some(now);
    }

    /// The user wants quick ACKs, or no longer (TCP_QUICKACK).
    pub(super) fn set_quick(&mut self, quick: bool) {
        match quick {
            true => self.interactive.stop(),
            false => self.interactive.start(),
        }
    }

    /// Returns whether ACKs are quick, as TCP_QUICKACK reports it.
    pub(super) fn is_quick(&self) -> bool {
        !self.interactive.is_on()
    }
}

/// Returns what a packet with payload may be: with PSH, and the first one since the last ACK, all that the peer has to say.
fn request(facts: AckFacts) -> Request {
    match facts.push && facts.unacked == facts.len {
        true if facts.len < facts.mss.into() => Request::Short,
        true if facts.len < BULK_BYTES => Request::Long,
        _ => Request::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_packet_with_psh_of_less_than_half_a_super_packet() {
        let facts = |len, unacked, push| AckFacts {
            len,
            push,
            unacked,
            window: 1 << 20,
            rcv_mss: 1460,
            mss: 1460,
        };
        for (len, unacked, push, expected) in [
            (1459, 1459, true, Request::Short),
            (1460, 1460, true, Request::Long),
            (BULK_BYTES - 1, BULK_BYTES - 1, true, Request::Long),
            (BULK_BYTES, BULK_BYTES, true, Request::No),
            (1460, 1461, true, Request::No),
            (1460, 1460, false, Request::No),
        ] {
            assert_eq!(
                request(facts(len, unacked, push)),
                expected,
                "{len} {unacked}"
            );
        }
    }
}
